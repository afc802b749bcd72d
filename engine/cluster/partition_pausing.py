"""Chooses the partitions that this node folds because it needs them. It only appends to the others.

    current  --- not needed for `UNUSED_SECONDS`, nothing in flight ---> paused
    paused   --- a duty, a standby, or a client that needs the fold ---> current, once it has caught up

A node needs the fold of a partition
- that it owns, because its duties follow from the fold;
- as a standby. Each partition has its own order of the cluster's nodes, whose first nodes fold the partition
  (`standbys`, and one more, because the owner may be among them);
- while a client here consumes, gets, declares, deletes or purges, has an exclusive queue there, or queries it (HTTP);
- while a client here publishes to a queue that may refuse a message, or publishes mandatorily.

Rules of this file
- A mode affects cost, never meaning. An answer that needs the fold waits until the partition is current
  (`Partition.enter`).
- A publish to a paused partition is confirmed once the log has it, and is folded even if this node is lost first.
- A paused partition keeps its state in memory and in RocksDB, and continues from there, or from a newer state that it
  finds (resumption.py).
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.errors import ConnectionForced
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.shared_contract import SharedLog
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.partition.sessions import Session

UNUSED_SECONDS = 60.0
AGAIN_SECONDS = 0.25

logger = logging.getLogger(__name__)


class PausedPartitions:
    """The pauses and resumptions of a node's partitions.

    `standbys`: the number of nodes that fold a partition besides its owner; None: all nodes fold all partitions.
    `bring_near` gives a paused partition a newer state, if it has missed much (resumption.py). `sessions` yields the
    open sessions. `changed` is called after a change of mode, `failed` if a change of mode fails."""

    def __init__(
        self,
        node: str,
        standbys: int | None,
        log: SharedLog,
        partitions: Sequence[ReadBackPartition],
        bring_near: Callable[[ReadBackPartition], Awaitable[None]],
        sessions: Callable[[], Iterable[Session]],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._standbys = standbys
        self._log = log
        self._partitions = partitions
        self._bring_near = bring_near
        self._sessions = sessions
        self._changed = changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._work: dict[ReadBackPartition, asyncio.Task[None]] = {}  # changes of mode in progress
        self._living: list[str] = []  # the nodes at the last look
        self._standing: dict[str, list[str]] = {}  # by partition: the nodes that always fold it
        self._stopped = False

    def stop(self) -> None:
        """Stop changing modes."""
        self._stopped = True
        for task in self._work.values():
            task.cancel()

    async def enter(self, partition: ReadBackPartition) -> None:
        """Fold the partition, and return once this node has caught up with the log's end at the call.

        Raises ConnectionForced if the node is stopping."""
        while not partition.current:
            if self._stopped:
                raise ConnectionForced("the node is stopping")
            work = self._work.get(partition)
            if work is None or work.done():  # awaiting a finished task does not yield: the loop would do nothing else
                work = self._begin(partition, self._resume(partition))
            await asyncio.shield(work)

    def look(self, nodes: Iterable[str]) -> None:
        """Enter partitions that this node needs, and pause others. `nodes`: the names of the living nodes."""
        living = sorted(set(nodes))
        if living != self._living:
            self._living = living
            self._standing = {partition.name: self._standing_by(partition.name) for partition in self._partitions}
        if self._standbys is None or self._stopped:
            return
        unused = []
        now = self._loop.time()
        for partition in self._partitions:
            if partition in self._work:
                continue
            if partition.owned or self._node in self._standing.get(partition.name, ()):
                partition.used_at = now
                if not partition.current:
                    self._begin(partition, self._resume(partition))
            elif partition.deliveries.consumers or partition.deliveries.getters:
                partition.used_at = now
            elif partition.can_pause and now - partition.used_at >= UNUSED_SECONDS:
                unused.append(partition)
        if unused:
            attached = self._attached()
            for partition in unused:
                if partition in attached:
                    partition.used_at = now
                else:
                    self._begin(partition, self._pause(partition))

    def folded_at(self, partition: PartitionReading, owner: str | None) -> tuple[str, ...]:
        """Return the names of the nodes that always fold a partition. All nodes have the same `standbys`."""
        found = set(self._standing.get(partition.name, ()))
        return tuple(sorted(found if owner is None else found | {owner}))

    def _standing_by(self, partition: str) -> list[str]:
        """Return the first living nodes of a partition's order."""
        if self._standbys is None:
            return self._living
        if self._standbys == 0:
            return []
        order = sorted(self._living, key=lambda node: hashlib.sha256(f"{partition} {node}".encode()).digest())
        return order[: self._standbys + 1]

    def _attached(self) -> set[object]:
        """Return the partitions with consumers, holders or queues of this node's clients."""
        found: set[object] = set()
        for session in self._sessions():
            found.update(session.owns_queues_in)
            for attached in session.attached.values():
                found.update(attached)
        return found

    def _begin(self, partition: ReadBackPartition, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._work[partition] = self._loop.create_task(work)
        task.add_done_callback(lambda done: self._ended(partition, done))
        return task

    def _ended(self, partition: ReadBackPartition, task: "asyncio.Task[None]") -> None:
        if self._work.get(partition) is task:  # otherwise another change has since begun
            del self._work[partition]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            logger.error("%s: its mode could not be changed: %s", partition.name, error)
            self._failed(error)

    async def _pause(self, partition: ReadBackPartition) -> None:
        if partition.owned or partition.deliveries.consumers or partition.deliveries.getters or not partition.can_pause:
            return  # it has been used since `look`
        logger.info("%s: not needed here, paused at offset %d", partition.name, partition.next_offset)
        partition.pause()
        self._changed()
        await self._log.pause(partition.name)

    async def _resume(self, partition: ReadBackPartition) -> None:
        await until_answered(lambda: self._bring_near(partition), NoAnswer)
        logger.info("%s: it is folded from offset %d on", partition.name, partition.next_offset)
        partition.resume()
        self._log.resume(partition.name, partition.next_offset)
        await until_answered(lambda: self._log.catch_up(partition.name), LogError)
        partition.read_back_again()
        partition.used_at = self._loop.time()
        self._changed()


async def until_answered(question: Callable[[], Awaitable[None]], retried: type[LogError]) -> None:
    """Ask the log again for as long as it raises this error."""
    while True:
        try:
            return await question()
        except retried as error:
            logger.debug("%s", error)
            await asyncio.sleep(AGAIN_SECONDS)
