"""One partition live: append, fold, perform effects; its sessions, counters and clock. Read partition.py first.

partition.py            append, fold, perform effects        reading.py          its fold, for those who only read
metadata.py             the metadata log, live               lifecycle.py        `Keeper` and `Nodes`
sessions.py             a client's connection                departures.py       sessions that end with many queues
certainty.py            read to the end before "not found"   flow_control.py     when publishers wait
log_clock.py            the log's time                       counters.py         counters since the start
queue_counters.py, consumer_counters.py                      counters that owners publish for other nodes
publish_counts.py       the fates of a session's publishes   session_counts.py  when they are logged
waits.py                how long messages wait
snapshot_writer.py, waypoint_writer.py                       states kept while the broker runs
"""
