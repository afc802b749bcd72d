"""Both kinds of log in memory, with delays, cuts and faults, for tests.

embedded.py   the log of one broker            shared.py   the log of several nodes, as on Kafka
"""
