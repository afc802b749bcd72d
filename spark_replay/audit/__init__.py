"""The checks of an audit. Read audit.py first: its head lists them.

audit.py, chunks.py, watch.py            an audit of the whole, from ledger to ledger, batch by batch
fold.py, books.py, ledger.py             the fold, and the books that are kept beside it
limits.py, prefetch.py, consumers.py, priority_levels.py, identities.py     the rules of the books
plain_traffic.py                         the same books, of plain publishes and acks
operators.py, base_beliefs.py            what operators did; what a base holds
comparison.py, second_fold.py            the books against the machine; snapshots and RocksDB against the fold
dead_letter_join.py, policies.py         letters across partitions, policies; claims: projections
publishes.py                             what came in each session, against its events
log_bytes.py, archive_bytes.py, seals.py, kafka_retention.py     is the log what was written, and is it all there
checks.py                                the names of the checks, advice on what they find, a finding
ledger_files.py, file_format.py          what an audit stores
"""
