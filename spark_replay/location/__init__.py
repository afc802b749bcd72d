"""The part of a history that a job reads. Read ranges.py first.

log.py      records and times of an opened history             ranges.py          options become ranges of offsets
marks.py    named moments in options                             kafka_settings.py  settings of Kafka's clients
kafka_frame.py   Spark's Kafka source as input of a fold     trims.py    a history that was trimmed meanwhile
"""
