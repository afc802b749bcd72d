"""Reads a partition from two tiers: the local log, and below its start the archive of the data directory.

    log = TieredLogReader(data_dir)                    # as EmbeddedLogReader; can be sent to another process
    for block in log.queues[0].read(1_000, 2_000): ...

    floor        archived end
    |  archive        |
                |     local      |
              start          next_offset

- Segments below the start are only in the archive (docs/operators/keep-local.md). If a cut moves the start
  during a read, the read continues in the archive.
- `DIR/log/archive.json` names the archive, which is opened only when a record below the start is requested. So local
  records can be read while the archive is unreachable; others are then NoAnswer.
- The archive must have this history's identity, and a segment that ends at the start with the hash chain with which the
  local log begins.
- The floor is the oldest offset that exists anywhere, given by a HistoryTrimmed in the metadata log.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.archive.directory_note import archive_of
from rewindmq.engine.log.contract import BelowStart, Block, CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.reader import CutMeanwhile, PartitionReader, Segment, SegmentReader
from rewindmq.engine.log.embedded.segments import segment_path, stated_chain
from rewindmq.projections.floors import in_words
from rewindmq.projections.replay import events_of
from rewindmq.projections.store.bases import Base, BaseError, Bases
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.about_history import AboutHistory, Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed

if TYPE_CHECKING:
    from rewindmq.engine.keeping.archive.reader import ArchivedPartition


class TieredPartition:
    """A partition of a data directory, and its archive below the local start."""

    shared = False

    def __init__(self, local: PartitionReader) -> None:
        self.local = local
        self.name = local.name
        self._archived: ArchivedPartition | None = None  # opened and verified to be of this history

    def __reduce__(self) -> "tuple[type[TieredPartition], tuple[PartitionReader]]":
        return TieredPartition, (self.local,)

    @property
    def _data_dir(self) -> Path:
        return self.local.directory.parent.parent

    @property
    def start_offset(self) -> int:
        """Return the floor, the oldest offset that exists, here or in an archive."""
        if self.local.start_offset == 0:
            return 0
        floor = floors_of(self._data_dir).get(self.name)
        return 0 if floor is None else floor.event.offset

    @property
    def next_offset(self) -> int:
        """Return the same as `PartitionReader.next_offset`."""
        return self.local.next_offset

    @property
    def durable_offset(self) -> int:
        """Return the same as `PartitionReader.durable_offset`."""
        return self.local.durable_offset

    def base(self) -> Base | None:
        """Return the base at the floor; None if the history can be read from offset 0.

        Raises LogError if the base is missing or damaged, here and in the archive; NoAnswer."""
        start = self.start_offset
        if start == 0:
            return None
        try:
            return Bases(self._data_dir / "bases").open(self.name, start)
        except BaseError as error:
            if self.start_offset > start:  # the history was trimmed in the meantime
                return self.base()
            local = self.local.start_offset
            if local > start and (archived := self._archive(None, local)).start_offset == start:
                return archived.base()
            raise LogError(f"{self.name} begins at offset {start}, and its base cannot be used: {error}") from None

    def segments(self) -> list[Segment]:
        """Return the local segments."""
        return self.local.segments()

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks, as `LogPartition.read`.

        Raises BelowStart if the records are nowhere; NoAnswer while the archive that has them is unreachable;
        CorruptLog."""
        at = offset
        while end is None or at < end:
            start = self.local.start_offset
            if at < start:
                for block in self._archive(at, start).read(at, start if end is None else min(start, end)):
                    yield block
                    at = block.first_offset + len(block.records)
                if at < start and (end is None or at < end):
                    raise LogError(f"{self.name}: the archive has no record {at}")
                continue
            try:
                for block in self.local.read(at, end):
                    if block.first_offset > at:  # it was cut before this read
                        break
                    yield block
                    at = block.first_offset + len(block.records)
            except CutMeanwhile:
                continue
            if at >= self.local.start_offset:
                return

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yield the blocks of many short ranges (first offset, end).

        Raises as `read`."""
        for offset, end in ranges:
            yield from self.read(offset, end)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset as `LogPartition.offset_at` does.

        Raises as `read`."""
        found, start = self.local.offset_at(timestamp_ms), self.local.start_offset
        if found > start or start in (0, self.start_offset) or self._ended_by(timestamp_ms):
            return found
        return max(self.start_offset, self._archive(None, start).offset_at(timestamp_ms))

    def _ended_by(self, timestamp_ms: int) -> bool:
        """Return True if the records below the local start are known to end at or before this time.

        If the clock was set there, nothing is known."""
        try:
            segment = SegmentReader(segment_path(self.local.directory, self.local.start_offset), last=True)
        except FileNotFoundError:
            return False
        try:
            newest = segment.index.max_timestamp_before_ms
            return not segment.header.begins_anew and 0 < newest <= timestamp_ms
        finally:
            segment.close()

    def _archive(self, offset: int | None, start: int) -> "ArchivedPartition":
        """Return the archive of this partition, which has all records from `offset` to the local start.

        `offset` None: for a search by time. Raises as `read`."""
        what = "the time" if offset is None else f"offset {offset}"
        floor = floors_of(self._data_dir).get(self.name)
        if floor is not None and offset is not None and offset < floor.event.offset:
            begins = f"is below offset {floor.event.offset}, where the history begins"
            raise BelowStart(f"{self.name}: {what} {begins}; {in_words(floor)}")
        url = archive_of(self._data_dir)
        if url is None:
            begins = f"{what} is below offset {start}, where the local log begins"
            have = "`rewindmq recover --archive URL` makes a directory with all of it, and Spark reads `--archive URL`"
            raise BelowStart(f"{self.local.directory}: {begins}: if the history is archived, {have}")
        while self._archived is None or self._archived.next_offset < self.local.start_offset:
            start = self.local.start_offset
            try:
                self._archived = self._proven(url, start)
            except FileNotFoundError:
                if start == self.local.start_offset:  # otherwise it was cut in the meantime
                    raise
        return self._archived

    def _proven(self, url: str, start: int) -> "ArchivedPartition":
        """Open the archive.

        Raises LogError unless it has the records before `start`, and they are those of this log; NoAnswer."""
        from rewindmq.engine.keeping.archive.identity import begun_identity, identity_of
        from rewindmq.engine.keeping.archive.objects import BadUrl, open_objects
        from rewindmq.engine.keeping.archive.reader import ArchivedPartition

        try:
            objects = open_objects(url)
        except BadUrl as error:
            raise NoAnswer(f"the archive of {self._data_dir}: {error}") from None
        archived = ArchivedPartition(objects, self.name)
        entry = next((each for each in archived.segments if each.next_offset == start), None)
        if entry is None:
            end = archived.next_offset
            raise LogError(f"{url}: it ends at offset {end} of {self.name}, and the local log begins at {start}")
        path = segment_path(self.local.directory, start)
        begun = begun_identity(objects)
        if stated_chain(path) != entry.chain or begun is None or not begun.is_of(identity_of(self._data_dir)):
            raise CorruptLog(path, 0, start, f"it does not continue where the archive at {url} ends: another history")
        return archived


def local_base(log: object, oldest: int) -> Base | None:
    """Return the base at the local start if `oldest` is below it, so that messages queued there need no archive.

    None if the log has no usable base there, because the archive has everything."""
    if not isinstance(log, TieredPartition) or oldest >= log.local.start_offset:
        return None
    try:
        return log.local.base()
    except LogError:
        return None


class TieredLogReader:
    """The partitions of a data directory and its archive, read-only.

    Raises LogError if there is no log."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        count = read_layout(data_dir)
        self.metadata = PartitionReader(partition_directory(data_dir, METADATA))  # never cut
        directories = (partition_directory(data_dir, queue_partition(n)) for n in range(count))
        self.queues = [TieredPartition(PartitionReader(directory)) for directory in directories]


@dataclass(slots=True)
class _Floors:
    """The floors of a data directory, from the metadata log below `end`."""

    history: AboutHistory
    end: int


_known: dict[Path, _Floors] = {}
_finding = Lock()


def floors_of(data_dir: Path) -> dict[str, Floor]:
    """Return the floors of the trimmed partitions, by partition.

    A process reads the metadata log once, from its newest snapshot on, and then only additions. Raises CorruptLog."""
    metadata = PartitionReader(partition_directory(data_dir, METADATA))
    with _finding:
        known = _known.get(data_dir)
        end = metadata.next_offset
        if known is None or known.end > end:
            begun = newest(Snapshots(data_dir / "snapshots"), metadata)
            known = _known[data_dir] = _Floors(begun.topology.history, begun.next_offset)
        if known.end < end:
            for offset, timestamp_ms, actor, event in events_of(metadata, known.end):
                if isinstance(event, HistoryTrimmed):
                    known.history.apply(offset, timestamp_ms, actor.user, event)
                end = max(end, offset + 1)
            known.end = end
        return known.history.floors
