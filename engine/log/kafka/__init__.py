"""The log in Kafka, through confluent-kafka: the extra `kafka`. Read log.py first.

log.py       the log of several nodes           topics.py     its topics, made and checked
clients.py   Kafka's clients and errors         follower.py   reads records back as they are written
reader.py    reads a history by offsets         states.py     copies of snapshots
owners.py    duties, by the consumer group      replicas.py   replicas of partitions
patience.py  when Kafka's silence is trouble
console_topics.py, schema_registry.py           copies of topics for consoles, and their schemas

Without that package every import from here raises KafkaNotInstalled. So what an embedded log can do without imports
from here only where a Kafka is asked for.
"""

from importlib.util import find_spec

from rewindmq.engine.log.contract import KafkaNotInstalled

if find_spec("confluent_kafka") is None:
    raise KafkaNotInstalled("a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'")
