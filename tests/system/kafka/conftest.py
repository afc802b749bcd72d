"""Two nodes on one Kafka, for a test module: `north` and `south`. A channel with confirms at each: `here`, `there`."""

import uuid
from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.archiving import objects as objects
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import confirming
from tests.support.running import RunningBroker


@pytest.fixture(scope="module", params=["all", "0"], ids=["every_node_folds", "folded_where_needed"])
def nodes(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), kafka, timeout=10, standbys=request.param) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes
        nodes.digests()


@pytest.fixture(scope="module")
def north(nodes: Nodes) -> RunningBroker:
    return nodes.running["north"]


@pytest.fixture(scope="module")
def south(nodes: Nodes) -> RunningBroker:
    return nodes.running["south"]


@pytest.fixture
def here(north: RunningBroker) -> Iterator[BlockingChannel]:
    with confirming(north) as channel:
        yield channel


@pytest.fixture
def there(south: RunningBroker) -> Iterator[BlockingChannel]:
    with confirming(south) as channel:
        yield channel


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"
