"""Takes snapshots of the metadata fold while the broker runs, and at its clean stop.

    due -> image (references; a millisecond for 100,000 items) -> durable? -> a piece a turn of the loop
        -> a thread: compress, write, fsync, rename

So a large topology does not stall the loop, and a snapshot is never ahead of the durable log. A snapshot is due when
there are `metadata_snapshot_events` new events, and half as many as the topology has items: so the work for an event is
bounded, too. If the disk refuses a snapshot, the broker goes on: the log has everything.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.store.metadata_snapshots import write
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.fold_image import Image, image_of

logger = logging.getLogger(__name__)


class Writing:
    """A snapshot that is being made."""

    def __init__(self, image: Image, mark: Callable[[], str]) -> None:
        self.image = image
        self.mark = mark
        self.made: list[bytes] = []
        self.remaining: Iterator[bytes] = image.pieces()


class MetadataSnapshots:
    """The snapshots of one broker's metadata fold. `every`: events between two of them, at least."""

    def __init__(self, snapshots: Snapshots, metadata: Metadata, every: int) -> None:
        self._snapshots = snapshots
        self._metadata = metadata
        self._every = every
        self._taken = metadata.stored_offset  # the last one was of this offset
        self._writing: Writing | None = None
        self._in_thread: Future[None] | None = None

    def take_if_due(self, when_durable: Callable[[Callable[[], None]], object]) -> None:
        """Begin a snapshot if one is due and none is under way.

        `when_durable` calls back in the loop when all events so far are durable."""
        state = self._metadata.state
        events = state.next_offset - self._taken
        if events < self._every or 2 * events < state.topology.size or self._under_way:
            return
        self._taken = state.next_offset
        self._writing = writing = Writing(image_of(state), self._metadata.history_mark())
        when_durable(lambda: self._go_on(writing))

    @property
    def _under_way(self) -> bool:
        return self._writing is not None or (self._in_thread is not None and not self._in_thread.done())

    def _go_on(self, writing: Writing) -> None:
        """Make the next piece, or begin to write when there is none."""
        if writing is not self._writing:
            return  # the broker stopped
        piece = next(writing.remaining, None)
        if piece is not None:
            writing.made.append(piece)
            asyncio.get_running_loop().call_soon(self._go_on, writing)
            return
        self._writing = None
        try:
            self._in_thread = in_thread("metadata-snapshot", partial(self._write, writing, writing.mark()))
        except LogError as error:
            self._refused(error)

    def take_now(self) -> None:
        """Take a snapshot at a clean stop, unless there is one of this offset. All events are durable."""
        self._writing = None
        if self._in_thread is not None:
            self._in_thread.result()
        state = self._metadata.state
        if state.next_offset != self._metadata.stored_offset:
            writing = Writing(image_of(state), self._metadata.history_mark())
            writing.made = list(writing.remaining)
            try:
                self._write(writing, writing.mark())
            except LogError as error:
                self._refused(error)

    def _write(self, writing: Writing, history: str) -> None:
        try:
            write(self._snapshots, self._metadata.name, writing.image, writing.made, history)
        except OSError as error:
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        logger.error("%s: no snapshot could be written: %s", self._metadata.name, error)


def in_thread(name: str, work: Callable[[], None]) -> "Future[None]":
    """Do the work in a thread of its own, which has this name."""
    threads = ThreadPoolExecutor(1, name)
    try:
        return threads.submit(work)
    finally:
        threads.shutdown(wait=False)
