"""The location of a history, and the offsets that a job reads. Read ranges.py first.

log.py      a data directory or topics of a Kafka, opened        ranges.py          options become ranges of offsets
marks.py    named moments in options                             kafka_settings.py  settings of Kafka's clients
kafka_frame.py   Spark's Kafka source as input of a fold
"""
