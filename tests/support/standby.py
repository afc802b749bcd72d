"""A leader and a follower as processes of their own, and rounds of kill and promote under load.

python -m tests.support.standby ROUNDS [SECONDS]     prints a line a round; exit code 1 if a confirmed message is lost
"""

import asyncio
import logging
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
from aio_pika.abc import AbstractChannel
from aio_pika.connection import make_url

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.pika_clients import connect, numbered, publish_confirmed
from tests.support.running import ROOT, RunningBroker

# What a client of a killed broker meets
GONE = (aio_pika.exceptions.AMQPError, OSError, asyncio.TimeoutError)

REWINDMQ = [sys.executable, "-m", "rewindmq"]


class RunningFollower(RunningBroker):
    """A follower process that serves the copy."""

    program = ("-m", "rewindmq", "follow")

    def __init__(self, data: Path, leader: str, *options: str) -> None:
        self.leader = leader
        super().__init__(data, *options)

    def command(self, command: list[str]) -> list[str]:
        at = command.index("follow") + 1
        return [*command[:at], self.leader, *command[at:]]


def command(*words: str, url: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command of the program to its end."""
    where = [] if url is None else ["--url", url]
    return subprocess.run([*REWINDMQ, *words, *where], cwd=ROOT, capture_output=True, text=True, timeout=300)


def refused(data: Path, leader: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a follower that is refused, to its end."""
    return command("follow", leader, "--data", str(data), "--amqp-port", "1", "--http-port", "2", *options)


def standby_of(broker: RunningBroker) -> dict[str, Any]:
    """Return a broker's report on its followers and its leader."""
    found: dict[str, Any] = httpx2.get(f"{broker.http_url}/api/overview", auth=("guest", "guest")).json()["standby"]
    return found


def level(leader: RunningBroker) -> bool:
    """Return True if there are followers and each has everything that its leader has synced."""
    found = standby_of(leader)["followers"]
    return bool(found) and all(each["connected"] and each["lag_records"] == 0 for each in found)


def segments_in(data: Path) -> dict[str, bytes]:
    """The segments of a log that have a block, by their path below DIR/log."""
    log = data / "log"
    return {str(path.relative_to(log)): path.read_bytes() for path in sorted(log.glob("*/[0-9]*.avro"))}


def verified(data: Path) -> None:
    """Check that the stored state is what the log folds to, and the log is whole."""
    done = command("verify", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr


# -- rounds of kill and promote ---------------------------------------------------------------------------------------

QUEUE, BATCH = "ledger", 20
WAITS = ("--confirm-after", "follower")


class Publisher:
    """Publishes numbered messages to whatever leads, and keeps the confirmed numbers."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.sent = 0

    async def publish_to(self, url: str) -> None:
        """Until the broker goes away, or the task is cancelled."""
        connection = aio_pika.Connection(make_url(url))
        try:
            await connection.connect(timeout=5)
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue(QUEUE, durable=True)
            while True:
                await asyncio.gather(*(self._publish(channel) for _ in range(BATCH)))
        except (*GONE, RuntimeError):
            return
        finally:
            with suppress(Exception):
                await asyncio.wait_for(connection.close(), 1)

    async def _publish(self, channel: AbstractChannel) -> None:
        self.sent += 1
        number = self.sent
        message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, QUEUE)
        self.confirmed.add(number)


def drained(broker: RunningBroker) -> set[int]:
    """The numbers in the queue; it is empty then."""
    connection = connect(broker)
    channel = connection.channel()
    found: set[int] = set()
    try:
        while True:
            method, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is None:
                return found
            found.add(int(body))
    finally:
        connection.close()


class Rounds:
    """Two machines that change roles. In each round the leader dies under load, and its follower is promoted."""

    def __init__(self, place: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.publisher = Publisher()
        self.seen: set[int] = set()
        self.aside = 0
        self.leader = RunningBroker(place / "one", *WAITS, "--node", "one")
        self.follower = self._follow(place / "two")

    def _follow(self, data: Path) -> RunningFollower:
        return RunningFollower(data, self.leader.http_url, *WAITS, "--node", data.name)

    async def run(self, rounds: int, seconds: float) -> None:
        """Raises AssertionError: a confirmed message is not at the new leader."""
        for number in range(rounds):
            ways = (self._kill_both, self._kill_leader, self._cut_off)
            way = ways[number % len(ways)]
            begun, before = time.monotonic(), len(self.publisher.confirmed)
            task = asyncio.create_task(self.publisher.publish_to(self.leader.amqp_url))
            await asyncio.sleep(self.chance.uniform(seconds / 2, seconds))
            if self.chance.random() < 0.3:  # the follower alone is killed and comes back
                await asyncio.to_thread(self.follower.kill)
                self.follower = await asyncio.to_thread(self._follow, self.follower.data)
                await asyncio.sleep(self.chance.uniform(0, seconds / 2))
            await asyncio.to_thread(way)
            await task
            await asyncio.to_thread(self._swap)
            self.seen |= await asyncio.to_thread(drained, self.leader)
            lost = self.publisher.confirmed - self.seen
            assert not lost, (
                f"round {number}, {way.__name__}: {len(lost)} confirmed messages are lost: {sorted(lost)[:9]}"
            )
            confirmed = len(self.publisher.confirmed) - before
            print(f"{number} {way.__name__[1:]}: {confirmed} confirmed, {time.monotonic() - begun:.1f} s", flush=True)

    def _kill_both(self) -> None:
        """A power cut of both machines at once."""
        for each in self.chance.sample((self.leader, self.follower), 2):
            each.process.kill()
        self.leader.kill()
        self.follower.kill()
        promoted(self.follower.data)

    def _kill_leader(self) -> None:
        self.leader.kill()
        self.follower.stop()
        promoted(self.follower.data)

    def _cut_off(self) -> None:
        """The leader goes on, and hears of the promotion."""
        self.follower.kill()
        said = promoted(self.follower.data)
        assert "was told, and stops" in said, said
        assert self.leader.process.wait(timeout=30) == 78, self.leader.errors
        self.leader.kill()

    def _swap(self) -> None:
        """The promoted one leads, and the old leader follows."""
        old, new = self.leader.data, self.follower.data
        self.leader = RunningBroker(new, *WAITS, "--node", new.name)
        self.follower = self._follow(old)

    def stop(self) -> None:
        """End both, and compare the logs."""
        until(lambda: level(self.leader))
        leader = segments_in(self.leader.data)
        follower = segments_in(self.follower.data)
        assert leader == follower, "the copy has other bytes"
        assert self.follower.stop() == 0, self.follower.errors
        assert self.leader.stop() == 0, self.leader.errors


def promoted(data: Path) -> str:
    """Promote a copy. Returns what the command said about the old leader."""
    done = command("promote", "--data", str(data))
    assert done.returncode == 0, done.stderr
    return done.stderr


def run(place: Path, rounds: int, seconds: float = 0.8) -> Rounds:
    """So many rounds. Raises AssertionError."""
    made = Rounds(place, rounds)
    try:
        asyncio.run(made.run(rounds, seconds))
        made.stop()
    finally:
        for each in (made.leader, made.follower):
            if each.process.poll() is None:
                each.kill()
    return made


def main() -> int:
    """Run the rounds of the command line."""
    rounds = int(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.8
    logging.disable()  # the client library's tracebacks about brokers that are killed
    with tempfile.TemporaryDirectory() as place:
        try:
            made = run(Path(place), rounds, seconds)
        except AssertionError as error:
            print(error)
            return 1
    print(f"{rounds} rounds: {len(made.publisher.confirmed)} of {made.publisher.sent} confirmed, 0 of them lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())


def publish(broker: RunningBroker, queue: str, count: int, headers: dict[str, str] | None = None) -> None:
    publish_confirmed(broker, queue, numbered(range(count), "body %d"), headers=headers)


def messages_at(broker: RunningBroker, queue: str) -> int:
    """The number of a queue's messages; -1 if the broker has no such queue."""
    with api_client(broker) as api:
        answer = api.get(f"/queues/%2F/{queue}")
    return int(answer.json().get("messages", -1)) if answer.status_code == 200 else -1
