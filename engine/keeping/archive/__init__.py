"""The archive: a history in object storage, for years.

It holds closed segments as plain compressed Avro files, with what it takes to make their bytes again, and snapshots
(docs/operators/archive.md).
"""
