"""The disk is full, seen by clients: publishers are told and held back, consumers go on, nothing confirmed is lost.

The broker's files may not grow any more (RLIMIT_FSIZE, lowered from outside while it runs), and then they may again.
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from tests.support.deadlines import until
from tests.support.publishers import Publisher
from tests.support.running import RunningBroker

LIMIT_BYTES = 400_000
ONE = ("--partitions", "1")


def limit_files(broker: RunningBroker, limit: int) -> None:
    hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (limit, hard))


@pytest.mark.long
@pytest.mark.parametrize("end", ["room again", "killed"])
def test_a_full_disk_holds_publishers_back(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], end: str
) -> None:
    broker = start_broker(tmp_path / "data", *ONE)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare("kept", durable=True)
    publisher = Publisher(broker)
    limit_files(broker, LIMIT_BYTES)
    publisher.start()
    until(lambda: bool(publisher.blocked), "connection.blocked never came")
    assert "written" in publisher.blocked[0] or "disk" in publisher.blocked[0], publisher.blocked
    held_at = publisher.confirmed
    assert 50 < held_at < publisher.published
    time.sleep(1.5)  # longer than the log waits between tries
    assert publisher.confirmed == held_at, "confirmed without a disk"
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:  # consumers are served meanwhile
        assert connection.channel().basic_get("kept", auto_ack=False)[2].startswith(b"0 ")
    if end == "room again":
        limit_files(broker, resource.RLIM_INFINITY)
        until(lambda: publisher.unblocked == 1, "connection.unblocked never came")
        until(lambda: publisher.confirmed > held_at + 50, "publishing did not go on")
        publisher.stopping = True
        publisher.join(30)
        assert publisher.ended == "ConnectionClosedByClient"
        assert broker.stop() == 0
    else:
        broker.kill()
        publisher.join(30)
    again = start_broker(tmp_path / "data", *ONE)
    with pika.BlockingConnection(pika.URLParameters(again.amqp_url)) as connection:
        channel = connection.channel()
        count = channel.queue_declare("kept", passive=True).method.message_count
        got = [int(channel.basic_get("kept", auto_ack=True)[2].split()[0]) for _ in range(count)]
    assert got == list(range(len(got)))
    assert publisher.confirmed <= len(got) <= publisher.published
    assert publisher.nacked == 0
    assert "Traceback" not in "".join(broker.errors + again.errors)
