"""Real Kafkas for tests. All test folders have them (tests/conftest.py).

kafka     one node for the whole test run: take topics of your own (a prefix of your own)
kafka3    three nodes for a test module, replication 3, quick to see that a node died: kill one, start it again
"""

from collections.abc import Iterator

import pytest

from tests.support.kafka.cluster import FAST, KafkaCluster, missing
from tests.support.needs import require


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("kafka3"), nodes=3, settings=FAST) as cluster:
        yield cluster


def require_kafka() -> None:
    """Skip the tests where a Kafka cannot be started; fail in CI."""
    reason = missing()
    require(reason is None, str(reason))
