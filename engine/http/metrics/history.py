"""Metrics of what the history costs: its size, by tier and by queue, where it was trimmed, how far its archive is.

A queue's part is an estimate, made when it is asked for out of counts that each queue has anyway. So it takes no
memory between two questions, with however many queues.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.metrics.exposition import Labels, Metric, single

if TYPE_CHECKING:
    from rewindmq.engine.broker.archive_status import ArchiveStatus
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.broker.history_trims import HistoryTrims
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading

    Pairs = list[tuple[PartitionReading, Listed]]

ARCHIVE = "archive"
# Bytes in the log besides the body: of a publish with its routing, and of an ack, each in a group commit of many.
PUBLISH_BYTES = 75
ACK_BYTES = 43
QUEUE_HELP = (
    "Estimate: the bytes of each partition, divided among the queues that exist now by their publishes and"
    " settlements, with the mean size of the bodies that the queue holds now"
)


def history_metrics(broker: "Broker") -> Iterator[Metric]:
    """Yield the size of the history, and the archive. A figure that is not known yet is left out."""
    size, archive = broker.history.size, broker.history.archive
    help = "Size of the history: on this machine's disk, or in Kafka of this node's partitions; in the archive"
    metric = Metric("rewindmq_history_bytes", "gauge", help)
    if size.by_partition:
        metric.add(size.total_bytes, {"tier": size.tier})
    if archive is not None and archive.archived:
        metric.add(archive.archived_bytes, {"tier": ARCHIVE})
    yield metric
    full_in_days = size.full_in_days
    if full_in_days is not None:
        help = "Days until the disk is full, by the growth of the history in the last hours"
        yield single("rewindmq_disk_full_in_days", help, full_in_days)
    yield from _trims(broker.history.trims)
    if size.sealed:
        sealed = Metric("rewindmq_sealed_timestamp_seconds", "gauge", "Time at which the newest seal was written")
        for name, written in size.sealed.items():
            sealed.add(written, {"partition": name})
        yield sealed
    if archive is None:
        return
    help = "Passes of the archiver that failed, and archivers that ended"
    yield single("rewindmq_archive_failures_total", help, archive.failures)
    stored = Metric("rewindmq_archived_bytes", "gauge", "Size of the objects in the archive")
    for each in archive.archived.values():
        stored.add(each.archived_bytes, {"partition": each.partition})
    lags = (
        Metric("rewindmq_archive_lag_records", "gauge", "Durable records that are not in the archive"),
        Metric("rewindmq_archive_lag_bytes", "gauge", "Size of the segments that are not in the archive"),
        Metric("rewindmq_archive_lag_seconds", "gauge", "Age of the oldest record that is not in the archive"),
    )
    for partition, *values in archive.lags():
        for lag, value in zip(lags, values, strict=True):
            lag.add(value, {"partition": partition.name})
    yield from (stored, *lags)
    yield from _retention(archive)


def _retention(archive: "ArchiveStatus") -> Iterator[Metric]:
    """Yield the metrics of Kafka's own retention: the part of it that is used, and the history that it has removed.

    They cover the partitions that this node owns."""
    used = Metric("rewindmq_archive_retention_used", "gauge", "Part of Kafka's retention that is used; 1: history goes")
    lost = Metric("rewindmq_history_lost_offsets", "gauge", "Offsets that Kafka removed and that are not archived")
    for name, each in archive.archived.items():
        if each.in_topic is None:
            continue
        if each.in_topic.retention_used is not None:
            used.add(round(each.in_topic.retention_used, 4), {"partition": name})
        first, behind = each.in_topic.lost or (0, 0)
        lost.add(behind - first, {"partition": name})
    if lost.samples:
        yield from (used, lost)


def _trims(trims: "HistoryTrims") -> Iterator[Metric]:
    """Where the history begins, the last trim of each partition, and with --keep-history what is not trimmed."""
    floor = Metric("rewindmq_history_floor_offset", "gauge", "Offset below which the history was trimmed")
    times = Metric("rewindmq_history_trimmed_timestamp_seconds", "gauge", "Time of the last trim")
    for name, each in trims.floors.items():
        floor.add(each.event.offset, {"partition": name})
        times.add(each.time_ms / 1_000, {"partition": name})
    if trims.floors:
        yield from (floor, times)
    if trims.keep_ms is None:
        return
    refused = Metric("rewindmq_history_trim_refused", "gauge", "1: the audit stops the trim of older history")
    for name in trims.names:
        refused.add(int(name in trims.stays), {"partition": name})
    yield refused
    yield single("rewindmq_history_trim_failures_total", "Looks at --keep-history that failed", trims.failures)


async def queue_history(broker: "Broker", work: Work, pairs: "Pairs", shown: "Pairs") -> Metric:
    """Return the estimated size of the history of the queues that are `shown`, by tier. `pairs`: all queues."""
    weights: dict[str, float] = {}
    async for partition, queue in work.over(pairs):
        weights[partition.name] = weights.get(partition.name, 0.0) + weight(queue)
    sizes: dict[str, dict[str, int]] = {broker.history.size.tier: broker.history.size.by_partition}
    if broker.history.archive is not None:
        sizes[ARCHIVE] = {name: each.archived_bytes for name, each in broker.history.archive.archived.items()}
    return Metric("rewindmq_queue_history_bytes", "gauge", QUEUE_HELP, more=_shares(sizes, weights, shown))


def _shares(
    sizes: dict[str, dict[str, int]], weights: dict[str, float], pairs: "Pairs"
) -> Iterator[tuple[str, Labels, float]]:
    for partition, queue in pairs:
        whole = weights[partition.name]
        for tier, by_partition in sizes.items():
            size = by_partition.get(partition.name)
            if size is not None and whole:
                labels = {"vhost": queue.vhost, "queue": queue.name, "tier": tier}
                yield "", labels, round(size * min(1.0, weight(queue) / whole))


def weight(queue: "Listed") -> float:
    """Return the bytes of a queue's events, roughly."""
    there = queue.messages_ready + queue.messages_unacked + queue.messages_delayed
    held_bytes = queue.message_bytes_ready + queue.message_bytes_unacked + queue.message_bytes_delayed
    body = held_bytes / there if there else 0.0
    return queue.published * (PUBLISH_BYTES + body) + max(0, queue.published - there) * ACK_BYTES
