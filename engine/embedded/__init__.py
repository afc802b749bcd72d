"""A broker with a log on its own disk. engine/cluster is its twin on Kafka, file for file. Read lifecycle.py first.

lifecycle.py   the broker's life: commits, checkpoints, clean stop     start.py          opens log, state and broker
partition.py   an event is folded when it is appended                  flow_control.py   when publishers wait
metadata.py    the same in the metadata log

Only here:

beside_log.py     checks at a start that what lies beside the log is of its history, and that the log has its end
read_only.py      a broker that serves a history and changes nothing
segment_ages.py   ends old segments
archive_supervisor.py   keeps engine/keeping/archive_process.py running, the archiver
"""
