"""The archive: a history in object storage, for years.

It holds closed segments as plain compressed Avro files, with what it takes to make their bytes again, and snapshots
(docs/operators/archive.md). Read manifest.py first.

manifest.py, pages.py, descriptions.py   which objects hold a partition, and their small JSON
identity.py, directory_note.py           which history it is, and which archive a directory has
objects.py                               object storage
pack.py, unpack.py                       a segment as two objects, and back
archiver.py, topic_archiver.py           what is new goes into the archive; progress.py tells the broker
topic_records.py                         records of Kafka as the archive keeps them
reader.py                                an archived history, read
state_files.py, snapshots.py             archived snapshots and bases
seals.py, topic_seals.py                 archived seals
trims.py                                 what lies below a floor goes
recovery.py, topic_recovery.py           a directory, or topics, made of an archive
branch.py, partial_moves.py              where a fork branches; messages that are archived in part
"""
