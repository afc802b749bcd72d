"""One of two nodes on Kafka does what RabbitMQ does: the scenarios of tests/clients; PerfTest and Celery, unchanged."""

from collections.abc import Iterator

import pytest

from tests.clients import test_clients_celery as celery
from tests.clients import test_clients_perftest as perftest
from tests.clients import test_clients_scenarios as scenarios
from tests.clients.scenarios import SCENARIOS
from tests.kafka.cluster import KafkaCluster
from tests.kafka.nodes import Nodes
from tests.running import RunningBroker

worker, jars = celery.worker, perftest.jars


@pytest.fixture(scope="module")
def broker(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with Nodes(tmp_path_factory.mktemp("nodes"), kafka, timeout=10) as nodes:
        nodes.start("north")
        yield nodes.start("south")
        nodes.digests()


@pytest.mark.parametrize("name", SCENARIOS)
def test_outcome_is_that_of_rabbitmq(broker: RunningBroker, name: str) -> None:
    scenarios.test_outcome_is_that_of_rabbitmq(broker, name)


@pytest.mark.java
@pytest.mark.parametrize("mode", ["confirms and acks", "quorum queue"])
def test_perftest(broker: RunningBroker, jars: None, mode: str) -> None:
    perftest.test_what_is_published_arrives(broker, mode)


def test_celery(worker: celery.Worker) -> None:
    """The last: its workers go on talking to each other."""
    celery.test_tasks_on_several_queues(worker)
    celery.test_retries(worker)
    celery.test_a_lost_worker_process_gives_its_task_back(worker)
