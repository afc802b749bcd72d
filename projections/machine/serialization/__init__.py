"""The conversion of a machine's state to bytes and back. Read pack.py first.

pack.py     queues and states as records          load.py      the inverse
changes.py  the changes since the last write      digest.py    digests of queues and states
"""
