"""Keeps the process beside a broker (archive_process.py) running, and receives its reports.

    supervisor = ArchiveSupervisor(config.archive, order)
    await supervisor.open()                       # ArchiveRefused: the URL does not name an archive
    supervisor.start(status, trims)               # once the log is open
    supervisor.stop()

- A thread waits for the process, and passes its reports to the loop, where alone the status changes.
- If the process ends (killed, out of memory) or hangs (engine/rewind/liveness.py; then it is killed), another one is
  started after a second, then two, up to a minute.
- The broker logs one line when archiving begins to fail and one when it works again, whatever happens in between, and
  the same when the archive is further behind than the options allow. Publishers are not held back.
- The process requests the event of a trim. The loop appends it, and answers once it is durable.
"""

import asyncio
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final, TypeVar

from rewindmq.engine.broker.archive_status import ArchiveStatus
from rewindmq.engine.broker.history_trims import HistoryTrims
from rewindmq.engine.config import ArchiveConfig, Config
from rewindmq.engine.host.durations import in_words
from rewindmq.engine.keeping.archive.progress import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ArchiveOrder,
    ArchiveProgress,
    Kept,
    NoArchivePossible,
    Opened,
    TrimAnswer,
    TrimAsked,
)
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.rewind.liveness import Hung, received

WORKED_SECONDS: Final = 60.0  # a process that lived this long is restarted at once
SILENT_LOOKS: Final = 120  # seconds, because object storage may answer late, and then the process waits
SLACK_MS: Final = 10_000  # a pass takes time

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ArchiveRefused(Exception):
    """There can be no archive; the text says why. `wrong_url`: the URL is to blame; otherwise this installation."""

    def __init__(self, refused: NoArchivePossible) -> None:
        super().__init__(refused.text)
        self.wrong_url = refused.wrong_url


def order_of(config: Config) -> ArchiveOrder:
    """Return the order that the options of a broker give to the process.

    A stretch of a topic ends at half the permitted lag of the archive, which leaves the rest of the time for checking
    and archiving."""
    archive = config.archive
    if config.kafka is None:
        return ArchiveOrder(
            config.data,
            archive.url,
            archive.lag_ms,
            keep_local=archive.keep_local,
            keep_history_ms=config.keep_history_ms,
        )
    return ArchiveOrder(
        config.data,
        archive.url,
        pause_ms=archive.lag_ms // 4,
        topics=InKafka(config.kafka, config.kafka_prefix, config.kafka_settings),
        age_ms=archive.lag_ms // 2,
        keep_local=archive.keep_local,
        keep_history_ms=config.keep_history_ms,
    )


class ArchiveSupervisor:
    """The supervisor, which starts and restarts the process."""

    def __init__(self, config: ArchiveConfig, order: ArchiveOrder) -> None:
        self._config = config
        self._order = order
        self._owned: Callable[[], frozenset[str] | None] = lambda: None
        self._url = order.url or ""
        self.ends: Mapping[str, int] = {}  # of the archive, when the first process opened it
        self._stopping = threading.Event()
        self._name = "trimming" if order.url is None else "archiver"
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._status: ArchiveStatus | None = None
        self._trims: HistoryTrims | None = None
        self._failing_since: float | None = None
        self._behind = False

    async def open(self) -> None:
        """Start the first process.

        ArchiveRefused."""
        await asyncio.to_thread(self._begin)

    def start(
        self,
        status: ArchiveStatus | None,
        trims: HistoryTrims,
        owned: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        """Archive and trim from now on, and report to `status` and `trims`. `status` None: there is no archive.
        `owned`: returns the names of the partitions to archive; None: all."""
        self._owned = owned
        if status is not None:
            status.url = self._url
        self._status = status
        self._trims = trims
        self._thread = threading.Thread(target=self._supervise, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process, and leave its unfinished work to another one."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()  # it may be stopped: a milder signal would make the broker wait
        if self._thread is not None:
            self._thread.join()
        elif self._process is not None:
            self._process.join()

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a process and wait until it has opened the URL.

        Raises ArchiveRefused; EOFError, OSError if the process ended."""
        from rewindmq.engine.keeping.archive_process import archive_history  # it loads what other brokers never need

        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=archive_history, args=(theirs,), name=self._name, daemon=True)
        process.start()
        self._process, self._connection = process, ours  # `stop` can end only a started process
        theirs.close()  # otherwise this process would not see the end of the pipe
        if self._stopping.is_set():  # `stop` may have run before there was a process
            process.kill()
        ours.send(self._order)
        answer: Opened | NoArchivePossible = ours.recv()
        if isinstance(answer, NoArchivePossible):
            raise ArchiveRefused(answer)
        self._url, self.ends = answer.url, answer.ends

    def _supervise(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        begun = True  # `open` has started the first process
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                if not begun:
                    self._begin()
                assert self._connection is not None
                assert self._process is not None
                self._exchange(self._connection, self._process)
            except Hung as error:
                why = f"the {self._name}: {error}"
            except ArchiveRefused as refused:
                why = str(refused)
            except (EOFError, OSError):
                why = f"the {self._name} process ended"
            begun = False
            self._end_process()
            if self._stopping.is_set():
                return
            self._in_loop(self._ended, why)
            if time.monotonic() - started >= WORKED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _exchange(self, connection: Connection, process: SpawnProcess) -> None:
        """Send the process its work, and receive its reports.

        Raises Hung; EOFError, OSError if the process ended."""
        told = self._owned()
        connection.send(told)
        while True:
            news: ArchiveProgress | Kept | TrimAsked = received(connection, process, SILENT_LOOKS)
            self._in_loop(partial(self._told, connection), news)
            if isinstance(news, ArchiveProgress) and news.ended and (owned := self._owned()) != told:
                connection.send(owned)
                told = owned

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()

    def _in_loop(self, call: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            if not self._loop.is_closed():  # otherwise there is no status left
                raise

    # -- in the loop ------------------------------------------------------------------------------------------------

    def _told(self, connection: Connection, news: ArchiveProgress | Kept | TrimAsked) -> None:
        assert self._trims is not None
        if isinstance(news, Kept):
            self._trims.looked(news)
        elif isinstance(news, TrimAsked):
            self._trims.log(news.event, partial(_answer, connection))
        else:
            self._archived(news)

    def _ended(self, why: str) -> None:
        """Note that the process ended."""
        if self._status is not None:
            self._failed(why)
        elif self._trims is not None:
            self._trims.failed(why)

    def _archived(self, progress: ArchiveProgress) -> None:
        assert self._status is not None
        self._status.told(progress.partitions)
        self._status.cut(progress.freed_bytes, progress.stays)
        if progress.retention != self._status.retention:
            logger.error("Kafka's retention: %s", progress.retention or "what is archived follows it again")
            self._status.retention = progress.retention
        if progress.error is not None:
            self._failed(progress.error)
        elif progress.ended:
            self._works()
            self._look_at_lag()

    def _failed(self, why: str) -> None:
        assert self._status is not None
        self._status.failures += 1
        self._status.error = why
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            logger.warning("archiving fails, and is tried again at least once a minute: %s", why)

    def _works(self) -> None:
        assert self._status is not None
        self._status.error = None
        if self._failing_since is not None:
            took_ms = int((time.monotonic() - self._failing_since) * 1_000)
            self._failing_since = None
            logger.warning("archiving works again, after %s", in_words(took_ms))

    def _look_at_lag(self) -> None:
        """Log when the archive is further behind than the options allow, and when it no longer is."""
        assert self._status is not None
        allowed_ms = self._config.allowed_lag_ms
        lags = self._status.lags()
        behind = max((seconds for *_, seconds in lags), default=0.0) * 1_000 > allowed_ms + SLACK_MS
        if behind and not self._behind:
            records = sum(each[1] for each in lags)
            logger.warning(
                "the archive is behind: %d records are not in it, the oldest %s old; --segment-age and --archive-lag"
                " allow %s",
                records,
                in_words(int(max(seconds for *_, seconds in lags) * 1_000)),
                in_words(allowed_ms),
            )
        elif self._behind and not behind:
            logger.warning("the archive is no longer behind")
        self._behind = behind


def _answer(connection: Connection, refused: str | None) -> None:
    """Answer the process that requested the event of a trim. It is waiting, so this takes no time."""
    with suppress(OSError):  # it ended: the next one completes the trim
        connection.send(TrimAnswer(refused))
