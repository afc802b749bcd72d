"""One simulated machine: the real broker over a log, a RocksDB and a clock that do what a seed says.

Real: Broker, Partition, Turns, Forwarder, Projector, recovery, snapshots, codec, queue machine. Virtual: the event
loop, the log's disk (rewindmq.engine.log.simulated.embedded), RocksDB's disk (virtual.py; or a real RocksDB, which is
slower), clients. Everything is small that is large in production, so that a history of a hundred steps meets every
boundary.

A broker is killed at a step's end, or in the middle of anything: a fuse counts the passes of one point (an append, a
delivery, a batch prepared or written ...) and ends the process there.
"""

import asyncio
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rewindmq.engine.config import Config
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.log.simulated.embedded import Faults, MemoryLog, MemoryPartition
from rewindmq.engine.process import open_broker
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.replay import catch_up, recover
from rewindmq.projections.store import rocks
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.snapshots import WAYPOINT, Snapshots, load
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import verify_partition
from tests.simulation.virtual import VirtualBatch, VirtualLoop, VirtualRocks, at_once
from tests.simulation.witness import Claim, Life, Witness
from tests.support.direct import Direct

START_MS = 1_700_000_000_000
PARTITIONS = 3
POINTS = (
    "append",
    "appended",
    "deliver",
    "confirm",
    "observe",
    "observed",
    "prepare",
    "prepared",
    "write",
    "written",
    "snapshot",
)


class SimulatedCrash(BaseException):
    """kill -9. Not an Exception: nothing in the broker may catch it."""


class World:
    """Use within `with world.running():`. `elapsed_ns`: None: the wall clock tells how much time passes, too."""

    elapsed_ns: Any = None

    def __init__(self, seed: int, directory: Path, real_rocks: bool = False) -> None:
        self.dice = random.Random(f"world {seed}")
        self.real_rocks = real_rocks
        self.witness = Witness()
        self.loop = VirtualLoop()
        self.rocks: Any = VirtualRocks()  # of the running broker, or what the next one will find
        self.skew_ms = 0
        self.defects: list[str] = []  # what the broker logged with a traceback
        self.config = Config(
            data=directory,
            partitions=PARTITIONS,
            snapshot_events=self.dice.choice((40, 150, 10_000)),
            # with dice of its own: seeds keep the histories that they had before the topology had snapshots
            metadata_snapshot_events=random.Random(f"metadata {seed}").choice((3, 20, 10_000)),
            waypoint_events=random.Random(f"waypoints {seed}").choice((7, 40, 10_000)),
        )
        self.sizes = {
            "rewindmq.engine.partition.partition.PREPARE_EVENTS": self.dice.choice((1, 7, 40)),
            "rewindmq.engine.broker.turns.ROUND": self.dice.choice((1, 3, 100)),
            "rewindmq.engine.routing.dead_letters.SLICE_SECONDS": 1e9,  # the count decides, not this machine
            "rewindmq.engine.host.slices.SLICE_SECONDS": 1e9,
            "rewindmq.engine.broker.consumers.CREDIT_WINDOW": self.dice.choice((1, 3, 10)),
            "rewindmq.projections.store.projector.PERSIST_EVENTS": self.dice.choice((5, 60, 10_000)),
            "rewindmq.projections.store.projector.READ_AHEAD_MESSAGES": self.dice.choice((1, 3, 50)),
            "rewindmq.projections.store.store.BODY_CACHE_BYTES": self.dice.choice((0, 5_000, 1_000_000)),
            "rewindmq.projections.machine.data.message_order.CHUNK": self.dice.choice((2, 3, 1024)),
            "rewindmq.projections.machine.state.DEADLINES_A_QUEUE": 0,
            "rewindmq.projections.machine.state.DEADLINES_MORE": self.dice.choice((0, 5, 100)),
        }
        faults = Faults(
            self.dice.getrandbits(64),
            self.dice.choice((0.0, 0.02, 0.3)),
            self.dice.choice((0.0, 0.0, 0.1, 0.4, 0.8)),
            self.dice.choice((0.1, 0.5, 0.9)),
        )
        self.log = MemoryLog(PARTITIONS, faults, self.loop.call_later)
        self.broker: Any
        self._confirmed: dict[int, int] = {}  # by partition, in this life
        self._replaying = False
        self._mending = False
        self._dead = False
        self._fuse: tuple[str, int] | None = None

    # -- the process --------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """The broker's modules see this world, and a running loop, inside."""
        with ExitStack() as stack:
            for name, value in self.sizes.items():
                stack.enter_context(patch(name, value))
            for name, replacement in self._replacements().items():
                stack.enter_context(patch(name, replacement))
            logger = logging.getLogger("rewindmq.engine")
            handler = _Defects(self.defects, self.witness)
            before = logger.propagate
            logger.addHandler(handler)
            logger.propagate = False
            asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]  # a loop that never runs by itself
            try:
                yield
            finally:
                asyncio._set_running_loop(None)
                logger.propagate = before
                logger.removeHandler(handler)

    def start(self) -> None:
        """A broker on what is there. It may be killed while it starts, and is then started again."""
        while True:
            self._confirmed = {}
            began = [partition.durable_offset for partition in self.log.queues]
            self.witness.lives.append(
                Life(
                    len(self.witness.lives),
                    began,
                    [0] * PARTITIONS,
                    [[] for _ in range(PARTITIONS)],
                    [[] for _ in range(PARTITIONS)],
                )
            )
            try:
                self.broker = Direct(open_broker(self.config, self.clock, self.elapsed_ns))
                self.loop.run(0)
                return
            except SimulatedCrash:
                self._fall()

    def crash(self) -> None:
        """Killed now, and started again on what survived."""
        self._fall()
        self.start()

    def _fall(self) -> None:
        self._dead = False
        self._fuse = None
        if self.dice.random() < 0.3:  # misfortunes like company
            self.arm(self.dice.choice(POINTS), self.dice.randint(1, 12))
        self.loop.clear()
        appended = sum(partition.next_offset for partition in self.log.queues)
        self.log = self.log.crash()
        self.witness.counts["tails lost"] += sum(partition.next_offset for partition in self.log.queues) < appended
        self._lose_power()
        self.witness.counts["crashes"] += 1
        self.witness.crash([partition.durable_offset for partition in self.log.queues])
        self.check_stored()

    def _lose_power(self) -> None:
        """RocksDB as the crash left it; now and then somebody deletes it."""
        deleted = self.dice.random() < 0.2
        if not self.real_rocks:
            self.rocks = VirtualRocks() if deleted else self.rocks.crash(self.dice)
            return
        state = self.config.data / "state"
        left = state.with_name("state-as-left")
        if not deleted:
            shutil.copytree(state, left)
        self.rocks.close()
        shutil.rmtree(state)
        if not deleted:
            left.rename(state)

    def stop(self) -> None:
        self.fill_disk(False)
        self.broker.close()
        self.witness.life.ended = [partition.durable_offset for partition in self.log.queues]
        for receipt in self.witness.receipts.values():
            receipt.cut = receipt.cut or receipt.life == self.witness.life.number
        self.loop.clear()
        self.witness.counts["clean stops"] += 1
        self.check_stored()

    def restart(self, healed: bool = False) -> None:
        """A clean stop and a start; `healed`: on a disk that has no faults from here on."""
        self.stop()
        log = MemoryLog(PARTITIONS, Faults(), self.loop.call_later) if healed else self.log.crash()
        log.metadata, log.queues = self.log.metadata, self.log.queues
        self.log = log
        self.start()

    # -- time and faults ----------------------------------------------------------------------------------------------

    def clock(self) -> int:
        return START_MS + round(self.loop.now * 1000) + self.skew_ms

    def fill_disk(self, full: bool) -> None:
        """RocksDB cannot write; the log can."""
        if not self.real_rocks:
            self.rocks.full = full

    def arm(self, point: str, passes: int) -> None:
        """Kill the broker when it passes this point for the so-many-th time."""
        self._fuse = (point, passes)

    def disarm(self) -> None:
        self._fuse = None

    def passed(self, point: str) -> None:
        if self._fuse is None or self._fuse[0] != point:
            return
        if self._fuse[1] > 1:
            self._fuse = (point, self._fuse[1] - 1)
            return
        self._fuse = None
        self._dead = True
        self.witness.counts[f"killed at {point}"] += 1
        self.witness.trace.append(f"    killed at {point}")
        raise SimulatedCrash

    # -- what is claimed ----------------------------------------------------------------------------------------------

    def claim_live(self) -> None:
        """Write down the digests of the live state as they are now."""
        for partition in self.broker.partitions:
            machine = partition.machine
            self.witness.claims.append(Claim("live state", partition.index, machine.next_offset, machine.digest()))

    def confirmed(self, partition: int, offset: int) -> None:
        """Confirms of a partition come in the order of its offsets, and never before the log is durable."""
        assert offset < self.log.queues[partition].durable_offset, "confirmed before it was durable"
        assert offset > self._confirmed.get(partition, -1), "confirmed out of order"
        self._confirmed[partition] = offset

    def validate(self) -> None:
        for partition in self.broker.partitions:
            partition.machine.validate()

    def check_stored(self) -> None:
        """The RocksDB that is there holds what the log says, at its offset, with bodies; so do all snapshots."""
        store = StateStore.open(self.config.data / "state")
        for partition in self.log.queues:
            report = verify_partition(partition, store)
            assert report.equal, f"{partition.name}: RocksDB is not what the log says: {report.differences}"
        store.close()
        snapshots = Snapshots(self.config.data / "snapshots")
        for index, partition in enumerate(self.log.queues):
            waypoints = [offset for offset, _ in snapshots.waypoints(partition.name)]
            for offset in (*snapshots.offsets(partition.name), *waypoints):
                path = snapshots.nearest(partition.name, offset)
                assert path is not None
                assert offset <= partition.durable_offset, f"{path.name} is ahead of the log"
                claim = Claim("snapshot", index, offset, load(path).digest())
                if claim not in self.witness.claims:
                    self.witness.claims.append(claim)
                    self.witness.counts["waypoints" if path.suffix == WAYPOINT else "snapshots"] += 1
        assert all(offset <= self.log.metadata.durable_offset for offset in snapshots.offsets("metadata-0"))
        topology = verify_metadata(self.log.metadata, snapshots)
        assert topology.equal, f"snapshots of the topology: {topology.differences}"
        self.witness.counts["snapshots of the topology"] += topology.compared

    # -- instruments --------------------------------------------------------------------------------------------------

    def _replacements(self) -> dict[str, Any]:
        return (self._remembering() if self.real_rocks else self._virtual_rocks()) | {
            "rewindmq.engine.embedded.start.EmbeddedLog": self,  # its `open` below
            "rewindmq.engine.embedded.start.recover": self._recover,
            "rewindmq.projections.store.repair.catch_up": self._mend,
            "rewindmq.engine.broker.broker.LoopShare": partial(LoopShare, self.loop.time),
            "rewindmq.engine.broker.access_control.Access.hash": lambda access, password: "simulated",
            "rewindmq.projections.store.store.Projector": self._watched_projector(),
            "rewindmq.projections.store.snapshots.Snapshots.take": self._between(
                "snapshot", "snapshot", Snapshots.take
            ),
            "rewindmq.projections.system_calls.sync": lambda descriptor: None,
            "rewindmq.engine.partition.snapshot_writer.in_thread": at_once,
            "rewindmq.engine.partition.waypoint_writer.in_thread": at_once,
            "rewindmq.engine.partition.waypoint_writer.SECONDS_AN_EVENT": 1_000,
            "rewindmq.engine.partition.waypoint_writer.PACK_SECONDS": 1_000,
            "rewindmq.engine.log.simulated.embedded.MemoryLog.close": self._unless_dead(MemoryLog.close),
            "rewindmq.engine.log.simulated.embedded.MemoryPartition.append": self._between(
                "append", "appended", MemoryPartition.append
            ),
        }

    def _virtual_rocks(self) -> dict[str, Any]:
        return {
            "rewindmq.projections.store.rocks.open_database": lambda path: self.rocks,
            "rewindmq.projections.store.rocks.scan": lambda rocks, prefix, start=None: rocks.scan(prefix, start),
            "rewindmq.projections.store.rocks.has_room": lambda path: not self.rocks.full,
            "rewindmq.projections.store.rocks.WriteBatch": VirtualBatch,
            "rewindmq.projections.store.projector.WriteBatch": VirtualBatch,
            "tests.simulation.virtual.VirtualRocks.close": self._unless_dead(VirtualRocks.close),
        }

    def _remembering(self) -> dict[str, Any]:
        original = rocks.open_database

        def open_database(path: Path) -> Any:
            self.rocks = original(path)
            return self.rocks

        return {
            "rewindmq.projections.store.rocks.open_database": open_database,
            "rewindmq.projections.store.store.StateStore.close": self._unless_dead(StateStore.close),
        }

    def open(self, *settings: Any) -> MemoryLog:
        """Stands in for `EmbeddedLog.open`."""
        return self.log

    def _mend(self, log: Any, projector: Projector, end: int | None) -> int:
        self._mending = True
        try:
            folded = catch_up(log, projector, end)
        finally:
            self._mending = False
        index = next(index for index, partition in enumerate(self.log.queues) if partition is log)
        machine = projector.machine
        self.witness.claims.append(Claim("state mended", index, machine.next_offset, machine.digest()))
        self.witness.counts["states mended"] += 1
        return folded

    def _recover(self, log: Any, store: StateStore) -> Any:
        index = next(index for index, partition in enumerate(self.log.queues) if partition is log)
        life = self.witness.life
        life.stored[index] = store.applied_offset(log.name)
        self._replaying = True
        try:
            recovery = recover(log, store)
        finally:
            self._replaying = False
        machine = recovery.machine
        machine.validate()
        who = f"state at the start of life {life.number} (stored at {life.stored[index]})"
        self.witness.claims.append(Claim(who, index, machine.next_offset, machine.digest()))
        return recovery

    def _watched_projector(self) -> type[Projector]:
        world, between = self, self._between

        class Watched(Projector):
            def observe(self, effects: Any, published: Any) -> None:
                if world._dead:  # see `_unless_dead`
                    return
                world.passed("observe")
                index = int(self.machine.partition.rsplit("-", 1)[1])
                if not world._mending:  # those effects were seen before
                    world.witness.saw(index, effects, world._replaying)
                super().observe(effects, published)
                world.passed("observed")

            prepare = between("prepare", "prepared", Projector.prepare)
            write = between("write", "written", Projector.write)

        return Watched

    def _unless_dead(self, original: Callable[..., None]) -> Callable[..., None]:
        """Of a dead process only Python's `finally` still runs, and must not tidy up."""
        return lambda target: None if self._dead else original(target)

    def _between(self, before: str, after: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._dead:
                raise SimulatedCrash
            self.passed(before)
            result = original(*arguments)
            self.passed(after)
            return result

        return call


class _Defects(logging.Handler):
    """The broker catches what one connection does wrong, and what a disk does; here neither may happen by itself."""

    def __init__(self, defects: list[str], witness: Witness) -> None:
        super().__init__(logging.WARNING)
        self.defects = defects
        self.witness = witness

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.witness.counts["commits failed"] += "the log can't be written" in message
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        filled = "No space left on device (simulated)" in message
        self.witness.counts["batches failed"] += "the state can't be written" in message
        if record.exc_info or ("the state can't be written" in message and not filled) or "no snapshot" in message:
            self.defects.append(message)
