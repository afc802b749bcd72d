"""The handlers of events: one function an event. The table in projections/machine/machine.py names each; read
publish.py first.

publish.py      a message reaches its queues           delivery.py   consumers come, go and get messages
settlement.py   ack, nack, reject, and returns         queues.py     queues, sessions and nodes come and go
lookahead.py    messages held beyond the prefetch      pause.py      queues that deliver nothing for a while
removal.py      single messages taken out              relocation.py   queues that move to another partition
"""
