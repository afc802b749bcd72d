"""A log in files, with one writer. Read segments.py first: it has the format.

segments.py, blocks.py, index.py   the files of a partition, their blocks, and the index beside them
writer.py, commit.py               appends to a partition; one write and one sync for a group of appends
reader.py, verify.py               reads a partition; checks its checksums and its hash chain
log.py, directory.py, lock.py      all partitions of a data directory, which one broker opens at a time
reserve.py                         disk blocks for the time when the disk is full
log_start.py, cut.py, base_records.py   the beginning of a partition, after older segments were cut off
ends.py, raw_blocks.py             the end of a copy, and stored bytes for another machine
segment_schema.py, sound_records.py     the schema of a segment, and records proven to be of it
root.py, roles.py                  the identity of a history, and a directory's role in it
steady_time.py                     the time from which ages are counted
"""
