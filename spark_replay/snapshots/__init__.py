"""Snapshots that an auditor makes, and the fold checked from snapshot to snapshot.

build.py         `cut` makes them             external.py   the directory in which they are, bound to its log
verify.py        `verify`                     checkpoints.py   a fold from exactly one snapshot
"""
