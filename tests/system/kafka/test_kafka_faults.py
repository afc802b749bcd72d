"""Two nodes on three of Kafka's (replication 3, at least 2 in sync), under load, and everything that can die dies.

After each fault everything is drained and accounted for: see faults.py. Many rounds of faults, chosen at random, are by
hand: fault_rounds.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kafka import fault_rounds, faults
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.proxy import Proxies
from tests.support.pika_clients import connect
from tests.support.publishers import Publisher

pytestmark = pytest.mark.long

ROUNDS = 100
SHORT: list[Callable[[Trial], Awaitable[None]]] = [
    faults.kill_a_node,
    faults.kill_a_kafka_node,
    faults.restart_everything,
    faults.slow_kafka,
]


@pytest.fixture(scope="module")
def totals() -> Iterator[Totals]:
    totals = Totals()
    yield totals
    print(totals)


@pytest.fixture
def kafka(kafka3: KafkaCluster) -> KafkaCluster:
    """All of its nodes run, also after a test that failed and left them down: each test fails for itself."""
    kafka3.start_all()
    return kafka3


@pytest.fixture
def nodes(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, kafka) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes


@pytest.mark.rare(fault=[faults.kill_a_kafka_node, faults.restart_everything, faults.slow_kafka])
@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.__name__)
def test_nothing_confirmed_is_lost(nodes: Nodes, totals: Totals, fault: Callable[[Trial], Awaitable[None]]) -> None:
    """S-111, S-125, S-127, S-128."""
    asyncio.run(Trial(nodes, SHORT.index(fault)).run(fault, totals))


def test_a_node_is_cut_off_from_kafka(kafka: KafkaCluster, totals: Totals, tmp_path: Path) -> None:
    """S-126."""
    with Nodes(tmp_path, kafka, timeout=10) as nodes, kafka.proxied() as line:
        north = nodes.start("north", line.bootstrap)
        nodes.start("south")
        with connect(north) as connection:
            connection.channel().queue_declare("kept", durable=True)
        asyncio.run(Trial(nodes, 7).run(lambda trial: cut_off(trial, line), totals))
        nodes.stop("north")  # while there is a line


async def cut_off(trial: Trial, line: Proxies) -> None:
    """For less than the other waits for it: publishers are told, and then all goes on. Then for longer: it is lost."""
    nodes = trial.nodes
    publisher = Publisher(nodes.running["north"])
    publisher.start()
    await trial.until(lambda: publisher.confirmed > 10, "nothing is confirmed")
    line.blackhole()
    try:
        await trial.until(lambda: bool(publisher.blocked), "connection.blocked never came")
    finally:
        line.resume()
    assert "Kafka" in publisher.blocked[0]
    held_at = publisher.confirmed
    await trial.until(lambda: publisher.unblocked == 1, "connection.unblocked never came")
    await trial.until(lambda: publisher.confirmed > held_at + 10, "publishing did not go on")
    await trial.progress()
    assert not faults.times_lost(nodes, "north")
    early = publisher.ended
    assert not early

    line.blackhole()
    trial.clients.urls = [nodes.running["south"].amqp_url]
    await asyncio.sleep(nodes.timeout + 4)
    line.resume()
    await trial.until(lambda: bool(faults.times_lost(nodes, "north")), "it was not declared lost")
    await trial.until(lambda: bool(publisher.ended), "its client's connection is not closed")
    assert publisher.ended == "ConnectionClosedByBroker"
    publisher.join()
    assert publisher.nacked == 0
    north = nodes.running["north"]
    # It joins behind all that it has sent: then no publish is under way to the queue that is deleted here.
    await trial.until(lambda: sum("node north joined" in line for line in north.errors) == 2, "it does not join again")
    with connect(nodes.running["south"]) as connection:
        count = connection.channel().queue_delete("kept").method.message_count
    assert publisher.confirmed <= count <= publisher.published


# Few, so that they take a minute at the most. fault_rounds.py goes through all.
WHERE_NEEDED: dict[str, list[fault_rounds.Fault]] = {
    "0": [faults.kill_a_node, faults.cut_a_node_off],
    "1": [faults.kill_a_node],
}


@pytest.mark.rare(standbys=["1"])
@pytest.mark.parametrize("standbys", WHERE_NEEDED)
def test_b49_nothing_is_lost_where_nodes_fold_what_they_must(
    kafka: KafkaCluster, totals: Totals, tmp_path: Path, standbys: str
) -> None:
    """Publishers are at other nodes than the consumers."""
    with fault_rounds.three_nodes(tmp_path, kafka, standbys) as (nodes, line):
        fault_rounds.go_through(nodes, line, enumerate(WHERE_NEEDED[standbys]), totals)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("standbys", [fault_rounds.ALL, "0", "1"])
def test_nothing_confirmed_is_lost_by_many_faults(
    kafka: KafkaCluster, totals: Totals, tmp_path: Path, standbys: str
) -> None:
    """Chosen at random; after each the same account."""
    with fault_rounds.three_nodes(tmp_path, kafka, standbys) as (nodes, line):
        fault_rounds.go_through(nodes, line, fault_rounds.at_random(0, ROUNDS), totals)
