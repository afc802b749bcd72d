"""Signed statements about ranges of the log, so that a later change is found. Read seal.py first.

seal.py                     a seal, its signature, and the proof of one event
sealer.py                   seals, checks and proves a partition; merkle.py and fingerprints.py are its arithmetic
commitments.py              how a seal hides bodies, and the secret that opens it
in_files.py, in_topic.py    where the seals of an embedded log and of a topic in Kafka are
partitions.py               the partitions of a history with their seals, wherever it is
register.py                 all seals of a history in one order, with signed notes
witnesses.py, time_stamps.py    ask other people to sign a note, by way of outside.py
proof_verifier.py           checks a proof, with Python alone: the file that a stranger is given
"""
