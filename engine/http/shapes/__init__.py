"""Types of the JSON that the HTTP API takes and answers, from which its reference is made (engine/http/reference/).

basics.py     types that many answers share      queues.py     queues and their messages
topology.py   exchanges, bindings, policies ...  access.py     users, permissions, limits
clients.py    connections, channels, consumers   history.py    answers about the history
node.py       overview, nodes, health            placement.py  a repartition
standby.py    followers
"""
