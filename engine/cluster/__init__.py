"""One node of several on a Kafka. Its twin on a disk of its own is engine/embedded. Read node.py first.

node.py        the node's life: heartbeats, lost nodes, duties       start.py          joins the log, opens the broker
partition.py   an event is folded when it is read back               flow_control.py   when publishers wait
repair.py      finishes what a lost node left half done              state_copy.py     a state for a new node
"""
