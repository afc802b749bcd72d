"""A broker that serves a history without changing anything: `rewindmq start --read-only`.

    listings, metrics, HTTP GET       the state at the end of the log, folded in memory from the nearest snapshots
    x-rewind-to, streams              read from the log, without any note of the reader
    everything else                   refused: 403 ACCESS_REFUSED on AMQP, 403 on HTTP (http/app.py)

- Nothing is written into the data directory: no lock, no epoch, no sidecar, no snapshot, no RocksDB. It may be on a
  read-only mount.
- Time stands still at the end of the log: nothing expires, no timer fires, no dead letter is forwarded.
- Quarantined records are listed from RocksDB up to the stored state, and after it from the fold.
- The history is as of the start. A broker that writes in the same directory is not disturbed, and its later appends do
  not appear in the listings.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.config import Config
from rewindmq.engine.errors import ReadOnly
from rewindmq.engine.keeping.location import HistoryPartition
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.flow_control import Flow
from rewindmq.engine.partition.lifecycle import Keeper, LoneNode
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import Block, decoder_for, fold
from rewindmq.projections.rewind import OutsideHistory, nearest
from rewindmq.projections.store.projector import Projector
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.rocks import Database
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import ConsumerAttached, Event, MetadataEvent, PastRead, Published, SessionClosed, Tick
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

logger = logging.getLogger(__name__)


class ReadOnlyPartition(Partition):
    """A queue partition without appends. A session can only have readers here. Time stands still."""

    def __init__(self, index: int, log: HistoryPartition, machine: Machine, projector: Projector) -> None:
        super().__init__(index, log, machine, projector, Encoder(), lambda: machine.log_ms)
        self.owned = False
        self.read_only = True

    def append(self, actor: Actor, event: Event) -> int:
        if isinstance(event, SessionClosed):
            return self.append_position
        raise ReadOnly

    def publish(self, actor: Actor, message: Published) -> int:
        raise ReadOnly

    async def ask(self, actor: Actor, event: Event, folded: Callable[[], None] | None = None) -> list[Effect]:
        reads = isinstance(event, PastRead | Tick)
        if isinstance(event, ConsumerAttached):
            queue = self.machine.queue(event.vhost, event.queue)
            reads = queue is not None and queue.stream
        if not reads:
            raise ReadOnly
        if folded is not None:
            folded()
        return []


class UnstoredPartition(ReadOnlyPartition):
    """A queue partition as of the end of the log. Its messages are only in the log."""

    def __init__(
        self, index: int, log: HistoryPartition, machine: Machine, quarantined: QuarantineReport, config: Config
    ) -> None:
        nothing = Database(config.data / "state", None)
        super().__init__(index, log, machine, Projector(nothing, machine, quarantined, 0))
        self._block: Block | None = None  # the last one from which a message was read

    def message(self, queue_id: int, message_id: int) -> Published:
        """Return a message, from the log."""
        block = self._block
        if block is None or not block.first_offset <= message_id < block.first_offset + len(block.records):
            block = self._block = next(iter(self.history.read(message_id, message_id + 1)), None)
        if block is None:
            raise KeyError(message_id)
        event = decoder_for(self.history).decode(block.records[message_id - block.first_offset])[2]
        if not isinstance(event, Published):
            raise KeyError(message_id)
        return event


class ReadOnlyMetadata(Metadata):
    """The metadata log as of its end."""

    def history_mark(self) -> Callable[[], str]:
        raise ReadOnly

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        raise ReadOnly

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        raise ReadOnly

    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        raise ReadOnly


class _NoFlow(Flow):
    """A flow without any publishes to the log."""

    @property
    def full(self) -> bool:
        return False


class ReadOnlyKeeper(Keeper):
    """The keeper of a read-only broker, which keeps nothing. Its epoch is not one of the history."""

    def __init__(self, config: Config, metadata: ReadOnlyMetadata) -> None:
        self.epoch = metadata.state.next_offset
        self.nodes = LoneNode(config.node)
        self.flow = _NoFlow()
        self._config = config

    def start(self, broker: "Broker") -> None:
        """Serve this broker from now on."""
        self._broker = broker

    def renew_epoch(self) -> None:
        """Begin another epoch of this process."""
        self.epoch += 1

    def stop(self) -> None:
        """End the turns. Nothing is written."""
        self._broker.turns.stop()


def stored_quarantine(state: Path, logs: Iterable[HistoryPartition]) -> dict[str, tuple[int, QuarantineReport]]:
    """Return the quarantined records listed in the stored state, by partition, and the offset up to which it lists.

    Partitions whose state is missing, or does not belong to the log, are left out."""
    found: dict[str, tuple[int, QuarantineReport]] = {}
    try:
        store = StateStore.open(state, read_only=True)
    except StoreError:  # a recovered directory has none
        return found
    try:
        for log in logs:
            offset = store.applied_offset(log.name)
            if max(log.start_offset, 1) <= offset <= log.next_offset:
                found[log.name] = offset, store.quarantined(log.name)
    except StoreError as error:
        logger.warning("%s", error)
    finally:
        store.close()
    return found


def at_end(
    log: HistoryPartition, snapshots: Snapshots, stored: tuple[int, QuarantineReport] | None
) -> tuple[Machine, QuarantineReport]:
    """Return the machine at the end of the log, folded from the nearest snapshot, and the quarantined records.

    `stored`: the list of the stored state, and its offset. Raises CorruptLog, LogError, NewerHistory."""
    end = log.next_offset
    offset, quarantined = (end, QuarantineReport()) if stored is None else stored
    try:
        machine = nearest(log, snapshots, offset)
    except OutsideHistory as error:
        raise LogError(str(error)) from None
    if stored is not None:
        fold(machine, log, offset)
    elif machine.next_offset > log.start_offset:
        what = "quarantined records before offset %d are not listed: the state that lists them is not in this directory"
        logger.info("%s: " + what, log.name, machine.next_offset)
    fold(machine, log, end, quarantined)
    return machine, quarantined


def end_ms(metadata: Metadata, machines: Sequence[Machine]) -> int:
    """Return the time at the end of the log, at which the broker's clock stays."""
    ahead_ms = metadata.topology.ahead_ms
    return max(metadata.clock_ms, *(machine.clock_ms - ahead_ms for machine in machines))
