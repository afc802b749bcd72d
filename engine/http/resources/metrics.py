"""Prometheus, by RabbitMQ's paths and names (docs/behaviours/interfaces.md#metrics), and only what is known exactly:

    /metrics                   of the node: what belongs to queues, channels and connections is added up
    /metrics/per-object        one sample for each of them
    /metrics/detailed          only the families asked for (`family`, more than once), as rabbitmq_detailed_...; `vhost`
                               (more than once) and `queue` (a regular expression) choose among the queues
    /metrics/memory-breakdown  what memory there is to speak of

A family is RabbitMQ's (prometheus_rabbitmq_core_metrics_collector.erl), so what it tells of Erlang and of its stores is
left out. Names (of vhosts, queues, exchanges, channels, connections) are told of the vhosts that the asking user may
see, and of all at the metrics' own port; figures without names count everything. Counters count from the broker's
start, except two of ours that follow from the history: the outcomes of messages count over the life of each queue,
quarantined records over that of the log.
"""

import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.http.pieces import answer
from rewindmq.engine.http.resources.overview import open_descriptors, totals, uptime_seconds
from rewindmq.engine.http.statistics import Numbers, Statistics, of_channel, statistics, summed
from rewindmq.engine.runtime.counters import SIZE_BOUNDS, SIZES, SIZES_SUM
from rewindmq.engine.runtime.loop_share import Work
from rewindmq.engine.runtime.sessions import counts
from rewindmq.engine.runtime.watermarks import resident_bytes

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.runtime.lifecycle import Keeper
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.engine.runtime.sessions import ChannelStatus, Session
    from rewindmq.projections.machine.data.queue import Queue

Labels = dict[str, str]
AMQP: Labels = {"protocol": "amqp091"}
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AT_ONCE = 256  # queues that are counted before others may have their turn
MAX_PATTERN = 1_000  # of a regular expression

OUTCOMES_HELP = "Messages by what became of them, over the life of the queues that exist now"
QUARANTINED_HELP = "Records that made no sense and were skipped, since the beginning of the log"


@dataclass(slots=True)
class Metric:
    """`name` without rabbitmq_; ours begin with rewindmq_. Samples: (suffix, labels, value)."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)
    more: Iterable[tuple[str, Labels, float]] = ()  # samples that are made as they are read

    def add(self, value: float, labels: Labels | None = None, suffix: str = "") -> "Metric":
        self.samples.append((suffix, labels or {}, value))
        return self


def single(name: str, help: str, value: float, labels: Labels | None = None) -> Metric:
    return Metric(name, "counter" if name.endswith("_total") else "gauge", help).add(value, labels)


# -- what is one among many -------------------------------------------------------------------------------------------


class QueueSeen:
    """A queue, its partition and what was delivered of it."""

    def __init__(self, known: Statistics, partition: "Partition", queue: "Queue") -> None:
        self.queue = queue
        self.labels = {"vhost": queue.vhost, "queue": queue.name}
        self.counted = known.of_queue(partition, queue)


class Together:
    """All queues as if they were one."""

    def __init__(self) -> None:
        self.messages_ready = 0
        self.messages_unacked = 0
        self.message_bytes_ready = 0
        self.message_bytes_unacked = 0
        self.consumers = 0

    def consumer_count(self) -> int:
        return self.consumers


class AllQueues:
    """As if they were one."""

    def __init__(self, queue: Together, counted: Numbers) -> None:
        self.queue = queue
        self.labels: Labels = {}
        self.counted = counted


async def all_queues(work: Work, known: Statistics, pairs: "list[tuple[Partition, Queue]]") -> AllQueues:
    """In one pass: there may be many."""
    total, counted = Together(), known.of_queues(())
    for first in range(0, len(pairs), AT_ONCE):
        part = pairs[first : first + AT_ONCE]
        counted = summed((counted, known.of_queues(part)))
        for _, queue in part:
            total.messages_ready += queue.messages_ready
            total.messages_unacked += queue.messages_unacked
            total.message_bytes_ready += queue.message_bytes_ready
            total.message_bytes_unacked += queue.message_bytes_unacked
            total.consumers += queue.attached
        if work.due:
            await work.give_way()
    return AllQueues(total, counted)


class ChannelSeen:
    def __init__(self, broker: "Broker", session: "Session", channel: "ChannelStatus", consumers: int) -> None:
        self.status = channel
        self.consumers = consumers
        self.labels = {"channel": f"{broker.config.connection_name(session.peer)} ({channel.number})"}
        self.counted = of_channel(channel)


class ConnectionSeen:
    def __init__(self, broker: "Broker", session: "Session") -> None:
        assert session.link is not None
        self.link = session.link
        self.channels = len(session.channels)
        self.labels = {"connection": broker.config.connection_name(session.peer)}


def counted(name: str) -> Callable[[QueueSeen | ChannelSeen], float]:
    return lambda seen: seen.counted[name]


Of = Callable[..., float]
QUEUES: dict[str, tuple[tuple[str, str, Of], ...]] = {
    "queue_coarse_metrics": (
        ("queue_messages_ready", "Messages ready to be delivered to consumers", lambda seen: seen.queue.messages_ready),
        (
            "queue_messages_unacked",
            "Messages delivered to consumers but not yet acknowledged",
            lambda seen: seen.queue.messages_unacked,
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
        ("queue_messages_ready_bytes", "Size in bytes of ready messages", lambda seen: seen.queue.message_bytes_ready),
        (
            "queue_messages_unacked_bytes",
            "Size in bytes of all unacknowledged messages",
            lambda seen: seen.queue.message_bytes_unacked,
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


async def queues_seen(broker: "Broker", work: Work, pairs: "list[tuple[Partition, Queue]]") -> list[QueueSeen]:
    known = statistics(broker)
    return [QueueSeen(known, partition, queue) async for partition, queue in work.over(pairs)]


async def channels_seen(
    broker: "Broker", work: Work, pairs: "list[tuple[Partition, Queue]]", vhosts: list[str] | None = None
) -> list[ChannelSeen]:
    consuming = Counter(
        [
            (consumer.session, consumer.channel)
            async for _, queue in work.over(pairs)
            if queue.attached
            for consumer in queue.consumers()
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
    """Each metric of the chosen families once: a sample for each object, or for all together."""
    told: dict[str, None] = {}
    for family in chosen:
        for name, help, of in families.get(family, ()):
            if name in told:
                continue
            told[name] = None
            if apart:
                kind = "counter" if name.endswith("_total") else "gauge"
                yield Metric(name, kind, help, more=samples_of(of, objects))
            else:
                yield single(name, help, sum(of(seen) for seen in objects))


def samples_of(of: Of, objects: Iterable[Any]) -> Iterator[tuple[str, Labels, float]]:
    for seen in objects:
        yield "", seen.labels, of(seen)


# -- the node ---------------------------------------------------------------------------------------------------------


def info(broker: "Broker", endpoint: str) -> Iterator[Metric]:
    config = broker.config
    yield single(
        "build_info",
        "RabbitMQ version whose semantics hold, and RewindMQ's own",
        1,
        {
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "RewindMQ",
            "product_version": VERSION,
        },
    )
    cluster = broker.parameters.cluster_name
    yield single(
        "identity_info",
        "Node and cluster",
        1,
        {
            "rabbitmq_node": config.node,
            "rabbitmq_cluster": cluster,
            "rabbitmq_cluster_permanent_id": cluster,
            "rabbitmq_endpoint": endpoint,
        },
    )


def node_coarse(broker: "Broker") -> Iterator[Metric]:
    used, _ = open_descriptors()
    yield single("process_open_fds", "Open file descriptors", used)
    yield single("process_open_tcp_sockets", "Open TCP sockets", len(connections_seen(broker)))
    yield single("process_resident_memory_bytes", "Memory used in bytes", resident_bytes())
    free = shutil.disk_usage(broker.config.data).free
    yield single("disk_space_available_bytes", "Disk space available in bytes", free)


def node_limits(broker: "Broker") -> Iterator[Metric]:
    _, most = open_descriptors()
    yield single("process_max_fds", "Open file descriptors limit", most)
    yield single("process_max_tcp_sockets", "Open TCP sockets limit", most)
    yield single("resident_memory_limit_bytes", "Memory high watermark in bytes", broker.memory.limit_bytes)
    yield single(
        "disk_space_available_limit_bytes", "Free disk space low watermark in bytes", broker.alarms.disk_limit_bytes
    )
    yield single("erlang_uptime_seconds", "Node uptime (no Erlang here; the dashboards' name)", uptime_seconds())


def alarms(broker: "Broker") -> Iterator[Metric]:
    disk = any(name == "disk" for name, _ in broker.alarms.in_effect())
    yield single(
        "alarms_free_disk_space_watermark",
        "is 1 if free disk space is below the limit, or the log or the state cannot be written",
        disk,
    )
    yield single("alarms_memory_used_watermark", "is 1 if the memory limit is reached", broker.alarms.memory)


def memory_held(broker: "Broker") -> Metric:
    metric = Metric("rewindmq_memory_held_bytes", "gauge", "Memory held for clients, by what it is held for")
    for kind, size in broker.memory.by_kind.items():
        metric.add(size, {"kind": kind.value})
    return metric


def churn(broker: "Broker") -> Iterator[Metric]:
    for name, value in broker.counters.items():
        if name.endswith("_total") and not name.startswith("global_"):
            yield single(name, f"Total number of {name.removesuffix('_total').replace('_', ' ')}", value)


NODE: dict[str, Callable[["Broker"], Iterator[Metric]]] = {
    "node_coarse_metrics": node_coarse,
    "node_metrics": node_limits,
    "alarm_metrics": alarms,
    "connection_churn_metrics": churn,
}


def object_totals(now: dict[str, int]) -> Iterator[Metric]:
    yield single("connections", "Connections currently open", now["connections"])
    yield single("channels", "Channels currently open", now["channels"])
    yield single("consumers", "Consumers currently connected", now["consumers"])
    yield single("queues", "Queues available", now["queues"])


def global_counters(broker: "Broker", consumers: int) -> Iterator[Metric]:
    """Counters that carry no labels of their own are AMQP 0-9-1's: nothing else is spoken here."""
    now = counts(broker.counters, broker.sessions.by_id.values())
    publishing = sum(
        channel.tally.received > 0
        for session in broker.sessions.by_id.values()
        for channel in session.channels.values()
    )
    yield single("global_publishers", "Publishers currently connected", publishing, AMQP)
    yield single("global_consumers", "Consumers currently connected", consumers, AMQP)
    last: Metric | None = None
    for name in sorted(name for name in now if name.startswith("global_")):
        metric, brace, rest = name.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', rest)) if brace else AMQP
        if last is None or last.name != metric:
            if last is not None:
                yield last
            what = metric.removeprefix("global_").removesuffix("_total").replace("_", " ")
            last = Metric(metric, "counter", f"Total number of {what}")
        last.add(now[name], labels)
    if last is not None:
        yield last
    yield message_sizes(now)


def message_sizes(now: dict[str, int]) -> Metric:
    metric = Metric("message_size_bytes", "histogram", "Size of messages received from publishers")
    below = 0
    for bound, name in zip((*map(str, SIZE_BOUNDS), "+Inf"), SIZES, strict=True):
        below += now[name]
        metric.add(below, AMQP | {"le": bound}, "_bucket")
    return metric.add(below, AMQP, "_count").add(now[SIZES_SUM], AMQP, "_sum")


def clusterwide(broker: "Broker", chosen: list[str], vhosts: list[str] | None) -> Iterator[Metric]:
    """As rabbitmq_cluster_..."""
    topology = broker.topology
    exchanges = [key for key in sorted(topology.exchanges) if vhosts is None or key[0] in vhosts]
    if "vhost_status" in chosen:
        metric = Metric("vhost_status", "gauge", "Whether a given vhost is running")
        for vhost in sorted(topology.vhosts):
            if vhosts is None or vhost in vhosts:
                metric.add(1, {"vhost": vhost})
        yield metric
    if "exchange_bindings" in chosen:
        metric = Metric("exchange_bindings", "gauge", "Number of bindings for an exchange. This value is cluster-wide.")
        for vhost, name in exchanges:
            bindings = [each for each in topology.bindings_from(vhost, name) if broker.router.is_live(each)]
            labels = {"vhost": vhost, "exchange": name, "type": topology.exchanges[vhost, name].type}
            metric.add(len(bindings), labels)
        yield metric
    if "exchange_names" in chosen:
        metric = Metric("exchange_name", "gauge", "Enumerates exchanges without any additional info.")
        for vhost, name in exchanges:
            metric.add(1, {"vhost": vhost, "exchange": name, "type": topology.exchanges[vhost, name].type})
        yield metric


# -- ours -------------------------------------------------------------------------------------------------------------


def log_gauges(broker: "Broker") -> Iterator[Metric]:
    """The log as this node knows it, and this node among others."""
    keeper = broker.keeper
    for name, help, value in PARTITION_GAUGES:
        metric = Metric(name, "gauge", help)
        for partition in broker.partitions:
            metric.add(value(keeper, partition), {"partition": partition.name})
        yield metric
    clocks = Metric("rewindmq_log_clock_difference_ms", "gauge", "Time in the log less this machine's wall clock")
    for partition in broker.partitions:
        clocks.add(broker.clock_watch.difference_ms(partition), {"partition": partition.name})
    yield clocks
    nodes = len(broker.topology.nodes) if keeper.reads_back else 1
    yield single("rewindmq_nodes", "Nodes that share the log and are alive", nodes)
    if keeper.reads_back:
        yield single(
            "rewindmq_log_read_back_seconds",
            "How long a heartbeat takes into the log and back",
            keeper.read_back_seconds,
        )


def door_metrics(broker: "Broker") -> Iterator[Metric]:
    """Connections of AMQP and of HTTP, what they may take of the descriptors, and what was refused."""
    share = Metric("rewindmq_door_descriptors_limit", "gauge", "File descriptors that connections may take")
    used = Metric("rewindmq_door_connections", "gauge", "Open connections, by whether they have logged in")
    refused = Metric("rewindmq_door_refused_total", "counter", "Connections that were refused, by the limit met")
    for door in broker.doors:
        protocol = {"protocol": door.protocol}
        share.add(door.share, protocol)
        used.add(door.logged_in, protocol | {"logged_in": "true"}).add(door.unknown, protocol | {"logged_in": "false"})
        for reason, count in door.refused.items():
            refused.add(count, protocol | {"reason": reason})
    yield from (share, used, refused)


PARTITION_GAUGES: tuple[tuple[str, str, Callable[["Keeper", "Partition"], float]], ...] = (
    (
        "rewindmq_log_next_offset",
        "End of the log, as far as is known",
        lambda keeper, partition: partition.next_offset + keeper.behind(partition),
    ),
    ("rewindmq_log_applied_offset", "All events below are folded", lambda _, partition: partition.machine.next_offset),
    (
        "rewindmq_log_lag_events",
        "Offsets of the log that are still to be folded",
        lambda keeper, partition: keeper.behind(partition),
    ),
    (
        "rewindmq_events_in_flight",
        "Events that this node appended and that are not known to be durable",
        lambda _, partition: partition.appended - partition.settled,
    ),
    (
        "rewindmq_partition_owned",
        "1 where timers and dead letters are this node's duty",
        lambda _, partition: partition.owned,
    ),
)


async def history_counters(broker: "Broker", work: Work, pairs: "list[tuple[Partition, Queue]]") -> list[Metric]:
    quarantined = Metric("rewindmq_quarantined_events_total", "counter", QUARANTINED_HELP)
    for name, report in broker.quarantined.items():
        quarantined.add(report.count, {"partition": name})
    found: Counter[tuple[str, str]] = Counter()
    async for _, queue in work.over(pairs):
        for outcome, count in queue.counters.items():
            found[outcome, queue.type] += count
    outcomes = Metric("rewindmq_queue_messages_by_outcome", "gauge", OUTCOMES_HELP)
    for (outcome, queue_type), count in sorted(found.items()):
        outcomes.add(count, {"outcome": outcome, "queue_type": queue_type})
    return [quarantined, outcomes]


# -- answers ----------------------------------------------------------------------------------------------------------


async def metrics(broker: "Broker", apart: bool = False, seen: list[str] | None = None) -> Response:
    """/metrics, and `apart`: /metrics/per-object, of the vhosts `seen` (None: all)."""
    work = Work(broker.http_share)
    found = list(info(broker, "per-object" if apart else "aggregated"))
    for of_node in NODE.values():
        found += of_node(broker)
    now = await totals(broker, work)
    found += object_totals(now)
    pairs = await broker.queues.by_name(work, broker.topology.vhosts)
    told = seen if apart else None
    if apart:
        shown = [pair for pair in pairs if told is None or pair[1].vhost in told]
        found += of_objects(QUEUES, QUEUES, await queues_seen(broker, work, shown), True)
    else:
        found += of_objects(QUEUES, QUEUES, [await all_queues(work, statistics(broker), pairs)], False)
    found += of_objects(CHANNELS, CHANNELS, await channels_seen(broker, work, pairs, told), apart)
    found += of_objects(CONNECTIONS, CONNECTIONS, connections_seen(broker, told), apart)
    found += [
        *global_counters(broker, now["consumers"]),
        *log_gauges(broker),
        *door_metrics(broker),
        *await history_counters(broker, work, pairs),
        memory_held(broker),
    ]
    return await answer(exposition(work, [("rabbitmq_", metric) for metric in found]), MEDIA_TYPE)


async def detailed(broker: "Broker", request: Request, seen: list[str] | None = None) -> Response:
    """/metrics/detailed, of the vhosts `seen` (None: all). A family that is not known is told nothing of, as in
    RabbitMQ."""
    query = request.query_params
    families = query.getlist("family")
    vhosts = [each for each in query.getlist("vhost") if each in broker.topology.vhosts] or seen
    if vhosts is not None and seen is not None:
        vhosts = [each for each in vhosts if each in seen]
    work = Work(broker.http_share)
    everywhere = await broker.queues.by_name(work, broker.topology.vhosts)
    pairs = [pair for pair in everywhere if vhosts is None or pair[1].vhost in vhosts]
    if wanted := query.get("queue"):
        if len(wanted) > MAX_PATTERN:
            return exposed("'queue' regex too long\n", 400)
        try:
            names = NameFilter(wanted)
            pairs = [pair async for pair in work.over(pairs) if names.fits(pair[1].name)]
        except ApiError as error:
            return exposed(f"Invalid 'queue' regex: {error.reason}\n", 400)
    found: list[Metric] = []
    for family in families:
        if family in NODE:
            found += NODE[family](broker)
    if any(family in QUEUES for family in families):
        found += of_objects(QUEUES, families, await queues_seen(broker, work, pairs), True)
    if any(family in CHANNELS for family in families):
        found += of_objects(CHANNELS, families, await channels_seen(broker, work, everywhere, seen), True)
    if any(family in CONNECTIONS for family in families):
        found += of_objects(CONNECTIONS, families, connections_seen(broker, seen), True)
    return await answer(
        exposition(
            work,
            [
                *(("rabbitmq_", metric) for metric in info(broker, "detailed")),
                *(("rabbitmq_detailed_", metric) for metric in found),
                *(("rabbitmq_cluster_", metric) for metric in clusterwide(broker, families, vhosts)),
            ],
        ),
        MEDIA_TYPE,
    )


def memory_breakdown(broker: "Broker") -> Response:
    """RabbitMQ divides it among Erlang's processes and tables; here it is one process's."""
    rss = single("memory_rss_bytes", "Resident memory of the process", resident_bytes())
    found = (*info(broker, "memory-breakdown"), rss, memory_held(broker))
    return exposed("".join(line for metric in found for line in lines_of(metric, "rabbitmq_")))


def exposed(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type=MEDIA_TYPE)


async def exposition(work: Work, found: Iterable[tuple[str, Metric]]) -> AsyncIterator[str]:
    """The text of metrics, each with the prefix of its name, line by line."""
    for prefix, metric in found:
        async for line in work.over(lines_of(metric, prefix)):
            yield line


def lines_of(metric: Metric, prefix: str) -> Iterator[str]:
    name = metric.name if metric.name.startswith("rewindmq_") else prefix + metric.name
    yield f"# TYPE {name} {metric.kind}\n# HELP {name} {metric.help}\n"
    for suffix, labels, value in chain(metric.samples, metric.more):
        yield f"{name}{suffix}{labelled(labels)} {value:.15g}\n"


def labelled(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = [
        f'{name}="' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for name, value in labels.items()
    ]
    return "{" + ",".join(quoted) + "}"
