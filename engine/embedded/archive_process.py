"""The archiver beside a broker: a process of its own, which archives the broker's directory again and again.

    broker (archive_supervisor.py)                     this process
        the order                 ->                   the URL is opened
                                  <-    Opened, Refused
        None: the log is open     ->                   passes begin; on Kafka the names of the partitions that this
                                                       node owns, and again when they change
                                  <-    Progress after each pass, and during a long one

- It is nice(10): where processor time is short, the broker has nine parts of ten. With less than the tenth part an
  archiver would fall behind a busy broker for good.
- With --keep-local a pass ends with the removal of what is archived and beyond that limit (local_space.py).
- A pass that fails is tried again after a second, then two, and so on up to a minute. The text of what failed goes to
  the broker, which logs it once.
- The end of the pipe is the end of the broker, in whatever way: this process ends before the next segment. Both may be
  killed at any moment (engine/log/archive/archiver.py), and another archiver may work at the same time.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Protocol

from rewindmq.engine.log.archive.archiver import Archiver, first_waiting_ms
from rewindmq.engine.log.archive.directory_note import note_archive
from rewindmq.engine.log.archive.local_space import keep_local
from rewindmq.engine.log.archive.manifest import Manifest
from rewindmq.engine.log.archive.objects import BadUrl, Objects, ObstoreNotInstalled, open_objects
from rewindmq.engine.log.archive.progress import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ArchiveOrder,
    Opened,
    PartitionProgress,
    Progress,
    Refused,
)
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.engine.runtime.local_limits import local_limits
from rewindmq.projections.machine.machine import NewerHistory

NICENESS: Final = 10
TOLD_SECONDS: Final = 5.0  # between two reports of one pass
CUT_SECONDS: Final = 600.0  # between two looks at what may be removed, where nothing more was archived

logger = logging.getLogger(__name__)


def archive_history(connection: Connection) -> None:
    """The process's main function. Ctrl-C goes to the whole process group, so it is ignored here: the broker ends its
    archiver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    log_to_stderr("warning")
    try:
        order: ArchiveOrder = connection.recv()
        try:
            objects = open_objects(order.url, make=True)
        except (BadUrl, ObstoreNotInstalled) as error:
            connection.send(Refused(str(error), isinstance(error, BadUrl)))
            return
        connection.send(Opened(objects.url))
        cuts = LocalCuts(order.data_dir, objects, order.keep_local) if order.keep_local else None
        ArchivePasses(connection, order, source_of(order, objects), cuts).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the broker ended
        return


class Source(Protocol):
    """What is archived."""

    def owned(self, names: frozenset[str] | None) -> None:
        """Archive these partitions from now on; None: all."""

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> object:
        """Archive what is new. Arguments and errors as `Archiver.run`."""

    def known(self) -> tuple[PartitionProgress, ...]:
        """How far the archive is; empty: not known.

        Raises LogError, OSError."""


def source_of(order: ArchiveOrder, objects: Objects) -> Source:
    """What the order names."""
    if order.topics is None:
        return DirectorySource(order.data_dir, objects)
    from rewindmq.engine.cluster.topic_source import TopicSource

    return TopicSource(order.topics, order.data_dir, objects)


class DirectorySource:
    """The data directory of a broker."""

    def __init__(self, data_dir: Path, objects: Objects) -> None:
        self._data_dir = data_dir
        self._objects = objects
        self._archiver = Archiver(objects, data_dir)

    def owned(self, names: frozenset[str] | None) -> None:
        """Do nothing: a broker owns all partitions of its directory."""

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> None:
        """Archive all that is closed."""
        self._archiver.run(until, progress)
        note_archive(self._data_dir, self._objects.url)

    def known(self) -> tuple[PartitionProgress, ...]:
        """How far the archive is."""
        return progress_of(self._archiver.manifests, self._data_dir)


class LocalCuts:
    """Removes from the broker's directory what is archived and beyond --keep-local."""

    def __init__(self, data_dir: Path, objects: Objects, limits: str) -> None:
        self._data_dir = data_dir
        self._objects = objects
        self._limits = local_limits(limits)
        self._ends: tuple[int, ...] = ()  # of the archived partitions, at the last look
        self._looked = -CUT_SECONDS
        self._freed_bytes = 0
        self._stays: str | None = None

    def look(self, ends: tuple[int, ...]) -> bool:
        """Remove what may go, when more is archived than at the last look, or that is long ago. Returns whether it
        looked.

        Raises LogError, NewerHistory, OSError."""
        now = time.monotonic()
        if ends == self._ends and now - self._looked < CUT_SECONDS:
            return False
        report = keep_local(self._data_dir, self._objects, self._limits)
        self._ends, self._looked = ends, now
        self._freed_bytes += report.freed_bytes
        self._stays = "; ".join(f"{each.partition}: {each.why}" for each in report.partitions if each.why) or None
        return True

    def told(self) -> tuple[int, str | None]:
        """The bytes that were removed since the last call, and why other segments, which were due, were not."""
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        return freed_bytes, self._stays


class ArchivePasses:
    """The passes of one archiver process."""

    def __init__(
        self, connection: Connection, order: ArchiveOrder, source: Source, cuts: LocalCuts | None = None
    ) -> None:
        self._connection = connection
        self._order = order
        self._source = source
        self._known: tuple[PartitionProgress, ...] = ()
        self._cuts = cuts
        self._told = 0.0  # by the monotonic clock

    def run(self) -> None:
        """Archive again and again.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        pause = FIRST_PAUSE_SECONDS
        self._source.owned(self._connection.recv())
        while True:
            error = self._pass()
            self._tell(ended=True, error=error)
            if error is None:
                pause = FIRST_PAUSE_SECONDS
                self._wait(self._order.pause_ms / 1_000)
            else:
                self._wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _pass(self) -> str | None:
        """Archive all that is closed. Returns what went wrong."""
        try:
            self._source.archive(self._broker_ended, self._during)
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
        except Exception as error:  # a defect of ours must not end the passes: the next one may succeed
            logger.exception("archiving failed")
            return f"a defect of rewindmq: {type(error).__name__}, see the broker's log"
        return None

    def _look_again(self) -> None:
        """Measure how far the archive is, as far as that can be known after an error."""
        with suppress(LogError, OSError):  # then what was known before is told again
            self._known = self._source.known() or self._known

    def _during(self, _done: int, _all: int) -> None:
        """Tell the broker how far a long pass is."""
        if time.monotonic() - self._told >= TOLD_SECONDS:
            self._known = self._source.known()
            self._tell(ended=False, error=None)

    def _tell(self, ended: bool, error: str | None) -> None:
        self._told = time.monotonic()
        freed_bytes, stays = (0, None) if self._cuts is None else self._cuts.told()
        self._connection.send(Progress(self._known, ended, error, freed_bytes, stays))

    def _broker_ended(self) -> bool:
        """Take what the broker has sent, and return False.

        Raises EOFError: the broker ended."""
        while self._connection.poll(0):
            self._source.owned(self._connection.recv())
        return False

    def _wait(self, seconds: float) -> None:
        """Wait, no longer than until the broker sends something.

        Raises EOFError: the broker ended."""
        if self._connection.poll(seconds):
            self._source.owned(self._connection.recv())


def progress_of(manifests: Iterable[Manifest], data_dir: Path) -> tuple[PartitionProgress, ...]:
    """How far each of these partitions is archived: from the manifests, which are loaded, and the local segments.

    Raises LogError, OSError: a partition cannot be read."""
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
