"""A data directory and its archive, if any, as history to keep (port.py).

    directory_keeper(data_dir, url, keep_ms, ask_broker, alive).look()          beside a broker, which appends events
    trim_directory(data_dir, TrimRequest(before_ms=...))                        without a broker

The local log may begin above the floor (`start --keep-local`). Then the trimmed records are read from the archive, and
no segment is removed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.identity import identity_of, read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import BadUrl, Objects, open_objects
from rewindmq.engine.keeping.archive.trims import durable_floors, end_trim
from rewindmq.engine.keeping.keep_history import NOTE, KeepHistory
from rewindmq.engine.keeping.port import CutPoint
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.tiers import TieredPartition
from rewindmq.engine.keeping.trim import trim
from rewindmq.engine.keeping.trim_audit import Audited, audit
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, TrimRequest
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_path, stated_chain
from rewindmq.engine.log.embedded.steady_time import newest_ms_of
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.about_history import Floor
from rewindmq.projections.topology.metadata_fold import fold_on
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER

LEFTOVER_SECONDS: Final = 3_600.0  # an unfinished base this old is left from a killed program


def archive_for(data_dir: Path, url: str | None = None) -> Objects | None:
    """Return the archive of a data directory: that at `url`, or the one that the directory names; None if it has none.

    Raises TrimRefused if the directory names another archive, BadUrl, OtherHistory, NoAnswer, LogError."""
    named = archive_of(data_dir)
    if url is None and named is None:
        return None
    try:
        objects = open_objects(str(url or named))
    except BadUrl as error:
        if url is not None:
            raise
        raise NoAnswer(f"the archive of {data_dir}: {error}; nothing was removed") from None
    if named is not None and objects.url != named:
        raise TrimRefused(f"{data_dir}: its archive is {named}, not {objects.url}; nothing was removed")
    archived = read_identity(objects)
    if archived is None or not archived.is_of(identity_of(data_dir)):
        raise OtherHistory(f"{objects.url}: not the archive of the history in {data_dir}; nothing was removed")
    return objects


def trim_directory(
    data_dir: Path, wanted: TrimRequest, dry_run: bool = False, wall_ms: int | None = None, url: str | None = None
) -> list[TrimReport]:
    """Trim a directory that no broker uses, and its archive. `url`: of the archive, if the directory names none.

    Raises as `trim`, and LogInUse, BadUrl."""
    with _stopped(data_dir, archive_for(data_dir, url), wall_ms) as history:
        if not dry_run:
            history.note_archive()
        return trim(history, wanted, dry_run, wall_ms)


@contextmanager
def _stopped(data_dir: Path, objects: Objects | None, wall_ms: int | None = None) -> "Iterator[DirectoryHistory]":
    """Yield the history of a directory that no broker uses. `wall_ms`: the wall clock, for appended events.

    Raises LogInUse, LogError, CorruptLog, NewerHistory."""
    read_layout(data_dir)  # the log must exist: none is made here
    log = EmbeddedLog.open(data_dir, None)
    try:
        metadata = newest(Snapshots(data_dir / "snapshots"), log.metadata)
        fold_on(metadata, log.metadata, strict=True)

        def append(event: HistoryTrimmed) -> None:
            encoder = encoder_under(log.metadata.schema)
            now_ms = max(time.time_ns() // 1_000_000 if wall_ms is None else wall_ms, metadata.clock_ms)
            log.metadata.append(now_ms, encoder.encode(encoder.prefix(now_ms, BROKER), event))
            log.commit_and_wait()

        yield DirectoryHistory(data_dir, objects, append, is_stopped=True)
    finally:
        log.close()


def directory_keeper(
    data_dir: Path,
    url: str | None,
    keep_ms: int,
    log_event: Callable[[HistoryTrimmed], object],
    alive: Callable[[], object],
    monotonic: Callable[[], float] = time.monotonic,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> KeepHistory:
    """Return the keeper that trims a broker's directory, and its archive: that at `url`, or the noted one.

    `log_event` returns once the broker's metadata log durably has the event; it raises TrimRefused if the broker
    refuses."""

    def opened() -> DirectoryHistory:
        history = DirectoryHistory(data_dir, archive_for(data_dir, url), log_event)
        history.note_archive()
        return history

    return KeepHistory(opened, data_dir / "log" / NOTE, keep_ms, alive, monotonic, wall_ms)


class DirectoryHistory:
    """All partitions of a data directory. Implements `KeptHistory`.

    `append` logs one event durably. `is_stopped`: no broker runs, so only the last segment has to stay."""

    shared = False

    def __init__(
        self,
        data_dir: Path,
        objects: Objects | None,
        append: Callable[[HistoryTrimmed], object],
        is_stopped: bool = False,
    ) -> None:
        self.place = str(data_dir)
        self.names = list(map(queue_partition, range(read_layout(data_dir))))
        self._data_dir = data_dir
        self._objects = objects
        self._append = append
        self._is_stopped = is_stopped
        self._manifests: dict[str, Manifest] = {}

    def note_archive(self) -> None:
        """Note the directory's archive, from which records below the local start are read."""
        if self._objects is not None:
            note_archive(self._data_dir, self._objects.url)

    def partition(self, name: str) -> "DirectoryPartition":
        manifest = None
        if self._objects is not None:
            manifest = self._manifests.setdefault(name, Manifest(self._objects, name))
            manifest.refresh()
        return DirectoryPartition(self._data_dir, name, manifest, self._is_stopped)

    def logs(self) -> Sequence[PartitionLog]:
        return [PartitionReader(directory) for directory in self._directories()]

    def newest_ms(self) -> int:
        return newest_ms_of(self._directories())

    def _directories(self) -> list[Path]:
        return [partition_directory(self._data_dir, name) for name in (METADATA, *self.names)]

    def append(self, events: Sequence[HistoryTrimmed]) -> None:
        for event in events:
            self._append(event)

    def floors(self) -> Mapping[str, Floor]:
        return durable_floors(self._data_dir)


class DirectoryPartition:
    """A queue partition of a data directory. Implements `KeptPartition`."""

    def __init__(self, data_dir: Path, name: str, manifest: Manifest | None, is_stopped: bool) -> None:
        self.name = name
        self.manifest = manifest
        self._data_dir = data_dir
        self._local = PartitionReader(partition_directory(data_dir, name))
        self._log = TieredPartition(self._local)
        self._snapshots, self._bases = Snapshots(data_dir / "snapshots"), Bases(data_dir / "bases")
        self._is_stopped = is_stopped

    @property
    def log(self) -> PartitionReader | TieredPartition:
        return self._local if self.manifest is None else self._log

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def base_bytes(self) -> int:
        base = self._bases.path(self.name, self.start_offset)
        return base.stat().st_size if base.exists() else 0

    def cuts(self) -> list[CutPoint]:
        start, local = self.start_offset, self._local.start_offset
        archived = [] if self.manifest is None else self.manifest.segments
        cuts = [
            CutPoint(each.base_offset, each.size_bytes, 0, each.max_timestamp_ms)
            for each in archived
            if start <= each.base_offset < local
        ]
        here = self._local.segments()
        cuts += [
            CutPoint(each.base_offset, each.size, each.size, each.max_timestamp_ms)
            for each in (here if self._is_stopped else here[:-1])
        ]
        return cuts

    def chain_at(self, offset: int) -> bytes:
        if offset >= self._local.start_offset:
            return stated_chain(segment_path(self._local.directory, offset))
        assert self.manifest is not None, "records that are not local are in the archive"
        return next(each.chain_before for each in self.manifest.segments if each.base_offset == offset)

    def audited(self, end: int, between: Callable[[], object]) -> Audited:
        return audit(self.log, self._snapshots, end, between)

    def queued(self, offsets: Sequence[int], end: int) -> Iterator[tuple[int, bytes]]:
        return queued_records(self._local if end >= self._local.start_offset else self._log, offsets)

    @contextmanager
    def bases(self) -> Iterator[Bases]:
        self._bases.remove_leftovers(self.name, 0 if self._is_stopped else LEFTOVER_SECONDS)
        yield self._bases

    def end_trim(self, event: HistoryTrimmed) -> int:
        if event.offset > self._local.start_offset:
            cut(self._data_dir, self.name, event.offset)
        failpoints.reached("trim.after_cut")
        self._snapshots.discard_below(self.name, event.offset)
        self._bases.discard_below(self.name, event.offset)
        return 0 if self.manifest is None else end_trim(self.manifest, event, self._bases)
