"""Nodes on a shared log in memory: brokers that fold only what they read back.

async def test(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    nodes.log("a").cut(True)          # requests from here on wait, until
    nodes.log("a").cut(False)

run(test, tmp_path, monkeypatch)
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.config import Config
from rewindmq.engine.log.simulated.shared import MemorySharedLog, SharedHistory, SimulatedArchivedPartition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.process import open_node
from rewindmq.schemas.events import Published
from tests.support.async_tests import Decorator, run_by
from tests.support.broker_harness import Client

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START_MS = 1_700_000_000_000
PERSISTENT = b"\x10\x00\x02"
SOON_SECONDS = 0.012  # a Tick is due within 10 ms (turns.py)
SETTLED_SECONDS = 20


class Nodes:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, partitions: int = 2) -> None:
        self.directory = directory
        self.now_ms = START_MS
        self.partitions = partitions
        self.history = SharedHistory(partitions, lambda: self.now_ms, asyncio.get_running_loop().call_later)
        self.brokers: dict[str, Broker] = {}
        self.failures: list[Exception] = []
        self._opening = ""
        self._pauses = False
        self.copies = False  # whether the log keeps copies of states
        monkeypatch.setattr("rewindmq.engine.log.kafka.log.KafkaLog", self)
        monkeypatch.setattr("rewindmq.engine.cluster.start.histories", archived)

    def open(self, *settings: Any) -> MemorySharedLog:
        """Open a log in the place of `KafkaLog.open`."""
        return self.history.open(self._opening, self._pauses, self.copies)

    async def start(self, name: str, standbys: int | None = None) -> Broker:
        """Start a node. `standbys`: as the option of `start`; None: it folds everything."""
        config = Config(
            data=self.directory / name, partitions=self.partitions, node=name, kafka="memory", standbys=standbys
        )
        config.data.mkdir(exist_ok=True)
        self._opening, self._pauses = name, standbys is not None
        broker = self.brokers[name] = await open_node(config, self.failures.append, lambda: self.now_ms)
        await settled()
        return broker

    def log(self, name: str) -> MemorySharedLog:
        return self.history.logs[name]

    def node(self, name: str) -> ClusterKeeper:
        keeper = self.brokers[name].keeper
        assert isinstance(keeper, ClusterKeeper)
        return keeper

    def close(self) -> None:
        for name, broker in self.brokers.items():
            if name in self.history.logs:
                broker.close()


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that knows whether anything happens by itself: work that is ready or with a thread, a timer that
    rings soon."""

    def __init__(self) -> None:
        super().__init__()
        self.in_threads = 0  # calls that an executor has and has not answered

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        self.in_threads += 1
        answer: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: object) -> None:
        self.in_threads -= 1

    @property
    def at_rest(self) -> bool:
        """asyncio does not tell it, so this reads the queue of ready calls and the heap of timers."""
        soon = self.time() + SOON_SECONDS
        timers = (timer for timer in self._scheduled if not timer.cancelled())  # type: ignore[attr-defined]
        return not (self._ready or self.in_threads or any(timer.when() < soon for timer in timers))  # type: ignore[attr-defined]


async def settled() -> None:
    """Wait until everything that is on its way has arrived: nothing more happens by itself."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WatchedLoop)
    async with asyncio.timeout(SETTLED_SECONDS):
        await asyncio.sleep(0)
        while not loop.at_rest:
            await asyncio.sleep(0.001 if loop.in_threads else 0)


def watched(main: Coroutine[Any, Any, None]) -> None:
    """Run a test whose nodes can be awaited (`settled`)."""
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        runner.run(main)


def archived(log: MemorySharedLog, _config: Config) -> list[SimulatedArchivedPartition]:
    """The histories of the partitions: an archive has them, too."""
    return [SimulatedArchivedPartition(each) for each in log.queues]


def session(broker: Broker) -> Session:
    return broker.sessions.open("guest", "/", "test", {})


def declare(broker: Broker, who: Session, name: str = "q", exclusive: bool = False) -> Coroutine[Any, Any, Any]:
    return broker.queues.declare(who, name, False, True, exclusive, False, ())


def publish(broker: Broker, who: Session, body: bytes, confirms: Client, name: str = "q") -> int:
    """Publish a message. Returns the number of queues that it was routed to."""
    destinations = broker.exchanges.route(who, "", name, None)
    for to in destinations:
        message = Published(to.route, PERSISTENT, persistent=True, body=body, body_size=len(body))
        to.partition.await_durable(to.partition.publish(who.actor, message), confirms, 1)
    return sum(len(to.route.queues) for to in destinations)


def run(test: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int = 2) -> None:
    async def whole() -> None:
        nodes = Nodes(tmp_path, monkeypatch, partitions)
        try:
            await test(nodes)
        finally:
            nodes.close()

    watched(whole())


def on_nodes(partitions: int = 2) -> Decorator:
    """Make a test of a coroutine whose first argument is the `Nodes`."""
    return run_by(partial(run, partitions=partitions), "tmp_path", "monkeypatch", given=1)
