"""The folded state in RocksDB, written behind the fold. Read store.py first: its head has the steps of a write.

store.py, keys.py, rocks.py   the database, its keys, its options       projector.py    the fold's effects, written
bodies.py       bodies in memory        quarantine.py   skipped records       repair.py   after a refused write
snapshots.py    the state of a partition in one file      metadata_snapshots.py   the topology in one
bases.py        the state where a trimmed log begins      holders.py   bodies that several queues hold
key_watch.py    queues with messages under certain keys
"""
