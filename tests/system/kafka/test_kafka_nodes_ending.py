"""A node ends, dies, stands still, or is there twice: its messages go to others, flagged, and nothing is lost.

Where a node timeout of ten minutes is given, the messages must not have waited for it.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.deadlines import SECONDS, until
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.pika_clients import connect
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

PERSISTENT = pika.BasicProperties(delivery_mode=2)
UNAVAILABLE = 69  # sysexits.h EX_UNAVAILABLE, see engine/process.py
QUEUES = [
    next(name for name in (f"q-{number}" for number in range(100)) if partition_of("/", name, 2) == partition)
    for partition in range(2)
]
EACH = 10
Kept = dict[str, list[tuple[bytes, bool]]]


class Holder:
    """A client of a node that has declared both queues and holds half of what is in them."""

    def __init__(self, node: RunningBroker) -> None:
        self.connection = connect(node)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        for queue in QUEUES:
            self.channel.queue_declare(queue, durable=True)
            for number in range(2 * EACH):
                self.channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
        for queue in QUEUES:
            for number in range(EACH):
                assert self.channel.basic_get(queue)[2] == b"%d" % number

    def ended(self) -> tuple[int, str]:
        """Wait until the node closes the connection, and return its reply code and text."""
        with pytest.raises(ConnectionClosedByBroker) as ended:
            until(lambda: self.connection.process_data_events(0.05), "it is not closed")
        return ended.value.reply_code, ended.value.reply_text


def drained(node: RunningBroker) -> Kept:
    """Consume and ack all that is in the queues, and that comes into them until all were seen."""
    seen: Kept = {queue: [] for queue in QUEUES}
    with connect(node) as connection:
        channel = connection.channel()

        def taken(queue: str) -> Callable[..., None]:
            def on_message(channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
                seen[queue].append((body, method.redelivered))
                channel.basic_ack(method.delivery_tag)

            return on_message

        for queue in QUEUES:
            channel.basic_consume(queue, taken(queue))
        wanted = 2 * EACH * len(QUEUES)
        until(
            lambda: connection.process_data_events(0.05) or sum(map(len, seen.values())) >= wanted,
            f"only {seen} came",
        )
    return seen


def flagged(seen: Kept) -> None:
    """All came once; those that were held before, and no others, with the redelivered flag."""
    for queue in QUEUES:
        assert sorted((int(body), again) for body, again in seen[queue]) == [(n, n < EACH) for n in range(2 * EACH)]


def test_a_clean_stop_gives_messages_to_others_at_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        south = nodes.start("south")
        holder = Holder(north)
        nodes.stop("north")
        assert holder.ended()[0] == 320
        flagged(drained(south))
        nodes.digests()


def test_a_killed_node_that_is_started_again_at_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Its life of before is over when it joins: nobody has to wait for a timeout."""
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        south = nodes.start("south")
        Holder(north)
        nodes.kill("north")
        nodes.start("north")
        flagged(drained(south))
        nodes.digests()


def test_a_killed_node_is_missed(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka) as nodes:
        north = nodes.start("north")
        south = nodes.start("south")
        Holder(north)
        nodes.kill("north")
        flagged(drained(south))
        nodes.digests()


def test_a_node_that_stood_still_closes_its_connections_and_joins_again(kafka: KafkaCluster, tmp_path: Path) -> None:
    """S-129."""
    with Nodes(tmp_path, kafka) as nodes:
        south = nodes.start("south")
        north = nodes.start("north")
        holder = Holder(north)
        nodes.pause("north")
        # What is sent to it now it reads when it goes on, and it must not be taken for what its next life did.
        holder.channel.basic_ack(0, multiple=True)
        holder.connection.process_data_events(0)
        seen = drained(south)
        nodes.go_on("north")
        flagged(seen)
        code, text = holder.ended()
        assert code == 320
        assert "lost" in text
        until(lambda: accepts(north), "it did not join again")
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for queue in QUEUES:
                assert channel.queue_declare(queue, passive=True).method.message_count == 0
                channel.basic_publish("", queue, b"again", PERSISTENT)
                assert channel.basic_get(queue, auto_ack=True)[2] == b"again"
        nodes.digests()


def test_a_node_that_stood_still_delivers_nothing_that_others_had(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Its consumer was the only one, so what is published meanwhile is that consumer's, until the node is missed. Then
    another has it all and acks it, and when the node goes on it must not deliver what is no more."""
    with Nodes(tmp_path, kafka) as nodes:
        south = nodes.start("south")
        north = nodes.start("north")
        late: list[bytes] = []
        connection = connect(north)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=4 * EACH)
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
            channel.basic_consume(queue, lambda _c, _m, _p, body: late.append(body))
        nodes.pause("north")
        with connect(south) as publishing:
            to = publishing.channel()
            to.confirm_delivery()
            for queue in QUEUES:
                until(publishable, "the queue is not seen", south, queue)
                for number in range(2 * EACH):
                    to.basic_publish("", queue, b"%d" % number, PERSISTENT)
        seen = drained(south)
        assert {queue: len(each) for queue, each in seen.items()} == dict.fromkeys(QUEUES, 2 * EACH)
        assert all(again for each in seen.values() for _, again in each)
        nodes.go_on("north")
        with pytest.raises(ConnectionClosedByBroker) as ended:
            until(lambda: connection.process_data_events(0.05), "it is not closed")
        assert ended.value.reply_code == 320
        assert late == []
        nodes.digests()


def publishable(node: RunningBroker, queue: str) -> bool:
    with connect(node) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
    return True


def accepts(node: RunningBroker) -> bool:
    try:
        connect(node).close()
    except pika.exceptions.AMQPError:
        return False
    return True


def test_of_two_processes_with_one_name_the_older_gives_way(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        older = nodes.start("north")
        Holder(older)
        newer = nodes.start("north", data="elsewhere")
        assert older.process.wait(SECONDS) == UNAVAILABLE
        older.stop()
        said = [line for line in older.errors if line.startswith("rewindmq: ")]
        assert said == ["rewindmq: stopped: another process joined as node north: each node needs a name of its own\n"]
        assert "Traceback" not in "".join(older.errors)
        flagged(drained(newer))
        nodes.digests()


@pytest.mark.rare
def test_a_data_directory_of_another_history_is_refused(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        nodes.start("north")
        nodes.stop("north")
        others = ("--kafka", kafka.bootstrap, "--kafka-prefix", f"{nodes.prefix}-b", "--node", "north")
        said = refused(tmp_path / "north", *others)
        assert f"{nodes.prefix}-b.* at {kafka.bootstrap}" in said
        assert "delete this one" in said
        nodes.start("north")


@pytest.mark.rare
def test_a_metadata_topic_without_its_beginning_is_refused(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Its users would be gone, and guest be there again with the password that everybody knows."""
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        nodes.start("north")
        nodes.stop("north")
        topic = f"{nodes.prefix}.metadata"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        [deleted] = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
        deleted.result(SECONDS)
        for data in ("north", "new"):
            said = refused(tmp_path / data, *nodes.options("north"))
            assert said.startswith("rewindmq: metadata-0 begins at offset 2: older users, exchanges and bindings")


def test_what_is_larger_than_a_topic_takes_is_refused_with_406(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Bodies are judged by their headers; here it is all that is around a body, and a method's arguments."""
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        nodes.start("north")
        nodes.stop("north")
        change = ConfigEntry("max.message.bytes", "65536", incremental_operation=AlterConfigOpType.SET)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{nodes.prefix}.queues", incremental_configs=[change])
        [future] = admin.incremental_alter_configs([resource]).values()
        future.result(SECONDS)
        large = {"large": "x" * 66_000}
        with connect(nodes.start("north")) as connection:
            connection.channel().queue_declare("small", durable=True)
            asks: tuple[Callable[[BlockingChannel], object], ...] = (
                lambda channel: channel.queue_declare("large", durable=True, arguments=large),
                lambda channel: channel.basic_consume("small", lambda *_: None, arguments=large),
                lambda channel: channel.basic_publish("", "small", b"body", pika.BasicProperties(headers=large)),
            )
            for ask in asks:
                channel = connection.channel()
                channel.confirm_delivery()
                with pytest.raises(ChannelClosedByBroker) as closed:
                    ask(channel)
                assert closed.value.reply_code == 406
                assert "is larger than the 65024 that the topic" in closed.value.reply_text
            assert connection.channel().queue_declare("small", passive=True).method.message_count == 0


def refused(data: Path, *options: str) -> str:
    """A start that must fail; the one line on stderr that says why."""
    command = [
        sys.executable,
        "-m",
        "rewindmq.engine",
        "--data",
        str(data),
        "--amqp-port",
        str(free_port()),
        "--http-port",
        str(free_port()),
        *options,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == UNAVAILABLE, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith("rewindmq: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr
