"""Signed statements about ranges of the log, which reveal any later change. Read seal.py first.

seal.py                     a seal, its signature, and the proof of one event
sealer.py                   seals, checks and proves a partition; merkle.py and fingerprints.py are its arithmetic
commitments.py              how a seal hides bodies, and the secret that opens it
in_files.py, in_topic.py    the seals of an embedded log, and of a topic in Kafka
partitions.py               the partitions of a history with their seals, wherever it is
register.py                 all seals of a history in one order, with signed notes
witnesses.py, time_stamps.py    ask other people to sign a note, through outside.py
proof_verifier.py           checks a proof with nothing but Python: the file for strangers
"""
