"""A broker whose local log was cut: every question is answered as before, from the archive where it must be."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from tests.support.archive_commands import Place
from tests.support.commands import require_failure
from tests.support.forked import run
from tests.support.moments import now
from tests.support.running import ROOT, RunningBroker

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # the first test may have to build the S3 server

MESSAGES = 1_500
BODY = b"%06d " + b"x" * 100


SMALL_SEGMENTS = """
from rewindmq.engine.cli.main import main
from rewindmq.engine.embedded import start
from rewindmq.engine.log.embedded.log import EmbeddedLog
start.open_log = lambda config: EmbeddedLog.open(config.data, config.partitions, 60_000)
main()
"""


class SmallSegments(RunningBroker):
    """A broker that begins a segment every 60 KB: two thirds of that are its header."""

    program = ("-c", SMALL_SEGMENTS, "start")


class Life:
    """A broker with an archive beside it: what was published, and the moment in the middle."""

    def __init__(self, data: Path, place: Place) -> None:
        self.data = data
        self.place = place
        self.broker = self._started()
        self.middle = self.cut = ""

    def _started(self) -> RunningBroker:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.place.environment.items():
                patch.setenv(name, value)
            return SmallSegments(self.data, "--partitions", "1")

    def restart(self) -> None:
        assert self.broker.stop() == 0
        self.broker = self._started()

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(*arguments, **self.place.environment)

    def archive(self, *options: str) -> dict[str, dict[str, Any]]:
        arguments = ("archive", "--data", str(self.data), "--to", self.place.url, "--formatter", "json", *options)
        done = self.command(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return {row["partition"]: row for row in json.loads(done.stdout)}

    @property
    def start(self) -> int:
        return base_offset_of(segment_files(self.data / "log" / "queues-0")[0])

    def api(self) -> httpx2.Client:
        return httpx2.Client(base_url=f"{self.broker.http_url}/api", auth=("guest", "guest"), timeout=60)


def publish(channel: BlockingChannel, queue: str, numbers: range) -> None:
    for number in numbers:
        channel.basic_publish("", queue, BODY % number, pika.BasicProperties(delivery_mode=2))


def taken(channel: BlockingChannel, queue: str, count: int, **arguments: Any) -> list[int]:
    """Numbers of the first messages that a consumer gets."""
    numbers: list[int] = []
    channel.basic_qos(prefetch_count=200)
    for method, _, body in channel.consume(queue, arguments=arguments or None, inactivity_timeout=60):
        assert method is not None, f"{len(numbers)} of {count} came"
        numbers.append(int(body[:6]))
        channel.basic_ack(method.delivery_tag)
        if len(numbers) == count:
            break
    channel.cancel()
    return numbers


def connected(broker: RunningBroker) -> tuple[pika.BlockingConnection, BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


@pytest.fixture
def life(tmp_path: Path, place: Place) -> Iterator[Life]:
    """Two thirds of `orders` are consumed; a stream holds few messages; most segments were removed here."""
    life = Life(tmp_path / "data", place)
    connection, channel = connected(life.broker)
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, "log", range(10))
    publish(channel, "orders", range(500))
    life.middle = now()
    publish(channel, "orders", range(500, MESSAGES))
    assert taken(channel, "orders", 1_480) == list(range(1_480))
    publish(channel, "log", range(10, 20))
    connection.close()
    life.cut = now()
    row = life.archive("--keep-local", "1kB")["queues-0"]
    assert row["freed_bytes"] > 100_000
    assert row["local_start"] == life.start > 1_000
    yield life
    life.broker.stop()


def past(api: httpx2.Client, queue: str, **query: str) -> "httpx2.Response":
    return api.get(f"/queues/%2F/{queue}/at", params=query)


def numbers_of(answer: "httpx2.Response") -> list[int]:
    assert answer.status_code == 200, answer.text
    return [int(each["payload"][:6]) for each in answer.json()["message_details"]]


@pytest.mark.rare(place=["directory"])
def test_b24_a_cut_broker_answers_as_before(life: Life) -> None:
    connection, channel = connected(life.broker)
    assert taken(channel, "orders", 20) == list(range(1_480, MESSAGES))
    assert taken(channel, "log", 20, **{"x-stream-offset": "first"}) == list(range(20))
    assert taken(channel, "orders", MESSAGES, **{"x-stream-offset": "first"}) == list(range(MESSAGES))
    assert taken(channel, "orders", 500, **{"x-rewind-to": life.middle}) == list(range(500))
    with life.api() as api:
        assert numbers_of(past(api, "orders", time=life.middle, first="490")) == list(range(490, 500))
        assert past(api, "orders", time=now()).json()["messages"] == 0
        restored = api.post("/queues/%2F/orders/restore", json={"time": life.middle, "only": ["acked"]})
        assert restored.status_code == 200, restored.text
    assert taken(channel, "orders", 500) == list(range(500))
    connection.close()
    life.restart()  # from the state, which is above the start
    connection, channel = connected(life.broker)
    publish(channel, "orders", range(3))
    connection.close()
    assert life.broker.stop() == 0
    verified = life.command("verify", "--data", str(life.data), "--formatter", "json")
    assert verified.returncode == 0, verified.stderr
    rows = {(row["partition"], row["check"]): row for row in json.loads(verified.stdout)}
    assert rows["queues-0", "state"]["result"] == "equal"
    assert rows["queues-0", "log"]["result"] == "whole"


def test_the_state_is_made_again_from_the_base(life: Life) -> None:
    life.broker.kill()
    shutil.rmtree(life.data / "state")
    life.broker = life._started()
    connection, channel = connected(life.broker)
    assert taken(channel, "orders", 20) == list(range(1_480, MESSAGES))
    assert taken(channel, "log", 20, **{"x-stream-offset": "first"}) == list(range(20))
    connection.close()


@pytest.mark.rare(place=["directory"])
def test_b24_while_the_archive_is_away_what_is_local_works(life: Life) -> None:
    elsewhere = life.place.files.with_name("elsewhere")
    life.place.files.rename(elsewhere)
    connection, channel = connected(life.broker)
    assert taken(channel, "orders", 20) == list(range(1_480, MESSAGES))
    assert taken(channel, "log", 20, **{"x-stream-offset": "first"}) == list(range(20))
    publish(channel, "orders", range(3))
    connection.close()
    with life.api() as api:
        assert numbers_of(past(api, "orders", time=now())) == [0, 1, 2]
        assert numbers_of(past(api, "orders", time=life.cut)) == list(range(1_480, MESSAGES))  # some are in the base
        refused = past(api, "orders", time=life.middle)
        assert refused.status_code in (500, 503), refused.text
    assert life.broker.stop() == 0
    shown = ("rewind", "orders", "--data", str(life.data), "--at", life.middle)
    require_failure(life.command(*shown), 69 if life.place.url.startswith("/") else 65, "Error: ")
    elsewhere.rename(life.place.files)
    assert life.command(*shown).returncode == 0


@pytest.mark.rare
def test_spark_reads_through(life: Life) -> None:
    assert life.broker.stop() == 0

    def spark(*arguments: str) -> Any:
        command = [sys.executable, "-m", "spark_replay", *arguments, "--data", str(life.data), "--format", "json"]
        environment = {**os.environ, **life.place.environment}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    [orders] = [row for row in spark("state-at", "--time", life.middle) if row["queue"] == "orders"]
    assert orders["messages"] == 500
