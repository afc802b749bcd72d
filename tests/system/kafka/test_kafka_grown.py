"""Partitions that an admin added to the queues' topic: Kafka cannot take them away again, nodes leave them alone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.producer import Publisher
from tests.support.commands import require_failure
from tests.support.deadlines import SECONDS, until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.producers import ordered_producer
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

NAMES = [f"queue-{number}" for number in range(12)]
LATE = next(name for name in (f"late-{n}" for n in range(99)) if partition_of("/", name, 4) == 3)
MARK = "all-taken"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def nodes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The topic was made with 2 partitions and has 4. A node ran when they were added, and has ended."""
    with Nodes(tmp_path_factory.mktemp("grown"), kafka) as nodes:
        north = nodes.start("north")
        fill(north, NAMES)
        topic = f"{nodes.prefix}.queues"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(SECONDS)
        reader = KafkaLogReader(kafka.bootstrap, nodes.prefix)
        until(lambda: reader.topics.partitions() == 4, "the topic does not grow")
        fill(north, [LATE])  # it goes on as it was, its history too
        assert messages_of(north) == dict.fromkeys([*NAMES, LATE], 1)
        assert past_of(north, LATE) == [f"first of {LATE}"]
        nodes.stop("north")
        yield nodes


def fill(node: RunningBroker, names: list[str]) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in names:
            channel.queue_declare(name, durable=True)
            channel.basic_publish("", name, f"first of {name}".encode(), PERSISTENT, mandatory=True)


def messages_of(node: RunningBroker) -> dict[str, int]:
    with api_client(node) as client:
        return {each["name"]: each["messages"] for each in client.get("/queues").raise_for_status().json()}


def past_of(node: RunningBroker, queue: str) -> list[str]:
    with api_client(node) as client:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        answer: dict[str, Any] = client.get(f"/queues/%2F/{queue}/at", params={"time": time}).raise_for_status().json()
    return [each["payload"] for each in answer["message_details"]]


def start(nodes: Nodes, name: str) -> RunningBroker:
    node = nodes.running[name] = RunningBroker(nodes.directory / name, *nodes.options(name), "--partitions", "2")
    return node


def bring_a_record_into_an_added_partition(nodes: Nodes) -> None:
    """As a service does that goes by the topic's number of partitions."""
    record = Publisher("billing", nodes.prefix).record("/", LATE, b"astray")
    producer = ordered_producer(nodes.kafka.bootstrap, partitioner="murmur2")
    partitions: list[int | None] = []
    producer.produce(
        record.topic,
        key=record.key,
        value=record.value,
        on_delivery=lambda error, message: partitions.append(message.partition()),
    )
    assert producer.flush(SECONDS) == 0
    assert partitions == [3]


@pytest.mark.parametrize(("name", "asked"), [("north", None), ("new", None), ("north", 4), ("north", 3), ("new", 1)])
def test_a_node_that_would_not_find_the_queues_does_not_start(nodes: Nodes, name: str, asked: int | None) -> None:
    options = () if asked is None else ("--partitions", str(asked))
    with pytest.raises(AssertionError, match=r"^the broker ended with 69: ") as ended:
        RunningBroker(nodes.directory / name, *nodes.options(name), *options)
    assert str(ended.value).splitlines()[-1] == (
        f"rewindmq: Kafka: the topic {nodes.prefix}.queues has 4 partitions, and its queues lie by the 2 that it was"
        f" made with, not by {asked or 4}: start every node with --partitions 2, which leaves the added ones alone"
    )


def test_more_than_there_are_cannot_be_asked_for(nodes: Nodes) -> None:
    with pytest.raises(AssertionError, match="has 4 partitions, and 5 are asked for"):
        RunningBroker(nodes.directory / "north", *nodes.options("north"), "--partitions", "5")


def test_with_the_number_of_before_everything_is_there_and_goes_on(nodes: Nodes) -> None:
    bring_a_record_into_an_added_partition(nodes)
    with pytest.raises(AssertionError, match="start every node with --partitions 2"):
        RunningBroker(nodes.directory / "north", *nodes.options("north"))
    north, south = start(nodes, "north"), start(nodes, "south")
    for node in (north, south):
        assert messages_of(node) == dict.fromkeys([*NAMES, LATE], 1)
        with api_client(node) as client:
            logs = client.get("/overview").raise_for_status().json()["log"]
            assert [each["partition"] for each in logs] == ["queues-0", "queues-1"]
    use(north, south)
    expire(north, south)
    with api_client(south) as client:
        assert client.put(f"/marks/{MARK}", json={}).status_code == 201
    for name in nodes.running:
        assert not [line for line in nodes.running[name].errors if "queues-2" in line or "queues-3" in line]
    for name in ("north", "south"):
        nodes.stop(name)
    reader = KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix)
    assert [each.next_offset for each in reader.queues[2:]] == [0, 1]


def use(here: RunningBroker, there: RunningBroker) -> None:
    """Every queue, old and new, is declared again, filled on one node and emptied on the other."""
    names = [*NAMES, LATE, *(f"new-{number}" for number in range(8))]
    fill(here, names)
    with connect(there) as connection:
        channel = connection.channel()
        for name in names:
            bodies = [b"first of " + name.encode()] * (1 if name.startswith("new-") else 2)
            taken: list[bytes] = []
            for method, _, body in channel.consume(name, inactivity_timeout=SECONDS):
                assert method is not None, f"{name}: {taken}"
                channel.basic_ack(method.delivery_tag)
                taken.append(body)
                if len(taken) == len(bodies):
                    break
            channel.cancel()
            assert taken == bodies
    until(lambda: messages_of(here) == dict.fromkeys(names, 0), "what was acked is still there")
    assert past_of(there, "new-0") == []


def expire(here: RunningBroker, there: RunningBroker) -> None:
    """Each partition that is used has an owner, though duties of four are given to the nodes."""
    with connect(here) as connection:
        channel = connection.channel()
        for name in NAMES:
            channel.basic_publish("", name, b"soon gone", pika.BasicProperties(expiration="100"))
    until(lambda: set(messages_of(there).values()) == {0}, "nobody lets the messages expire")


def test_tools_without_a_broker_find_the_queues(nodes: Nodes) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    at = ("--kafka", nodes.kafka.bootstrap, "--kafka-prefix", nodes.prefix)
    for data in ((), ("--data", str(nodes.directory / "north"))):
        for queue, moment in ((LATE, now), (LATE, f"mark:{MARK}"), (NAMES[0], now)):
            done = run("rewind", queue, "--at", moment, *at, *data)
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            home = f"queues-{partition_of('/', queue, 2)}"
            assert f"Queue '{queue}' in vhost '/' at " in done.stdout
            assert home in done.stdout
        require_failure(
            run("rewind", "nobodys", "--at", now, *at, *data), 65, "Error: no queue 'nobodys' in vhost '/' at "
        )
    done = run("verify", "--data", str(nodes.directory / "north"), *at)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
