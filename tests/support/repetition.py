"""Histories in which publishes and acks repeat each other, as records of a log; and whether two machines are equal.

log = Repetition(seed).log(400)      # records with their offsets and the times that Kafka gives them
assert difference(one_machine, other_machine) == ""
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from enum import Enum
from typing import Any

from rewindmq.projections.machine.data.queue import Consumer
from rewindmq.projections.replay import RecordGroup
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord
from rewindmq.schemas.events import Acked, Event, MachineUpgraded, Published
from rewindmq.schemas.values import BROKER, Actor, Encryption
from tests.support.events_for_tests import VHOST, route
from tests.support.random_history import NAMES, History

FIRST_MS = 1_763_694_000_000
# Sound ones, and some that a service must not write.
PROPERTIES = (b"\x00\x00", b"\x10\x00\x02", b"\x00\x01\x03abc", b"\x80\x00\x46" + b"x" * 70)
UNEQUAL = {"admitted", "routes"}  # caches, which name objects of the decoder


@dataclass
class RepeatedLog:
    """The records of a history, in ascending order of offsets."""

    offsets: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def add(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, logged_ms: int) -> None:
        encoder = Encoder()
        self.add_record(offset, logged_ms, encoder.encode(encoder.prefix(timestamp_ms, actor), event))

    def add_record(self, offset: int, timestamp_ms: int, record: bytes) -> None:
        self.offsets.append(offset)
        self.records.append(record)
        self.times.append(timestamp_ms)

    def groups(self, size: int, times: bool, start: int = 0) -> Iterator[RecordGroup]:
        """The records from offset `start` on, in groups of `size`. `times`: the log gives the records' times."""
        begin = next((at for at, offset in enumerate(self.offsets) if offset >= start), len(self.offsets))
        for first in range(begin, len(self.offsets), size):
            part = slice(first, first + size)
            yield self.offsets[part], self.records[part], self.times[part] if times else None


class Repetition(History):
    """A random history with stretches of plain publishes and acks of a queue, and everything else between them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.now_ms = FIRST_MS
        self.favourite = "a"
        self.traffic = self.dice.choice((0.5, 0.9, 0.97))
        self.calm = self.dice.choice((0.0, 0.6, 0.9))  # so many settings are left out

    def log(self, steps: int) -> RepeatedLog:
        dice, log = self.dice, RepeatedLog()
        for offset, timestamp_ms, actor, event in self.steps(steps):
            log.add(offset, timestamp_ms, actor, event, timestamp_ms + dice.choice((0, 0, 0, 1, 50)))
            if dice.random() < 0.03:
                damaged = self._damaged(log.records[-1])
                if not _is_upgrade(damaged):
                    log.add_record(self.offset, timestamp_ms, damaged)
                    self.offset += 1
            if dice.random() < 0.003:
                self.now_ms += 8_192 * dice.choice((1, 1, -1))
        return log

    def _damaged(self, record: bytes) -> bytes:
        """The record cut short, longer, or with another bit somewhere."""
        dice = self.dice
        kind = dice.random()
        if kind < 0.3:
            return record[: dice.randrange(len(record))]
        if kind < 0.5:
            return record + b"\x00"
        at = dice.choice((0, 2, 9, 10, 11, 12, 20, len(record) - 1, dice.randrange(len(record))))
        at = min(at, len(record) - 1)
        return record[:at] + bytes([record[at] ^ 1 << dice.randrange(8)]) + record[at + 1 :]

    def _settings(self) -> dict[str, object]:
        return {} if self.dice.random() < self.calm else super()._settings()

    def _asked(self, type: str) -> dict[str, object]:
        return {} if self.dice.random() < self.calm else super()._asked(type)

    def _event(self) -> tuple[Event, int]:
        dice = self.dice
        if dice.random() < 0.02:
            self.favourite = dice.choice(NAMES[:2])
        queue = self.machine.queue(VHOST, self.favourite)
        if dice.random() < 0.002:
            return ClockSet(dice.choice((0, 5, -5, 9_000)), self.now_ms), 0
        if dice.random() >= self.traffic or queue is None:
            return super()._event()
        holders = [holder for holder in queue.holders.values() if holder.held]
        if holders and dice.random() < 0.5:
            return self._ack(dice.choice(holders[:2]))
        return self._plain(), self._session(1) if dice.random() < 0.95 else dice.choice((0, self._session(2)))

    def _publish(self) -> tuple[Event, int]:
        event, session = super()._publish()
        assert isinstance(event, Published)
        return replace(event, body=bytes(event.body_size)), session

    def _plain(self) -> Published:
        dice = self.dice
        body = bytes(dice.choice((0, 3, 3, 3, 90, 9_000)))
        encryption = Encryption("s", "k", b"n", 7) if dice.random() < 0.02 else None
        return Published(
            route(self.favourite) if dice.random() < 0.97 else route("a", "b"),
            dice.choice(PROPERTIES) if dice.random() < 0.2 else PROPERTIES[0],
            expiration_ms=40 if dice.random() < 0.02 else None,
            persistent=dice.random() < 0.9,
            encryption=encryption,
            body=body,
            body_size=len(body) if encryption is None else encryption.plain_size,
        )

    def _ack(self, holder: Consumer) -> tuple[Event, int]:
        """An ack of one held message or some, now and then of others besides."""
        dice = self.dice
        held = sorted(holder.held)
        chosen = sorted(dice.sample(held, min(len(held), dice.choice((1, 1, 1, 2, 5)))))
        ranges: list[tuple[int, int]] = []
        for message_id in chosen:
            if ranges and ranges[-1][1] == message_id - 1:
                ranges[-1] = (ranges[-1][0], message_id)
            else:
                ranges.append((message_id, message_id))
        throw = dice.random()
        if throw < 0.01:
            ranges.append(ranges[0])  # twice
        elif throw < 0.02:
            ranges[-1] = (ranges[-1][0], ranges[-1][0] - 1)  # none
        elif throw < 0.03:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + dice.choice((1, 10**12)))
        elif throw < 0.04:
            ranges = []
        return Acked(VHOST, holder.queue.name, holder.consumer, tuple(ranges)), holder.session


def _is_upgrade(record: bytes) -> bool:
    """Return True if damage turned the record into an upgrade of the machine, which could end a fold."""
    try:
        return isinstance(Decoder().decode(record)[2], MachineUpgraded)
    except UndecodableRecord:
        return False


def difference(one: Any, other: Any) -> str:
    """The first difference between two objects of the machine, attribute by attribute; "" if they are equal.

    The order of dicts counts. Objects refer to each other in circles, so each pair is looked at once."""
    pairs: dict[int, Any] = {}
    waiting = deque([("machine", one, other)])
    while waiting:
        where, a, b = waiting.popleft()
        if type(a) is not type(b):
            return f"{where}: {a!r}, {b!r}"
        if isinstance(a, dict):
            if list(a) != list(b):
                return f"{where}: {list(a)}, {list(b)}"
            waiting.extend((f"{where}[{key}]", a[key], b[key]) for key in a)
        elif isinstance(a, list | tuple):
            if len(a) != len(b):
                return f"{where}: {len(a)} and {len(b)} entries"
            waiting.extend((f"{where}[{at}]", *both) for at, both in enumerate(zip(a, b, strict=True)))
        elif is_dataclass(a) or isinstance(a, Enum) or not _attributes(a):
            if a != b:
                return f"{where}: {a!r}, {b!r}"
        elif id(a) not in pairs:
            pairs[id(a)] = b
            waiting.extend((f"{where}.{name}", getattr(a, name), getattr(b, name)) for name in _attributes(a))
        elif pairs[id(a)] is not b:
            return f"{where}: another object"
    return ""


def _attributes(found: object) -> list[str]:
    names = list(vars(found)) if hasattr(found, "__dict__") else list(getattr(type(found), "__mypyc_attrs__", ()))
    return [name for name in names if name not in UNEQUAL]


__all__ = ["BROKER", "FIRST_MS", "PROPERTIES", "RepeatedLog", "Repetition", "difference"]
