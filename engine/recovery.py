"""A broker's start and its clean stop, and what it writes to disk on its way beside the log.

    start   log opened (torn tails cut) -> metadata folded -> each partition: state as stored, rest of the log folded
            -> BrokerStarted in the metadata log (its offset is the epoch) and in each partition: every session of
            before is gone, and so is what was not durable -> reconciled: bindings of queues that are no more, policies,
            dead letters that still wait
    on      every `snapshot_events` events of a partition: a snapshot, and a Checkpointed event (what we believe)
    stop    the same for every partition, RocksDB flushed, files closed
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.administration import first_user
from engine.config import VERSION, Config
from engine.log.base import Log
from engine.log.embedded import EmbeddedLog
from engine.metadata import Metadata
from engine.partition import Partition
from projections.machine.machine import MACHINE_VERSION
from projections.replay import recover
from projections.snapshots import Snapshots
from projections.store import StateStore
from schemas.codec import Encoder
from schemas.events import BROKER, BrokerStarted, MachineUpgraded

if TYPE_CHECKING:
    from engine.broker import Broker
    from engine.turns import Turns

REST_ROUNDS = 100

logger = logging.getLogger(__name__)


class Storage:
    """What is on disk beside the log."""

    def __init__(self, config: Config, log: Log, store: StateStore) -> None:
        self._config = config
        self._log = log
        self._store = store
        self._snapshots = Snapshots(config.data / "snapshots")
        for queue_log in log.queues:
            self._snapshots.discard_beyond(queue_log.name, queue_log.next_offset)
        self._snapshot_offsets = {
            name: max(self._snapshots.offsets(name), default=0) for name in (log.name for log in self._log.queues)
        }

    def started(self) -> BrokerStarted:
        return BrokerStarted(self._config.node, VERSION, MACHINE_VERSION)

    def snapshot_due(self, turns: "Turns") -> None:
        """Take the snapshots that are due."""
        every = self._config.snapshot_events
        due = [
            partition for partition in turns.partitions
            if partition.machine.next_offset - self._snapshot_offsets[partition.log.name] >= every
        ]  # fmt: skip
        for partition in due:
            self._snapshot_offsets[partition.log.name] = partition.machine.next_offset
            partition.checkpoint()
        if due:
            self._come_to_rest(turns)
            for partition in due:
                self._take_snapshot(partition)

    def _take_snapshot(self, partition: Partition) -> None:
        """A disk that won't have it is no reason to stop: the log has everything."""
        if not partition.at_rest:  # a snapshot must never be ahead of the log
            return
        try:
            self._snapshots.take(partition.machine)
        except OSError as error:
            logger.error("%s: no snapshot could be written: %s", partition.log.name, error)

    def stop(self, turns: "Turns") -> None:
        """Everything durable, told and persisted. LogError when the disk won't have it; what is confirmed is safe."""
        try:
            self._come_to_rest(turns)
            for partition in turns.partitions:
                partition.checkpoint()
            self._come_to_rest(turns)
            for partition in turns.partitions:
                if partition.at_rest:
                    partition.persist_all()
                self._take_snapshot(partition)
        finally:
            self._store.close()
            self._log.close()

    def _come_to_rest(self, turns: "Turns") -> None:
        """Carry out and commit until nothing follows any more. Dead letters that have to be tried again, or that go
        round and round, stay in their outboxes."""
        for _ in range(REST_ROUNDS):
            turns.end()
            self._log.commit_and_wait()
            if turns.at_rest:
                break


def open_broker(cls: "type[Broker]", config: Config, clock: Callable[[], int]) -> "Broker":
    log = EmbeddedLog.open(config.data, config.partitions, config.segment_bytes)
    try:
        metadata = Metadata(log.metadata, Encoder(), clock)
        metadata.fold()
        store = StateStore.open(config.data / "state")
        try:
            partitions = [_recovered(index, log, store, clock) for index in range(len(log.queues))]
            broker = cls(config, log, metadata, partitions, Storage(config, log, store), clock)
            _take_over(broker)
        except BaseException:
            store.close()
            raise
    except BaseException:
        log.close()
        raise
    return broker


def _recovered(index: int, log: EmbeddedLog, store: StateStore, clock: Callable[[], int]) -> Partition:
    partition_log = log.queues[index]
    recovery = recover(partition_log, store)
    if recovery.replayed or recovery.quarantined.count:
        logger.info(
            "%s: %d events folded on top of the state at offset %d, %d quarantined",
            partition_log.name, recovery.replayed, recovery.stored_offset, recovery.quarantined.count,
        )  # fmt: skip
    return Partition(index, partition_log, recovery.machine, recovery.projector, Encoder(), clock)


def _take_over(broker: "Broker") -> None:
    first = broker.log.metadata.next_offset == 0
    broker.begin_epoch()
    if first:
        first_user(broker.metadata, broker.access)
    for partition in broker.partitions:
        for queue in list(partition.machine.by_id.values()):
            broker.forwarder.recover(partition, queue)
        partition.append(BROKER, broker.storage.started())
        if partition.machine.machine_version != MACHINE_VERSION:
            partition.append(BROKER, MachineUpgraded(MACHINE_VERSION))
        partition.carry_out()
    _reconcile(broker)
    broker.end_of_turn()
    broker.log.commit_and_wait()  # an epoch must be durable before an id is made of it: ids are never used twice


def _reconcile(broker: "Broker") -> None:
    """What a crash between two logs may have left apart is brought together."""
    topology = broker.topology
    for vhost in dict.fromkeys(queue.vhost for queue in broker.queues()):
        if vhost not in topology.vhosts:
            broker.delete_queues_of(BROKER, vhost)
    for partition in broker.partitions:
        partition.carry_out()
    for vhost, name in list(topology.bound_queues()):
        if broker.queue(vhost, name) is None:
            broker.metadata.unbind_queue(BROKER, vhost, name)
    broker.apply_policies(BROKER)
