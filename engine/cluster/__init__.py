"""One node of several on a Kafka. engine/embedded is its twin with a log on its own disk. Read node.py first.

node.py        the node's life: heartbeats, lost nodes, duties       start.py          joins the log, opens the broker
partition.py   an event is folded when it is read back               flow_control.py   when publishers wait
repair.py      finishes the work that a lost node left unfinished    state_copy.py     a state for a new node
modes.py       which partitions are folded here          counter_rounds.py   counters of queues, for nodes that pause
state_offers.py   an owner leaves its snapshot in Kafka  entry.py              a node begins with it
returns.py     a partition goes on with it after a pause
beats.py       what the node writes into the topic of heartbeats
topic_source.py   what the node's archiver process archives
"""
