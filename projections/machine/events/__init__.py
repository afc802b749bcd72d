"""The handlers of events: one function an event. The table in machine.py names each; read publish.py first.

publish.py      a message reaches its queues           delivery.py   consumers come, go and get messages
settlement.py   ack, nack, reject, and returns         queues.py     queues, sessions and nodes come and go
"""
