"""A history is trimmed by the command, and the broker goes on: what was queued comes, the past begins later."""

import json
import time
from pathlib import Path

import pika
import pytest

from rewindmq.engine.keeping.archive.archiver import close_segments
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import format_time
from tests.support.forked import run
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

QUEUES = ("orders", "bills", "kept")


def publish(broker: RunningBroker, what: str, count: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in QUEUES:
            kind = {"x-queue-type": "stream"} if queue == "kept" else {}
            channel.queue_declare(queue, durable=True, arguments=kind)
            for number in range(count):
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", queue, f"{what} {number} of {queue}".encode(), properties)


def take(broker: RunningBroker, queue: str, count: int) -> list[str]:
    """Get messages, and ack them."""
    bodies = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        for _ in range(count):
            method, _, body = channel.basic_get(queue)
            if method is None:
                break
            assert body is not None
            bodies.append(body.decode())
            channel.basic_ack(method.delivery_tag)
    return bodies


def read_stream(broker: RunningBroker, queue: str, count: int) -> list[str]:
    """Read a stream from its beginning."""
    bodies: list[str] = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, _, body in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=30):
            assert method is not None, "the stream ends too early"
            bodies.append(body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == count:
                return bodies
    raise AssertionError


def rewound(data: Path, queue: str, time: str) -> list[str]:
    done = run("rewind", queue, "--at", time, "--data", str(data), "--formatter", "json")
    assert done.returncode == 0, done.stderr
    return [row["payload"] for row in json.loads(done.stdout)]


def lived_before(data: Path, messages: int) -> tuple[str, str]:
    """Two lives of a broker, each in segments of its own. Returns a time in the first one, and one after it."""
    broker = RunningBroker(data)
    publish(broker, "early", messages)
    early = format_time(time.time_ns() // 1_000_000)
    assert take(broker, "orders", 10) == [f"early {number} of orders" for number in range(10)]
    assert broker.stop() == 0
    time.sleep(0.02)
    between = format_time(time.time_ns() // 1_000_000)
    time.sleep(0.02)
    close_segments(data)
    broker = RunningBroker(data)
    publish(broker, "late", messages)
    assert broker.stop() == 0
    return early, between


@pytest.mark.parametrize("lost", ["nothing", "state"])
def test_b22_a_broker_goes_on_behind_a_trim(tmp_path: Path, lost: str) -> None:
    data = tmp_path / "data"
    early, between = lived_before(data, 50)
    reader = EmbeddedLogReader(data)
    ends = {each.name: each.next_offset for each in reader.queues}

    beside = RunningBroker(data)
    done = run("trim", "--data", str(data), "--before", between)
    assert (done.returncode, "in use by another broker" in done.stderr) == (69, True)
    assert beside.stop() == 0

    done = run("trim", "--data", str(data), "--before", between, "--reason", "a test", "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = {row["partition"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == ends.keys()
    assert all(0 < row["floor"] < ends[name] and row["findings"] == 0 for name, row in rows.items())
    assert sum(row["queued"] for row in rows.values()) == 140
    if lost == "state":
        for path in sorted((data / "state").iterdir()):
            path.unlink()

    broker = RunningBroker(data)
    past = format_time(time.time_ns() // 1_000_000)
    assert read_stream(broker, "kept", 100) == [f"{what} {n} of kept" for what in ("early", "late") for n in range(50)]
    orders = [f"early {n} of orders" for n in range(10, 50)] + [f"late {n} of orders" for n in range(50)]
    assert take(broker, "orders", 100) == orders
    bills = [f"{what} {n} of bills" for what in ("early", "late") for n in range(50)]
    assert take(broker, "bills", 100) == bills
    assert rewound(data, "bills", past) == bills
    assert rewound(data, "orders", past) == orders
    assert rewound(data, "orders", between) == orders[:40]
    done = run("rewind", "orders", "--at", early, "--data", str(data))
    assert done.returncode == 65
    assert f"begins at offset {rows['queues-0']['floor']}" in done.stderr or "queues-1 begins at" in done.stderr
    assert "an operator at the command line trimmed the events below offset" in done.stderr
    assert done.stderr.endswith(": a test\n")
    assert broker.stop() == 0
    done = run("verify", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
