"""Group commit: records appended up to a moment become durable together, in a thread beside the loop.

    loop    commit() ---- close the groups ---+                      landed: durable offsets move, durable()
                                              v                        ^
    thread                        write + fdatasync + index, per partition

During a commit the next groups gather, and are not part of it, so a confirm waits for no record that arrived after the
commit began. One write and one fsync serve all waiting publishers. How long groups gather follows the load and the
clients:

- A client waits for the disk: a small commit is followed by the next one at once, and a busy one a millisecond after it
  began.
- No client waits: commits begin `interval_seconds` apart. A client that begins to wait ends this at once.

When a commit fails (disk full, I/O error), the loop calls the listener's commit_failed(), and the same groups are
written again after a second, and so on until it succeeds. Appended records are kept in order, so nothing is lost; the
broker must stop accepting more.
"""

import asyncio
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from rewindmq.engine.log.contract import LogListener

RETRY_SECONDS = 1.0
# After a commit of fewer records, the next one that a client waits for begins at once. A commit costs 0.15 to 0.35 ms
# of CPU however small it is, so a busy broker would spend a third of its time on such commits (decision 0099).
BUSY_RECORDS: Final = 20
AWAITED_SECONDS: Final = 0.001  # between the beginnings of two commits while a client waits
# uvloop's clock has whole milliseconds, and the difference of two of its times may be a little less than one, because
# they are floats. A timer of that rest would fire at once, again and again, until the next millisecond.
ROUNDING_SECONDS: Final = 0.000_01


class Gathering(Protocol):
    """The part of a partition that the committer needs."""

    def close_group(self) -> int:
        """In the loop: close the current group, where the next commit ends. Return the number of unwritten records;
        a pending segment counts as one."""

    def write_closed(self) -> None:
        """In the thread: write and sync the groups of this commit.

        Raises LogError; unwritten groups stay."""

    def land(self) -> bool:
        """In the loop: move the durable offset to the end of the written records, and return True if it moved."""


class Committer:
    """The thread that commits the groups of all partitions together.

    `interval_seconds`: the longest time between the beginnings of two commits; 0: the next one never waits."""

    def __init__(self, partitions: Sequence[Gathering], interval_seconds: float) -> None:
        self._partitions = partitions
        self._interval_seconds = interval_seconds
        self._awaited_seconds = min(AWAITED_SECONDS, interval_seconds)
        self._listener: LogListener | None = None
        self._under_way = False
        self._closed = False
        self._began = 0.0  # the beginning of the last commit, by the loop's clock
        self._records = 0  # the number of records in the last commit
        self._timer: asyncio.TimerHandle | None = None  # a commit waits for more records
        self._lazy = False  # ... because no client waits for it
        self.whole = True  # the last commit wrote the groups of every partition
        self._writing = threading.Lock()
        self._jobs: SimpleQueue[asyncio.AbstractEventLoop | None] = SimpleQueue()
        self._worker: threading.Thread | None = None

    def start(self, listener: LogListener) -> None:
        """Notify the listener from now on."""
        self._listener = listener

    def commit(self) -> None:
        """Start a commit, unless one is in progress, or more records are to gather first. Only in the loop."""
        if self._under_way or self._closed:
            return
        if self._timer is not None:
            if not self._lazy or not self._awaited():
                return
            self._timer.cancel()
        self._commit_when_due()

    def _commit_when_due(self) -> None:
        self._timer = None
        if self._under_way or self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait_seconds = self._wait_seconds(now - self._began)
        if wait_seconds > ROUNDING_SECONDS:
            self._timer = loop.call_later(wait_seconds, self._commit_when_due)
            return
        self._records = self._close_groups()
        if not self._records:
            return
        self._began = now
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="log-commit", daemon=True)
            self._worker.start()
        self._under_way = True
        self._jobs.put(loop)

    def _wait_seconds(self, passed: float) -> float:
        """Return the time for which records gather on; not above ROUNDING_SECONDS: the commit is due.

        `passed`: since the last one began."""
        self._lazy = not self._awaited()
        if self._lazy:
            return self._interval_seconds - passed
        return 0 if self._records < BUSY_RECORDS else self._awaited_seconds - passed

    def _awaited(self) -> bool:
        return self._listener is None or self._listener.awaits_log

    def commit_and_wait(self) -> None:
        """Make everything appended durable, in this thread.

        Raises LogError."""
        self._close_groups()
        error = self._write()
        self.whole = error is None
        if self._land() and self._listener is not None:
            self._listener.durable()
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop the thread; unwritten records stay unwritten."""
        self._closed = True
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def _run(self) -> None:
        while (loop := self._jobs.get()) is not None:
            error = self._write()
            try:
                loop.call_soon_threadsafe(self._landed, loop, error)
            except RuntimeError:
                if not loop.is_closed():  # the loop is closed: no receiver is left
                    raise

    def _write(self) -> Exception | None:
        """Write the closed groups of every partition, and return the first error or None.

        A failing partition does not delay the others."""
        first = None
        with self._writing:
            for partition in self._partitions:
                try:
                    partition.write_closed()
                except Exception as error:  # of any kind: the loop must learn of it, or the broker would wait for ever
                    first = first or error
        return first

    def _landed(self, loop: asyncio.AbstractEventLoop, error: Exception | None) -> None:
        moved = self._land()
        self.whole = error is None
        self._under_way = error is not None
        if error is None:
            self.commit()  # the next group is written while this one's confirms are sent
        else:
            loop.call_later(RETRY_SECONDS, self._retry)
        if self._listener is None:
            return
        if moved:
            self._listener.durable()
        if error is not None:
            self._listener.commit_failed(error)

    def _retry(self) -> None:
        self._under_way = False
        self.commit()

    def _close_groups(self) -> int:
        return sum([partition.close_group() for partition in self._partitions])

    def _land(self) -> bool:
        return bool(sum([partition.land() for partition in self._partitions]))
