"""A node's start: the log opened, the metadata and every partition folded to the end, then it joins.

A partition starts from its state in RocksDB, if this node was there before, and reads on from that offset: a node that
comes back after a minute folds a minute. Only when it has caught up does it join, and may clients come.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.broker.users import first_user
from rewindmq.engine.cluster.node import Node, state_belongs_to
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.cluster.state_copy import remove_leftovers
from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.placement import astray, count_of
from rewindmq.engine.log.shared_contract import SharedLog
from rewindmq.engine.runtime.log_clock import ElapsedClock, LogClock, WallClock
from rewindmq.engine.runtime.metadata import ReadBackMetadata
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold, recover
from rewindmq.projections.store.store import StateStore

JOIN_SECONDS = 60.0
AROUND_A_BODY = 1_048_576  # what a record may have besides a message's body: properties, names of many queues

logger = logging.getLogger(__name__)


async def open_node(
    config: Config, wall_ms: WallClock | None, failed: Callable[[Exception], None],
    elapsed_ns: ElapsedClock | None = None,
) -> Broker:  # fmt: skip
    """A node that has joined. Clocks as `LogClock.made_of`. LogError when Kafka or the data directory won't do;
    StoreError as `Broker.open`; KafkaNotInstalled."""
    from rewindmq.engine.log.kafka.log import KafkaLog

    assert config.kafka is not None
    clock = LogClock.made_of(wall_ms, elapsed_ns)
    log = KafkaLog.open(
        config.kafka, config.kafka_prefix, config.partitions, config.kafka_replication, dict(config.kafka_settings)
    )
    try:
        state_belongs_to(config, log.identity)
        around = min(AROUND_A_BODY, log.max_record_bytes // 2)  # Kafka's own default is one mebibyte for all
        config = replace(config, max_message_size=min(config.max_message_size, log.max_record_bytes - around))
        store = StateStore.open(config.data / "state")
        try:
            remove_leftovers(config.data)
            metadata = ReadBackMetadata(log.metadata, clock.now_ms)
            offsets = {metadata.name: metadata.fold()}
            partitions = []
            for index, queue_log in enumerate(log.queues):
                recovery = recover(queue_log, store)
                logger.info("%s: %d events folded on top of the state at offset %d, %d quarantined", queue_log.name,
                            recovery.replayed, recovery.stored_offset, recovery.quarantined.count)  # fmt: skip
                offsets[queue_log.name] = recovery.machine.next_offset
                partitions.append(ReadBackPartition(
                    index, queue_log, recovery.machine, recovery.projector, clock.now_ms, config.node
                ))  # fmt: skip
            machines = [each.machine for each in partitions]
            for left_out in log.left_out:
                machines.append(Machine(left_out.name))
                fold(machines[-1], left_out)
            require_homes(f"{config.kafka_prefix}.queues", config.partitions, machines)
            config = replace(config, partitions=len(partitions))  # should Kafka be given more while this node runs
            return await start_node(config, log, metadata, partitions, store, offsets, clock, failed)
        except BaseException:
            store.close()
            raise
    except BaseException:
        log.close()
        raise


def require_homes(topic: str, asked: int | None, machines: Sequence[Machine]) -> None:
    """LogError when queues lie by another number of partitions than this node would go by: Kafka was given more, or
    `asked` is wrong. `machines`: of all partitions that the topic has, and not only of those that are asked for."""
    found = len(machines)
    homes = [(number, *key) for number, machine in enumerate(machines) for key in machine.by_name]
    if not homes:
        return
    # A node that joins writes to each of its partitions, so it had none of those at the end that are empty. Others may
    # have been written to by services, which go by the topic's number.
    used = max(number + 1 for number, machine in enumerate(machines) if machine.next_offset)
    made, count = count_of(homes, used), asked or found
    stray = astray(homes, count)
    if made == count or (stray is None and (asked is not None or made != used)):
        return
    if made is not None:
        added = ", which leaves the added ones alone" if made < found else ""
        raise LogError(
            f"Kafka: the topic {topic} has {found} partitions, and its queues lie by the {made} that it was made with,"
            f" not by {count}: start every node with --partitions {made}{added}"
        )
    assert stray is not None, "the queues lie by `count`, and by no count"
    number, vhost, queue = stray
    if count < found:
        raise LogError(
            f"Kafka: the topic {topic} has {found} partitions, and {count} are asked for, by which queue '{queue}' in"
            f" vhost '{vhost}' would not lie in queues-{number}; there is no number by which all queues lie"
        )
    logger.warning("%s: queue '%s' in vhost '%s' lies in queues-%d, where nobody finds it: it was not declared by a"
                   " node that has %d partitions", topic, queue, vhost, number, count)  # fmt: skip


async def start_node(
    config: Config, log: SharedLog, metadata: ReadBackMetadata, partitions: list[ReadBackPartition], store: StateStore,
    offsets: dict[str, int], clock: LogClock, failed: Callable[[Exception], None],
) -> Broker:  # fmt: skip
    """A node on what was folded up to `offsets`."""
    node = Node(config, log, metadata, partitions, store, failed)
    broker = Broker(config, metadata, list(partitions), node, clock)
    node.attend(broker)
    log.follow(offsets)
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            await node.join()
            if not metadata.topology.had_permissions and config.load_definitions is None:
                # two nodes may see to it at once: it comes to the same
                await first_user(metadata, broker.access)
    except TimeoutError:
        raise LogError(f"the log did not take the node in within {JOIN_SECONDS:.0f} seconds") from None
    broker.clock_watch.start()
    return broker
