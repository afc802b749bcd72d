"""The quarantined records of one partition: the number of records skipped as nonsense, and the newest of them.

Every program that folds a partition notes the same records, at the same offsets, for the same reasons, on every node
and after every restart, so they are part of the stored state of a partition. They are not part of its digest, because
they have no effect. The store has the n-th record in slot n % LISTED, so that the list keeps the newest records without
being read.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor

LISTED = 10_000
# A reason may quote names, and a name in a record from anywhere may be of any length.
MAX_REASON = 400

_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A skipped record. `event_type` is empty if the record could not be decoded."""

    offset: int
    event_type: str
    reason: str


@dataclass(slots=True)
class QuarantineReport:
    """The quarantined records of a partition.

    `count`: the number of all noted records; an event may be noted more than once, for different reasons."""

    count: int = 0
    _entries: list[Quarantined] = field(default_factory=list)  # by offset: the newest LISTED, perhaps more
    _unwritten: int = field(default=0, compare=False)

    @classmethod
    def stored(cls, count: int, values: list[bytes]) -> "QuarantineReport":
        """Return the report from the values of `unwritten`, in the order of their slots.

        Raises ValueError if they do not belong to one report."""
        if len(values) != min(count, LISTED):
            raise ValueError(f"{len(values)} quarantined records are listed of {count}")
        oldest = count % LISTED if count > LISTED else 0  # the slot that is written next
        return cls(count, sorted(map(_unpack, values[oldest:] + values[:oldest]), key=_OFFSET))

    def add(self, offset: int, event_type: str, reason: str) -> None:
        """Note a record. Offsets mostly ascend.

        A record that cannot be decoded may be noted before an event at a lower offset whose effects are seen later."""
        if len(reason) > MAX_REASON:
            reason = reason[:MAX_REASON] + " ..."
        entry = Quarantined(offset, event_type, reason)
        entries = self._entries
        if entries and entries[-1].offset > offset:
            insort(entries, entry, key=_OFFSET)
        else:
            entries.append(entry)
        if len(entries) >= 2 * LISTED:
            del entries[:-LISTED]
        self.count += 1
        self._unwritten += 1

    def note(self, effects: Iterable[Effect]) -> None:
        """Note the events that a fold quarantined, out of all its effects."""
        for effect in effects:
            if type(effect) is Quarantine:
                self.add(effect.offset, effect.event_type, effect.reason)

    def see(self, _offset: int, _timestamp_ms: int, _actor: Actor, _event: Event, effects: list[Effect]) -> None:
        """Note the event that a fold has just applied, if the fold quarantined it (`replay.After`)."""
        for effect in effects:
            if type(effect) is Quarantine:
                self.add(effect.offset, effect.event_type, effect.reason)

    def see_run(
        self,
        _offset: int,
        _timestamp_ms: int,
        _actor: Actor,
        _event: Published,
        _sizes: Sequence[int],
        _records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        """Note what a fold has just quarantined of a run (`replay.Run`)."""
        self.note(effects)

    def note_undecodable(self, offset: int, reason: str) -> None:
        """Note a record that cannot be decoded."""
        self.add(offset, "", reason)

    def newest(self, most: int = LISTED) -> list[Quarantined]:
        """Return the newest records, by ascending offset."""
        return self._entries[-min(most, LISTED) :] if most > 0 else []

    def write_again(self) -> None:
        """Mark all listed records as unwritten, because their store is gone."""
        self._unwritten = min(self.count, LISTED)

    def unwritten(self) -> Iterator[tuple[int, bytes]]:
        """Yield slot and value of each record noted since the last call and still listed.

        They all have higher offsets than the records of earlier calls, because a batch ends after whole events."""
        fresh = self.newest(self._unwritten)
        self._unwritten = 0
        for sequence, entry in enumerate(fresh, self.count - len(fresh)):
            yield sequence % LISTED, _pack(entry)


def _pack(entry: Quarantined) -> bytes:
    return entry.offset.to_bytes(8, "big") + f"{entry.event_type}\n{entry.reason}".encode("utf-8", "surrogatepass")


def _unpack(value: bytes) -> Quarantined:
    event_type, _, reason = value[8:].decode("utf-8", "surrogatepass").partition("\n")
    return Quarantined(int.from_bytes(value[:8], "big"), event_type, reason)
