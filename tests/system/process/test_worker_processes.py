"""A broker in several processes: clients at its workers, kills under load, and one process on the same directory."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pika
import pytest

from tests.support.running import ROOT, RunningBroker
from tests.support.worker_processes import WorkerProcesses, agreed_claims
from tests.system.durability.ledger import Ledger
from tests.system.durability.load import ACCOUNTS, CONSUMED, TARGETS, Clients

C = TypeVar("C", WorkerProcesses, pika.BlockingConnection)
PROGRESS = 300
SECONDS = 60


class Load:
    """Clients that publish and consume until all is drained and judged. `broker`: the one that runs now."""

    def __init__(self, broker: RunningBroker, seed: int) -> None:
        self.broker = broker
        self.ledger = Ledger(ACCOUNTS)
        self.clients = Clients(self.ledger, seed, nodes=True)
        self.random = random.Random(seed)

    async def run(self, faults: list[Callable[["Load"], Awaitable[None]]]) -> None:
        clients = self.clients
        await clients.declare(self.broker.amqp_url)
        clients.urls = [self.broker.amqp_url]
        tasks = [asyncio.create_task(clients.consumer(name)) for name in CONSUMED]
        tasks += [
            asyncio.create_task(clients.publisher(number, exchange, key))
            for number, (exchange, key) in enumerate(TARGETS)
        ]
        try:
            await self.progress()
            for fault in faults:
                await fault(self)
                clients.urls = [self.broker.amqp_url]
                await self.progress()
            clients.publishing = False
            clients.orderly = True
            accounts = self.ledger.queues.values()
            await self.until(lambda: not any(each.expected - each.acked for each in accounts), "confirmed, not acked")
        finally:
            clients.ended = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=30)
        print(self.ledger.summary())
        wrong = self.ledger.judge()
        assert not wrong, "\n".join([*wrong, self.ledger.summary()])

    async def progress(self) -> None:
        """Wait until every account goes on."""
        accounts = self.ledger.queues.values()
        before = [(len(each.expected), len(each.acked)) for each in accounts]
        least = PROGRESS // len(before)
        await self.until(
            lambda: all(
                len(each.expected) >= confirmed + least and len(each.acked) >= acked + least
                for each, (confirmed, acked) in zip(accounts, before, strict=True)
            ),
            "the load does not go on",
        )

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{what}: {self.ledger.summary()}\n{''.join(self.broker.errors[-40:])}")


async def kill_a_worker(load: Load) -> None:
    broker = load.broker
    assert isinstance(broker, WorkerProcesses)
    number = load.random.randint(1, broker.count)
    again = sum(f"worker {number} is ready again" in line for line in broker.errors)
    broker.kill_worker(number)
    await load.progress()  # the others go on
    await asyncio.to_thread(broker.until_said, f"worker {number} is ready again", again + 1)


async def kill_the_log(load: Load) -> None:
    broker = load.broker
    assert isinstance(broker, WorkerProcesses)
    load.clients.urls = []
    workers = broker.pids()
    broker.kill()
    await asyncio.to_thread(broker.until_ended, workers)
    load.broker = await asyncio.to_thread(WorkerProcesses, broker.data)


async def go_on_alone(load: Load) -> None:
    """Kill all processes, and go on with one."""
    await kill_the_log_for_good(load)
    load.broker = await asyncio.to_thread(RunningBroker, load.broker.data)


async def go_on_together(load: Load) -> None:
    """Kill the one process, and go on with several. One process delivers before its disk has the delivery."""
    load.clients.urls = []
    load.broker.kill()
    load.ledger.life += 1
    load.broker = await asyncio.to_thread(WorkerProcesses, load.broker.data)


async def kill_the_log_for_good(load: Load) -> None:
    broker = load.broker
    assert isinstance(broker, WorkerProcesses)
    load.clients.urls = []
    workers = broker.pids()
    broker.kill()
    await asyncio.to_thread(broker.until_ended, workers)


def settled(load: Load) -> None:
    """Stop what runs, and look at what the log has."""
    assert load.broker.stop() == 0, "".join(load.broker.errors[-40:])
    assert "Traceback" not in "".join(load.broker.errors), "".join(load.broker.errors)
    assert agreed_claims(load.broker.data) > 0, "no worker has claimed a digest"


def asked(broker: WorkerProcesses, port: int, path: str, **query: str) -> Any:
    """What the worker at this port answers over HTTP."""
    with httpx.Client(auth=("guest", "guest"), trust_env=False, timeout=SECONDS) as client:
        return client.get(f"http://{broker.host}:{port}/api/{path}", params=query).raise_for_status().json()


def connection_at(broker: WorkerProcesses, number: int) -> pika.BlockingConnection:
    """A connection to this worker. The system chooses, so several are tried."""
    others = []
    try:
        for attempt in range(50):
            name = f"{number} {attempt}"
            properties = {"connection_name": name}
            connection = pika.BlockingConnection(
                pika.ConnectionParameters(broker.host, broker.amqp_port, client_properties=properties)
            )
            found = asked(broker, broker.http_ports[number - 1], "connections")
            if any(each["client_properties"].get("connection_name") == name for each in found):
                return connection
            others.append(connection)
        pytest.fail(f"none of {len(others)} connections is at worker {number}")
    finally:
        for connection in others:
            connection.close()


def test_b67_what_one_worker_takes_another_one_delivers(tmp_path: Path) -> None:
    names = [f"queue-{number}" for number in range(6)]
    with closing(WorkerProcesses(tmp_path)) as broker:
        assert "2 processes" in broker.ready_line
        for number in (1, 2):
            broker.until_said(f"[info] worker {number}: node rewindmq-{number}@localhost joined")
        with (
            closing(connection_at(broker, 1)) as one,
            closing(connection_at(broker, 2)) as two,
        ):
            publisher, consumer = one.channel(), two.channel()
            publisher.confirm_delivery()
            for name in names:
                publisher.queue_declare(name, durable=True)
            for number in range(10):
                for name in names:
                    publisher.basic_publish("", name, b"%d" % number, mandatory=True)
            with pytest.raises(pika.exceptions.UnroutableError):
                publisher.basic_publish("", "nothing", b"", mandatory=True)
            moment = datetime.now(UTC).isoformat()
            for name in names:
                assert consumer.queue_declare(name, passive=True).method.message_count == 10
                got = []
                for method, _, body in consumer.consume(name, inactivity_timeout=SECONDS):
                    assert method is not None, "nothing comes"
                    got.append(body)
                    consumer.basic_ack(method.delivery_tag)
                    if len(got) == 10:
                        break
                consumer.cancel()
                assert got == [b"%d" % number for number in range(10)]
            for name in names:
                assert publisher.queue_declare(name, passive=True).method.message_count == 0
            for port in broker.http_ports:
                assert asked(broker, port, f"queues/%2F/{names[1]}/at", time=moment)["messages"] == 10
            consumer.queue_delete(names[0])
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
                publisher.queue_declare(names[0], passive=True)
        beside = subprocess.run(
            [sys.executable, "-m", "rewindmq.engine", "--data", str(tmp_path), "--processes", "2"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert beside.returncode == 69
        assert f"in use by another broker (process {broker.process.pid}" in beside.stderr
    verified = subprocess.run(
        [str(Path(sys.executable).with_name("rewindmq")), "verify", "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@contextlib.contextmanager
def closing(it: C) -> Iterator[C]:
    """Close or stop it at the end."""
    try:
        yield it
    finally:
        if isinstance(it, WorkerProcesses):
            assert it.stop() == 0, "".join(it.errors)
        elif it.is_open:
            it.close()


@pytest.mark.timeout(300)
def test_b67_any_process_may_be_killed_and_their_number_may_change(tmp_path: Path) -> None:
    load = Load(WorkerProcesses(tmp_path, "--partitions", "4"), 1)
    asyncio.run(load.run([kill_a_worker, kill_the_log, go_on_alone, go_on_together]))
    settled(load)
