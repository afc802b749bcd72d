"""A broker with an archive gets more partitions under load, its disk is lost, and it is recovered (B-25, B-77)."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from rewindmq.engine.log.embedded.directory import read_layout
from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.commands import cli, repartition_state
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.pika_clients import confirming, connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

NAMES = [f"orders-{number}" for number in range(8)]
MOVING = [name for name in NAMES if partition_of("/", name, 2) != partition_of("/", name, 5)]
FIRST = 50  # messages of each queue before the repartition
HELD = 5
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Load:
    """Publishes numbers to all queues, one after the other. `confirmed`: by queue, in their order."""

    def __init__(self) -> None:
        self.confirmed: dict[str, list[int]] = {name: [] for name in NAMES}
        self._numbers = itertools.count()

    def publish(self, broker: RunningBroker, stopping: threading.Event, most: int = 1_000_000) -> None:
        with confirming(broker) as channel:
            for name in itertools.islice(itertools.cycle(NAMES), most):
                number = next(self._numbers)
                channel.basic_publish("", name, b"%d" % number, PERSISTENT)
                self.confirmed[name].append(number)
                if stopping.is_set():
                    return

    @contextmanager
    def on(self, broker: RunningBroker) -> Iterator[None]:
        """Publish meanwhile."""
        stopping = threading.Event()
        thread = threading.Thread(target=self.publish, args=(broker, stopping))
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()


@contextmanager
def holding(broker: RunningBroker) -> Iterator[None]:
    """Consumers that ack nothing, of the queues that move."""
    connection = connect(broker, heartbeat=0)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=HELD)
    for name in MOVING:
        channel.basic_consume(name, lambda *_: None)
    connection.process_data_events(time_limit=0.2)
    yield
    connection.close()


def archived(url: str) -> dict[str, int]:
    """The archived end of each partition."""
    rows = json.loads(run("archive_status", "--archive", url, "--format", "json").stdout)
    return {row["partition"]: row["archived_end"] for row in rows}


def taken(broker: RunningBroker) -> dict[str, list[int]]:
    """All messages, by queue."""
    found: dict[str, list[int]] = {}
    connection = connect(broker)
    channel = connection.channel()
    for name in NAMES:
        found[name] = []
        while (got := channel.basic_get(name, auto_ack=True))[0] is not None:
            found[name].append(int(got[2]))
    connection.close()
    return found


def done(broker: RunningBroker) -> bool:
    """Return True if all queues have moved and left nothing behind in their old partitions."""
    found: dict[str, Any] = repartition_state(broker)
    return bool(found["phase"] == "done" and found["left"] == 0)


@pytest.mark.timeout(300)
def test_b25_b77_a_repartition_is_in_the_archive_and_comes_back(tmp_path: Path) -> None:
    data, url, load = tmp_path / "data", str(tmp_path / "archive"), Load()
    # Segments may become an hour old.
    options = ("--archive", url, "--archive-lag", "1s", "--keep-local", "10MB", "--keep-history", "400d")
    broker = RunningBroker(data, *options)
    with confirming(broker) as channel:
        for name in NAMES:
            channel.queue_declare(name, durable=True)
    load.publish(broker, threading.Event(), FIRST * len(NAMES))
    assert cli(broker, "set_mark", "before").returncode == 0
    assert cli(broker, "repartition", "5").returncode == 0
    assert broker.stop() == 0
    broker = RunningBroker(data, *options)
    with load.on(broker), holding(broker):
        until(lambda: repartition_state(broker)["phase"] == "done", "the queues do not move")
        until(lambda: min(archived(url).values()) > 0 and len(archived(url)) == 6, "what came later is not archived")
        soon = ("recover", "-q", "--archive", url, "--data", str(tmp_path / "soon"))
        until(lambda: run(*soon).returncode == 0, "the archive stays torn")
    assert read_layout(tmp_path / "soon") == 5
    assert broker.stop() == 0
    assert not [line for line in broker.errors if "Traceback" in line or "fails" in line]
    rolled = run("archive", "-q", "--roll", "--data", str(data), "--to", url)
    assert rolled.returncode == 0, rolled.stderr
    verified = run("archive_verify", "--archive", url, "-q")
    assert (verified.returncode, verified.stderr) == (0, "")
    again = tmp_path / "again"
    recovered = run("recover", "-q", "--archive", url, "--data", str(again))
    assert recovered.returncode == 0, recovered.stderr
    broker = RunningBroker(again)
    until(lambda: done(broker), "what was held does not follow")
    found = taken(broker)
    for name in NAMES:
        assert sorted(found[name]) == load.confirmed[name], name
        if name not in MOVING:
            assert found[name] == load.confirmed[name], name
    for name in MOVING[:2]:
        shown = cli(broker, "rewind", name, "--at", "mark:before", "--count", "1000", "--formatter", "json")
        assert shown.returncode == 0, shown.stderr
        assert len(json.loads(shown.stdout)) == FIRST
    assert broker.stop() == 0
