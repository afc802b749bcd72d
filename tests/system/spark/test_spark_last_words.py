"""The audit reports records behind a clean stop's final checkpoint, unless a broker that stops writes such records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import BrokerStarted, Checkpointed, DeadLettersForwarded, Event, Published, Purged
from rewindmq.schemas.values import BROKER, Actor, Route
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.checks import Finding
from tests.support.running import RunningBroker
from tests.support.spark.forging import audited, bad
from tests.support.spark.histories import START_MS

pytestmark = pytest.mark.long

GUEST = Actor("guest", 7)
STOP, KILL = RunningBroker.stop, RunningBroker.kill
STARTED = BrokerStarted("rewindmq@localhost", "0.1.0", 3, True)


def life(data: Path, number: int, end: Callable[[RunningBroker], int]) -> None:
    """A broker starts, is used, and ends."""
    broker = RunningBroker(data)
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for queue, arguments in (
        ("dead", {}),
        ("orders", {"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
    ):
        channel.queue_declare(queue, durable=True, arguments=arguments)
    for _ in range(5):
        channel.basic_publish("", "orders", b"%d" % number)
    end(broker)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of clean stops and kills, at last a clean stop."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    for number, end in enumerate((STOP, KILL, KILL, STOP, STOP)):
        life(data, number, end)
    return data


def behind(data: Path, *events: tuple[Actor, Event]) -> tuple[int, int]:
    """A block that is sound in every byte is written behind the log of queues-0: from which offset to which."""
    log = PartitionReader(partition_directory(data, "queues-0"))
    first = log.next_offset
    writer, encoder = PartitionWriter(log.directory, 1 << 30, begin=False), Encoder()
    now = START_MS * 2
    writer.write([encoder.encode(encoder.prefix(now, actor), event) for actor, event in events], now)
    writer.close()
    return first, log.next_offset


def published() -> Published:
    return Published(Route("/", "", "orders", ("orders",)), b"\x10\x00\x02", persistent=True, body=b"new", body_size=3)


def forged(data: Path, *events: tuple[Actor, Event]) -> list[Finding]:
    behind(data, *events)
    return bad(audited(data))


def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped / "log", tmp_path / "data" / "log")).parent


def claim(data: Path) -> Checkpointed:
    """Return the final checkpoint that a forger with the software would compute."""
    log = EmbeddedLogReader(data).queues[0]
    machine = Machine(log.name)
    fold(machine, log)
    return Checkpointed(machine.next_offset - 1, machine.digest(), final=True)


def test_clean_stops_and_kills_are_no_finding(stopped: Path) -> None:
    found = audited(stopped)
    assert bad(found) == []
    told = {each.partition: each.detail for each in found if each.check == "last words"}
    assert told == dict.fromkeys(("queues-0", "queues-1"), "3 brokers stopped cleanly")


@pytest.mark.parametrize("event", [published(), Purged("/", "orders")])
@pytest.mark.parametrize("actor", [GUEST, BROKER])
@pytest.mark.parametrize("cover", ["nothing", "a start", "a final claim"])
def test_a_forged_block_behind_a_clean_stop_is_located(
    stopped: Path, tmp_path: Path, event: Event, actor: Actor, cover: str
) -> None:
    data = copy(stopped, tmp_path)
    first, end = behind(data, (actor, event))
    if cover == "a start":
        behind(data, (BROKER, STARTED), (BROKER, Purged("/", "nothing")))
    elif cover == "a final claim":
        behind(data, (BROKER, claim(data)))
    [finding] = [each for each in bad(audited(data)) if each.check == "last words"]
    assert (finding.partition, finding.offset, finding.severity) == ("queues-0", first, "critical")
    assert f"offsets {first} to {end - 1} stand behind" in finding.detail
    assert "seals" in finding.hint


def test_what_a_broker_writes_that_is_killed_while_it_stops_is_no_finding(stopped: Path, tmp_path: Path) -> None:
    data = copy(stopped, tmp_path)
    told = (BROKER, DeadLettersForwarded("/", "orders", 1, 1))
    assert forged(data, told) == []
    assert forged(data, (BROKER, STARTED), told) == []


def test_the_audit_in_spark_says_so_and_fails(
    spark: SparkSession, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copy(stopped, tmp_path)
    assert [each for each in audit(spark, str(data)) if not each.ok] == []
    first, _ = behind(data, (GUEST, published()), (GUEST, published()))
    assert cli.run(["audit", "--data", str(data), "--format", "json"]) == 1
    [row] = [row for row in json.loads(capsys.readouterr().out) if not row["ok"]]
    assert (row["check"], row["partition"], row["offset"]) == ("last words", "queues-0", first)
    assert row["severity"] == "critical"
