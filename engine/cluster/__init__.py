"""One node of several on a Kafka. engine/embedded is its twin with a log on its own disk. Read node.py first.

node.py                the node's life: beats, lost nodes, duties
silences.py            which nodes have been silent for too long
start.py               joins the log, opens the broker
partition.py           an event is folded when it is read back
metadata.py            the same in the metadata log
own_records.py         a node knows its own records when they come back
partition_pausing.py   which partitions are folded here
resumption.py          a partition goes on after a pause
snapshot_export.py     an owner leaves its snapshot in Kafka
snapshot_import.py     a node begins with it
store_copy.py          a state for a new node, from a node that runs
counter_rounds.py      counters of queues, for nodes that pause
flow_control.py        when publishers wait
repair.py              finishes the work that a lost node left unfinished
beats.py               what the node writes into the topic of heartbeats
awareness.py           what each node has folded of the metadata log, as its beats show
refusing_queues.py     queues that refuse when they are full, in paused partitions
policy_proofs.py       every queue knows that a policy has ended
"""
