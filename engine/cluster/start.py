"""A node's start: it opens the log, folds the metadata and every partition to the end, and joins.

A partition starts from its state in RocksDB, if this node ran before, and reads on from that offset: a node that comes
back after a minute folds a minute. A node that is new, or was away for long, begins with the state that another one has
left in Kafka (snapshot_import.py). If Kafka no longer has the records behind its offset, it begins with the newest
state in the archive (archive_states.py). The node joins, and clients may come, only when it has caught up.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.broker.users import first_user
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.cluster.snapshot_import import begin_with_copy
from rewindmq.engine.config import Config
from rewindmq.engine.keeping.archive.directory_note import NODE
from rewindmq.engine.keeping.location import noted_identity, retry_if_trimmed
from rewindmq.engine.log.contract import LogError, NoAnswer, NobodyAnswers
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.replay import Recovery, fold, recover
from rewindmq.projections.rules.partition_hash import astray, count_of
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.formats import formatted
from rewindmq.schemas.values import BROKER

if TYPE_CHECKING:
    from rewindmq.engine.cluster.snapshot_import import EnteredHistory
    from rewindmq.engine.log.kafka.log import KafkaLog

START_SECONDS = 300.0
AGAIN_SECONDS = 1.0
LAGS_KEPT = 10  # so many times what the archive may be behind, a retention of Kafka has to keep
AROUND_A_BODY = 1_048_576  # a record's bytes beside the message's body: properties, names of many queues

logger = logging.getLogger(__name__)


async def open_log(config: Config) -> "KafkaLog":
    """Open the log in Kafka.

    A Kafka that answers and is not settled (it elects a controller, or a leader) is asked again for `START_SECONDS`, as
    a RabbitMQ node waits for its peers. LogError: Kafka refuses, nobody answers there, or its topics do not fit.
    KafkaNotInstalled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        try:
            return _opened(config)
        except NobodyAnswers:
            raise
        except NoAnswer as error:
            if loop.time() >= deadline:
                raise
            logger.warning("%s: this node asks again", error)
        await asyncio.sleep(AGAIN_SECONDS)


def _opened(config: Config) -> "KafkaLog":
    from rewindmq.engine.log.kafka.log import KafkaLog

    assert config.kafka is not None
    return KafkaLog.open(
        config.kafka,
        config.kafka_prefix,
        config.partitions,
        config.kafka_replication,
        dict(config.kafka_settings),
        None if config.archive.url is None else LAGS_KEPT * config.archive.lag_ms,
        config.standbys is not None,
    )


def fitted(config: Config, log: "KafkaLog") -> Config:
    """Return the configuration with messages no larger than the log's records.

    LogError: the directory belongs to another log."""
    state_belongs_to(config, log.identity)
    around = min(AROUND_A_BODY, log.max_record_bytes // 2)  # Kafka's own default is one mebibyte for all
    return replace(config, max_message_size=min(config.max_message_size, log.max_record_bytes - around))


def histories(log: "KafkaLog", config: Config) -> "Sequence[EnteredHistory]":
    """The queue partitions, each with what the archive has of it, if there is one."""
    if not config.archives_topics:
        return log.queues
    from rewindmq.engine.keeping.topic_tiers import TopicArchive

    assert config.archive.url is not None
    archive = TopicArchive(config.archive.url, log.metadata)
    return [archive.tiered(each) for each in log.queues]


def use_all_of(log: "KafkaLog", config: Config, placement: Placement) -> None:
    """Work with all partitions of a log that was repartitioned, whatever number the configuration says."""
    if placement.count and log.left_out:
        logger.info(
            "%s.queues: its queues were repartitioned, so --partitions %s says nothing any more: this node works with"
            " all partitions",
            config.kafka_prefix,
            config.partitions,
        )
        log.use_all()


def recovered(
    log: "KafkaLog",
    histories: "Sequence[EnteredHistory]",
    store: StateStore,
    config: Config,
    placement: Placement,
) -> list[Recovery]:
    """Load each partition's stored state, and fold the rest of its history.

    LogError: the queues were placed by another number of partitions than this node would use, or neither Kafka nor the
    archive has what the node has not folded. StoreError: the same where there is no archive."""
    recoveries = []
    for number, history in enumerate(histories):
        begin_with_copy(history, number, log.states, store, config.data)
        if config.archives_topics:
            from rewindmq.engine.keeping.archive_states import begin_with_archive
            from rewindmq.engine.keeping.topic_tiers import TieredTopic

            assert isinstance(history, TieredTopic)
            begin_with_archive(history, store, config.data)
        recovery = retry_if_trimmed(partial(recover, history, store))
        logger.info(
            "%s: %d events folded on top of the state at offset %d; %d quarantined since the log began",
            history.name,
            recovery.replayed,
            recovery.stored_offset,
            recovery.quarantined.count,
        )
        recoveries.append(recovery)
    machines = [each.machine for each in recoveries]
    if placement.count:
        if len(machines) < placement.count:
            topic = f"the topic {config.kafka_prefix}.queues"
            raise LogError(f"{topic} has {len(machines)} partitions, and its queues are placed by {placement.count}")
        return recoveries  # queues may be on their way: what the metadata log said at the start is no check
    for left_out in log.left_out:
        machines.append(Machine(left_out.name))
        fold(machines[-1], left_out)
    require_homes(f"{config.kafka_prefix}.queues", config.partitions, machines)
    return recoveries


async def join(broker: Broker, node: ClusterKeeper) -> None:
    """Join the log as a node. LogError: the log does not answer in time."""
    metadata = node.metadata
    try:
        async with asyncio.timeout(START_SECONDS):
            if MACHINE_VERSION > 1 and metadata.state.next_offset == 0:  # the history begins with this program
                await metadata.ask(BROKER, MachineUpgraded(MACHINE_VERSION))
            await node.join()
            if not metadata.topology.had_permissions and broker.config.load_definitions is None:
                # two nodes may do it at once; the result is the same
                await first_user(metadata, broker.access.control, broker.config)
    except TimeoutError:
        raise LogError(f"the node could not join within {START_SECONDS:.0f} seconds: the log does not answer") from None


def require_homes(topic: str, asked: int | None, machines: Sequence[Machine]) -> None:
    """Check that the queues were placed by the number of partitions that this node would use.

    LogError: they were not, because Kafka got more partitions, or `asked` is wrong. `machines` are those of all
    partitions of the topic, not only of the first `asked`."""
    found = len(machines)
    homes = [(number, *key) for number, machine in enumerate(machines) for key in machine.by_name]
    if not homes:
        return
    # A node that joins writes to each of its partitions, so empty partitions at the end belonged to no node. Services
    # may have written to the others, because they use the topic's number.
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
    logger.warning(
        "%s: queue '%s' in vhost '%s' lies in queues-%d, where no node looks for it: it was not declared by a"
        " node that has %d partitions",
        topic,
        queue,
        vhost,
        number,
        count,
    )


def state_belongs_to(config: Config, identity: str) -> None:
    """Check that the state directory is a fold of this Kafka's history. LogError: it is not."""
    known = noted_identity(config.data)
    if (config.data / "log").exists():
        raise LogError(f"{config.data}: holds an embedded log: give the node on Kafka another data directory")
    if known is None:
        (config.data / NODE).write_text(formatted({"history": identity}) + "\n")
    elif known != identity:
        raise LogError(
            f"{config.data}: holds the state of another history than {config.kafka_prefix}.* at {config.kafka}"
            f" ({known}; here {identity}): give the node another data directory, or delete this one"
        )
