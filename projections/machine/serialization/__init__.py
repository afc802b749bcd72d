"""The state of a machine as bytes, and back. Read pack.py first.

pack.py     queues and states as records          load.py      the inverse
changes.py  what has changed since the last write digest.py    digests of queues and states
"""
