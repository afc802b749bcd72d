"""One live partition, and everything else that a running broker needs below its commands. Read partition.py first.

partition.py       appends events, folds them, performs their effects
metadata.py        the same for the metadata log           lifecycle.py      what a kind of log must offer to a broker
sessions.py        connections as the log knows them       certainty.py      answers that need an up-to-date node
log_clock.py       the time of events                      loop_share.py, slices.py, eager.py   long work in slices
queue_counters.py  what a listing shows of queues that are not folded here
memory.py, watermarks.py, flow_control.py, admission.py    limits of memory, disk, publishers and connections
"""
