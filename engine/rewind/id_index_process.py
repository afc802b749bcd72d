"""The process beside a broker that keeps the index of ids (`--find-index`), and what the broker asks it.

    broker                                   the process
        IndexOrder            ->             the index is opened
        Lookup                ->             between two windows (id_index_passes.py)
                              <-    Found
                              <-    Trouble, and it ends: the next one starts after a second, then two, up to a minute

- Messages do not wait for it: it reads the log behind the broker, and gives way to it, as nice(10).
- A search waits a second for it. Without an answer it reads the log, as without an index.
- The end of the pipe is the end of the broker, in whatever way.
- The index is derived from the log. If RocksDB fails, its directory is removed, and the next process makes it anew.
"""

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from rewindmq.engine.config import Config
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.engine.rewind.id_index import IdIndex, Indexed
from rewindmq.engine.rewind.id_index_passes import Indexing
from rewindmq.engine.rewind.liveness import Hung, received
from rewindmq.engine.rewind.queue_at import history_of
from rewindmq.engine.rewind.worker import shut

DIRECTORY: Final = "find-index"  # in the data directory
NICENESS: Final = 10
PAUSE_SECONDS: Final = 2.0  # between two looks at the log where nothing is new
ANSWER_SECONDS: Final = 1.0  # how long a search waits
MOST_WAITING: Final = 4  # questions
LOCK_SECONDS: Final = 5.0  # how long the process of the broker before may take to end
LEAST_FREE_BYTES: Final = 128 * 1024 * 1024  # of the disk; below that the index waits
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
WORKED_SECONDS: Final = 60.0  # a process that lived so long is started anew soon
END_SECONDS: Final = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """The index that the process keeps: of a history, in a directory, of messages that are younger."""

    history: Location
    directory: Path
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question, as `Indexing.lookup`."""

    number: int
    kind: str
    value: bytes
    ends: Mapping[str, int | None] | None


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to the question with this number."""

    number: int
    indexed: dict[str, Indexed]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the process ends, for people."""

    why: str


class IdIndexProcess:
    """Keeps the process running, and asks it. Without `--find-index` there is none."""

    def __init__(self, config: Config) -> None:
        self._directory = config.data / DIRECTORY
        self._order: IndexOrder | None = None
        if config.find_index_ms is not None and not config.read_only:
            self._order = IndexOrder(history_of(config), self._directory, config.find_index_ms)
        self._read_only = config.read_only
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ours: Connection | None = None  # the thread's
        self._connection: Connection | None = None  # the loop's; None: no process to ask
        self._waiting: dict[int, asyncio.Future[Mapping[str, Indexed]]] = {}
        self._unanswered: set[int] = set()  # also those for which nobody waits any more
        self._asked = 0
        self._fails = False

    def start(self) -> None:
        """Begin. Without the option an index of before is removed: it would stay for ever."""
        if self._read_only:
            return
        self._loop = asyncio.get_running_loop()
        run = self._remove if self._order is None else self._supervise
        self._thread = threading.Thread(target=run, name="find-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process; it writes what it holds."""
        self._stopping.set()
        if self._ours is not None:
            shut(self._ours)
        if self._thread is not None:
            self._thread.join()

    async def lookup(self, kind: str, value: bytes, ends: Mapping[str, int | None] | None) -> Mapping[str, Indexed]:
        """Return the entries for an id as `Indexing.lookup` does; empty if no answer comes in time."""
        connection = self._connection
        if connection is None or len(self._unanswered) >= MOST_WAITING:
            return {}
        self._asked += 1
        number = self._asked
        future: asyncio.Future[Mapping[str, Indexed]] = asyncio.get_running_loop().create_future()
        try:
            connection.send(Lookup(number, kind, value, ends))  # few questions wait, so the pipe has room
        except OSError:
            return {}
        self._waiting[number] = future
        self._unanswered.add(number)
        try:
            return await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            return {}
        finally:
            self._waiting.pop(number, None)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        try:
            IdIndex.remove(self._directory)
        except OSError as error:
            logger.warning("%s: cannot be removed: %s", self._directory, error.strerror)

    def _supervise(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            begun = time.monotonic()
            self._one_process()
            if time.monotonic() - begun >= WORKED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _one_process(self) -> None:
        """Run a process to its end."""
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._ours = ours
        process = spawn.Process(target=keep_index, args=(theirs,), name="find-index", daemon=True)
        process.start()
        theirs.close()  # else this process would not see the end of the pipe
        if self._stopping.is_set():  # `stop` may have looked before there was a pipe
            shut(ours)
        why = "its process ended"
        try:
            ours.send(self._order)
            self._in_loop(partial(self._begun, ours))
            while True:
                told: Found | Trouble = received(ours, process)
                if isinstance(told, Trouble):
                    why = told.why
                else:
                    self._in_loop(partial(self._found, told))
        except Hung as error:
            why = str(error)  # it ends when its disk answers: nothing waits for that
        except (EOFError, OSError):
            self._end(process)
        self._in_loop(partial(self._ended, why, ours))

    def _end(self, process: SpawnProcess) -> None:
        process.join(END_SECONDS)
        if process.is_alive():
            process.kill()  # it may be stopped: a milder signal would wait
            process.join()

    def _in_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(call)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _begun(self, connection: Connection) -> None:
        self._connection = connection

    def _found(self, found: Found) -> None:
        self._unanswered.discard(found.number)
        future = self._waiting.get(found.number)
        if future is not None and not future.done():
            future.set_result(found.indexed)
        if self._fails:
            self._fails = False
            logger.warning("the index of ids works again")

    def _ended(self, why: str, connection: Connection) -> None:
        self._connection = None
        connection.close()  # here, as the loop alone uses it now
        self._unanswered.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_result({})
        if not self._fails and not self._stopping.is_set():
            self._fails = True
            logger.warning("the index of ids fails, and is tried again; `find` reads the log meanwhile: %s", why)


# -- the process ------------------------------------------------------------------------------------------------------


def keep_index(connection: Connection) -> None:
    """The process's main function. Ctrl-C goes to the whole process group, so it is ignored here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    log_to_stderr("warning")
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the broker ended
        order: IndexOrder = connection.recv()
        try:
            _keep(connection, order)
        except (LogError, OSError) as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise
            connection.send(Trouble(str(error)))
        except EOFError:
            raise
        except Exception as error:
            if type(error) is not Exception:  # rocksdict knows no narrower class
                logger.exception("the index of ids failed")
            elif not _is_locked(error):
                IdIndex.remove(order.directory)
            connection.send(Trouble(f"{order.directory}: {error}"))


def _keep(connection: Connection, order: IndexOrder) -> None:
    """Index what is new, and answer, until the broker ends (EOFError, OSError)."""
    indexing = _opened(order)
    try:
        while True:
            has_room = shutil.disk_usage(order.directory).free >= LEAST_FREE_BYTES
            wait = 0.0 if has_room and indexing.window() else PAUSE_SECONDS
            while connection.poll(wait):
                asked: Lookup = connection.recv()
                connection.send(Found(asked.number, indexing.lookup(asked.kind, asked.value, asked.ends)))
                wait = 0.0
    finally:
        indexing.index.close()


def _opened(order: IndexOrder) -> Indexing:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return Indexing(order.history, order.directory, order.keep_ms)
        except Exception as error:
            if type(error) is not Exception or not _is_locked(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _is_locked(error: Exception) -> bool:
    return any(words in str(error) for words in ("While lock file", "lock hold by"))
