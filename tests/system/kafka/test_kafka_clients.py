"""One of two nodes on Kafka does what RabbitMQ does: the scenarios of tests/clients; PerfTest and Celery, unchanged."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.peers import Broker
from tests.clients.compare import outcomes, require_expected
from tests.clients.expected import reworded
from tests.clients.scenarios import SCENARIOS
from tests.support.celery_workers import (
    Worker,
    require_retries,
    require_return_of_a_lost_task,
    require_tasks_on_several_queues,
    worker,
)
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.perftest import jars, require_arrival
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

__all__ = ["jars", "worker"]
_NONE = SimpleNamespace(params={})
# What these ask for within a millisecond (an expiry, a count), a node on Kafka knows after a round trip.
LATER = ("arguments, classic", "arguments, quorum", "closed channel again", "exclusive ends with its connection")


@pytest.fixture(scope="module")
def broker(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with Nodes(tmp_path_factory.mktemp("nodes"), kafka, timeout=10) as nodes:
        nodes.start("north")
        yield nodes.start("south")
        nodes.digests()


@pytest.fixture(scope="module")
def came(broker: RunningBroker, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The outcomes of the scenarios that this run is about."""
    here = (item for item in request.session.items if item.path == Path(__file__))
    params = [getattr(item, "callspec", _NONE).params for item in here]
    asked = [each["name"] for each in params if "name" in each]
    node = Broker("a node on Kafka", broker.amqp_port, broker.process, broker.data, broker.http_port)
    return {name: reworded("3.13", found) for name, found in outcomes(node, asked).items()}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in LATER])
def test_outcome_is_that_of_rabbitmq(came: dict[str, Any], name: str) -> None:
    require_expected("3.13", name, came[name])


@pytest.mark.java
@pytest.mark.parametrize("mode", ["confirms and acks", "quorum queue"])
def test_perftest(broker: RunningBroker, jars: None, mode: str) -> None:
    require_arrival(broker, mode)


@pytest.mark.rare
def test_celery(worker: Worker) -> None:
    """The last: its workers go on talking to each other."""
    require_tasks_on_several_queues(worker)
    require_retries(worker)
    require_return_of_a_lost_task(worker)
