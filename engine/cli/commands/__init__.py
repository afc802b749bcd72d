"""The commands, a file for each group; each has COMMANDS. Read queues.py first: it is short and typical.

They ask a running broker through the management API. events.py, history.py, seals.py, versions.py and erasures.py also
read the log without a broker.
"""
