"""A file system that is really full, under the log and under RocksDB: publishing waits and goes on, queues can be
drained, acks are durable, and a broker starts.
"""

import random
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from tests.support.deadlines import until
from tests.support.publishers import Publisher
from tests.support.running import RunningBroker
from tests.system.durability.full_disk import SmallDisk

pytestmark = pytest.mark.long

MEGABYTE = 1 << 20
BODY = random.Random(1).randbytes(20_000)  # RocksDB must not compress it
FITS = 1_500  # messages, 30 MB: more than the full disk has room for, and less than it has room for when it is emptied
# What happens goes to RocksDB at once, and it writes a file for each 8 MB.
AT_ONCE = """
import sys
from rewindmq.engine.cli.main import main
from rewindmq.engine.partition import partition
from rewindmq.projections.store import projector
partition.PREPARE_EVENTS = 20
projector.FRESH_BYTES = 65536
main(["start", *sys.argv[1:]])
"""
Start = Callable[[], RunningBroker]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", megabytes=160) as small:
        yield small


@pytest.fixture
def start(disk: SmallDisk) -> Iterator[Start]:
    started: list[RunningBroker] = []

    class Within(RunningBroker):
        program = ("-c", AT_ONCE)

        def command(self, command: list[str]) -> list[str]:
            return disk.command(command)

    def begin() -> RunningBroker:
        # without the alarm for free space: it would hold publishers back before the disk is full
        started.append(Within(disk.mount_point / "data", "--partitions", "1", "--disk-free-limit", "0"))
        return started[-1]

    yield begin
    for broker in started:
        if broker.process.poll() is None:
            broker.kill()


def connected(broker: RunningBroker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "?heartbeat=0&blocked_connection_timeout=240"))


def publish(broker: RunningBroker, count: int, first: int = 0) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        for number in range(first, first + count):
            channel.basic_publish("", "kept", b"%d " % number + BODY, pika.BasicProperties(delivery_mode=2))


def take(broker: RunningBroker, count: int) -> list[int]:
    """Numbers of messages that were fetched and acked; the acks are durable."""
    with connected(broker) as connection:
        channel = connection.channel()
        found = []
        for _ in range(count):
            method, _, body = channel.basic_get("kept", auto_ack=False)
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            found.append(int(body.split()[0]))
        channel.queue_declare("kept", durable=True)  # is answered when all before it is durable
        return found


def blocked_reason(broker: RunningBroker) -> str:
    """Why a publisher is held back, as connection.blocked tells it."""
    publisher = Publisher(broker)
    publisher.start()
    until(lambda: bool(publisher.blocked), f"connection.blocked never came: {''.join(broker.errors)}")
    publisher.connection.ioloop.add_callback_threadsafe(publisher.connection.ioloop.stop)
    publisher.join(30)
    return publisher.blocked[0]


def rest_of(broker: RunningBroker) -> list[int]:
    with connected(broker) as connection:
        count = connection.channel().queue_declare("kept", passive=True).method.message_count
    return take(broker, count)


class Flood(Publisher):
    """Publishes from `number` on, without confirms, until connection.blocked comes; then it sends what it has begun.

    The broker does not read a connection that is blocked: a client that waits for its own output would wait too. A
    client is quicker than a busy broker: it begins `most` messages and no more.
    """

    def __init__(self, broker: RunningBroker, number: int, most: int) -> None:
        super().__init__(broker)
        self.number = number
        self.end = number + most

    def ready(self, channel: pika.channel.Channel) -> None:
        self.channel = channel
        channel.queue_declare("kept", durable=True, callback=lambda _: self.publish())

    def publish(self) -> None:
        if not self.blocked and self.number < self.end:
            body = b"%d " % self.number + BODY
            self.channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
            self.number += 1
            self.connection.ioloop.call_later(0, self.publish)

    def close(self) -> None:
        """Send what is still to be sent, and leave."""
        self.connection.ioloop.add_callback_threadsafe(self.connection.close)
        self.join(60)
        assert self.ended == "ConnectionClosedByClient"


def publish_until_blocked(broker: RunningBroker, number: int, most: int) -> Flood:
    flood = Flood(broker, number, most)
    flood.start()
    until(lambda: bool(flood.blocked), "connection.blocked never came")
    return flood


def goes_on(broker: RunningBroker, first: int, flood: Flood) -> None:
    """Publishing goes on, with what the flood has sent before, and nothing is missing from `first` on."""
    until(lambda: "publishing goes on" in "".join(broker.errors), f"it never went on: {''.join(broker.errors)}")
    flood.close()
    publish(broker, 1, first=flood.number)
    assert rest_of(broker) == list(range(first, flood.number + 1))
    assert "Traceback" not in "".join(broker.errors)


def test_publishing_goes_on_after_rocksdb_met_a_full_disk(disk: SmallDisk, start: Start) -> None:
    """The log has room for 2 MB and for its reserve; RocksDB, which has 7.4 MB in memory, for no file of 8 MB."""
    broker = start()
    publish(broker, 370)
    disk.fill(leave_bytes=2 * MEGABYTE)
    flood = publish_until_blocked(broker, 370, FITS)
    taken = 0
    while "the state can't be written" not in "".join(broker.errors):  # what consumers do goes to RocksDB, too
        assert taken < 300, "RocksDB has written, on a full disk"
        assert take(broker, 10) == list(range(taken, taken + 10))
        taken += 10
    assert take(broker, 10) == list(range(taken, taken + 10))  # consumers go on
    disk.empty()
    goes_on(broker, taken + 10, flood)
    assert broker.stop() == 0
    again = start()  # the state that was mended is what the log says, or the start would say otherwise
    assert rest_of(again) == []
    assert "Traceback" not in "".join(again.errors)


def test_a_start_on_a_full_disk_serves_consumers_and_acks_last(disk: SmallDisk, start: Start) -> None:
    broker = start()
    publish(broker, 200)
    broker.kill()
    disk.fill()
    again = start()
    reason = blocked_reason(again)
    assert "No space left" in reason or "is full" in reason  # the state notices it first, or the log
    assert take(again, 50) == list(range(50))
    again.kill()  # acks that were taken while the disk was full are not lost
    third = start()
    assert take(third, 50) == list(range(50, 100))
    assert third.stop() == 0
    disk.empty()
    fourth = start()
    publish(fourth, 10, first=200)
    assert [number for number in rest_of(fourth) if number] == list(range(100, 210))  # 0: who asked for the reason
    assert fourth.stop() == 0
    assert "Traceback" not in "".join(broker.errors + again.errors + third.errors + fourth.errors)


def test_a_start_on_a_full_disk_without_a_state(disk: SmallDisk, start: Start) -> None:
    """RocksDB cannot even be made: the fold is in memory, bodies come from the log, and later the state is made."""
    broker = start()
    publish(broker, 300)
    assert broker.stop() == 0
    state = disk.path / "data" / "state"
    for file in state.iterdir():
        file.unlink()
    state.rmdir()
    disk.fill()
    again = start()
    assert take(again, 20) == list(range(20))
    disk.empty()
    publish(again, 5, first=300)  # returns when publishing goes on
    assert again.stop() == 0
    assert any(file.suffix == ".sst" for file in state.iterdir())
    assert rest_of(start()) == list(range(20, 305))


@pytest.mark.parametrize("transaction", [False, True], ids=["publish", "transaction"])
def test_a_large_publish_waits_for_room_and_acks_do_not_wait_for_it(
    disk: SmallDisk, start: Start, transaction: bool
) -> None:
    """The free space and the reserve together would not take the body. In the log, acks would wait behind it."""
    broker = start()
    publish(broker, 20)
    disk.fill(leave_bytes=20 * MEGABYTE)
    large = b"large " + random.Random(2).randbytes(44 * MEGABYTE)

    def publish_large() -> None:
        with connected(broker) as connection:
            channel = connection.channel()
            channel.tx_select() if transaction else channel.confirm_delivery()
            channel.basic_publish("", "kept", large, pika.BasicProperties(delivery_mode=2))
            if transaction:
                channel.tx_commit()

    publisher = threading.Thread(target=publish_large, daemon=True)
    publisher.start()
    until(lambda: "waits until the disk has room" in "".join(broker.errors), "the large publish did not wait")
    taken: list[int] = []
    consumer = threading.Thread(target=lambda: taken.extend(take(broker, 10)), daemon=True)
    consumer.start()
    consumer.join(30)
    assert taken == list(range(10)), "acks wait behind the large publish"
    publish(broker, 1, first=20)  # others publish, too
    assert publisher.is_alive()
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as http:
        content = {"properties": {}, "routing_key": "kept", "payload": "x" * 9_000_000, "payload_encoding": "string"}
        answer = http.post("/exchanges/%2F/amq.default/publish", json=content, timeout=60)
        assert answer.status_code == 400
        assert "publishing is blocked: the disk has no room for 9000000 bytes" in answer.json()["reason"]
    disk.empty()
    publisher.join(60)
    assert not publisher.is_alive()
    assert take(broker, 11) == [*range(10, 21)]
    with connected(broker) as connection:
        assert connection.channel().basic_get("kept", auto_ack=True)[2] == large
    assert broker.stop() == 0
    assert "Traceback" not in "".join(broker.errors)


def test_descriptors_that_run_out_under_rocksdb_hold_publishing_back(
    tmp_path: Path, start_broker: Callable[..., Any]
) -> None:
    """After EMFILE RocksDB refuses every write until it is opened again."""
    broker = start_broker(tmp_path / "data", "--partitions", "1")
    with connected(broker):
        pass
    soft, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
    timer = threading.Timer(1, resource.prlimit, (broker.process.pid, resource.RLIMIT_NOFILE, (3, hard)))
    timer.start()
    flood = publish_until_blocked(broker, 0, 1_000_000)
    timer.join()
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    goes_on(broker, 0, flood)
