"""Signed statements about ranges of the log, so that a later change is found. Read seal.py first.

seal.py                     a seal, its signature, and the proof of one event
sealer.py                   seals, checks and proves a partition; merkle.py and fingerprints.py are its arithmetic
in_files.py, in_topic.py    where the seals of an embedded log and of a topic in Kafka are
"""
