"""Metrics of queues, channels and connections: one sample for each of them, or all added up.

Names are without their prefix `rabbitmq_` (`rabbitmq_detailed_` for /metrics/detailed): `queue_messages_ready` here is
`rabbitmq_queue_messages_ready` in an answer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.metrics.exposition import Labels, Metric, single
from rewindmq.engine.http.statistics import Numbers, Statistics, of_channel, statistics, summed
from rewindmq.projections.machine.data.queue import Queue

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.engine.partition.sessions import ChannelStatus, Session

AT_ONCE = 256  # queues that are counted before other work has its turn


class QueueSeen:
    """A queue, its partition, and the counts of its deliveries."""

    def __init__(self, known: Statistics, partition: "PartitionReading", queue: "Listed") -> None:
        self.queue = queue
        self.labels = {"vhost": queue.vhost, "queue": queue.name}
        self.counted = known.never_less(((partition, queue),))
        self.ahead, self.ahead_bytes = queue.in_lookahead()


class Together:
    """All queues, counted as one."""

    def __init__(self) -> None:
        self.messages_ready = 0
        self.messages_unacked = 0
        self.message_bytes_ready = 0
        self.message_bytes_unacked = 0
        self.consumers = 0

    def consumer_count(self) -> int:
        return self.consumers


class AllQueues:
    """All queues as one object, as metrics that are not per object show them."""

    ahead = ahead_bytes = 0  # `queue` counts them as ready

    def __init__(self, queue: Together, counted: Numbers) -> None:
        self.queue = queue
        self.labels: Labels = {}
        self.counted = counted


async def all_queues(work: Work, known: Statistics, pairs: "list[tuple[PartitionReading, Listed]]") -> AllQueues:
    """Return all queues added up, in one pass: there may be many."""
    total, counted = Together(), known.of_queues(())
    for first in range(0, len(pairs), AT_ONCE):
        part = pairs[first : first + AT_ONCE]
        counted = summed((counted, known.never_less(part)))
        for _, queue in part:
            ahead, ahead_bytes = queue.in_lookahead()
            total.messages_ready += queue.messages_ready + ahead
            total.messages_unacked += queue.messages_unacked - ahead
            total.message_bytes_ready += queue.message_bytes_ready + ahead_bytes
            total.message_bytes_unacked += queue.message_bytes_unacked - ahead_bytes
            total.consumers += queue.consumer_count()
        if work.due:
            await work.give_way()
    return AllQueues(total, counted)


class ChannelSeen:
    def __init__(self, broker: "Broker", session: "Session", channel: "ChannelStatus", consumers: int) -> None:
        self.status = channel
        self.consumers = consumers
        self.labels = {"channel": f"{broker.config.both_ends(session.peer)} ({channel.number})"}
        self.counted = of_channel(channel)


class ConnectionSeen:
    def __init__(self, broker: "Broker", session: "Session") -> None:
        assert session.link is not None
        self.link = session.link
        self.channels = len(session.channels)
        self.labels = {"connection": broker.config.both_ends(session.peer)}


def counted(name: str) -> Callable[[QueueSeen | ChannelSeen], float]:
    return lambda seen: seen.counted[name]


Of = Callable[..., float]
QUEUES: dict[str, tuple[tuple[str, str, Of], ...]] = {
    "queue_coarse_metrics": (
        (
            "queue_messages_ready",
            "Messages ready to be delivered to consumers",
            lambda seen: seen.queue.messages_ready + seen.ahead,
        ),
        (
            "queue_messages_unacked",
            "Messages delivered to consumers but not yet acknowledged",
            lambda seen: seen.queue.messages_unacked - seen.ahead,
        ),
        (
            "queue_messages",
            "Sum of ready and unacknowledged messages - total queue depth",
            lambda seen: seen.queue.messages_ready + seen.queue.messages_unacked,
        ),
    ),
    "queue_consumer_count": (("queue_consumers", "Consumers on a queue", lambda seen: seen.queue.consumer_count()),),
    "queue_metrics": (
        ("queue_consumers", "Consumers on a queue", lambda seen: seen.queue.consumer_count()),
        (
            "queue_messages_bytes",
            "Size in bytes of ready and unacknowledged messages",
            lambda seen: seen.queue.message_bytes_ready + seen.queue.message_bytes_unacked,
        ),
        (
            "queue_messages_ready_bytes",
            "Size in bytes of ready messages",
            lambda seen: seen.queue.message_bytes_ready + seen.ahead_bytes,
        ),
        (
            "queue_messages_unacked_bytes",
            "Size in bytes of all unacknowledged messages",
            lambda seen: seen.queue.message_bytes_unacked - seen.ahead_bytes,
        ),
    ),
    "queue_delivery_metrics": (
        (
            "queue_get_ack_total",
            "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode",
            counted("get"),
        ),
        (
            "queue_get_total",
            "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode",
            counted("get_no_ack"),
        ),
        (
            "queue_messages_delivered_ack_total",
            "Total number of messages delivered from a queue to consumers in manual acknowledgement mode",
            counted("deliver"),
        ),
        (
            "queue_messages_delivered_total",
            "Total number of messages delivered from a queue to consumers in automatic acknowledgement mode",
            counted("deliver_no_ack"),
        ),
        (
            "queue_messages_redelivered_total",
            "Total number of messages redelivered from a queue to consumers",
            counted("redeliver"),
        ),
        ("queue_messages_acked_total", "Total number of messages acknowledged by consumers on a queue", counted("ack")),
        (
            "queue_get_empty_total",
            "Total number of times basic.get operations fetched no message on a queue",
            counted("get_empty"),
        ),
    ),
    "channel_queue_exchange_metrics": (
        ("queue_messages_published_total", "Total number of messages published to queues", counted("publish")),
    ),
}
CHANNELS: dict[str, tuple[tuple[str, str, Of], ...]] = {
    "channel_metrics": (
        ("channel_consumers", "Consumers on a channel", lambda seen: seen.consumers),
        (
            "channel_messages_unacked",
            "Delivered but not yet acknowledged messages",
            lambda seen: len(seen.status.settlement.unacked),
        ),
        (
            "channel_messages_unconfirmed",
            "Published but not yet confirmed messages",
            lambda seen: seen.status.tally.unconfirmed if seen.status.confirm else 0,
        ),
        (
            "channel_messages_uncommitted",
            "Messages received in a transaction but not yet committed",
            lambda seen: seen.status.messages_uncommitted,
        ),
        (
            "channel_acks_uncommitted",
            "Message acknowledgements in a transaction not yet committed",
            lambda seen: seen.status.acks_uncommitted,
        ),
        ("consumer_prefetch", "Limit of unacknowledged messages for each consumer", lambda seen: seen.status.prefetch),
        (
            "channel_prefetch",
            "Total limit of unacknowledged messages for all consumers on a channel",
            lambda seen: seen.status.global_prefetch,
        ),
    ),
    "channel_exchange_metrics": (
        (
            "channel_messages_published_total",
            "Total number of messages published into an exchange on a channel",
            counted("publish"),
        ),
        (
            "channel_messages_confirmed_total",
            "Total number of messages published into an exchange and confirmed on the channel",
            counted("confirm"),
        ),
        (
            "channel_messages_unroutable_returned_total",
            "Total number of messages published as mandatory into an"
            " exchange and returned to the publisher as unroutable",
            counted("return_unroutable"),
        ),
        (
            "channel_messages_unroutable_dropped_total",
            "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
            counted("drop_unroutable"),
        ),
    ),
    "channel_queue_metrics": (
        (
            "channel_get_ack_total",
            "Total number of messages fetched with basic.get in manual acknowledgement mode",
            counted("get"),
        ),
        (
            "channel_get_total",
            "Total number of messages fetched with basic.get in automatic acknowledgement mode",
            counted("get_no_ack"),
        ),
        (
            "channel_messages_delivered_ack_total",
            "Total number of messages delivered to consumers in manual acknowledgement mode",
            counted("deliver"),
        ),
        (
            "channel_messages_delivered_total",
            "Total number of messages delivered to consumers in automatic acknowledgement mode",
            counted("deliver_no_ack"),
        ),
        (
            "channel_messages_redelivered_total",
            "Total number of messages redelivered to consumers",
            counted("redeliver"),
        ),
        ("channel_messages_acked_total", "Total number of messages acknowledged by consumers", counted("ack")),
        (
            "channel_get_empty_total",
            "Total number of times basic.get operations fetched no message",
            counted("get_empty"),
        ),
    ),
}
CONNECTIONS: dict[str, tuple[tuple[str, str, Of], ...]] = {
    "connection_coarse_metrics": (
        (
            "connection_incoming_bytes_total",
            "Total number of bytes received on a connection",
            lambda seen: seen.link.received_octets,
        ),
        (
            "connection_outgoing_bytes_total",
            "Total number of bytes sent on a connection",
            lambda seen: seen.link.sent_octets,
        ),
    ),
    "connection_metrics": (
        (
            "connection_incoming_packets_total",
            "Total number of packets received on a connection",
            lambda seen: seen.link.received_count,
        ),
        (
            "connection_outgoing_packets_total",
            "Total number of packets sent on a connection",
            lambda seen: seen.link.sent_count,
        ),
        ("connection_channels", "Channels on a connection", lambda seen: seen.channels),
    ),
}


async def queues_seen(broker: "Broker", work: Work, pairs: "list[tuple[PartitionReading, Listed]]") -> list[QueueSeen]:
    known = statistics(broker)
    return [QueueSeen(known, partition, queue) async for partition, queue in work.over(pairs)]


async def channels_seen(
    broker: "Broker", work: Work, pairs: "list[tuple[PartitionReading, Listed]]", vhosts: list[str] | None = None
) -> list[ChannelSeen]:
    """Return the channels of this node. It folds each partition in which one of them consumes."""
    consuming = Counter(
        [
            (consumer.session, consumer.channel)
            async for _, queue in work.over(pairs)
            if isinstance(queue, Queue)
            async for consumer in work.over(list(queue.consuming.values()))
        ]
    )
    return [
        ChannelSeen(broker, session, channel, consuming[session.session_id, channel.number])
        async for session in work.over(list(broker.sessions.by_id.values()))
        if vhosts is None or session.vhost in vhosts
        for channel in session.channels.values()
    ]


def connections_seen(broker: "Broker", vhosts: list[str] | None = None) -> list[ConnectionSeen]:
    return [
        ConnectionSeen(broker, session)
        for session in broker.sessions.by_id.values()
        if session.link is not None and (vhosts is None or session.vhost in vhosts)
    ]


def of_objects(
    families: dict[str, tuple[tuple[str, str, Of], ...]],
    chosen: Iterable[str],
    objects: list[QueueSeen] | list[AllQueues] | list[ChannelSeen] | list[ConnectionSeen],
    apart: bool,
) -> Iterator[Metric]:
    """Yield each metric of the chosen families once: a sample for each object, or one for all together."""
    yielded: dict[str, None] = {}
    for family in chosen:
        for name, help, of in families.get(family, ()):
            if name in yielded:
                continue
            yielded[name] = None
            if apart:
                kind = "counter" if name.endswith("_total") else "gauge"
                yield Metric(name, kind, help, more=samples_of(of, objects))
            else:
                yield single(name, help, sum(of(seen) for seen in objects))


def samples_of(of: Of, objects: Iterable[Any]) -> Iterator[tuple[str, Labels, float]]:
    for seen in objects:
        yield "", seen.labels, of(seen)
