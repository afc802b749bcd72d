"""A broker's life on an embedded log: the files that it writes beside the log, and its clean stop.

start   start.py
on      every `snapshot_events` events of a partition: a snapshot, and a Checkpointed event (the broker's claim); of the
        metadata log: only a snapshot (partition/snapshot_writer.py); waypoints (partition/waypoint_writer.py)
stop    the same for every partition; RocksDB is flushed, files are closed. The Checkpointed is `final` and the very
        last event. If the next start finds another last event, the broker crashed, and its BrokerStarted says so. A
        warning names events after a final one (projections/clean_stops.py)
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from rewindmq.engine.config import VERSION, Config
from rewindmq.engine.embedded.flow_control import DiskFlow
from rewindmq.engine.embedded.metadata import SoleWriterMetadata
from rewindmq.engine.embedded.partition import SoleWriterPartition
from rewindmq.engine.embedded.segment_ages import SegmentAges
from rewindmq.engine.host.eager import begin
from rewindmq.engine.log.contract import Log
from rewindmq.engine.partition.lifecycle import Keeper, LoneNode, mend_store, persist
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.snapshot_writer import MetadataSnapshots
from rewindmq.engine.partition.waypoint_writer import WaypointWriter
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import MACHINE_VERSION
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.events import BrokerStarted
from rewindmq.schemas.values import BROKER, Actor

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.broker.followers import Followers

REST_ROUNDS = 100
DISK_SECONDS = 1.0  # between two checks of a full disk
FULL = "the disk of {} is full: the log still takes acks, and publishing waits for room"

logger = logging.getLogger(__name__)


class EmbeddedKeeper(Keeper):
    """The keeper of a broker on an embedded log: its epoch, its files beside the log, and its clean stop."""

    def __init__(
        self,
        config: Config,
        log: Log,
        metadata: SoleWriterMetadata,
        store: StateStore,
        partitions: list[SoleWriterPartition],
        snapshots: Snapshots,
        ages: SegmentAges | None = None,
        followers: "Followers | None" = None,
    ) -> None:
        self.epoch = 0
        self.nodes = LoneNode(config.node)
        self.log = log
        self.partitions = partitions
        self._config = config
        self._metadata = metadata
        self._store = store
        self.flow = DiskFlow(log)
        self._full = False
        self._stopped = False
        self._snapshots = snapshots
        self._ages = ages
        self._followers = followers
        self._metadata_snapshots = MetadataSnapshots(snapshots, metadata, config.metadata_snapshot_events)
        self._waypoints = WaypointWriter(snapshots, partitions, config.waypoint_events)
        self._snapshot_offsets = {
            name: max(self._snapshots.offsets(name), default=0) for name in (log.name for log in log.queues)
        }

    def start(self, broker: "Broker") -> None:
        """Serve this broker from now on.

        The constructor does not take the broker, because the broker is made with its keeper."""
        self._broker = broker
        if self._config.archive.url is not None:
            broker.repartition.on_settled.append(self._archive_soon)

    def kick(self) -> None:
        self.log.commit()

    def started(self, after_crash: bool = False) -> BrokerStarted:
        """Return the event that begins an epoch."""
        return BrokerStarted(self._config.node, VERSION, MACHINE_VERSION, after_crash)

    def begin_epoch(self) -> None:
        """Log the event that begins an epoch. Its offset is the epoch."""
        self.epoch = self._metadata.append_now(BROKER, self.started())

    def renew_epoch(self) -> None:
        """Begin another epoch, because all ids of this one are used."""
        self.begin_epoch()
        self.log.commit_and_wait()

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        """Do nothing, because the next start makes the partitions in the metadata log (start.py)."""

    def upgrade(self) -> None:
        """Upgrade the partitions once the metadata log, which decides, durably has the upgrade."""
        self._broker.turns.when_durable(self._upgrade)

    def _upgrade(self) -> None:
        for partition in self.partitions:
            partition.upgrade(self._metadata.topology.machine_version)

    def _archive_soon(self) -> None:
        """Begin new segments once everything appended is durable, because the archiver takes closed ones."""
        self._broker.turns.when_durable(self._end_segments)

    def _end_segments(self) -> None:
        if self._ages is not None and not self._stopped:
            self._ages.end_all()

    def queue_gone(self, partition: Partition, queue: Queue) -> None:
        """Remove the queue's bindings once its end is durable.

        If they were removed first, a crash between the two logs could restore the queue without them."""
        self._broker.turns.when_durable(lambda: self._unbind(queue))

    def _unbind(self, queue: Queue) -> None:
        task = begin(self._metadata.unbind_queue(BROKER, queue))
        if task is not None:
            task.add_done_callback(lambda _: self._broker.turns.end())

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Log the new time in the metadata log, then in every partition.

        The metadata log decides, so after a crash in between, the next start sets the partitions to its time."""
        self._broker.turns.end()  # a refused publish must be known before it is confirmed
        self.log.commit_and_wait()
        self._metadata.set_clock(first_ms, actor, event)
        for partition in self.partitions:
            partition.set_clock(first_ms, actor, event)

    @property
    def awaits_log(self) -> bool:
        return self._broker.turns.awaits_log

    def durable(self) -> None:
        """Perform the work that waited for the landed group commit."""
        self._broker.turns.problem("log", None)
        if not self._full:
            self._look_at_disk()
        if self._followers is not None:
            self._followers.landed()
        self._broker.turns.landed()

    def _look_at_disk(self) -> None:
        """Hold publishers back while the log uses its reserve, until the reserve is whole again."""
        self._full = self.log.full()
        self._broker.turns.problem("disk", FULL.format(self._config.data) if self._full else None)
        if self._full:
            asyncio.get_running_loop().call_later(DISK_SECONDS, self._look_again)
        else:
            self.flow.landed()

    def _look_again(self) -> None:
        if not self._stopped:
            self._look_at_disk()

    def commit_failed(self, error: Exception) -> None:
        """Report the failed commit, and hold publishers back. The log retries it, so nothing is lost."""
        self._broker.turns.problem("log", f"the log can't be written: {error}")

    def mend_store(self) -> None:
        """Repair the store if it failed and the disk has room."""
        if self._store.failed is not None and self._store.has_room():
            self._come_to_rest()
            mend_store(self._store, self.partitions)

    def take_snapshots(self) -> None:
        """Take the due snapshots and waypoints."""
        self._waypoints.take_if_due(self._broker.turns.when_durable)
        self._metadata_snapshots.take_if_due(self._broker.turns.when_durable)
        every = self._config.snapshot_events
        due = [
            partition
            for partition in self.partitions
            if partition.machine.next_offset - self._snapshot_offsets[partition.name] >= every
        ]
        for partition in due:
            self._snapshot_offsets[partition.name] = partition.machine.next_offset
            partition.checkpoint()
        if due:
            self._broker.session_counts.checkpoint(self._broker.sessions.by_id.values())
            self._come_to_rest()
            for partition in due:
                self._take_snapshot(partition)

    def _take_snapshot(self, partition: Partition) -> None:
        """Take a snapshot. If the disk refuses it, the broker continues, because the log has everything."""
        if not partition.at_rest:  # a snapshot must never be ahead of the log
            return
        try:
            self._snapshots.take(partition.machine)
        except OSError as error:
            logger.error("%s: no snapshot could be written: %s", partition.name, error)

    def stop(self) -> None:
        """Make all events durable, send the last answers, and write the state.

        Raises LogError if the disk refuses. Confirmed publishes are safe."""
        self._stopped = True
        self._waypoints.stop()
        if self._ages is not None:
            self._ages.stop()
        try:
            self._come_to_rest()
            self._say_last_words()
            for partition in self.partitions:
                if partition.at_rest:
                    persist(self._store, partition)
                self._take_snapshot(partition)
            if self._metadata.durable_position == self._metadata.append_position:
                self._metadata_snapshots.take_now()
        finally:
            self._broker.turns.stop()
            self._store.close()
            self.log.close()

    def _say_last_words(self) -> None:
        """Append a final Checkpointed to every partition.

        The event lets time pass, so a timer may send dead letters to another partition, after that partition's last
        word. That partition then gets one more."""
        ends: dict[str, int] = {}
        for _ in range(REST_ROUNDS):
            unfinished = [each for each in self.partitions if each.next_offset != ends.get(each.name, 0)]
            if not unfinished:
                break
            for partition in unfinished:
                partition.checkpoint(final=True)
                ends[partition.name] = partition.next_offset
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        """Perform effects and commit until no more effects follow.

        Dead letters that need another attempt, or that circulate, stay in their outboxes."""
        turns = self._broker.turns
        for _ in range(REST_ROUNDS):
            turns.end()
            self.log.commit_and_wait()
            if turns.at_rest:
                break
