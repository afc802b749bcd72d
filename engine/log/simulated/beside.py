"""The companions of the simulated log's history (shared.py): counters of queues, copies of states, the archive."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import REMOVED, Arrived, StateCopied, WritingStopped

if TYPE_CHECKING:
    from rewindmq.engine.log.simulated.shared import MemorySharedLog, MemorySharedPartition


class CounterHistory:
    """The counters of one partition that are in the log: time, key and value of each record, by offset."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: dict[int, tuple[int, bytes, bytes | None]] = {}
        self.next_offset = 0

    def put(self, time_ms: int, key: bytes, value: bytes | None) -> None:
        """Put a record into the log."""
        self.records[self.next_offset] = (time_ms, key, value)
        self.next_offset += 1

    def compact(self) -> None:
        """Forget all records but the last one of each key."""
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
        """Let records of this node into the log, and those that are in the log to this node, after a while."""
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


class ArchivedPartition:
    """One partition as one node sees it, with all that the archive has of it."""

    framed = True
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
