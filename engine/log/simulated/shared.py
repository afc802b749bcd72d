"""A shared log in memory for simulations: a Kafka whose faults are derived from a seed.

Its contract is `rewindmq.engine.log.shared_contract`. Counters, copies of states and the archive are at the end.

    history = SharedHistory(3, clock, call_later, SharedFaults(seed=7, append_seconds=0.1, arrival_seconds=0.5))
    log = history.open("a")     one node's view: append, read back, duties
    log.hold(["queues-1"])      it falls behind in these
    log.cut(True)               it does not reach the log: its appends wait, nothing arrives
    log.kill()                  its process is gone: the front part of its appends in flight still lands
    log.after_arrival = what    called when the node has folded arrivals, before anything that waited for them continues
    history.assign({"queues-0": ["a", "b"]})     the caller's duties; `rebalance` distributes them

Faults like Kafka's:
- an append reaches the log late (`append_seconds`), those of one node to one partition in their order, in pieces;
- records in the log arrive late (`arrival_seconds`), at each node and from each partition in its own time, in batches
  of any size;
- offsets have gaps (`gap_rate`: control records), and a test can add any record (`SimulatedPartition.put`);
- duties move late and not everywhere at once (`duty_seconds`), so a partition has two owners or none for a while;
- copies of states may be lost or damaged (`copies`: of ten), and Kafka may drop the records below a copy (`drops`: of
  ten). They stay in the archive, where a node reads them without following them;
- counters are as late as everything else, those of an owner that dies may be lost, and the log forgets records that
  are superseded by later ones of the same key. They have their own dice.
The log's clock is its own, whatever the nodes' clocks do. As Kafka's, it may be set back.
"""

import asyncio
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.directory import METADATA, queue_partition
from rewindmq.engine.log.shared_contract import (
    REMOVED,
    Arrived,
    SharedLogListener,
    StateCopied,
    TopicPlacement,
    WritingStopped,
)
from rewindmq.engine.log.simulated.embedded import CallLater

NODES = "nodes-0"
PATIENCE_SECONDS = 1.5  # a node that is cut off for this long is in trouble
SESSION_SECONDS = 6.0  # and for this long loses its duties


@dataclass(frozen=True, slots=True)
class SharedFaults:
    """The faults: the longest delays, and the share of writes that are followed by a gap."""

    seed: int = 0
    append_seconds: float = 0.0
    arrival_seconds: float = 0.0
    duty_seconds: float = 0.0
    gap_rate: float = 0.0
    copies: int = 0
    drops: int = 0


class SimulatedPartition:
    """The records of one partition that are in the log. Four lists of one length."""

    shared = True
    start_offset = 0

    def __init__(self, history: "SharedHistory", name: str) -> None:
        self.name = name
        self.offsets: list[int] = []
        self.timestamps_ms: list[int] = []
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.next_offset = 0
        self.kept_from = 0  # older records are only in the archive
        self._history = history

    def put(self, key: bytes, value: bytes) -> int:
        """Put a record into the log, and return its offset."""
        offset = self.next_offset
        self.offsets.append(offset)
        self.timestamps_ms.append(self._history.clock())
        self.keys.append(key)
        self.values.append(value)
        self.next_offset = offset + 1 + self._history.gap()
        self._history.grown()
        return offset

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        at = bisect_left(self.offsets, offset)
        behind = len(self.offsets) if end is None else bisect_left(self.offsets, end)
        while at < behind:
            first = at
            while at + 1 < behind and self.offsets[at + 1] == self.offsets[at] + 1:
                at += 1
            at += 1
            yield Block(
                self.offsets[first],
                tuple(self.values[first:at]),
                self.timestamps_ms[at - 1],
                b"",
                Path(self.name),
                0,
                tuple(self.timestamps_ms[first:at]),
            )

    def offset_at(self, timestamp_ms: int) -> int:
        later = (at for at, time_ms in enumerate(self.timestamps_ms) if time_ms > timestamp_ms)
        at = next(later, len(self.timestamps_ms))  # like Kafka: the first one, even if time went back
        return self.offsets[at] if at < len(self.offsets) else self.next_offset

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        for first, end in ranges:
            yield from self.read(first, end)

    def base(self) -> None:
        """None: it begins at offset 0."""


class SharedHistory:
    """The records of all nodes, and the open logs.

    `clock` is the log's own, in ms; `call_later(seconds, callback)` the simulation's."""

    def __init__(
        self, partitions: int, clock: Callable[[], int], call_later: CallLater, faults: SharedFaults | None = None
    ) -> None:
        self.clock = clock
        self.faults = faults or SharedFaults()
        self.dice = random.Random(self.faults.seed)
        self.call_later = call_later
        self.metadata = SimulatedPartition(self, METADATA)
        self.nodes = SimulatedPartition(self, NODES)
        self.queues = [SimulatedPartition(self, queue_partition(number)) for number in range(partitions)]
        self.counters = [CounterHistory(f"counters-{number}") for number in range(partitions)]
        self.copies: dict[int, tuple[int, int, bytes]] = {}  # by partition: the offset, that of the claim, the file
        self.may_drop = True
        self.copy_dice = random.Random(f"copies {self.faults.seed}")
        self.counter_dice = random.Random(f"counters {self.faults.seed}")
        self.logs: dict[str, MemorySharedLog] = {}  # the open ones, by node
        self.owners: dict[str, list[str]] = {partition.name: [] for partition in self.queues}

    @property
    def partitions(self) -> list[SimulatedPartition]:
        return [self.metadata, self.nodes, *self.queues]

    def add(self, partitions: int) -> None:
        """Give the log this number of queue partitions. Open logs do not see the new ones."""
        for number in range(len(self.queues), partitions):
            self.queues.append(SimulatedPartition(self, queue_partition(number)))
            self.counters.append(CounterHistory(f"counters-{number}"))
            self.owners[queue_partition(number)] = []

    def open(self, node: str, pauses: bool = False, copies: bool = False) -> "MemorySharedLog":
        """Open the log for another node.

        `pauses`: it may pause partitions. `copies`: the log keeps copies of states."""
        assert node not in self.logs, f"{node} is open already"
        self.logs[node] = log = MemorySharedLog(self, node, pauses, copies)
        return log

    def heal(self) -> None:
        """End all faults, so that everything gets through at once, and each partition has one owner."""
        self.faults = SharedFaults()
        for log in self.logs.values():
            log.cut(False)
            log.hold(())
        self.rebalance()

    def gap(self) -> int:
        """Return the number of offsets without a record before the next record."""
        return self.dice.randint(1, 3) if self.dice.random() < self.faults.gap_rate else 0

    def grown(self) -> None:
        """Let every node fetch the new records."""
        for log in self.logs.values():
            log.fetch()

    # -- duties -------------------------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Give each queue partition one owner among the reachable nodes."""
        members = sorted(node for node, log in self.logs.items() if log.is_member)
        self.dice.shuffle(members)
        self.assign(
            {
                partition.name: members[at % len(members) : at % len(members) + 1] if members else []
                for at, partition in enumerate(self.queues)
            }
        )

    def assign(self, owners: Mapping[str, list[str]]) -> None:
        """Give the duties of these partitions to these nodes. Each node learns it in its own time."""
        self.owners.update(owners)
        for log in list(self.logs.values()):
            log.duties_changed()


class MemorySharedPartition:
    """One partition as one node sees it."""

    shared = True

    def __init__(self, log: "MemorySharedLog", history: SimulatedPartition) -> None:
        self.name = history.name
        self.history = history
        self.position: int | None = None  # the next offset to read back; None: not yet followed
        self.held = False  # no record of it arrives for now
        self.under_way: deque[tuple[bytes, bytes]] = deque()
        self.paused = False
        self.lagging = False  # resumed, but not yet caught up
        self.reporting = False
        self.unreported: deque[int] = deque()  # offsets of own appends not yet known to the listener
        self.node = log.node
        self._log = log
        self._sending = False

    @property
    def start_offset(self) -> int:
        return self.history.kept_from

    @property
    def next_offset(self) -> int:
        return self.history.next_offset

    def append(self, key: bytes, value: bytes) -> None:
        if not self._log.closed:
            self.under_way.append((key, value))
            self.send()

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        return self.history.read(offset, end)

    def record(self, offset: int, seconds: float) -> bytes | None:
        if self._log.is_cut:
            raise LogError(f"the log in memory does not say what is at offset {offset} of {self.name}")
        return next((block.records[0] for block in self.read(offset, offset + 1)), None)

    def offset_at(self, timestamp_ms: int) -> int:
        return self.history.offset_at(timestamp_ms)

    def base(self) -> None:
        """None: it begins at offset 0."""

    def send(self) -> None:
        if self.under_way and not self._sending and not self._log.is_cut and not self._log.closed:
            self._sending = True
            shared = self._log.shared
            shared.call_later(shared.dice.uniform(0, shared.faults.append_seconds), self._sent)

    def _sent(self) -> None:
        self._sending = False
        if self._log.is_cut or self._log.closed:
            return
        size = len(self.under_way)
        if self._log.shared.faults.append_seconds:
            size = self._log.shared.dice.randint(min(1, size), size)
        self.land(size)
        self.send()

    def land(self, size: int) -> None:
        """Move the first `size` records in flight into the log."""
        for _ in range(size):
            offset = self.history.put(*self.under_way.popleft())
            if self.reporting:
                self.unreported.append(offset)
        self._log.tell_delivered(self)

    @property
    def all_reported(self) -> bool:
        return not self.under_way

    def report(self, on: bool) -> None:
        self.reporting = on

    def waiting(self) -> int:
        """Return the number of records in the log that have not arrived."""
        assert self.position is not None
        return len(self.history.offsets) - bisect_left(self.history.offsets, self.position)

    def take(self, size: int) -> Arrived:
        """Take up to `size` records that have not arrived yet."""
        assert self.position is not None
        history = self.history
        at = bisect_left(history.offsets, self.position)
        behind = at + size
        self.position = history.offsets[behind - 1] + 1
        return Arrived(
            self.name, history.offsets[at:behind], history.timestamps_ms[at:behind], history.values[at:behind]
        )


class MemorySharedLog:
    """One node's view of the log. Implements `rewindmq.engine.log.shared_contract.SharedLog`."""

    identity = "memory"
    max_record_bytes = 1 << 20

    def __init__(self, shared: SharedHistory, node: str, pauses: bool, copies: bool) -> None:
        self._listener: SharedLogListener | None = None  # from `follow` on
        self.shared = shared
        self.node = node
        self.metadata = MemorySharedPartition(self, shared.metadata)
        self.nodes = MemorySharedPartition(self, shared.nodes)
        self.queues = [MemorySharedPartition(self, partition) for partition in shared.queues]
        self.counters = [MemoryCounters(self, partition) for partition in shared.counters] if pauses else []
        self.left_out: Sequence[MemorySharedPartition] = ()  # a node opens all existing ones
        self.states = MemoryStates(self) if copies else None
        self.is_cut = False
        self.closed = False
        self.after_arrival: Callable[[], None] = lambda: None
        self.owned: frozenset[str] = frozenset()  # the duties that the node knows
        self._lag = shared.dice.choice((0.1, 1.0, 1.0, 2.0))  # how much later than others it learns of things
        self._nodes_from = shared.nodes.next_offset
        self._following = False
        self._fetching = False
        self._cut_times = 0
        self._in_trouble = False
        self._out_of_group = False
        self._reading: list[tuple[dict[str, int], asyncio.Future[None]]] = []  # offsets to reach, a waiting reader

    @property
    def partitions(self) -> list[MemorySharedPartition]:
        return [self.metadata, self.nodes, *self.queues]

    @property
    def is_member(self) -> bool:
        """Return True if the node may have duties."""
        return self._following and not self.closed and not self._out_of_group

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        if self.is_cut or self.closed:
            raise LogError("the log in memory does not take partitions: the node is cut off")
        if partitions < len(self.shared.queues):
            raise LogError(f"the log in memory has {len(self.shared.queues)} partitions already")
        if not only_ask:
            self.shared.add(partitions)

    def use_all(self) -> None:
        """Do nothing, because nothing was left out."""

    def follow(self, offsets: Mapping[str, int], listener: SharedLogListener) -> None:
        self._listener = listener
        assert not self._following
        self._following = True
        start = {self.nodes.name: self._nodes_from, **offsets}
        for partition in self.partitions:
            partition.position = start[partition.name]
        self.fetch()
        for counters in self.counters:
            counters.move()
        self.shared.rebalance()

    def flush(self) -> None:
        """Do nothing, because appended records are already in flight."""

    async def read_to_end(self) -> None:
        await self._read_to([each for each in self.partitions if not (each.paused or each.lagging)])

    async def _read_to(self, followed: Sequence[MemorySharedPartition]) -> None:
        await asyncio.sleep(self._lag * self.shared.faults.arrival_seconds / 2)
        if self.is_cut or self.closed:
            raise LogError("the log in memory does not say where it ends: the node is cut off")
        ends = {each.name: each.history.offsets[-1] + 1 for each in followed if each.history.offsets}
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading.append((ends, arrived))
        self._tell_readers()
        await arrived

    def _tell_readers(self) -> None:
        positions = {each.name: each.position or 0 for each in self.partitions if not each.paused}
        for reading in list(self._reading):
            ends, arrived = reading
            if all(positions.get(name, end) >= end for name, end in ends.items()):
                self._reading.remove(reading)
                if not arrived.done():
                    arrived.set_result(None)

    async def pause(self, name: str) -> None:
        paused = self._queue(name)
        await asyncio.sleep(self.shared.dice.uniform(0, self.shared.faults.arrival_seconds))
        paused.paused = True
        self._tell_readers()

    def resume(self, name: str, offset: int) -> None:
        resumed = self._queue(name)
        assert resumed.paused
        resumed.paused = False
        resumed.lagging = True
        resumed.position = offset
        self.fetch()

    async def extent(self, name: str) -> tuple[int, int]:
        await asyncio.sleep(self._lag * self.shared.faults.arrival_seconds / 2)
        if self.is_cut or self.closed:
            raise LogError("the log in memory does not say where it ends: the node is cut off")
        partition = self._queue(name)
        return partition.start_offset, partition.next_offset

    async def catch_up(self, name: str) -> None:
        resumed = self._queue(name)
        await self._read_to([resumed])
        resumed.lagging = False

    def _queue(self, name: str) -> MemorySharedPartition:
        return next(partition for partition in self.queues if partition.name == name)

    def tell_delivered(self, partition: MemorySharedPartition) -> None:
        """Report the appends in the log, after a while and in their order."""
        if partition.unreported and not self.closed:
            seconds = self.shared.dice.uniform(0, self.shared.faults.append_seconds)
            self.shared.call_later(seconds, partial(self._delivered, partition))

    def _delivered(self, partition: MemorySharedPartition) -> None:
        offsets = list(partition.unreported)
        partition.unreported.clear()
        if offsets and not self.closed and not self.is_cut:
            assert self._listener is not None
            self._listener.delivered(partition.name, offsets)
            self.after_arrival()
        elif offsets and not self.closed:
            partition.unreported.extend(offsets)

    def ends(self) -> Mapping[str, int]:
        return {partition.name: partition.next_offset for partition in self.shared.partitions}

    def placement(self) -> Sequence[TopicPlacement]:
        return ()

    def close(self) -> None:
        if self.closed:
            return
        left = sum(len(partition.under_way) for partition in self.partitions)
        if not self.is_cut:
            for partition in self.partitions:
                partition.land(len(partition.under_way))
        self.closed = True
        del self.shared.logs[self.node]
        self.shared.rebalance()
        if self.is_cut and left:
            raise LogError(f"the log in memory: {left} events were appended and are not in the log")

    def kill(self) -> None:
        """End the process. Records in flight are lost from some point on, or land a little later."""
        shared = self.shared
        self.closed = True
        del shared.logs[self.node]
        shared.call_later(shared.dice.uniform(0, SESSION_SECONDS), shared.rebalance)
        for partition in self.partitions if not self.is_cut else ():
            size = shared.dice.randint(0, len(partition.under_way))
            seconds = shared.dice.choice((0.0, 3 * shared.faults.append_seconds))
            shared.call_later(shared.dice.uniform(0, seconds), partial(partition.land, size))

    # -- cut off ------------------------------------------------------------------------------------------------------

    def cut(self, cut: bool) -> None:
        """Cut the node off from the log, or connect it again."""
        if cut == self.is_cut:
            return
        self.is_cut = cut
        self._cut_times += 1
        if cut:
            times = self._cut_times
            self.shared.call_later(PATIENCE_SECONDS, lambda: self._missed(times))
            self.shared.call_later(SESSION_SECONDS, lambda: self._put_out(times))
            return
        for partition in self.partitions:
            partition.send()
            self.tell_delivered(partition)
        for counters in self.counters:
            counters.move()
        self.fetch()
        if self._in_trouble:
            self._in_trouble = False
            self._tell_trouble(None)
        if self._out_of_group:
            self._out_of_group = False
            self.shared.rebalance()

    def hold(self, names: Sequence[str]) -> None:
        """Hold back exactly these partitions, so that no record of them arrives from here on."""
        for partition in self.partitions:
            partition.held = partition.name in names
        self.fetch()

    def _tell_trouble(self, why: str | None) -> None:
        if self._listener is not None:
            self._listener.trouble(why)

    def _missed(self, times: int) -> None:
        if times == self._cut_times and not self.closed:
            self._in_trouble = True
            self._tell_trouble("the log in memory does not take events: the node is cut off")

    def _put_out(self, times: int) -> None:
        if times == self._cut_times and not self.closed and self._following:
            self._out_of_group = True
            self.shared.rebalance()

    # -- arrival ------------------------------------------------------------------------------------------------------

    def tell(self, batch: Arrived) -> None:
        """Give the node records of counters."""
        if self._listener is not None:
            self._listener.arrived([batch])
            self.after_arrival()

    def fetch(self) -> None:
        if self._following and not self._fetching and not self.is_cut and not self.closed:
            self._fetching = True
            seconds = self.shared.dice.uniform(0, self._lag * self.shared.faults.arrival_seconds)
            self.shared.call_later(seconds, self._fetched)

    def _fetched(self) -> None:
        self._fetching = False
        if self.is_cut or self.closed:
            return
        dice, lagging = self.shared.dice, self.shared.faults.arrival_seconds > 0
        batches = []
        followed = [partition for partition in self.partitions if not partition.paused]
        if any((partition.position or 0) < partition.start_offset for partition in followed):
            assert self._listener is not None
            self._listener.fail(LogError("the log in memory: the place in the history is gone"))
            return
        reachable = [partition for partition in followed if not partition.held]
        waiting = [(partition, size) for partition in reachable if (size := partition.waiting())]
        dice.shuffle(waiting)
        left = False
        for partition, size in waiting:
            taken = size if not lagging or dice.random() < 0.5 else dice.randint(0, size)
            left = left or taken < size
            if taken:
                batches.append(partition.take(taken))
        if left:
            self.fetch()
        if batches:
            assert self._listener is not None
            self._listener.arrived(batches)
            self.after_arrival()
        self._tell_readers()

    # -- duties -------------------------------------------------------------------------------------------------------

    def duties_changed(self) -> None:
        if self._following:
            self.shared.call_later(self.shared.dice.uniform(0, self.shared.faults.duty_seconds), self._tell_duties)

    def _tell_duties(self) -> None:
        owned = frozenset(
            partition.name for partition in self.queues if self.node in self.shared.owners[partition.name]
        )
        if owned != self.owned and not self.closed:
            self.owned = owned
            assert self._listener is not None
            self._listener.duties_changed(owned)


class CounterHistory:
    """The counters of one partition in the log: time, key and value of each record, by offset."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: dict[int, tuple[int, bytes, bytes | None]] = {}
        self.next_offset = 0

    def put(self, time_ms: int, key: bytes, value: bytes | None) -> None:
        """Put a record into the log."""
        self.records[self.next_offset] = (time_ms, key, value)
        self.next_offset += 1

    def compact(self) -> None:
        """Forget all records except the last one of each key."""
        last = {key: offset for offset, (_, key, _) in self.records.items()}
        kept = set(last.values())
        self.records = {offset: record for offset, record in self.records.items() if offset in kept}


class MemoryCounters:
    """One partition of counters as one node sees it."""

    def __init__(self, log: "MemorySharedLog", history: CounterHistory) -> None:
        self.name = history.name
        self.history = history
        self.opened_at = history.next_offset
        self.under_way: deque[tuple[bytes, bytes | None]] = deque()
        self._position = 0
        self._log = log
        self._moving = False

    def append(self, key: bytes, value: bytes | None) -> None:
        if not self._log.closed:
            self.under_way.append((key, value))
            self.move()

    @property
    def all_reported(self) -> bool:
        return not self.under_way

    def move(self) -> None:
        """Move records of this node into the log, and records of the log to this node, after a while."""
        faults, dice = self._log.shared.faults, self._log.shared.counter_dice
        if not self._moving and not self._log.is_cut and not self._log.closed:
            self._moving = True
            seconds = dice.uniform(0, faults.append_seconds + faults.arrival_seconds)
            self._log.shared.call_later(seconds, self._moved)

    def _moved(self) -> None:
        self._moving = False
        if self._log.is_cut or self._log.closed:
            return
        shared, history = self._log.shared, self.history
        while self.under_way:
            history.put(shared.clock(), *self.under_way.popleft())
        for log in shared.logs.values():
            for each in log.counters:
                if each.history is history and each._position < history.next_offset:
                    each.move()
        found = [(offset, record) for offset, record in history.records.items() if offset >= self._position]
        self._position = history.next_offset
        if found:
            times = [time_ms for _, (time_ms, _, _) in found]
            values = [REMOVED + key if value is None else value for _, (_, key, value) in found]
            self._log.tell(Arrived(self.name, [offset for offset, _ in found], times, values))
        if shared.counter_dice.random() < 0.05:
            history.compact()


class MemoryStates:
    """The copies of states as one node sees them (`shared_contract.StateTopic`)."""

    def __init__(self, log: "MemorySharedLog") -> None:
        self._log = log

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        shared, content = self._log.shared, file.read()
        if stopping():
            raise WritingStopped
        dice, faults = shared.copy_dice, shared.faults
        if self._log.is_cut or dice.randrange(10) < faults.copies:
            raise LogError("the log in memory does not take the copy")
        if dice.randrange(10) < faults.copies:
            place = dice.randrange(len(content))
            content = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        shared.copies[number] = offset, claim, content
        if dice.randrange(10) < faults.drops and shared.may_drop:
            shared.queues[number].kept_from = max(shared.queues[number].kept_from, dice.randint(offset // 2, offset))

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        if self._log.is_cut:
            raise LogError("the log in memory does not answer")
        offset, claim, content = self._log.shared.copies.get(number, (-1, -1, b""))
        if offset < least:
            return None
        path = directory / "0.part"
        path.write_bytes(content)
        return StateCopied(offset, claim, path)


class SimulatedArchivedPartition:
    """One partition as one node sees it, including its archive."""

    shared = True
    start_offset = 0

    def __init__(self, log: "MemorySharedPartition") -> None:
        self.name = log.name
        self.log = log
        self.read = log.history.read
        self.read_ranges = log.history.read_ranges
        self.record = log.record
        self.offset_at = log.offset_at
        self.base = log.base

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def durable_offset(self) -> int:
        return self.log.next_offset
