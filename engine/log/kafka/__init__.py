"""The log in Kafka, through confluent-kafka: the extra `kafka`. Read log.py first.

log.py       the log of several nodes           topics.py     its topics, made and checked
clients.py   Kafka's clients and errors         read_back.py  reads records back as they are written
reader.py    reads a history by offsets         states.py     copies of snapshots
owners.py    duties, by the consumer group      replicas.py   replicas of partitions
patience.py  when Kafka's silence is trouble    msk.py        logins at Amazon MSK
console_topics.py, schema_registry.py           copies of topics for consoles, and their schemas

Without that package every import from here raises KafkaNotInstalled. So code that also works with an embedded log
imports from here only when Kafka is requested.
"""

from importlib.util import find_spec

from rewindmq.engine.log.contract import KafkaNotInstalled

if find_spec("confluent_kafka") is None:
    raise KafkaNotInstalled("a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'")
