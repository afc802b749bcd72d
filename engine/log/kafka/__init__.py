"""The log in Kafka, through confluent-kafka: the extra `kafka`.

Without that package every import from here raises KafkaNotInstalled. So what an embedded log can do without imports
from here only where a Kafka is asked for.
"""

from importlib.util import find_spec

from rewindmq.engine.log.contract import KafkaNotInstalled

if find_spec("confluent_kafka") is None:
    raise KafkaNotInstalled("a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'")
