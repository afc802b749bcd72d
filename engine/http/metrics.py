"""Prometheus: RabbitMQ's names, for its dashboards (BEHAVIOURS section 20), and only those that we know exactly.

Aggregated as on RabbitMQ's /metrics: queue gauges are sums over all queues. Counters come from the broker by the
metric's name, `{labels}` included where it has some, and count from the broker's start. Except two that follow from the
history: the outcomes of messages count over the life of each queue, quarantined records over that of the log.
"""

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.config import RABBITMQ_VERSION, VERSION
from engine.http.overview import open_descriptors, resident_bytes, totals, uptime_seconds

if TYPE_CHECKING:
    from engine.broker import Broker
    from engine.keeping import Keeper
    from engine.partition import Partition

Sample = tuple[str, str, str, float]  # name without rabbitmq_ (ours have rewindmq_), labels, help, value

OUTCOMES_HELP = "Messages by what became of them, over the life of the queues that exist now"
QUARANTINED_HELP = "Records that made no sense and were skipped, since the beginning of the log"


def metrics(broker: "Broker") -> Response:
    lines: list[str] = []
    described = ""
    for name, labels, help_text, value in [*gauges(broker), *log_gauges(broker), *counters(broker)]:
        if name != described:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {prefixed(name)} {kind}", f"# HELP {prefixed(name)} {help_text}"]
            described = name
        lines.append(f"{prefixed(name)}{labels} {value:.15g}")
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def prefixed(name: str) -> str:
    return name if name.startswith("rewindmq_") else f"rabbitmq_{name}"


def labelled(**labels: str) -> str:
    quoted = [
        f'{name}="' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for name, value in labels.items()
    ]
    return "{" + ",".join(quoted) + "}"


def gauges(broker: "Broker") -> Iterator[Sample]:
    now = totals(broker)
    queues = [queue for partition in broker.partitions for queue in partition.machine.queues()]
    node = broker.config.node
    used, most = open_descriptors()
    disk = shutil.disk_usage(broker.config.data)
    build = labelled(rabbitmq_version=RABBITMQ_VERSION, product_name="RewindMQ", product_version=VERSION)
    cluster = broker.config.cluster_name
    identity = labelled(rabbitmq_node=node, rabbitmq_cluster=cluster, rabbitmq_cluster_permanent_id=cluster)
    ready_bytes = sum(queue.message_bytes_ready for queue in queues)
    unacked_bytes = sum(queue.message_bytes_unacked for queue in queues)
    yield "build_info", build, "RabbitMQ version whose semantics hold, and RewindMQ's own", 1
    yield "identity_info", identity, "Node and cluster", 1
    yield "erlang_uptime_seconds", "", "Node uptime (no Erlang here; the dashboards' name)", uptime_seconds()
    yield "process_resident_memory_bytes", "", "Memory used in bytes", resident_bytes()
    yield "process_open_fds", "", "Open file descriptors", used
    yield "process_max_fds", "", "Open file descriptors limit", most
    yield "disk_space_available_bytes", "", "Disk space available in bytes", disk.free
    blocked = float(broker.blocked is not None)
    yield "alarms_free_disk_space_watermark", "", "is 1 while publishing is held back", blocked
    yield "connections", "", "Connections currently open", now["connections"]
    yield "channels", "", "Channels currently open", now["channels"]
    yield "consumers", "", "Consumers currently connected", now["consumers"]
    yield "queues", "", "Queues available", now["queues"]
    yield "queue_messages_ready", "", "Messages ready to be delivered to consumers", now["messages_ready"]
    yield ("queue_messages_unacked", "", "Messages delivered to consumers but not yet acknowledged",
           now["messages_unacknowledged"])  # fmt: skip
    yield "queue_messages", "", "Sum of ready and unacknowledged messages - total queue depth", now["messages"]
    yield "queue_messages_bytes", "", "Size in bytes of ready and unacknowledged messages", ready_bytes + unacked_bytes
    yield "queue_messages_ready_bytes", "", "Size in bytes of ready messages", ready_bytes
    yield "queue_messages_unacked_bytes", "", "Size in bytes of all unacknowledged messages", unacked_bytes


def log_gauges(broker: "Broker") -> Iterator[Sample]:
    """The log as this node knows it, and this node among others."""
    keeper = broker.keeper
    for name, help_text, value in PARTITION_GAUGES:
        for partition in broker.partitions:
            yield name, labelled(partition=partition.name), help_text, value(keeper, partition)
    nodes = len(broker.topology.nodes) if keeper.reads_back else 1
    yield "rewindmq_nodes", "", "Nodes that share the log and are alive", nodes
    if keeper.reads_back:
        yield ("rewindmq_log_read_back_seconds", "", "How long a heartbeat takes into the log and back",
               keeper.read_back_seconds)  # fmt: skip


PARTITION_GAUGES: tuple[tuple[str, str, Callable[["Keeper", "Partition"], float]], ...] = (
    ("rewindmq_log_next_offset", "End of the log, as far as is known",
     lambda keeper, partition: partition.next_offset + keeper.behind(partition)),
    ("rewindmq_log_applied_offset", "All events below are folded", lambda _, partition: partition.machine.next_offset),
    ("rewindmq_log_lag_events", "Offsets of the log that are still to be folded",
     lambda keeper, partition: keeper.behind(partition)),
    ("rewindmq_events_in_flight", "Events that this node appended and that are not known to be durable",
     lambda _, partition: partition.appended - partition.settled),
    ("rewindmq_partition_owned", "1 where timers and dead letters are this node's duty",
     lambda _, partition: partition.owned),
)  # fmt: skip


def counters(broker: "Broker") -> Iterator[Sample]:
    for name in sorted(broker.counters):
        metric, brace, labels = name.partition("{")
        yield metric, brace + labels, metric.replace("_", " "), broker.counters[name]
    for partition in broker.partitions:
        labels = labelled(partition=partition.name)
        yield "rewindmq_quarantined_events_total", labels, QUARANTINED_HELP, partition.projector.quarantine_count
    outcomes: dict[tuple[str, str], int] = {}
    for partition in broker.partitions:
        for queue in partition.machine.queues():
            for outcome, count in queue.counters.items():
                key = (outcome, queue.type)
                outcomes[key] = outcomes.get(key, 0) + count
    for (outcome, queue_type), count in sorted(outcomes.items()):
        labels = labelled(outcome=outcome, queue_type=queue_type)
        yield "rewindmq_queue_messages_by_outcome", labels, OUTCOMES_HELP, count
