"""A broker's start on an embedded log, which recovers the data directory's history and takes it over.

log opened (torn tails cut, cuts completed) -> metadata folded -> trims completed -> each partition: stored state
loaded, or the base where the log begins; rest of the log folded -> BrokerStarted in the metadata log (its offset is the
epoch) and in each partition: it ends all earlier sessions, and removes messages that were not durable -> reconciled:
bindings of deleted queues, policies, waiting dead letters
"""

import logging

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.broker.users import first_user
from rewindmq.engine.config import Config
from rewindmq.engine.embedded.beside_log import require_whole_blocks
from rewindmq.engine.embedded.lifecycle import EmbeddedKeeper
from rewindmq.engine.embedded.metadata import SoleWriterMetadata
from rewindmq.engine.host.eager import at_once
from rewindmq.engine.log.contract import LogError, LogPartition
from rewindmq.engine.log.embedded.directory import (
    layout_file,
    other_number,
    read_fork,
    write_layout,
)
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.roles import require_broker
from rewindmq.engine.partition.log_clock import LogClock
from rewindmq.engine.partition.metadata import unbound
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION, schema_of
from rewindmq.projections.replay import PartitionLog, Recovery, recover
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.topology.about_history import AboutHistory
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import Checkpointed, MachineUpgraded
from rewindmq.schemas.values import BROKER

logger = logging.getLogger(__name__)


def open_log(config: Config) -> EmbeddedLog:
    """Open the log of the data directory.

    Raises LogError, CorruptLog, LostEnd; the text names the fault and its place."""
    if (config.data / "kafka").exists():
        raise LogError(f"{config.data}: holds the state of a node on Kafka: an embedded log needs another directory")
    require_broker(config.data)
    asked = None if layout_file(config.data).exists() else config.partitions  # otherwise `grow` checks the number
    require_whole_blocks(config)
    return EmbeddedLog.open(config.data, asked, config.segment_bytes, config.commit_interval_ms)


def grow(config: Config, log: EmbeddedLog, topology: Topology) -> None:
    """Make the partitions added by a repartition. Raises LogError if another number is set, or the disk refuses."""
    placement, asked = topology.placement, config.partitions
    if asked not in (None, len(log.queues)):
        if not placement.count:
            raise other_number(config.data, len(log.queues), asked)
        logger.info("%s: its queues were repartitioned, so --partitions %d no longer applies", config.data, asked)
    before = len(log.queues)
    if placement.wanted > before:
        log.grow(placement.wanted, config.segment_bytes, schema_of(topology.machine_version))
        logger.info("%s: the log has %d queue partitions now, and had %d", config.data, placement.wanted, before)


def open_snapshots(config: Config, log: EmbeddedLog) -> Snapshots:
    """Open the snapshots of the data directory, and remove a killed broker's unfinished ones."""
    snapshots = Snapshots(config.data / "snapshots")
    for partition in (log.metadata, *log.queues):
        snapshots.remove_leftovers(partition.name)
    return snapshots


def tell_fork(about: AboutHistory) -> None:
    """Log the branching point of a fork."""
    if about.forks:
        logger.info("%s", about.forks[-1])


def keep_layout(config: Config, log: EmbeddedLog, about: AboutHistory) -> None:
    """Make the layout agree with the log on the identity. Raises LogError, OSError."""
    identity = about.forks[-1].event.identity if about.forks else None
    if read_fork(config.data) != identity:
        logger.warning("%s: its layout named another history than the log, and was rebuilt", config.data)
        write_layout(config.data, len(log.queues), identity)


def recovered(log: PartitionLog, store: StateStore) -> Recovery:
    """Load a partition's stored state, and fold the rest of the log."""
    recovery = recover(log, store)
    if recovery.replayed or recovery.quarantined.count:
        logger.info(
            "%s: %d events folded on top of the state at offset %d; %d quarantined since the log began",
            log.name,
            recovery.replayed,
            recovery.stored_offset,
            recovery.quarantined.count,
        )
    for behind in recovery.behind:
        logger.warning("%s: %s", log.name, behind)
    return recovery


def begin_clock(clock: LogClock, metadata: SoleWriterMetadata, recoveries: list[Recovery]) -> int:
    """Continue log time from the end of the log.

    Return how far the wall clock is ahead of it, in ms; negative: behind."""
    ahead_ms = metadata.topology.ahead_ms
    return clock.begin(max(metadata.clock_ms, *(each.machine.clock_ms - ahead_ms for each in recoveries)))


def ended_cleanly(log: LogPartition) -> bool:
    """Return True if the log is as a clean stop left it.

    Otherwise it may have less than clients have seen."""
    end = log.next_offset
    if end == 0:
        return True
    for block in log.read(end - 1):
        try:
            last = Decoder().decode(block.records[end - 1 - block.first_offset], bodies=False)[2]
        except UndecodableRecord:
            return False
        return isinstance(last, Checkpointed) and last.final
    return False


def adopt_state(broker: Broker, keeper: EmbeddedKeeper) -> None:
    """Begin the broker's epoch, and repair the differences that a crash may have left between the logs."""
    partitions = keeper.partitions
    first = keeper.log.metadata.next_offset == 0
    ahead_ms = broker.topology.ahead_ms
    for partition in partitions:
        if partition.machine.ahead_ms != ahead_ms:  # a crash interrupted a setting of the clock between two logs
            before_ms = partition.machine.log_ms
            partition.set_clock(min(before_ms, broker.clock()), BROKER, ClockSet(ahead_ms, before_ms))
    if first and MACHINE_VERSION > 1:
        broker.metadata.append(BROKER, MachineUpgraded(MACHINE_VERSION))
    keeper.begin_epoch()
    if first and broker.config.load_definitions is None:
        at_once(first_user(broker.metadata, broker.access.control, broker.config))
    for partition in partitions:
        started = keeper.started(after_crash=not ended_cleanly(partition.log))
        if partition.next_offset == 0:
            partition.upgrade(broker.topology.machine_version)  # which it follows from its first event on
        for queue in list(partition.machine.by_id.values()):
            broker.forwarder.recover(partition, queue)
        partition.append(BROKER, started)
        partition.upgrade(broker.topology.machine_version)  # a crash may have occurred between the two logs
        partition.carry_out()
    _reconcile(broker)
    broker.turns.end()
    keeper.log.commit_and_wait()  # an epoch must be durable before an id begins with it, because ids are never reused


def _reconcile(broker: Broker) -> None:
    """Repair the differences that a crash may have left between the metadata log and the partitions."""
    topology = broker.topology
    there = (vhost for partition in broker.partitions for vhost, _ in partition.machine.by_name)
    for vhost in dict.fromkeys(there):
        if vhost not in topology.vhosts:
            broker.vhosts.delete_queues_now(BROKER, vhost)
    for partition in broker.partitions:
        partition.carry_out()
    for bound in list(topology.queue_bindings()):
        if not broker.router.is_live(bound):
            broker.metadata.append(BROKER, unbound(bound))
    for partition in broker.partitions:
        for _, mended in list(broker.hidden.broken(partition)):
            partition.append(BROKER, mended)
        partition.carry_out()
    broker.effective_policies.apply_now(BROKER)
