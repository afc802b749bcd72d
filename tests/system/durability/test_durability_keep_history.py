"""`start --keep-history` (B-22) on brokers in processes of their own: history is trimmed while clients publish, hold
and read. Broker and process are killed in each step; what is queued never loses its body.
"""

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from tests.support.archiving_brokers import archiver_of
from tests.support.certificates import openssl
from tests.support.deadlines import until
from tests.support.examples import rounds
from tests.support.forked import run
from tests.support.hasty_trims import DIE, HastyBroker
from tests.support.metrics import metrics
from tests.support.moments import now
from tests.support.pika_clients import pump

pytestmark = pytest.mark.long

KEEP = "4s"
ARCHIVED = ("--segment-age", "1s", "--archive-lag", "1s", "--keep-local", "300kB")
HELD = 40
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def body(number: int) -> bytes:
    return b"held %04d " % number + b"x" * 100


class Life:
    """A broker that trims. A consumer holds some of the oldest messages, others are ready; traffic makes history."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self.die = data.parent / "die"
        self.traffic: threading.Thread | None = None
        self.ended = threading.Event()
        self.broker = self.started()

    def started(self) -> HastyBroker:
        return HastyBroker(self.data, "--keep-history", KEEP, "--partitions", "1", *self.options)

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.broker.amqp_url + "?heartbeat=0"))

    def begin(self) -> None:
        """Publish the messages that stay, then traffic without end."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("held", durable=True)
            channel.queue_declare("orders", durable=True)
            channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
            for number in range(HELD):
                channel.basic_publish("", "held", body(number), PERSISTENT)
                channel.basic_publish("", "log", body(number), PERSISTENT)
        self.ended.clear()
        self.traffic = threading.Thread(target=self._publish, daemon=True)
        self.traffic.start()

    def _publish(self) -> None:
        """Publish, and take what was published, from broker to broker."""
        while not self.ended.is_set():
            with suppress(pika.exceptions.AMQPError, OSError), self.connect() as connection:
                channel = connection.channel()
                while not self.ended.is_set():
                    for _ in range(20):
                        channel.basic_publish("", "orders", b"." * 300, PERSISTENT)
                    channel.queue_purge("orders")
                    time.sleep(0.02)
            time.sleep(0.05)

    def item(self) -> dict[str, Any]:
        answer = httpx2.get(f"{self.broker.http_url}/api/overview", auth=("guest", "guest"), trust_env=False)
        found: dict[str, Any] = answer.json()["history"]["trims"]
        return found

    @property
    def floor(self) -> int:
        """The offset below which the broker's history was trimmed."""
        with suppress(httpx2.HTTPError):
            return max((each["offset"] for each in self.item()["floors"]), default=0)
        return -1

    @property
    def start(self) -> int:
        return base_offset_of(segment_files(self.data / "log" / "queues-0")[0])

    def trimmed_on(self) -> None:
        """Wait until another trim is done."""
        before = self.start
        why = f"nothing is trimmed: {before}"
        until(lambda: self.start > before, why)
        assert not self.item()["stays"], self.item()

    def end(self) -> None:
        self.ended.set()
        if self.traffic is not None:
            self.traffic.join()

    def trimmed_to_the_end(self) -> None:
        """Wait until all that is due went, when the traffic has ended: two segments stay.

        Other events let the time of the log go on meanwhile; they add nothing to the queues."""

        def went() -> bool:
            answer = httpx2.put(
                f"{self.broker.http_url}/api/global-parameters/tick",
                json={"value": time.time_ns()},
                auth=("guest", "guest"),
                trust_env=False,
            )
            assert answer.is_success, answer.text
            return len(segment_files(self.data / "log" / "queues-0")) == 2

        until(went, "not all that is due went")

    def held(self) -> list[bytes]:
        """The bodies of the messages that stay; they are given back."""
        with self.connect() as connection:
            channel = connection.channel()
            found = [channel.basic_get("held")[2] for _ in range(HELD)]
            assert channel.basic_get("held")[2] is None
            return sorted(found)


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    yield from lived(tmp_path, monkeypatch)


def lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[Life]:
    monkeypatch.setenv(DIE, str(tmp_path / "die"))
    life = Life(tmp_path / "data", *options)
    life.begin()
    yield life
    life.end()
    if life.broker.process.poll() is None:
        assert life.broker.stop() == 0
    assert not [line for line in life.broker.errors if "Traceback" in line], "".join(life.broker.errors)


def assert_whole(life: Life) -> None:
    """After a clean stop log, state and bases verify, also when the state is made anew. All that was held is there."""
    life.end()
    assert life.held() == [body(number) for number in range(HELD)]
    assert life.broker.stop() == 0
    done = run("verify", "--data", str(life.data))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(life.data / "state")
    shutil.rmtree(life.data / "snapshots")
    life.broker = life.started()
    assert life.held() == [body(number) for number in range(HELD)]
    done = run("verify", "--data", str(life.data))
    assert done.returncode == 0, done.stderr


def test_b22_history_is_trimmed_while_clients_hold_and_read(life: Life) -> None:
    """Consumers can settle messages whose history was trimmed, and readers of the past continue from the floor."""
    connection, reading = life.connect(), life.connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=HELD // 2)
    deliveries: list[tuple[int, bytes]] = []
    channel.basic_consume("held", lambda _, method, __, found: deliveries.append((method.delivery_tag, found)))
    past: list[int] = []
    slow = reading.channel()
    slow.basic_qos(prefetch_count=10)
    slow.basic_consume(
        "orders",
        lambda _, __, properties, ___: past.append(properties.headers["x-stream-offset"]),
        arguments={"x-stream-offset": "first"},
    )
    pump(connection, lambda: len(deliveries) == HELD // 2)
    pump(reading, lambda: len(past) == 10)
    for _ in range(4):
        life.trimmed_on()
    assert past[-1] < life.floor, "the reader stands below the floor"
    assert [found for _, found in deliveries] == [body(number) for number in range(HELD // 2)]
    for tag, _ in deliveries[::2]:
        channel.basic_ack(tag)
    for tag, _ in deliveries[1::2]:
        channel.basic_nack(tag, requeue=True)
    stream = [found for _, found in taken(channel, "log", HELD)]
    assert stream == [body(number) for number in range(HELD)]
    floor = life.floor
    for number in range(1_000):
        pump(reading, partial(_longer, past, number))
        slow.basic_ack(number + 1)
    assert past == sorted(set(past))
    assert past[-1] > floor
    assert taken(channel, "orders", 10)[0][0] >= floor
    connection.close()
    reading.close()
    life.end()
    with life.connect() as again:
        rest = again.channel()
        left = [rest.basic_get("held", auto_ack=True)[2] for _ in range(HELD * 3 // 4)]
    assert sorted(left) == [body(number) for number in range(HELD) if number % 2 or number >= HELD // 2]


def _longer(found: list[int], number: int) -> bool:
    return len(found) > number


def taken(channel: BlockingChannel, queue: str, count: int) -> list[tuple[int, bytes]]:
    """Offsets and bodies of the first messages that a reader of the past gets."""
    found: list[tuple[int, bytes]] = []
    channel.basic_qos(prefetch_count=100)
    for method, properties, content in channel.consume(
        queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=60
    ):
        assert method is not None, f"{len(found)} of {count} came"
        found.append((properties.headers["x-stream-offset"], content))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_what_is_above_the_floor_is_answered_beside_the_trims(life: Life, tmp_path: Path) -> None:
    """Rewinds, verify, seals and listings, again and again, while segments go."""
    life.trimmed_on()
    key, public = tmp_path / "seal.pem", tmp_path / "seal.pub.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", str(key))
    openssl("pkey", "-in", str(key), "-pubout", "-out", str(public))
    starts = {life.start}
    for _ in range(4):
        moment = now()
        time.sleep(0.3)
        shown = run("rewind", "held", "--at", moment, "--formatter", "json", REWINDMQ_URL=life.broker.http_url)
        assert shown.returncode == 0, shown.stderr
        assert sorted(str(each["payload"])[:9] for each in json.loads(shown.stdout)) == [
            body(number)[:9].decode() for number in range(HELD)
        ]
        for command in (
            ("rewind", "held", "--at", "-1s", "--data", str(life.data)),
            ("verify", "--data", str(life.data)),
            ("seal", "--data", str(life.data), "--key", str(key)),
            ("verify_seals", "--data", str(life.data), "--public-key", str(public)),
        ):
            done = run(*command)
            assert done.returncode == 0, (command, done.stderr)
        below = run("rewind", "held", "--offset", "5", REWINDMQ_URL=life.broker.http_url)
        assert below.returncode != 0
        assert re.search(r"queues-0 begins at offset \d+: offset 5 is no longer kept", below.stderr)  # and who, mostly
        starts.add(life.start)
    assert len(starts) > 3, "segments went meanwhile"


def test_status_and_metrics_say_the_floor_and_the_last_trim(life: Life) -> None:
    life.trimmed_on()
    life.end()
    until(lambda: life.item()["freed_bytes"], "the look that trimmed is not told")  # segments go before it ends
    floor = life.floor
    item = life.item()
    assert (item["keep_seconds"], item["stays"], item["error"]) == (4, {}, None)
    [trimmed] = item["floors"]
    assert (trimmed["partition"], trimmed["reason"], trimmed["findings"]) == ("queues-0", "--keep-history 4s", [])
    shown = run("status", REWINDMQ_URL=life.broker.http_url).stdout
    assert "Kept history: 4s, what is older than 20" in shown
    assert "History of queues-0 begins at offset " in shown
    found = metrics(life.broker, "/metrics")
    [sample] = found["rewindmq_history_floor_offset"].samples
    assert (sample.labels, sample.value >= floor) == ({"partition": "queues-0"}, True)
    [sample] = found["rewindmq_history_trimmed_timestamp_seconds"].samples
    assert abs(sample.value - time.time()) < 60
    [sample] = found["rewindmq_history_trim_refused"].samples
    assert sample.value == 0


def test_damage_is_told_and_stops_the_trim(life: Life) -> None:
    """The broker goes on; what is older stays, with the damage as it is."""
    life.trimmed_on()
    life.end()
    life.trimmed_to_the_end()
    path = segment_files(life.data / "log" / "queues-0")[-1]
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    life.begin()
    until(lambda: life.item()["stays"], "the damage is not told")
    assert "its bytes do not match its checksum" in life.item()["stays"]["queues-0"]
    start = life.start
    time.sleep(1)
    assert life.start == start
    assert "Not trimmed: queues-0: " in run("status", REWINDMQ_URL=life.broker.http_url).stdout
    assert sum("older history is not trimmed" in line for line in life.broker.errors) == 1
    [sample] = metrics(life.broker, "/metrics")["rewindmq_history_trim_refused"].samples
    assert sample.value == 1


STEPS = ("audited", "written", "asking", "asked", "appended", "answered", "cutting", "removed")


@pytest.mark.rare(who=["process"])
@pytest.mark.rare(step=set(STEPS) - {"cutting"})
@pytest.mark.parametrize("who", ["process", "broker"])
@pytest.mark.parametrize("step", STEPS)
def test_b22_a_kill_in_each_step_loses_nothing(life: Life, step: str, who: str) -> None:
    life.trimmed_on()
    die(life, step, who)
    life.trimmed_on()
    life.trimmed_on()
    assert_whole(life)


def die(life: Life, step: str, who: str) -> None:
    """Let it die in this step; a broker is started again."""
    life.die.write_text(f"{step} {who}")
    if who == "broker":
        assert life.broker.process.wait(60) == -signal.SIGKILL
        life.broker.kill()
        life.broker = life.started()
    else:
        until(lambda: not life.die.exists(), "nobody died")


def test_b22_kills_at_any_moment_lose_nothing(life: Life) -> None:
    chance = random.Random(7)
    for _ in range(rounds(6, 3)):
        time.sleep(0.5 + 2 * chance.random())
        if chance.random() < 0.4 and (child := archiver_of(life.broker)) is not None:
            os.kill(child, signal.SIGKILL)
        else:
            life.broker.kill()
            life.broker = life.started()
    life.trimmed_on()
    assert_whole(life)


def test_the_process_is_nice_and_small(life: Life) -> None:
    """And it ends with its broker; obstore is not loaded."""
    life.trimmed_on()
    child = archiver_of(life.broker)
    assert child is not None
    assert "obstore" not in Path(f"/proc/{child}/maps").read_text()
    life.broker.kill()
    until(lambda: not Path(f"/proc/{child}").exists(), "the process lives on without its broker")


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """A life with an archive beside it, and little of it local."""
    yield from lived(tmp_path, monkeypatch, *ARCHIVED, "--archive", str(tmp_path / "archive"))


def begins_in_archive(life: Life) -> int:
    return Manifest.load(open_objects(str(life.data.with_name("archive"))), "queues-0").floor


@pytest.mark.rare(step=["answered", "removed"])
@pytest.mark.parametrize(("step", "who"), [("written", "broker"), ("answered", "process"), ("removed", "broker")])
def test_b22_the_archive_is_trimmed_with_it(archived: Life, tmp_path: Path, step: str, who: str) -> None:
    life, url = archived, str(tmp_path / "archive")
    until(lambda: begins_in_archive(life) > 0, "the archive is not trimmed")
    die(life, step, who)
    before = begins_in_archive(life)
    until(lambda: begins_in_archive(life) > before, "the archive is not trimmed on", seconds=300)
    life.end()
    assert life.held() == [body(number) for number in range(HELD)]
    assert life.broker.stop() == 0
    done = run("archive_verify", "--archive", url)
    assert done.returncode == 0, done.stderr
    done = run("archive", "--roll", "--data", str(life.data), "--to", url)
    assert done.returncode == 0, done.stderr
    again = tmp_path / "again"
    done = run("recover", "--archive", url, "--data", str(again))
    assert done.returncode == 0, done.stderr
    life.data, life.options = again, ()
    life.broker = life.started()
    assert life.held() == [body(number) for number in range(HELD)]
