"""The checks of an audit. Read audit.py first: its head lists them.

audit.py, chunks.py, watch.py   an audit of the whole, from ledger to ledger, batch by batch
fold.py, books.py, ledger.py, limits.py, prefetch.py, consumers.py, priority_levels.py   the books that are kept beside the fold
checks.py                                                  their checks, by name, and advice on what they find
comparison.py                                              the account against the machine
plain_traffic.py                                           the same books, of plain publishes and acks
beside_fold.py                                             are snapshots and RocksDB what the fold says
dead_letter_join.py, policies.py                           letters across partitions, policies; claims: projections
log_bytes.py, seals.py, kafka_retention.py                 is the log itself what was written, and is all of it there
checks.py, ledger_files.py, state_file.py       results, hints, files
"""
