"""The archiver beside a broker: a process of its own, which archives the broker's directory again and again.

    broker (archive_supervisor.py)                     this process
        the order                 ->                   the URL is opened
                                  <-    Opened, Refused
        None: the log is open     ->                   passes begin
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
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from rewindmq.engine.log.archive.archiver import Archiver, archived_bytes, first_waiting_ms
from rewindmq.engine.log.archive.directory_note import note_archive
from rewindmq.engine.log.archive.local_space import keep_local
from rewindmq.engine.log.archive.manifest import Manifest
from rewindmq.engine.log.archive.objects import BadUrl, Objects, ObstoreNotInstalled, open_objects
from rewindmq.engine.log.archive.progress import ArchiveOrder, Opened, PartitionProgress, Progress, Refused
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.engine.runtime.local_limits import local_limits
from rewindmq.projections.machine.machine import NewerHistory

NICENESS: Final = 10
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
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
        connection.recv()
        ArchivePasses(connection, order, objects).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the broker ended
        return


class ArchivePasses:
    """The passes of one archiver process."""

    def __init__(self, connection: Connection, order: ArchiveOrder, objects: Objects) -> None:
        self._connection = connection
        self._order = order
        self._objects = objects
        self._archiver = Archiver(objects, order.data_dir)
        self._known: tuple[PartitionProgress, ...] = ()
        self._told = 0.0  # by the monotonic clock
        self._limits = local_limits(order.keep_local) if order.keep_local else None
        self._cut_at = -CUT_SECONDS
        self._freed_bytes = 0  # since the last report
        self._stays: str | None = None

    def run(self) -> None:
        """Archive again and again.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        pause = FIRST_PAUSE_SECONDS
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
            report = self._archiver.run(self._broker_ended, self._during)
            if report.stopped:
                raise EOFError
            note_archive(self._order.data_dir, self._objects.url)
            self._cut(any(each.segments for each in report.partitions))
            self._known = progress_of(self._archiver.manifests, self._order.data_dir)
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

    def _cut(self, more_is_archived: bool) -> None:
        """Remove here what is archived and beyond --keep-local.

        Raises LogError, NewerHistory, OSError."""
        now = time.monotonic()
        if not self._limits or not (more_is_archived or now - self._cut_at >= CUT_SECONDS):
            return
        done = keep_local(self._order.data_dir, self._objects, self._limits)
        self._cut_at = now
        self._freed_bytes += done.freed_bytes
        self._stays = "; ".join(f"{each.partition}: {each.why}" for each in done.partitions if each.why) or None

    def _look_again(self) -> None:
        """Measure how far the archive is, as far as that can be known after an error."""
        try:
            if self._archiver.manifests:
                self._known = progress_of(self._archiver.manifests, self._order.data_dir)
        except (LogError, OSError):
            pass  # what was known before is told again

    def _during(self, _done: int, _all: int) -> None:
        """Tell the broker how far a long pass is."""
        if time.monotonic() - self._told >= TOLD_SECONDS:
            self._known = progress_of(self._archiver.manifests, self._order.data_dir)
            self._tell(ended=False, error=None)

    def _tell(self, ended: bool, error: str | None) -> None:
        self._told = time.monotonic()
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        self._connection.send(Progress(self._known, ended, error, freed_bytes, self._stays))

    def _broker_ended(self) -> bool:
        """Whether the pipe has ended. The broker sends nothing more through it."""
        return self._connection.poll(0)

    def _wait(self, seconds: float) -> None:
        """Wait, and raise EOFError when the broker ends meanwhile."""
        if self._connection.poll(seconds):
            self._connection.recv()


def progress_of(manifests: Iterable[Manifest], data_dir: Path) -> tuple[PartitionProgress, ...]:
    """How far each of these partitions is archived: from the manifests, which are loaded, and the local segments.

    Raises LogError, OSError: a partition cannot be read."""
    return tuple(_progress(manifest, partition_directory(data_dir, manifest.partition)) for manifest in manifests)


def _progress(manifest: Manifest, directory: Path) -> PartitionProgress:
    waiting = [path.stat().st_size for path in segment_files(directory) if base_offset_of(path) >= manifest.end]
    return PartitionProgress(
        manifest.partition,
        manifest.end,
        sum(map(archived_bytes, manifest.entries)),
        first_waiting_ms(directory, manifest.end),
        sum(waiting),
    )
