"""The manifest of an archived partition: the objects that hold its history, in order.

    URL/PARTITION/manifest/0000000000.json      entry 0, then 1, 2 ...
    URL/PARTITION/pages/0000000000.json         many entries in one object (pages.py)
    URL/PARTITION/segments/..., snapshots/..., bases/...   the objects that the entries name

    manifest = Manifest.load(objects, "queues-0")
    manifest.segments, .snapshots, .bases       the valid entries: those from the floor on
    manifest.trims, .floor                      the trims, and the offset below which nothing remains
    manifest.end                                the offset after the last archived record
    manifest.extend(entry)                      at the next number

- An entry is created under its number, read back, and never changed. If two archivers run, one creates it, and both
  read it.
- An entry states the SHA-256 of the previous one, so the last entry vouches for all: none can be changed or removed.
  It also has its own check (descriptions.py).
- Segments continue one another in offset and hash chain, as they do in the log (engine/log/embedded/index.py).
- An object counts as archived once an entry names it. An object that no entry names is harmless.
- An entry of the kind `trimmed` records that everything below its offset was removed for good. The base there is
  archived first. The entries of removed objects stay (trims.py).
- An entry of the kind `grown`, only in the manifest of the metadata log, gives the number of queue partitions from
  there on (identity.py).
"""

import hashlib
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

from rewindmq.engine.keeping.archive.descriptions import decode_checked, encode_checked
from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.keeping.archive.pages import ENTRIES, page_key, proven_entries
from rewindmq.engine.log.chain import first_chain

NOTHING_BEFORE: Final = "0" * 64
_DIGITS: Final = 10
_CHAINS: Final = "chain_before", "chain", "linked_chain"
_NUMBERS: Final = "offset", "_ms", "number", "bytes", "queue_partitions"  # endings of the names of numbers

E = TypeVar("E", "SegmentEntry", "SnapshotEntry", "BaseEntry", "TrimmedEntry", "GrownEntry")


class OtherHistory(ArchiveError):
    """The archive holds another history, or differs from the data directory."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in an entry: its name below `segments` or `snapshots`, its size, its SHA-256 in hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A closed segment, or a stretch of a topic in Kafka.

    Its objects begin with a group (engine/log/chain.py), at `group_offset`, with the hash chain `chain_before`. If that
    is below `base_offset`, they repeat records of the previous entry. `chain`: the hash chain at `next_offset`;
    `linked_offset`, `linked_chain`: after the last whole group. `size_bytes`: of the segment file, or of the keys and
    values. `first_ms`: the time of the record at `base_offset`. `max_timestamp_ms`: the largest so far. `number` and
    `before` are the manifest's own (`Manifest.extend`)."""

    base_offset: int
    next_offset: int
    group_offset: int
    first_ms: int
    max_timestamp_ms: int
    begins_anew: bool
    chain_before: bytes
    chain: bytes
    linked_offset: int
    linked_chain: bytes
    size_bytes: int
    avro: StoredObject
    blocks: StoredObject
    archived_ms: int
    number: int = -1
    before: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A snapshot of the state after all events below `offset`."""

    offset: int
    object: StoredObject
    archived_ms: int
    number: int = -1
    before: str = ""


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A base at `offset`: the state there, and the records of queued messages (projections/store/bases.py)."""

    offset: int
    object: StoredObject
    archived_ms: int
    number: int = -1
    before: str = ""


@dataclass(frozen=True, slots=True)
class TrimmedEntry:
    """A trim for good of everything below `offset`, the floor; an earlier entry names the base there.

    `chain`, `digest`, `until_ms`, `findings` and `reason` are those of the HistoryTrimmed in the metadata log. They are
    repeated here because the archive may lack the end of the metadata log: a recovery logs them anew (recovery.py)."""

    offset: int
    chain: bytes
    digest: str
    until_ms: int
    findings: tuple[str, ...]
    reason: str
    archived_ms: int
    number: int = -1
    before: str = ""


@dataclass(frozen=True, slots=True)
class GrownEntry:
    """A growth of the history to `queue_partitions` queue partitions."""

    queue_partitions: int
    archived_ms: int
    number: int = -1
    before: str = ""


FileEntry = SnapshotEntry | BaseEntry
Entry = SegmentEntry | FileEntry | TrimmedEntry | GrownEntry
_KINDS: Final[dict[str, type[Entry]]] = {
    "segment": SegmentEntry,
    "snapshot": SnapshotEntry,
    "base": BaseEntry,
    "trimmed": TrimmedEntry,
    "grown": GrownEntry,
}


def objects_of(entry: Entry) -> tuple[StoredObject, ...]:
    """Return the objects that an entry names."""
    if isinstance(entry, SegmentEntry):
        return entry.avro, entry.blocks
    return (entry.object,) if isinstance(entry, FileEntry) else ()


def archived_bytes(entry: Entry) -> int:
    """Return the size of an entry's objects in bytes."""
    return sum(each.size_bytes for each in objects_of(entry))


def now_ms() -> int:
    """Return the time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Manifest:
    """The entries of one partition, in order, and their end."""

    def __init__(self, objects: Objects, partition: str, use_pages: bool = True) -> None:
        """Begin without entries. `use_pages`: take proven entries from pages; otherwise read each one separately."""
        self.objects = objects
        self.partition = partition
        self.segments: list[SegmentEntry] = []
        self.snapshots: list[SnapshotEntry] = []
        self.bases: list[BaseEntry] = []
        self.trims: list[TrimmedEntry] = []
        self.grown: GrownEntry | None = None  # the last one
        self.trimmed_keys: dict[str, int] = {}  # of the objects below the floor: the first offset after each
        self.deleted = 0  # the number of these known to be gone (trims.py)
        self.archived_bytes = 0  # size of the objects from the floor on
        self._count = 0
        self._last = NOTHING_BEFORE  # SHA-256 of the last entry
        self._use_pages = use_pages
        self._passed_over = -1  # the last page that was missing or wrong
        self._without_page: set[int] = set()  # numbers of the pages whose entries were read singly

    @classmethod
    def load(cls, objects: Objects, partition: str) -> "Manifest":
        """Read and check all entries; there are none if the archive lacks this partition.

        Raises ArchiveError for a gap, a changed entry, or segments that do not continue one another; NoAnswer."""
        manifest = cls(objects, partition)
        manifest.refresh()
        return manifest

    def refresh(self) -> None:
        """Read the new entries.

        Raises as `load`."""
        end, behind = self._listed(self._count)
        if behind:  # a listing may miss an entry that arrives with a later one
            end, behind = self._listed(end)
        while self._count < end:
            if not self._take_page(end):
                self._take(self.objects.get(self._key(self._count)))
        if behind:
            raise ArchiveError(f"{self.objects.place(self._key(end))}: this entry is gone, although {behind} exists")

    def _listed(self, count: int) -> tuple[int, str]:
        """Return the number of entries listed without a gap, and the key of the first one after the gap.

        The first `count` entries are known. The key is empty if there is no such entry."""
        end = count
        for key in self.objects.list(f"{self.partition}/manifest", self._key(count - 1) if count else ""):
            if key != self._key(end):
                return end, key
            end += 1
        return end, ""

    def _take_page(self, end: int) -> bool:
        """Add the next entries from their page, and the entry that proves it. `end`: the number of entries.

        Returns False if no such page is proven. Raises as `load`."""
        number, known = divmod(self._count, ENTRIES)
        proof = (number + 1) * ENTRIES - 1
        few = proof - self._count < 2  # the page would save nothing
        if not self._use_pages or proof >= end or few or number == self._passed_over:
            return False
        self._passed_over = number
        try:
            page = self.objects.get(page_key(self.partition, number))
        except MissingObject:
            return False
        following = self.objects.get(self._key(proof))
        entries = proven_entries(page, known, self._last, following)
        if entries is None:
            return False
        for stored in (*entries, following):
            self._take(stored)
        self._without_page.discard(number)
        return True

    def make_pages(self) -> None:
        """Create the pages of all entries that were read singly.

        Raises ArchiveError, NoAnswer."""
        for number in sorted(self._without_page):
            self.objects.create(page_key(self.partition, number), self.page(number))
            self._without_page.discard(number)

    def page(self, number: int) -> bytes:
        """Return a page as it must be, made from its entries.

        Raises ArchiveError, NoAnswer."""
        first = number * ENTRIES
        return b"".join(self.objects.get(self._key(each)) for each in range(first, first + ENTRIES - 1))

    @property
    def whole_pages(self) -> int:
        """Return the number of possible pages."""
        return self._count // ENTRIES

    @property
    def queue_partitions(self) -> int:
        """Return the number of queue partitions after growth, by the metadata manifest; 0: it did not grow."""
        return 0 if self.grown is None else self.grown.queue_partitions

    @property
    def floor(self) -> int:
        """Return the oldest offset that is or can be archived: the last trim's, or 0."""
        return self.trims[-1].offset if self.trims else 0

    @property
    def end(self) -> int:
        """Return the offset after the last archived record; the floor if nothing after that is archived."""
        return self.segments[-1].next_offset if self.segments else self.floor

    @property
    def chain(self) -> bytes:
        """Return the hash chain up to `end`."""
        if self.segments:
            return self.segments[-1].chain
        return self.trims[-1].chain if self.trims else first_chain(self.partition)

    @property
    def linked(self) -> tuple[int, bytes]:
        """Return the end of the last whole group, at which the next objects begin, and the hash chain there.

        It is `end`, or in a topic the beginning of the group that contains `end`."""
        last = self.segments[-1] if self.segments else None
        return (self.end, self.chain) if last is None else (last.linked_offset, last.linked_chain)

    @property
    def max_timestamp_ms(self) -> int:
        """Return the largest time up to `end`, as in the index."""
        return self.segments[-1].max_timestamp_ms if self.segments else 0

    @property
    def entries(self) -> "list[Entry]":
        """Return all valid entries: segments, snapshots, bases, then trims."""
        return [*self.segments, *self.snapshots, *self.bases, *self.trims]

    def bytes_below(self, offset: int) -> int:
        """Return the size of the objects that a trim up to this offset removes."""
        files: list[FileEntry] = [*self.snapshots, *self.bases]
        size = sum(archived_bytes(each) for each in files if each.offset < offset)
        return size + sum(archived_bytes(each) for each in self.segments if each.base_offset < offset)

    def key(self, entry: Entry, stored: StoredObject) -> str:
        """Return the key of an object that an entry names."""
        folder = "segments" if isinstance(entry, SegmentEntry) else f"{_kind_of(entry)}s"
        return f"{self.partition}/{folder}/{stored.name}"

    def extend(self, entry: E) -> E:
        """Add an entry after the others. Return it as the archive now has it, with its number.

        If another archiver has just added the same history, its entry is returned. Raises ArchiveError if it has added
        something else, and NoAnswer."""
        found = None
        while found is None:
            numbered = replace(entry, number=self._count, before=self._last)
            self.require_behind(numbered)
            stored = encode_checked(_as_json(numbered))
            mine = self.objects.create(self._key(self._count), stored)
            there = self.objects.get(self._key(self._count))
            if mine and there != stored:
                place = self.objects.place(self._key(self._count))
                raise ArchiveError(f"{place}: not the entry that was sent: delete it and run again")
            self._take(there)
            found = numbered if mine else self._same(entry)
        self.make_pages()
        return found

    def _same(self, entry: E) -> E | None:
        """Return the last entry if it describes the same stretch of history as `entry`."""
        if isinstance(entry, TrimmedEntry):
            return next((each for each in self.trims if each.offset >= entry.offset), None)
        if isinstance(entry, GrownEntry):
            return self.grown if self.queue_partitions >= entry.queue_partitions else None
        if isinstance(entry, SegmentEntry):
            last = self.segments[-1] if self.segments else None
            if last is not None and (last.base_offset, last.chain) == (entry.base_offset, entry.chain):
                return last
            return None
        if isinstance(entry, SnapshotEntry):
            return next((each for each in self.snapshots if each.offset == entry.offset), None)
        return next((each for each in self.bases if each.offset == entry.offset), None)

    def require_behind(self, entry: Entry) -> None:
        """Check that a segment continues the last one, a trim is of this history, or partitions increase.

        Raises OtherHistory."""
        why = None
        if isinstance(entry, SegmentEntry) and (entry.base_offset, entry.group_offset, entry.chain_before) != (
            self.end,
            *self.linked,
        ):
            why = f"another history, or offset {entry.base_offset}, while the segments before end at {self.end}"
            why = f"its segment does not continue the last one ({why})"
        elif isinstance(entry, TrimmedEntry):
            why = self._wrong_trim(entry)
        elif isinstance(entry, GrownEntry) and entry.queue_partitions <= self.queue_partitions:
            why = f"{entry.queue_partitions} partitions, but there are already {self.queue_partitions}"
        if why is not None:
            raise OtherHistory(f"{self.objects.place(self._key(entry.number))}: {why}")

    def _wrong_trim(self, entry: TrimmedEntry) -> str | None:
        """Return why this partition cannot begin with the offset of a trim; None if it can."""
        at = entry.offset
        if at <= self.floor:
            return f"it trims up to offset {at}, but the history already begins at {self.floor}"
        if not any(base.offset == at for base in self.bases):
            return f"it trims up to offset {at}, but no base is archived there"
        chains = {segment.group_offset: segment.chain_before for segment in self.segments}
        if self.linked[0] == self.end:
            chains[self.end] = self.chain
        if at <= self.end and chains.get(at) != entry.chain:
            return f"it trims up to offset {at}, where no archived segment begins with its hash chain: another history"
        return None

    def _take(self, stored: bytes) -> None:
        """Check the entry with the next number, and add it."""
        place = self.objects.place(self._key(self._count))
        try:
            entry = _from_json(stored, place)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ArchiveError(f"{place}: not an entry of a manifest ({why}): it was changed") from None
        if entry.number != self._count or entry.before != self._last:
            raise ArchiveError(f"{place}: it does not continue the entry before it: one of the two was changed")
        self.require_behind(entry)
        self._count_in(entry)
        self._last = hashlib.sha256(stored).hexdigest()
        self._count += 1
        if self._count % ENTRIES == 0:
            self._without_page.add(self._count // ENTRIES - 1)

    def _count_in(self, entry: Entry) -> None:
        self.archived_bytes += archived_bytes(entry)
        if isinstance(entry, SegmentEntry):
            self.segments.append(entry)
        elif isinstance(entry, TrimmedEntry):
            self.trims.append(entry)
            gone = [each for each in self.segments if each.group_offset < entry.offset]
            files: list[FileEntry] = [*self.snapshots, *self.bases]
            files = [each for each in files if each.offset < entry.offset]
            self.segments = self.segments[len(gone) :]
            if self.segments:
                self.segments[0] = replace(self.segments[0], base_offset=entry.offset)
            self.snapshots = [each for each in self.snapshots if each.offset >= entry.offset]
            self.bases = [each for each in self.bases if each.offset >= entry.offset]
            for each in [*gone, *files]:
                self._let_go(each)
        elif isinstance(entry, GrownEntry):
            self.grown = entry
        elif entry.offset < self.floor:  # by another archiver, which did not know of the trim
            self._let_go(entry)
        elif isinstance(entry, SnapshotEntry):
            self.snapshots.append(entry)
        else:
            self.bases.append(entry)

    def _let_go(self, entry: SegmentEntry | FileEntry) -> None:
        """Note that the objects of an entry below the floor no longer count."""
        behind = entry.next_offset if isinstance(entry, SegmentEntry) else entry.offset + 1
        self.trimmed_keys |= {self.key(entry, each): behind for each in objects_of(entry)}
        self.archived_bytes -= archived_bytes(entry)

    def _key(self, number: int) -> str:
        return f"{self.partition}/manifest/{number:0{_DIGITS}d}.json"


def _kind_of(entry: Entry) -> str:
    return next(kind for kind, of in _KINDS.items() if type(entry) is of)


def _as_json(entry: Entry) -> dict[str, Any]:
    values = asdict(entry)
    for name in _CHAINS:
        if name in values:
            values[name] = values[name].hex()
    return {"kind": _kind_of(entry), **values}


def _from_json(stored: bytes, place: str) -> Entry:
    """Return the entry in these bytes.

    Raises ArchiveError for another format; KeyError, TypeError, ValueError, AttributeError for other bytes."""
    values = decode_checked(stored, place)
    kind = _KINDS[values["kind"]]
    given = {each.name: values[each.name] for each in fields(kind)}
    for name in _CHAINS:
        if name in given:
            given[name] = bytes.fromhex(given[name])
    for name in ("avro", "blocks", "object"):
        if name in given:
            given[name] = StoredObject(**given[name])
    if kind is TrimmedEntry:
        given["findings"] = tuple(given["findings"])
    entry = kind(**given)
    numbers = [value for name, value in given.items() if name.endswith(_NUMBERS)]
    if not all(isinstance(value, int) for value in numbers):
        raise ValueError("a number is none")
    return entry
