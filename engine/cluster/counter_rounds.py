"""Publishes the counters of an owned partition's queues, so that nodes which pause the partition can list them.

    every COUNT_SECONDS, for each partition that this node owns:
        queues changed since the last round --> records of their counters, some at a time --> the end of the round

Rules of this file
- Nothing here delays a message. The changed queues are those that the projector writes to RocksDB anyway, and those
  that it has not written yet. A round works in slices of the loop's time, and appends at most BATCH records at a time,
  BATCH_SECONDS apart.
- A new owner checks all queues once, and then only changed ones.
- Every node reads the counters of all partitions. So an owner sees the content of the topic: it writes only changes,
  removes queues that are gone, and rewrites counters overwritten by another owner's late record (`CounterTable.late`).
- While the log accepts nothing, no round begins or continues, so at most BATCH records wait for the log.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.host.loop_share import LoopShare, Work
from rewindmq.engine.log.shared_contract import Arrived, CounterTopic, RecordTooLarge
from rewindmq.engine.partition.queue_counters import (
    ROUND_KEY,
    CounterTable,
    Name,
    QueueCounters,
    encoded,
    gone_record,
    key_of,
    round_record,
)
from rewindmq.engine.routing.homes import Homes

COUNT_SECONDS = 5.0  # RabbitMQ's collect_statistics_interval
BATCH = 1_000  # records
BATCH_SECONDS = 0.05
AT_ONCE = 50  # records that are processed without checking the clock: a millisecond
MOST_WAITING = 20_000  # records

logger = logging.getLogger(__name__)


class CounterRounds:
    """The counters of all partitions, and the rounds of those that this node owns.

    `topics`: the log's partitions of counters, in the order of `partitions`. `node`: this node's name. `held_back`
    returns True while the log accepts nothing. `proven`: by partition, the offset of the metadata log up to which this
    node has proven that the queues have their policies (policy_proofs.py)."""

    def __init__(
        self,
        topics: Sequence[CounterTopic],
        partitions: Sequence[ReadBackPartition],
        homes: Homes,
        identity: str,
        node: str,
        share: LoopShare,
        held_back: Callable[[], bool],
        proven: Mapping[str, int],
    ) -> None:
        self._history = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._share = share
        self._held_back = held_back
        self._tables: dict[str, CounterTable] = {}
        self._rounds: list[PartitionRounds] = []
        self._told: set[str] = set()  # names of topics' partitions with senseless records
        self._parts: deque[tuple[CounterTable, Arrived]] = deque()
        self._waiting = 0  # records in them
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        for partition, topic in zip(partitions, topics, strict=False):
            table = CounterTable(partial(homes.may_be_counted, partition), self._history, topic.opened_at)
            self._tables[topic.name] = partition.counter_table = table
            self._rounds.append(PartitionRounds(partition, topic, table, self._history, node, proven))

    def start(self) -> None:
        """Begin with the rounds."""
        if self._rounds and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._count())

    def stop(self) -> None:
        """Stop publishing."""
        if self._task is not None:
            self._task.cancel()

    def soon(self) -> None:
        """Begin the next round at once, because this node has the duties of another partition."""
        self._wake.set()

    def arrived(self, batch: Arrived) -> None:
        """Process records of a partition of counters, in slices of the loop's time."""
        table = self._tables[batch.partition]
        self._waiting += len(batch.values)
        for first in range(0, len(batch.values), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            part = Arrived(batch.partition, batch.offsets[some], batch.timestamps_ms[some], batch.values[some])
            self._parts.append((table, part))
            self._share.call(self._take)
        while self._waiting > MOST_WAITING:
            self._take()

    def _take(self) -> None:
        """Process the next part of records that were not processed at once."""
        if not self._parts:
            return
        table, part = self._parts.popleft()
        self._waiting -= len(part.values)
        table.take(part.offsets, part.timestamps_ms, part.values)
        if table.skipped and part.partition not in self._told:
            self._told.add(part.partition)
            logger.warning(
                "%s: a record below offset %d is not one of queues' counters (%s): it is skipped, and so is each"
                " further one",
                part.partition,
                part.offsets[-1] + 1,
                table.why_skipped,
            )

    async def _count(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._wake.clear()
            for rounds in self._rounds:
                try:
                    if not self._held_back():
                        await rounds.count(Work(self._share), loop.time())
                except Exception:  # a defect of counters must not end the node
                    logger.exception("the counters of queues")
            try:
                async with asyncio.timeout(max(0.0, COUNT_SECONDS - (loop.time() - began))):
                    await self._wake.wait()
            except TimeoutError:
                continue


class PartitionRounds:
    """The rounds of one partition."""

    def __init__(
        self,
        partition: ReadBackPartition,
        topic: CounterTopic,
        table: CounterTable,
        history: str,
        node: str,
        proven: Mapping[str, int],
    ) -> None:
        self._partition = partition
        self._node = node
        self._proven = proven
        self._topic = topic
        self._table = table
        self._history = history
        self._counted_at: float | None = None  # the beginning of the last round; None: this node was not the owner
        self._appended = 0  # records since the last rest

    async def count(self, work: Work, now: float) -> None:
        """Publish the changes since the last round, if this node owns the partition. `now`: seconds of the loop."""
        partition = self._partition
        if not partition.owned or not partition.current:
            self._counted_at = None
            partition.projector.changed = None
            return
        if not self._topic.all_reported:
            return  # the log has not accepted the last round yet; the next one includes all changes until then
        machine, at = partition.machine, partition.machine.next_offset
        written, partition.projector.changed = partition.projector.changed, set()
        if self._counted_at is None or written is None:
            covers_ms, names = 0, list(machine.by_name)
        else:
            covers_ms = max(1, int((now - self._counted_at) * 1_000))
            by_id = machine.by_id
            queues = [by_id[queue_id] for queue_id in written if queue_id in by_id]
            queues += machine.dirty_queues
            names = list(dict.fromkeys((queue.vhost, queue.name) for queue in queues))
            names += self._table.late
        again = set(self._table.late)
        self._table.late.clear()
        self._counted_at = now
        if await self._publish(work, names, covers_ms, again) and await self.remove_gone(work):
            policies = self._proven.get(partition.name, 0)
            self._append(ROUND_KEY, round_record(self._history, at, self._node, policies))

    async def _publish(self, work: Work, names: Iterable[Name], covers_ms: int, again: set[Name]) -> bool:
        """Publish counters that are not yet in the topic, and those of `again`.

        Returns True if this node still owns the partition."""
        partition, known = self._partition, self._table.queues
        async for name in work.over(names):
            if not partition.owned:
                return False
            queue = partition.machine.by_name.get(name)
            if queue is None:
                continue
            at = partition.machine.next_offset
            counters = QueueCounters.of(queue, partition.served.get(queue), at, covers_ms)
            if name in again or known.get(name) != counters:
                self._append(key_of(*name), encoded(self._history, counters))
                await self._rest()
        return partition.owned

    async def remove_gone(self, work: Work) -> bool:
        """Remove the queues that the topic has but the partition lacks. Returns as `_publish`."""
        partition, known = self._partition, self._table.queues
        if len(known) == len(partition.machine.by_name):
            return partition.owned  # changes during this round are seen in the next one
        async for name in work.over(list(known)):
            if not partition.owned:
                return False
            if name not in partition.machine.by_name:
                key, at = key_of(*name), partition.machine.next_offset
                self._append(key, gone_record(self._history, name, at))
                self._append(key, None)
                await self._rest()
        return partition.owned

    async def _rest(self) -> None:
        if self._appended >= BATCH:
            self._appended = 0
            await asyncio.sleep(BATCH_SECONDS)
            while self._partition.owned and not self._topic.all_reported:
                await asyncio.sleep(BATCH_SECONDS)

    def _append(self, key: bytes, value: bytes | None) -> None:
        self._appended += 1
        try:
            self._topic.append(key, value)
        except RecordTooLarge as error:
            logger.warning("%s: the counters of a queue are not published: %s", self._topic.name, error)
