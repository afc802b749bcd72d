"""Group commit: everything that was appended up to a moment becomes durable together, in a thread beside the loop.

    loop    commit() ---- seal the groups ----+                      landed: durable offsets move, on_durable()
                                              v                        ^
    thread                        write + fdatasync + index, per partition

While a commit is under way the next group gathers; it is written as soon as the first has landed (under load, not
before a millisecond has passed since that began), so the group grows with the load, and one write and one fsync serve
all who wait. When a commit fails (disk full, I/O error), on_failure is
called in the loop, and the same groups are written again after a second, and so on until it works: what was appended is
kept in order, so nothing is lost, and it is for the broker to stop taking more.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

RETRY_SECONDS = 1.0
# After a commit of this many records the next one begins a millisecond after it did, or later. A commit costs 0.1 to
# 0.15 ms of CPU however small it is, and an fsync may take no longer, so that a busy broker would spend a third of its
# time on them. After a smaller one nobody waits.
BUSY_RECORDS = 20
INTERVAL_SECONDS = 0.001


class Gathering(Protocol):
    """What the committer needs of a partition."""

    def seal(self) -> int:
        """In the loop: close the group that gathers. How many records wait to be written?"""

    def write_sealed(self) -> None:
        """In the thread: write and sync the sealed groups. LogError: what could not be written waits on."""

    def land(self) -> bool:
        """In the loop: let the durable offset move to what is written. Did it?"""


class Committer:
    def __init__(
        self, partitions: Sequence[Gathering], on_durable: Callable[[], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._partitions = partitions
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._under_way = False
        self._closed = False
        self._began = 0.0  # when the last commit began, by the loop's clock
        self._records = 0  # how many it had
        self._waits = False  # a commit is to begin as soon as it may
        self._writing = threading.Lock()
        self._jobs: SimpleQueue[asyncio.AbstractEventLoop | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def commit(self) -> None:
        """Start a commit, unless one is under way or nothing waits. Only in the loop."""
        if self._under_way or self._waits or self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._records >= BUSY_RECORDS and now < self._began + INTERVAL_SECONDS:
            self._waits = True
            loop.call_later(self._began + INTERVAL_SECONDS - now, self._interval_over)
            return
        self._records = self._seal()
        if not self._records:
            return
        self._began = now
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-commit", daemon=True)
            self._thread.start()
        self._under_way = True
        self._jobs.put(loop)

    def _interval_over(self) -> None:
        self._waits = False
        self.commit()

    def commit_and_wait(self) -> None:
        """Everything appended is durable, or LogError."""
        self._seal()
        error = self._write()
        if self._land():
            self._on_durable()
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop the thread; what is not written stays unwritten."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (loop := self._jobs.get()) is not None:
            error = self._write()
            try:
                loop.call_soon_threadsafe(self._landed, loop, error)
            except RuntimeError:
                if not loop.is_closed():  # nobody is left to be told
                    raise

    def _write(self) -> Exception | None:
        """Write what every partition has sealed; one that fails doesn't hold up the others. The first error."""
        first = None
        with self._writing:
            for partition in self._partitions:
                try:
                    partition.write_sealed()
                except Exception as error:  # of any kind: the loop must hear of it, or the broker would wait for ever
                    first = first or error
        return first

    def _landed(self, loop: asyncio.AbstractEventLoop, error: Exception | None) -> None:
        moved = self._land()
        self._under_way = error is not None
        if error is None:
            self.commit()  # the next group is on its way to the disk while this one's confirms go out
        else:
            loop.call_later(RETRY_SECONDS, self._retry)
        if moved:
            self._on_durable()
        if error is not None:
            self._on_failure(error)

    def _retry(self) -> None:
        self._under_way = False
        self.commit()

    def _seal(self) -> int:
        return sum([partition.seal() for partition in self._partitions])

    def _land(self) -> bool:
        return bool(sum([partition.land() for partition in self._partitions]))
