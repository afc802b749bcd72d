"""Resumes a partition after a long pause from a newer state, if there is one, instead of folding all missed records.

    paused at A ... Kafka's end E     E - A small: the machine continues from A
                                      otherwise a thread: another node's copy (snapshot_import.py), the archive's
                                      newest state, or the stored one
                                      -> state store -> fold up to E -> another machine and projector

If Kafka keeps less than the node has missed (--keep-local, a retention), the thread reads the rest from the archive.

Rules of this file
- The machine in memory is the partition's until the other one is complete, so an untrustworthy copy costs only time. In
  the meantime nobody else writes the stored state of this partition (`busy`).
- One partition returns at a time, so there is one machine in memory besides those of the partitions.
- While a leader of Kafka moves, reading fails in many ways, so an error of the log counts only if it lasts.
- If RocksDB fails on the way, the node stops. Its next start continues.
"""

import asyncio
import logging
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rewindmq.engine.cluster import snapshot_import
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.cluster.snapshot_import import begin_with_copy
from rewindmq.engine.keeping.location import retry_if_trimmed
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.shared_contract import SharedLog
from rewindmq.engine.partition.snapshot_writer import in_thread
from rewindmq.projections.replay import Recovery, recover
from rewindmq.projections.store.store import StateStore

if TYPE_CHECKING:
    from rewindmq.engine.cluster.snapshot_import import EnteredHistory

STOP_SECONDS: Final = 5.0
LASTING_SECONDS: Final = 300.0

logger = logging.getLogger(__name__)


class PartitionResumption:
    """The resumptions of one node's partitions. `archived`: the partitions' histories are in Kafka and an archive."""

    def __init__(self, log: SharedLog, store: StateStore, data: Path, archived: bool) -> None:
        self._log = log
        self._store = store
        self._data = data
        self._archived = archived
        self._one = asyncio.Lock()
        self._in_thread: Future[None] | None = None
        self._failing: dict[ReadBackPartition, float] = {}  # seconds of the loop when the log first failed
        self.busy: set[ReadBackPartition] = set()  # their stored state is not that of their machines

    async def bring_near(self, partition: ReadBackPartition) -> None:
        """Give a paused partition a newer state, if it has missed much, or Kafka no longer has the missed records.

        Raises NoAnswer, to try again; LogError if the log lacks missed records; StoreError; an error of RocksDB."""
        start, end = await self._extent(partition)
        at = partition.next_offset
        if start <= at and end - at < snapshot_import.LEAST_EVENTS and partition not in self.busy:
            return
        async with self._one:
            start, _ = await self._extent(partition)
            if partition not in self.busy:
                if self._store.failed is not None:
                    raise NoAnswer(f"{partition.name}: its state cannot be written now")
                self._write(partition)
                self.busy.add(partition)
            recoveries: list[Recovery] = []

            def work() -> None:
                recovery = self._newer(partition, start)
                if recovery is not None:
                    recoveries.append(recovery)

            self._in_thread = in_thread("return", work)
            ended = asyncio.wrap_future(self._in_thread)
            ended.add_done_callback(lambda done: done.cancelled() or done.exception())  # the node may have stopped
            try:
                await asyncio.shield(ended)
            except NoAnswer:
                raise
            except LogError as error:
                now = asyncio.get_running_loop().time()
                if now - self._failing.setdefault(partition, now) >= LASTING_SECONDS:
                    raise
                raise NoAnswer(str(error)) from error
            self._failing.pop(partition, None)
            for recovery in recoveries:
                self._store.forget(partition.projector)
                partition.begin_again(recovery.machine, recovery.projector)
            self.busy.discard(partition)

    async def _extent(self, partition: ReadBackPartition) -> tuple[int, int]:
        """Return the offsets at which the partition begins and ends in Kafka. Raises NoAnswer."""
        try:
            return await self._log.extent(partition.name)
        except LogError as error:
            raise NoAnswer(str(error)) from error

    def _write(self, partition: ReadBackPartition) -> None:
        """Write the partition's folded state, because no batch of it may follow later."""
        try:
            partition.write_all()
        except Exception as error:  # rocksdict knows no narrower class
            if self._store.failed is None:
                raise
            raise NoAnswer(f"{partition.name}: its state cannot be written: {error}") from error

    def _newer(self, partition: ReadBackPartition, start: int) -> Recovery | None:
        """Replace the stored state, in the thread. None: none is better, and Kafka has everything from `start` on."""
        name, at = partition.name, partition.next_offset
        history = cast("EnteredHistory", partition.history)
        if self._archived:
            from rewindmq.engine.keeping.archive_states import begin_with_archive
            from rewindmq.engine.keeping.topic_tiers import TieredTopic

            assert isinstance(history, TieredTopic)
            history = tiers = history.archive.tiered(history.topic)  # one for this thread
            begin_with_copy(tiers, partition.index, self._log.states, self._store, self._data)
            begin_with_archive(tiers, self._store, self._data)
        else:
            begin_with_copy(history, partition.index, self._log.states, self._store, self._data)
        if start <= at == self._store.applied_offset(name):
            return None
        return retry_if_trimmed(partial(recover, history, self._store))

    def stop(self) -> None:
        """Wait briefly for the end of the thread, because a Kafka that does not answer would delay the node."""
        if self._in_thread is not None:
            with suppress(TimeoutError):
                self._in_thread.exception(STOP_SECONDS)
