"""Several simulated nodes on one shared log: each the real broker, its log, RocksDB and clock made by a seed.

Real: open_node, ClusterKeeper, Broker, ReadBackPartition, ReadBackMetadata, Turns, Forwarder, Projector, recovery,
snapshots, codec, queue machine, asyncio's tasks. Virtual: time (nodes_loop.py), the log
(rewindmq.engine.log.simulated.shared), RocksDB's disk (virtual.py), clients (nodes_clients.py). Everything is small
that is large in production.
A life is one process of a node, from its start to its stop or death. A node that gives up by itself (`failed`) is
stopped as the process would stop; somebody starts it again later.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.config import Config
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.simulated.shared import (
    MemorySharedLog,
    SharedFaults,
    SharedHistory,
    SimulatedArchivedPartition,
)
from rewindmq.engine.process import open_node
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.replay import recover
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.snapshots import WAYPOINT, Snapshots, load
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import verify_partition
from tests.simulation.nodes_loop import NodesLoop
from tests.simulation.virtual import VirtualBatch, VirtualRocks, at_once
from tests.simulation.witness import Claim, EffectRow, row_of

START_MS = 1_700_000_000_000
PARTITIONS = 3


class Life:
    """One process of a node."""

    def __init__(self, world: "World", node: str, number: int) -> None:
        self.world = world
        self.node = node
        self.number = number
        self.name = f"{node}/{number}"
        self.broker: Broker | None = None  # once it has joined
        self.log: MemorySharedLog
        self.machines: list[Machine] = []
        self.began: list[list[tuple[int, int]]] = []  # the offsets from where it reads back, and the rows before
        self.performed: list[list[EffectRow]] = []
        self.replaying = False
        self.ended = ""  # killed, stopped, failed
        self.failure: Exception | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def serves(self) -> bool:
        return self.broker is not None and not self.ended and self.broker.nodes.joined

    def clock(self) -> int:
        return self.world.log_clock() + self.world.skew_ms[self.node]

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that dies with the process."""
        task = self.world.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def failed(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.world.loop.call_soon(lambda: self.world.stop(self, "failed"))


@dataclass
class Record:
    """The observations of a history."""

    lives: list[Life] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class World:
    """Use within `with world.running():`."""

    def __init__(self, seed: int, directory: Path) -> None:
        dice = self.dice = random.Random(f"nodes {seed}")
        self.directory = directory
        self.loop = NodesLoop()
        self.record = Record()
        self.defects: list[str] = self.loop.defects  # what a node logged with a traceback
        self.nodes = [f"n{number}" for number in range(dice.choice((2, 3, 3, 4)))]
        self.skew_ms = {node: dice.choice((0, 0, -20, 300, -4_000, 4_000)) for node in self.nodes}
        self.rocks = {self._state(node): VirtualRocks() for node in self.nodes}
        self.lives: dict[str, Life] = {}  # those that run, or start, by node
        self.sizes = {
            "rewindmq.engine.partition.partition.PREPARE_EVENTS": dice.choice((1, 7, 40)),
            "rewindmq.engine.broker.turns.ROUND": dice.choice((1, 3, 100)),
            "rewindmq.engine.routing.dead_letters.SLICE_SECONDS": 1e9,  # the count decides, not this machine
            "rewindmq.engine.host.slices.SLICE_SECONDS": 1e9,
            # with dice of its own: seeds keep the histories that they had before there was flow control
            "rewindmq.engine.cluster.flow_control.LEAST_EVENTS": random.Random(f"flow {seed}").choice((1, 4, 128)),
            "rewindmq.engine.cluster.flow_control.EVENTS_A_SECOND": 0,
            "rewindmq.engine.broker.consumers.CREDIT_WINDOW": dice.choice((1, 3, 10)),
            "rewindmq.engine.broker.open_sessions.EPOCH_IDS": dice.choice((30, 1 << 24, 1 << 24)),
            "rewindmq.projections.store.projector.PERSIST_EVENTS": dice.choice((5, 60, 10_000)),
            "rewindmq.projections.store.projector.READ_AHEAD_MESSAGES": dice.choice((1, 3, 50)),
            "rewindmq.projections.store.store.BODY_CACHE_BYTES": dice.choice((0, 5_000, 1_000_000)),
            "rewindmq.projections.machine.data.message_order.CHUNK": dice.choice((2, 3, 1024)),
        }
        # with dice of its own: seeds keep the histories that they had before partitions were paused
        modes = random.Random(f"modes {seed}")
        self.standbys = {node: modes.choice((None, 0, 0, 1)) for node in self.nodes}
        self.sizes["rewindmq.engine.cluster.partition_pausing.UNUSED_SECONDS"] = modes.choice((1, 3, 20))
        # with dice of its own: seeds keep the histories that they had before there were copies of states
        copies = self.copies = random.Random(f"copies {seed}")
        self.has_copies = copies.random() < 0.7
        self.sizes["rewindmq.engine.cluster.snapshot_import.LEAST_EVENTS"] = copies.choice((1, 2, 5))
        self.snapshot_events = dice.choice((15, 60, 10_000))
        if self.has_copies:
            self.snapshot_events = min(self.snapshot_events, copies.choice((8, 15, 60)))
        # with dice of its own: seeds keep the histories that they had before the topology had snapshots
        self.metadata_snapshot_events = random.Random(f"metadata {seed}").choice((2, 10, 10_000))
        # with dice of its own: seeds keep the histories that they had before queues moved
        moves = random.Random(f"moves {seed}")
        portion, letters = moves.choice(((1, 1), (2, 5), (500, 2_000)))
        placement = "rewindmq.engine.placement"
        self.sizes |= {
            f"{placement}.moves.AGAIN_SECONDS": moves.choice((2, 20)),
            f"{placement}.moves.SLOW_SECONDS": (slow := moves.choice((1, 30))),
            f"{placement}.step_barrier.LOST_SECONDS": slow,
            f"{placement}.moves.TOGETHER": moves.choice((1, 2, 50)),
            f"{placement}.moves.MESSAGES_TOGETHER": moves.choice((2, 1_000)),
            f"{placement}.repartition.NAMES_TOGETHER": moves.choice((1, 500)),
            f"{placement}.moves.PORTION": portion,
            f"{placement}.moves.MOST_LETTERS": letters,
            f"{placement}.leftover_queues.PORTION": portion,
            f"{placement}.leftover_queues.MOST_LETTERS": letters,
        }
        self.waypoint_events = random.Random(f"waypoints {seed}").choice((10, 50, 10_000))
        self.faults = SharedFaults(
            dice.getrandbits(64),
            dice.choice((0.0, 0.01, 0.3)),
            dice.choice((0.0, 0.01, 0.2, 1.5)),
            dice.choice((0.0, 0.5, 4.0)),
            dice.choice((0.0, 0.02, 0.3)),
            copies.choice((0, 0, 2)),
            copies.choice((0, 3, 9)),
        )
        self.history = SharedHistory(PARTITIONS, self.log_clock, self.loop.call_later, self.faults)
        self._starting: Life
        self._projectors: dict[int, tuple[Life, int, Projector]] = {}  # by the projector's id

    def log_clock(self) -> int:
        return START_MS + round(self.loop.time() * 1000)

    def _state(self, node: str) -> Path:
        return self.directory / node / "state"

    @contextmanager
    def running(self) -> Iterator[None]:
        """The brokers' modules see this world inside."""
        with ExitStack() as stack:
            for name, value in (self.sizes | self._replacements()).items():
                stack.enter_context(patch(name, value))
            logger = logging.getLogger("rewindmq.engine")
            handler = _Defects(self.defects)
            before = logger.propagate
            logger.addHandler(handler)
            logger.propagate = False
            try:
                yield
            finally:
                logger.propagate = before
                logger.removeHandler(handler)
                self.loop.close()

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, node: str) -> Life:
        """Begin to start the node; it has joined when it `serves`."""
        assert node not in self.lives
        life = self.lives[node] = Life(self, node, len(self.record.lives))
        self.record.lives.append(life)
        life.begin(self._start(life))
        return life

    async def _start(self, life: Life) -> None:
        config = Config(
            data=self.directory / life.node,
            partitions=PARTITIONS,
            node=life.node,
            kafka="memory",
            snapshot_events=self.snapshot_events,
            metadata_snapshot_events=self.metadata_snapshot_events,
            waypoint_events=self.waypoint_events,
            standbys=self.standbys.get(life.node),
        )
        config.data.mkdir(exist_ok=True)
        self._starting = life
        try:
            life.broker = await open_node(config, life.failed, life.clock)
        except LogError as error:
            life.failure = error
            self._end(life, "failed")
            return
        life.broker.turns.end()

    def kill(self, life: Life, lose_state: bool = False) -> None:
        """kill -9."""
        life.log.kill()
        if life.broker is not None:
            life.broker.turns.stop()
            keeper = life.broker.keeper
            assert isinstance(keeper, ClusterKeeper)
            keeper.stopped = True
        for task in list(life.tasks):
            task.cancel()
        path = self._state(life.node)
        self.rocks[path] = VirtualRocks() if lose_state else self.rocks[path].crash(self.dice)
        self._end(life, "killed")

    def stop(self, life: Life, why: str = "stopped") -> None:
        """Cleanly, as far as the log allows it."""
        if life.ended:
            return
        if life.broker is None:  # still starting
            self.kill(life)
            return
        try:
            life.broker.close()
        except LogError as error:
            life.failure = life.failure or error
            why = "failed"
        for task in list(life.tasks):
            task.cancel()
        self._end(life, why)

    def _end(self, life: Life, why: str) -> None:
        life.ended = why
        del self.lives[life.node]
        self.record.counts[why] += 1
        self.record.trace.append(f"    {life.name} {why}{'' if life.failure is None else f': {life.failure}'}")
        self.check_stored(life.node)

    # -- what is claimed ----------------------------------------------------------------------------------------------

    def claim(self, life: Life) -> None:
        """Write down the digests of the node's states as they are now."""
        claims = self.record.claims
        for index, machine in enumerate(life.machines):
            claims.append(Claim(life.name, index, machine.next_offset, machine.digest()))
        if life.broker is not None:
            topology = life.broker.topology
            claims.append(Claim(life.name, -1, topology.next_offset, topology.digest()))

    def check_stored(self, node: str) -> None:
        """The RocksDB that is there holds what the log says, at its offset, with bodies."""
        store = StateStore.open(self._state(node))
        known = [len(life.machines) for life in self.record.lives if life.node == node]
        partitions = self.history.queues[: max(PARTITIONS, *known)]  # it may not have worked with all
        for partition in partitions:
            report = verify_partition(partition, store)
            assert report.equal, f"{node}, {partition.name}: RocksDB is not what the log says: {report.differences}"
        store.close()
        snapshots = Snapshots(self.directory / node / "snapshots")
        for index, partition in enumerate(partitions):
            waypoints = [offset for offset, _ in snapshots.waypoints(partition.name)]
            for offset in (*snapshots.offsets(partition.name), *waypoints):
                path = snapshots.nearest(partition.name, offset)
                assert path is not None
                self.record.claims.append(Claim(f"snapshot of {node}", index, offset, load(path).digest()))
                self.record.counts["waypoints"] += path.suffix == WAYPOINT
        topology = verify_metadata(self.history.metadata, snapshots)
        assert topology.equal, f"{node}, snapshots of the topology: {topology.differences}"
        self.record.counts["snapshots of the topology"] += topology.compared

    # -- instruments --------------------------------------------------------------------------------------------------

    def _replacements(self) -> dict[str, Any]:
        return {
            "rewindmq.engine.log.kafka.log.KafkaLog": self,  # its `open` below
            "rewindmq.engine.cluster.start.histories": lambda log, config: [
                SimulatedArchivedPartition(each) for each in log.queues
            ],
            "rewindmq.engine.cluster.start.recover": self._recover,
            "rewindmq.engine.cluster.resumption.recover": self._recover_again,
            "rewindmq.engine.cluster.resumption.in_thread": self._in_thread,
            "rewindmq.engine.cluster.resumption.STOP_SECONDS": 0,
            "rewindmq.engine.cluster.snapshot_export.in_thread": self._soon,
            "rewindmq.engine.cluster.snapshot_export.STOP_SECONDS": 0,
            "rewindmq.engine.cluster.snapshot_export.BYTES_AN_EVENT": 1_000_000,
            "rewindmq.engine.cluster.loose_ends.NAMES_A_LOOK": 8,  # so that a round takes more than one heartbeat
            "rewindmq.engine.broker.broker.LoopShare": partial(LoopShare, self.loop.time),
            "rewindmq.engine.broker.access_control.Access.hash": lambda access, password: "simulated",
            "rewindmq.projections.store.store.Projector": self._watched_projector(),
            "rewindmq.projections.system_calls.sync": lambda descriptor: None,
            "rewindmq.engine.partition.snapshot_writer.in_thread": at_once,
            "rewindmq.engine.partition.waypoint_writer.in_thread": at_once,
            "rewindmq.engine.partition.waypoint_writer.SECONDS_AN_EVENT": 1_000,
            "rewindmq.engine.partition.waypoint_writer.PACK_SECONDS": 1_000,
            "rewindmq.projections.store.rocks.open_database": lambda path: self.rocks[path],
            "rewindmq.projections.store.rocks.scan": lambda rocks, prefix, start=None: rocks.scan(prefix, start),
            "rewindmq.projections.store.rocks.WriteBatch": VirtualBatch,
            "rewindmq.projections.store.projector.WriteBatch": VirtualBatch,
            "rewindmq.projections.store.store.WriteBatch": VirtualBatch,
        }

    def open(self, *settings: Any) -> MemorySharedLog:
        """Stands in for `KafkaLog.open`."""
        life = self._starting
        pauses = self.standbys.get(life.node) is not None
        life.log = self.history.open(life.node, pauses, self.has_copies)
        return life.log

    def _recover(self, log: Any, store: StateStore) -> Any:
        life = self._starting
        recovery = recover(log, store)
        recovery.machine.validate()
        self._projectors[id(recovery.projector)] = (life, len(life.machines), recovery.projector)
        life.machines.append(recovery.machine)
        life.began.append([(recovery.machine.next_offset, 0)])
        life.performed.append([])
        return recovery

    def _recover_again(self, log: SimulatedArchivedPartition, store: StateStore) -> Any:
        """A partition that was paused begins with another state."""
        life = self.lives[log.log.node]
        index = next(at for at, machine in enumerate(life.machines) if machine.partition == log.name)
        before = life.machines[index].next_offset
        recovery = recover(log, store)
        recovery.machine.validate()
        self._projectors[id(recovery.projector)] = (life, index, recovery.projector)
        life.machines[index] = recovery.machine
        life.began[index].append((recovery.machine.next_offset, len(life.performed[index])))
        self.record.counts["returned"] += 1
        self.record.counts["returned below the log"] += before < log.log.start_offset
        return recovery

    def _soon(self, _name: str, work: Callable[[], None]) -> "Future[None]":
        """A thread that does its work soon."""
        done: Future[None] = Future()

        def run() -> None:
            work()
            done.set_result(None)

        self.loop.call_soon(run)
        return done

    def _in_thread(self, _name: str, work: Callable[[], None]) -> "Future[None]":
        """A thread that has done its work at once, and ends later."""
        done: Future[None] = Future()
        try:
            work()
        except Exception as error:
            self.loop.call_later(self.copies.uniform(0, 2), partial(done.set_exception, error))
        else:
            self.loop.call_later(self.copies.uniform(0, 2), partial(done.set_result, None))
        return done

    def _watched_projector(self) -> type[Projector]:
        world = self

        class Watched(Projector):
            def observe(self, effects: Any, published: Any) -> None:
                found = world._projectors.get(id(self))
                if found is not None:  # else it recovers
                    life, index, _ = found
                    if life.ended:
                        return
                    life.performed[index] += [row_of(effect) for effect in effects]
                super().observe(effects, published)

        return Watched


class _Defects(logging.Handler):
    """The broker catches what one connection does wrong, and what a disk does; here neither may happen."""

    def __init__(self, defects: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.defects = defects

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.defects.append(record.getMessage() + "\n" + logging.Formatter().formatException(record.exc_info))
