"""Writes a node's records to the topic of heartbeats.

    every second                  that it lives, and its knowledge (awareness.py)
    in between, if others wait    the same, as soon as it has the knowledge
    a queue refuses messages      by its owner

Rules of this file
- A beat in between does not count when a node measures the silence of others by the number of its own beats."""

import asyncio
from collections import deque
from collections.abc import Callable

from rewindmq.engine.cluster.awareness import Awareness
from rewindmq.engine.cluster.metadata import ReadBackMetadata
from rewindmq.engine.log.shared_contract import SharedLog
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import NodeAlive, QueueRefuses
from rewindmq.schemas.values import BROKER

SHOW_SECONDS, MOST_SHOW_SECONDS = 0.005, 0.5  # between two checks that this node's earlier appends are in the log


class Beats:
    """The heartbeats of a node. `awareness` gives their content. `joined` returns True if this node may send one.

    `waiting`: a beat that counts is in flight. `took`: the seconds from the last one's sending to its return."""

    def __init__(
        self,
        node: str,
        log: SharedLog,
        metadata: ReadBackMetadata,
        awareness: Awareness,
        joined: Callable[[], bool],
    ) -> None:
        self._node = node
        self._log = log
        self._metadata = metadata
        self._awareness = awareness
        self._joined = joined
        self.waiting = False
        self.took = 0.0
        self._loop = asyncio.get_running_loop()
        self._sent_at = 0.0
        self._under_way: deque[bool] = deque()  # True for each that counts
        self._offset = -1  # to show
        self._showing: asyncio.Task[None] | None = None

    def send(self, counts: bool = True) -> None:
        """Send a heartbeat."""
        self._under_way.append(counts)
        if counts:
            self.waiting = True
            self._sent_at = self._loop.time()
        alive = NodeAlive(self._node, self._awareness.epoch(), self._awareness.metadata_offset())
        self._log.nodes.append(b"", self._metadata.encoded(BROKER, alive))

    def came_back(self) -> bool:
        """Note that a beat of this epoch was read back. Return True if it counts."""
        counts = self._under_way.popleft() if self._under_way else False
        if counts:
            self.waiting = False
            self.took = self._loop.time() - self._sent_at
        return counts

    @property
    def waits(self) -> float:
        """Return the seconds for which a beat that counts has been in flight; 0 if none is."""
        return self._loop.time() - self._sent_at if self.waiting else 0.0

    def begin(self) -> None:
        """Forget the beats of an earlier epoch."""
        self._under_way.clear()
        self.waiting = False

    def show_soon(self, offset: int) -> None:
        """Send a heartbeat as soon as it can show that this node has folded the metadata log up to this offset."""
        self._offset = max(self._offset, offset)
        if self._showing is None or self._showing.done():
            self._showing = self._loop.create_task(self._show())

    async def _show(self) -> None:
        seconds = SHOW_SECONDS
        while self._joined() and self._awareness.metadata_offset() < self._offset:
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, MOST_SHOW_SECONDS)
        if self._joined():
            self.send(counts=False)
            self._log.flush()

    def tell_refusing(self, partition: str, queue: Queue) -> None:
        """Tell the nodes that do not fold the queue's partition, if the queue refuses messages."""
        if queue.may_nack:
            refuses = QueueRefuses(queue.vhost, queue.name, partition, queue.queue_id)
            self._log.nodes.append(b"", self._metadata.encoded(BROKER, refuses))

    def stop(self) -> None:
        """Stop showing anything."""
        if self._showing is not None:
            self._showing.cancel()
