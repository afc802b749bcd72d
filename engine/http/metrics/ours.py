"""Metrics that RabbitMQ does not have: the log, the history, memory that is held for clients, refused connections."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.host.loop_watch import BOUNDS
from rewindmq.engine.http.metrics.exposition import Metric, single
from rewindmq.engine.partition.waits import BOUNDS_MS
from rewindmq.projections.machine.data.queue import Queue

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.lifecycle import Nodes
    from rewindmq.engine.partition.partition import Deliveries, Partition
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.engine.partition.waits import Histogram

OUTCOMES_HELP = "Messages by outcome, over the life of the queues that exist now"
PAUSED_HELP = "Queues that an operator has paused: they deliver nothing"
OLDEST_HELP = "Age of the oldest ready message of all queues; 0 if none is ready"
QUEUE_OLDEST_HELP = "Age of the oldest ready message of the queue"
QUARANTINED_HELP = "Records that made no sense and were skipped, since the beginning of the log"


def memory_held(broker: "Broker") -> Metric:
    metric = Metric("rewindmq_memory_held_bytes", "gauge", "Memory held for clients, by what it is held for")
    for kind, size in broker.host.memory.by_kind.items():
        metric.add(size, {"kind": kind.value})
    return metric


def loop_stalls(broker: "Broker") -> Metric:
    watch = broker.host.loop_watch
    metric = Metric("rewindmq_loop_stall_seconds", "histogram", "Times for which one client's work kept all waiting")
    below = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), watch.counts, strict=True):
        below += count
        metric.add(below, {"le": bound}, "_bucket")
    return metric.add(below, {}, "_count").add(watch.sum_seconds, {}, "_sum")


def waits(broker: "Broker") -> Iterator[Metric]:
    """Yield the samples of the waits of this node's deliveries, as histograms."""
    for name, help, of in WAITS:
        found = [of(partition.deliveries) for partition in broker.partitions]
        metric = Metric(name, "histogram", help)
        below = 0
        for index, bound in enumerate((*(f"{each / 1_000:g}" for each in BOUNDS_MS), "+Inf")):
            below += sum(each.counts[index] for each in found)
            metric.add(below, {"le": bound}, "_bucket")
        yield metric.add(below, {}, "_count").add(sum(each.sum_ms for each in found) / 1_000, {}, "_sum")


async def oldest_ready(work: Work, pairs: "list[tuple[PartitionReading, Listed]]") -> Metric:
    """Return the age of the oldest ready message of all queues."""
    ages = [partition.oldest_age_ms(queue) async for partition, queue in work.over(pairs) if isinstance(queue, Queue)]
    oldest = max((age for age in ages if age is not None), default=0)
    return single("rewindmq_oldest_ready_age_seconds", OLDEST_HELP, oldest / 1_000)


async def queue_waits(work: Work, pairs: "list[tuple[PartitionReading, Listed]]") -> list[Metric]:
    """Return the ages and the waits by queue. The waits are sums, for a histogram of each queue would be too long."""
    ages = Metric("rewindmq_queue_oldest_ready_age_seconds", "gauge", QUEUE_OLDEST_HELP)
    delivery, ack = (Metric(name.replace("_", "_queue_", 1), "summary", help) for name, help, _ in WAITS)
    async for partition, queue in work.over(pairs):
        if isinstance(queue, Queue):
            labels = {"vhost": queue.vhost, "queue": queue.name}
            if (age_ms := partition.oldest_age_ms(queue)) is not None:
                ages.add(age_ms / 1_000, labels)
            if (served := partition.served.get(queue)) is not None:
                delivery.add(served.delivery_waits, labels, "_count")
                delivery.add(served.delivery_wait_ms / 1_000, labels, "_sum")
                ack.add(served.ack_waits, labels, "_count").add(served.ack_wait_ms / 1_000, labels, "_sum")
    return [ages, delivery, ack]


def log_gauges(broker: "Broker") -> Iterator[Metric]:
    """Yield the log as this node knows it, and this node among others."""
    nodes = broker.nodes
    for name, help, value in PARTITION_GAUGES:
        metric = Metric(name, "gauge", help)
        for partition in broker.partitions:
            metric.add(value(nodes, partition), {"partition": partition.name})
        yield metric
    modes = Metric("rewindmq_partition_mode", "gauge", "1 for the partition's mode at this node: fold or append")
    for partition in broker.partitions:
        modes.add(1, {"partition": partition.name, "mode": "fold" if partition.current else "append"})
    yield modes
    ages = Metric("rewindmq_counters_age_seconds", "gauge", "Age of the owner's counters, where the mode is append")
    for partition in broker.partitions:
        age_ms = partition.counters_age_ms
        if age_ms is not None:
            ages.add(age_ms / 1_000, {"partition": partition.name})
    if ages.samples:
        yield ages
    clocks = Metric("rewindmq_log_clock_difference_ms", "gauge", "Time in the log less this machine's wall clock")
    for partition in broker.partitions:
        clocks.add(broker.host.clock_watch.difference_ms(partition), {"partition": partition.name})
    yield clocks
    count = len(broker.topology.nodes) if nodes.reads_back else 1
    yield single("rewindmq_nodes", "Nodes that share the log and are alive", count)
    if nodes.reads_back:
        yield single(
            "rewindmq_log_read_back_seconds",
            "How long a heartbeat takes into the log and back",
            nodes.read_back_seconds,
        )


def unrouted_publishes(broker: "Broker") -> Iterator[Metric]:
    """Yield the publishes that no queue took, by exchange."""
    help = "Messages of clients that no queue took, by exchange"
    metric = Metric("rewindmq_unrouted_messages_total", "counter", help)
    for (vhost, exchange), count in broker.exchanges.unrouted.items():
        metric.add(count, {"vhost": vhost, "exchange": exchange})
    if metric.samples:
        yield metric


def follower_metrics(broker: "Broker") -> Iterator[Metric]:
    """Yield the lag of the followers, as their leader knows it, and the lag of this follower."""
    followers, following = broker.followers, broker.following
    if followers is not None and followers.known:
        connected = Metric("rewindmq_follower_connected", "gauge", "1 if the follower asked a short time ago")
        records = Metric(
            "rewindmq_follower_lag_records", "gauge", "Synced records that the follower has not acknowledged"
        )
        seconds = Metric("rewindmq_follower_lag_seconds", "gauge", "Age of the last moment that it acknowledged")
        for name, follower in sorted(followers.known.items()):
            labels, lag = {"follower": name}, followers.lag_of(follower)
            connected.add(followers.is_connected(follower), labels)
            if lag is not None:
                records.add(lag[0], labels)
                seconds.add(lag[1], labels)
        yield from (connected, records, seconds)
    if followers is not None and followers.confirms:
        yield single(
            "rewindmq_follower_unacknowledged_records",
            "Synced records whose confirms wait for followers",
            followers.unacknowledged(),
        )
        yield single(
            "rewindmq_follower_confirms_wait_seconds",
            "For how long confirms have waited, and no acknowledgement let one go",
            followers.waiting_seconds(),
        )
    if following is not None:
        labels = {"follower": broker.config.node}
        yield single("rewindmq_follower_connected", "1 while the leader answers", following.connected, labels)
        yield single(
            "rewindmq_follower_lag_records", "Records of the leader not here yet", following.lag_records, labels
        )
        yield single("rewindmq_follower_lag_seconds", "Time since the copy was level", following.lag_seconds, labels)
        yield single("rewindmq_follower_unfolded_records", "Copied records not folded yet", following.unfolded_records)


def door_metrics(broker: "Broker") -> Iterator[Metric]:
    """Yield connections of AMQP and of HTTP, their shares of the descriptors, and the refused connections."""
    share = Metric("rewindmq_door_descriptors_limit", "gauge", "File descriptors that connections may take")
    used = Metric("rewindmq_door_connections", "gauge", "Open connections, by whether they have logged in")
    refused = Metric("rewindmq_door_refused_total", "counter", "Connections that were refused, by the limit met")
    for quota in broker.host.quotas:
        protocol = {"protocol": quota.protocol}
        share.add(quota.share, protocol)
        used.add(quota.logged_in, protocol | {"logged_in": "true"}).add(
            quota.unknown, protocol | {"logged_in": "false"}
        )
        for reason, count in quota.refused.items():
            refused.add(count, protocol | {"reason": reason})
    yield from (share, used, refused)


WAITS: tuple[tuple[str, str, Callable[["Deliveries"], "Histogram"]], ...] = (
    (
        "rewindmq_delivery_wait_seconds",
        "Time from publish to first delivery, sampled",
        lambda each: each.delivery_waits,
    ),
    ("rewindmq_ack_wait_seconds", "Time from delivery to ack, sampled", lambda each: each.ack_waits),
)
PARTITION_GAUGES: tuple[tuple[str, str, Callable[["Nodes", "Partition"], float]], ...] = (
    (
        "rewindmq_log_next_offset",
        "End of the log, as far as is known",
        lambda nodes, partition: partition.next_offset + nodes.behind(partition),
    ),
    ("rewindmq_log_applied_offset", "All events below are folded", lambda _, partition: partition.machine.next_offset),
    (
        "rewindmq_log_lag_events",
        "Offsets of the log that are still to be folded",
        lambda nodes, partition: nodes.behind(partition),
    ),
    (
        "rewindmq_events_in_flight",
        "Events that this node appended and that are not known to be durable",
        lambda _, partition: partition.append_position - partition.durable_position,
    ),
    (
        "rewindmq_partition_owned",
        "1 where timers and dead letters are this node's duty",
        lambda _, partition: partition.owned,
    ),
)


async def history_counters(
    broker: "Broker", work: Work, pairs: "list[tuple[PartitionReading, Listed]]"
) -> list[Metric]:
    quarantined = Metric("rewindmq_quarantined_events_total", "counter", QUARANTINED_HELP)
    for name, report in broker.quarantined.items():
        quarantined.add(report.count, {"partition": name})
    found: Counter[tuple[str, str]] = Counter()
    paused = 0
    async for _, queue in work.over(pairs):
        for outcome, count in queue.counters.items():
            found[outcome, queue.type] += count
        paused += queue.paused
    outcomes = Metric("rewindmq_queue_messages_by_outcome", "gauge", OUTCOMES_HELP)
    for (outcome, queue_type), count in sorted(found.items()):
        outcomes.add(count, {"outcome": outcome, "queue_type": queue_type})
    return [quarantined, outcomes, single("rewindmq_queues_paused", PAUSED_HELP, paused)]
