"""The broker of a follower: it serves the history read-only, and folds along as the copy grows.

    listings, metrics, HTTP GET, x-rewind-to, streams     as of the last moment that is copied and folded
    all else                                              refused, as by any read-only broker (embedded/read_only.py)

The state is in RocksDB, as a broker's own. So a start, and a promotion, fold only what came since. Snapshots are taken
as often as a broker takes them. Time is that of the last event: nothing expires and no dead letter leaves here,
until the leader says so in its log.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rewindmq.engine.config import Config
from rewindmq.engine.embedded.read_only import ReadOnlyKeeper, ReadOnlyMetadata, ReadOnlyPartition, end_ms
from rewindmq.engine.keeping.location import HistoryPartition
from rewindmq.engine.partition.lifecycle import persist
from rewindmq.projections.replay import Recovery, catch_up, decoder_for, groups_of
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.events import Event

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

FOLDED_AT_ONCE = 1_000  # records; clients wait meanwhile

logger = logging.getLogger(__name__)


class CopiedPartition(ReadOnlyPartition):
    """A queue partition that another machine writes. Its state is in RocksDB."""

    def __init__(self, index: int, log: HistoryPartition, recovery: Recovery) -> None:
        super().__init__(index, log, recovery.machine, recovery.projector)

    def fold(self, end: int) -> None:
        """Fold up to this offset. Raises LogError, CorruptLog, NewerHistory."""
        catch_up(self.history, self.projector, end)


class CopiedMetadata(ReadOnlyMetadata):
    """The metadata log that another machine writes."""

    def fold_on(self, end: int, seen: Callable[[Event], None]) -> None:
        """Fold up to this offset. Raises LogError, CorruptLog, UndecodableRecord."""
        begin, decode = self.state.next_offset, decoder_for(self._readable).decode
        for offsets, records, _ in groups_of(self._readable, begin, end):
            for offset, record in zip(offsets, records, strict=True):
                if begin <= offset < end:
                    timestamp_ms, actor, event = decode(record)
                    self._fold(offset, timestamp_ms, actor, event, own=False)
                    seen(event)


class FollowerKeeper(ReadOnlyKeeper):
    """The keeper of a follower's broker. `close` ends the copy."""

    def __init__(
        self,
        config: Config,
        metadata: CopiedMetadata,
        partitions: list[CopiedPartition],
        store: StateStore,
        close: Callable[[], None],
    ) -> None:
        super().__init__(config, metadata)
        self._partitions = partitions
        self._store = store
        self._snapshots = Snapshots(config.data / "snapshots")
        self._taken = {each.name: max(self._snapshots.offsets(each.name), default=0) for each in partitions}
        self._close = close
        self._metadata = metadata
        self.end_ms = end_ms(metadata, [each.machine for each in partitions])  # the time of the last event

    def start(self, broker: "Broker") -> None:
        """Look after this broker from now on."""
        super().start(broker)
        self._router = broker.router

    async def fold(self, ends: dict[str, int], seen: Callable[[Event], None]) -> None:
        """Fold all partitions up to these offsets, and give way to clients between.

        `seen` is called with each event of the metadata log. Raises LogError, CorruptLog, NewerHistory."""
        self._metadata.fold_on(ends[self._metadata.name], seen)
        for partition in self._partitions:
            end = ends[partition.name]
            while (at := partition.machine.next_offset) < end:
                partition.fold(min(end, at + FOLDED_AT_ONCE))
                await asyncio.sleep(0)
            if partition.machine.next_offset - self._taken[partition.name] >= self._config.snapshot_events:
                self._take_snapshot(partition)
        self.end_ms = end_ms(self._metadata, [each.machine for each in self._partitions])
        self._router.queues_changed()

    def _take_snapshot(self, partition: CopiedPartition) -> None:
        """Take a snapshot. If the disk refuses it, the log has everything."""
        self._taken[partition.name] = partition.machine.next_offset
        try:
            self._snapshots.take(partition.machine)
        except OSError as error:
            logger.error("%s: no snapshot could be written: %s", partition.name, error)

    def stop(self) -> None:
        """End the copy, and write the state."""
        super().stop()
        try:
            for partition in self._partitions:
                persist(self._store, partition)
        finally:
            self._close()  # and the store
