"""The process beside a broker, which archives the broker's directory again and again, and trims old history.

    broker (archive_supervisor.py)                     this process
        the order                 ->                   the URL, if any, is opened
                                  <-    Opened, NoArchivePossible
        None: the log is open     ->                   passes begin; on Kafka the names of the partitions that this
                                                       node owns, and again when they change
                                  <-    ArchiveProgress after each pass, and during a long one
                                  <-    Kept after each check of --keep-history (keep_history.py); not on Kafka:
                                  <-    TrimAsked
        TrimAnswer                ->                   the segments are removed

- It runs at nice(10): when processor time is short, the broker gets about 90 %. With less than 10 % an archiver would
  fall behind a busy broker for good.
- With --keep-local a pass ends by removing archived history beyond that limit (local_space.py; on Kafka
  engine/keeping/topic_space.py).
- A failed pass is repeated after a second, then two, and so on up to a minute. The broker gets the error text, and logs
  it once.
- The end of the pipe means the end of the broker, whatever the cause: this process ends before the next segment, and
  during an audit within a second. Both may be killed at any moment (archive/archiver.py), and another archiver may work
  at the same time.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Final, Protocol

from rewindmq.engine.keeping.archive.archiver import Archiver, first_waiting_ms
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import BadUrl, Objects, ObstoreNotInstalled, open_objects
from rewindmq.engine.keeping.archive.progress import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ArchiveOrder,
    ArchiveProgress,
    NoArchivePossible,
    Opened,
    PartitionProgress,
    TrimAnswer,
    TrimAsked,
)
from rewindmq.engine.keeping.in_directory import directory_keeper
from rewindmq.engine.keeping.keep_history import KeepHistory
from rewindmq.engine.keeping.local_limits import local_limits
from rewindmq.engine.keeping.local_space import SpaceLimits, SpaceReport, keep_local
from rewindmq.engine.keeping.trim_rules import TrimRefused
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition
from rewindmq.engine.log.embedded.root import root_of
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.schemas.metadata_events import HistoryTrimmed

NICENESS: Final = 10
TOLD_SECONDS: Final = 5.0  # between two reports of one pass
ALIVE_SECONDS: Final = 1.0  # between two checks, during an audit, that the broker is alive
ENDS_SECONDS: Final = 5.0  # a start waits this long for the archive's ends
CUT_SECONDS: Final = 600.0  # between two checks for removable segments, if nothing more was archived

logger = logging.getLogger(__name__)


def archive_history(connection: Connection) -> None:
    """Run the process. Ctrl-C reaches the whole process group, so it is ignored here, because the broker ends the
    process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    log_to_stderr("warning")
    try:
        order: ArchiveOrder = connection.recv()
        objects: Objects | None = None
        try:
            if order.url is not None:
                objects = open_objects(order.url, make=True)
        except (BadUrl, ObstoreNotInstalled) as error:
            connection.send(NoArchivePossible(str(error), isinstance(error, BadUrl)))
            return
        connection.send(Opened("", {}) if objects is None else Opened(objects.url, _ends_soon(objects, order)))
        Duties(connection, order, objects).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the broker ended
        return


def _ends_soon(objects: Objects, order: ArchiveOrder) -> dict[str, int]:
    """Return the ends in the archive; empty if it does not answer soon, so that the broker starts without it."""
    found: dict[str, int] = {}
    if order.topics is None:
        reading = Thread(target=_read_ends, args=(objects, order.data_dir, found), daemon=True)
        reading.start()
        reading.join(ENDS_SECONDS)
    return dict(found)


def _read_ends(objects: Objects, data_dir: Path, found: dict[str, int]) -> None:
    """Note the end of each partition of the directory's history in the archive, as far as it can be read."""
    with suppress(LogError, OSError):  # the first pass will report it
        identity = read_identity(objects)
        if identity is not None and identity.history == root_of(data_dir):
            for name in (METADATA, *map(queue_partition, range(identity.queue_partitions))):
                found[name] = Manifest.load(objects, name).end


class ArchivedHistory(Protocol):
    """The history to archive: a data directory, or topics in Kafka."""

    @property
    def retention(self) -> str | None:
        """Return the problem with a retention that is not RewindMQ's, and the remedy; or None."""

    def owned(self, names: frozenset[str] | None) -> None:
        """Archive these partitions from now on; None: all."""

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> object:
        """Archive new records. Arguments and errors as `Archiver.run`."""

    def known(self) -> tuple[PartitionProgress, ...]:
        """Return the archive's progress in each partition; empty if unknown.

        Raises LogError, OSError."""

    def keep_local(self, limits: SpaceLimits) -> SpaceReport:
        """Remove archived records beyond the limits from the log.

        Raises LogError, NewerHistory, OSError."""


def source_of(order: ArchiveOrder, objects: Objects) -> ArchivedHistory:
    """Return the source that the order names."""
    if order.topics is None:
        return DirectorySource(order.data_dir, objects)
    from rewindmq.engine.keeping.topic_source import TopicSource

    return TopicSource(order.topics, order.age_ms, order.data_dir, objects)


class DirectorySource:
    """The data directory of a broker."""

    retention = None  # nothing else removes files

    def __init__(self, data_dir: Path, objects: Objects) -> None:
        self._data_dir = data_dir
        self._objects = objects
        self._archiver = Archiver(objects, data_dir)

    def owned(self, names: frozenset[str] | None) -> None:
        """Do nothing, because a broker owns all partitions of its directory."""

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> None:
        """Archive everything closed."""
        self._archiver.run(until, progress)
        note_archive(self._data_dir, self._objects.url)

    def known(self) -> tuple[PartitionProgress, ...]:
        """Return the archive's progress in each partition."""
        return progress_of(self._archiver.manifests, self._data_dir)

    def keep_local(self, limits: SpaceLimits) -> SpaceReport:
        """Remove segments."""
        return keep_local(self._data_dir, self._objects, limits)


class LocalCuts:
    """The removals of archived history beyond --keep-local from the broker's directory, or from Kafka."""

    def __init__(self, source: ArchivedHistory, limits: SpaceLimits) -> None:
        self._source = source
        self._limits = limits
        self._ends: tuple[int, ...] = ()  # of the archived partitions, at the last check
        self._looked = -CUT_SECONDS
        self._freed_bytes = 0
        self._stays: str | None = None

    def look(self, ends: tuple[int, ...]) -> bool:
        """Evict history if the archive has grown, or if ten minutes have passed since the last check. Return True if it
        checked.

        Raises LogError, NewerHistory, OSError."""
        now = time.monotonic()
        if ends == self._ends and now - self._looked < CUT_SECONDS:
            return False
        report = self._source.keep_local(self._limits)
        self._ends, self._looked = ends, now
        self._freed_bytes += report.freed_bytes
        self._stays = "; ".join(f"{each.partition}: {each.why}" for each in report.partitions if each.why) or None
        return True

    def told(self) -> tuple[int, str | None]:
        """Return the bytes removed since the last call, and why other due segments were not removed."""
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        return freed_bytes, self._stays


class ArchivePasses:
    """The passes of one archiver process."""

    def __init__(self, connection: Connection, order: ArchiveOrder, objects: Objects) -> None:
        self._source = source_of(order, objects)
        self._connection = connection
        self._order = order
        self._known: tuple[PartitionProgress, ...] = ()
        self._cuts = LocalCuts(self._source, local_limits(order.keep_local)) if order.keep_local else None
        self._told = 0.0  # by the monotonic clock
        self._next = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the next pass."""
        return max(0.0, self._next - time.monotonic())

    def owned(self, names: frozenset[str] | None) -> None:
        """Archive these partitions from now on, and soon; None: all."""
        self._source.owned(names)
        self._next = 0.0

    def run_if_due(self, alive: Callable[[], object]) -> None:
        """Archive new records, if it is time. `alive` is called between two segments, and raises EOFError when the
        broker ended.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        if self.seconds_left > 0:
            return
        error = self._pass(alive)
        self._tell(ended=True, error=error)
        if error is None:
            self._pause = FIRST_PAUSE_SECONDS
            self._next = time.monotonic() + self._order.pause_ms / 1_000
        else:
            self._next = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _pass(self, alive: Callable[[], object]) -> str | None:
        """Archive everything closed. Return the error, if any."""

        def until() -> bool:
            alive()
            return False

        try:
            self._source.archive(until, self._during)
            self._known = self._source.known()
            if self._cuts is not None and self._cuts.look(tuple(each.archived_end for each in self._known)):
                self._known = self._source.known()
        except (LogError, NewerHistory) as error:
            self._look_again()
            return str(error)
        except OSError as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise
            self._look_again()
            return f"{error.filename or self._order.data_dir}: {error.strerror or error}"
        except EOFError:
            raise
        except Exception as error:  # our own defect must not end the passes, because the next one may succeed
            logger.exception("archiving failed")
            return f"a defect of rewindmq: {type(error).__name__}, see the broker's log"
        return None

    def _look_again(self) -> None:
        """Measure the archive's progress, as far as possible after an error."""
        with suppress(LogError, OSError):  # then the former progress is reported again
            self._known = self._source.known() or self._known

    def _during(self, _done: int, _all: int) -> None:
        """SpaceReport the progress of a long pass to the broker."""
        if time.monotonic() - self._told >= TOLD_SECONDS:
            self._known = self._source.known()
            self._tell(ended=False, error=None)

    def _tell(self, ended: bool, error: str | None) -> None:
        self._told = time.monotonic()
        freed_bytes, stays = (0, None) if self._cuts is None else self._cuts.told()
        self._connection.send(ArchiveProgress(self._known, ended, error, freed_bytes, stays, self._source.retention))


class Duties:
    """The duties of one process, in turn: passes of the archiver, checks of --keep-history. It has at least one."""

    def __init__(self, connection: Connection, order: ArchiveOrder, objects: Objects | None) -> None:
        """Set up the duties. `objects`: the archive; None: there is none."""
        self._connection = connection
        self._passes = None if objects is None else ArchivePasses(connection, order, objects)
        self._history = _keeper(order, objects, self._log_trim, self._alive)
        self._polled = 0.0  # by the monotonic clock

    def run(self) -> None:
        """Do the due work, again and again.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        self._take(self._connection.recv())
        while True:
            left = []
            if self._passes is not None:
                self._passes.run_if_due(self._take_all)
                left.append(self._passes.seconds_left)
            if self._history is not None:
                kept = self._history.look()
                if kept is not None:
                    self._connection.send(kept)
                left.append(self._history.seconds_left)
            if self._connection.poll(min(*left, ALIVE_SECONDS)):  # to the broker a process that never wakes is hung
                self._take(self._connection.recv())

    def _take(self, owned: frozenset[str] | None) -> None:
        if self._passes is not None:
            self._passes.owned(owned)
        if self._history is not None:
            self._history.owned = owned

    def _take_all(self) -> None:
        """Receive everything that the broker has sent.

        Raises EOFError: the broker ended."""
        while self._connection.poll(0):
            self._take(self._connection.recv())

    def _alive(self) -> None:
        """Do as `_take_all`, but once a second, because this is called for each block of a log."""
        now = time.monotonic()
        if now - self._polled >= ALIVE_SECONDS:
            self._polled = now
            self._take_all()

    def _log_trim(self, event: HistoryTrimmed) -> None:
        """Let the broker log the event durably.

        Raises TrimRefused; EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        self._connection.send(TrimAsked(event))
        while True:
            told = self._connection.recv()
            if isinstance(told, TrimAnswer):
                if told.refused is not None:
                    raise TrimRefused(told.refused)
                return
            self._take(told)


def _keeper(
    order: ArchiveOrder,
    objects: Objects | None,
    log_event: Callable[[HistoryTrimmed], object],
    alive: Callable[[], object],
) -> KeepHistory | None:
    """Return the keeper that trims history older than the order's limit; None: everything stays."""
    if order.keep_history_ms is None:
        return None
    if order.topics is None:
        return directory_keeper(order.data_dir, order.url, order.keep_history_ms, log_event, alive)
    from rewindmq.engine.keeping.in_topics import topics_keeper

    assert objects is not None, "on Kafka a trim needs the archive"
    return topics_keeper(order.topics, order.data_dir, objects, order.keep_history_ms, alive)


def progress_of(manifests: Iterable[Manifest], data_dir: Path) -> tuple[PartitionProgress, ...]:
    """Return the archive's progress in each partition, from the loaded manifests and the local segments.

    Raises LogError, OSError if a partition cannot be read."""
    return tuple(_progress(manifest, partition_directory(data_dir, manifest.partition)) for manifest in manifests)


def _progress(manifest: Manifest, directory: Path) -> PartitionProgress:
    waiting = [path.stat().st_size for path in segment_files(directory) if base_offset_of(path) >= manifest.end]
    return PartitionProgress(
        manifest.partition,
        manifest.end,
        manifest.archived_bytes,
        first_waiting_ms(directory, manifest.end),
        sum(waiting),
    )
