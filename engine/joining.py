"""A node's start: the log opened, the metadata and every partition folded to the end, then it joins.

A partition starts from its state in RocksDB, if this node was there before, and reads on from that offset: a node that
comes back after a minute folds a minute. Only when it has caught up does it join, and may clients come.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from engine.broker import Broker
from engine.config import Config
from engine.log.base import LogError
from engine.log.kafka import KafkaLog
from engine.log.shared import SharedLog
from engine.metadata import ReadBackMetadata
from engine.node import Node, state_belongs_to
from engine.read_back import ReadBackPartition
from engine.state_copy import remove_leftovers
from engine.users import first_user
from projections.replay import recover
from projections.store import StateStore

JOIN_SECONDS = 60.0
AROUND_A_BODY = 1_048_576  # what a record may have besides a message's body: properties, names of many queues

logger = logging.getLogger(__name__)


async def open_node(config: Config, clock: Callable[[], int], failed: Callable[[Exception], None]) -> Broker:
    """A node that has joined. LogError when Kafka or the data directory won't do; StoreError as `Broker.open`."""
    assert config.kafka is not None
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
            metadata = ReadBackMetadata(log.metadata, clock)
            offsets = {metadata.name: metadata.fold()}
            partitions = []
            for index, queue_log in enumerate(log.queues):
                recovery = recover(queue_log, store)
                logger.info("%s: %d events folded on top of the state at offset %d, %d quarantined", queue_log.name,
                            recovery.replayed, recovery.stored_offset, recovery.quarantined.count)  # fmt: skip
                offsets[queue_log.name] = recovery.machine.next_offset
                partitions.append(ReadBackPartition(
                    index, queue_log, recovery.machine, recovery.projector, clock, config.node
                ))  # fmt: skip
            return await start_node(config, log, metadata, partitions, store, offsets, clock, failed)
        except BaseException:
            store.close()
            raise
    except BaseException:
        log.close()
        raise


async def start_node(
    config: Config, log: SharedLog, metadata: ReadBackMetadata, partitions: list[ReadBackPartition], store: StateStore,
    offsets: dict[str, int], clock: Callable[[], int], failed: Callable[[Exception], None],
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
    return broker
