"""Partitions are added to a log that two nodes work with, under load: nodes are started again, and queues move."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes, ask_repartition, repartition_state
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker
from tests.system.durability.load import QUEUES

pytestmark = pytest.mark.long

BEFORE, AFTER = 2, 5
STORED = [f"stored-{number}" for number in range(40)]
MESSAGES = 60
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def nodes(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, kafka) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes


def fill(node: RunningBroker) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        for name in STORED:
            channel.queue_declare(name, durable=True)
            for number in range(MESSAGES):
                channel.basic_publish("", name, f"{name} {number}".encode(), PERSISTENT)

    def filled() -> bool:
        with api_client(node) as client:
            queues = client.get("/queues").raise_for_status().json()
        return bool(sum(each["messages"] for each in queues) == MESSAGES * len(STORED))

    until(filled, "the queues are not filled")


def check_stored(node: RunningBroker) -> None:
    """Each queue has all of its messages, once, in order."""
    found: dict[str, list[bytes]] = {name: [] for name in STORED}

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        found[body.decode().split()[0]].append(body)

    with connect(node) as connection:
        channel = connection.channel()
        for name in STORED:
            channel.basic_consume(name, take, auto_ack=True)
        until(
            lambda: sum(map(len, found.values())) >= MESSAGES * len(STORED) or connection.process_data_events(0.1), ""
        )
        connection.process_data_events(0.2)
    assert found == {name: [f"{name} {number}".encode() for number in range(MESSAGES)] for name in STORED}


async def repartition(trial: Trial) -> None:
    """More partitions, both nodes started again one after the other, and one is killed while queues move."""
    nodes = trial.nodes
    asked = await asyncio.to_thread(ask_repartition, nodes.running["north"], AFTER)
    assert (asked["phase"], asked["waits_for"]) == ("waits for nodes", ["north", "south"])
    for name, other in (("north", "south"), ("south", "north")):
        trial.clients.urls = [nodes.running[other].amqp_url]
        await asyncio.to_thread(nodes.stop, name)
        if name == "south":
            break
        await asyncio.to_thread(nodes.start, name)
        waiting = (await asyncio.to_thread(repartition_state, nodes.running["north"]))["waits_for"]
        assert waiting == ["south"]
        trial.serve()
    starting = asyncio.create_task(asyncio.to_thread(nodes.start, "south"))
    await trial.until(lambda: moves(nodes.running["north"]), "no queue moves")
    trial.clients.urls = []
    await asyncio.to_thread(nodes.kill, "north")
    await starting
    trial.serve()
    await trial.until(
        lambda: repartition_state(nodes.running["south"])["phase"] == "done", "the repartition does not get done"
    )
    await asyncio.to_thread(nodes.start, "north")
    await asyncio.to_thread(check_stored, nodes.running["north"])


def test_two_nodes_may_add_the_same_partitions_at_once(nodes: Nodes) -> None:
    """The one that was asked, and the one that has the duty and finds that they are missing."""
    both = [KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix).topics for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for partitions in range(3, 9):
            list(pool.map(lambda topics, wanted=partitions: topics.add_partitions(wanted, only_ask=False), both))
            assert {topics.partitions() for topics in both} == {partitions}


def moves(node: RunningBroker) -> bool:
    found = repartition_state(node)
    return found["phase"] == "moves queues" and (found["moved"] > 0 or bool(found["moving"]))


def test_b76_b77_queues_move_under_load_and_a_node_is_killed(nodes: Nodes) -> None:
    north = nodes.running["north"]
    fill(north)
    trial = Trial(nodes, 3)
    trial.clients.settles = False
    asyncio.run(trial.run(repartition, Totals()))
    for node in nodes.running.values():
        found = repartition_state(node)
        assert (found["placed_by"], found["wanted"], found["partitions"]) == (AFTER, AFTER, AFTER)
        assert set(found["reasons"]) <= {"it is exclusive"}
        assert found["moved"] >= sum(
            partition_of("/", name, BEFORE) != partition_of("/", name, AFTER) for name in (*STORED, *QUEUES)
        )
    until(lambda: repartition_state(nodes.running["south"])["left"] == 0, "what is left of queues stays for ever")
    nodes.digests()
    at = ("--kafka", nodes.kafka.bootstrap, "--kafka-prefix", nodes.prefix)
    nodes.stop("north")
    done = run("verify", "--data", str(nodes.directory / "north"), *at)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
