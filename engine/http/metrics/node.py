"""Metrics of the node, and of the things that the cluster shares: vhosts and exchanges."""

import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.host.loop_share import Work, by_key
from rewindmq.engine.host.watermarks import resident_bytes
from rewindmq.engine.http.metrics.exposition import Labels, Metric, single
from rewindmq.engine.http.metrics.per_object import connections_seen
from rewindmq.engine.http.shapes.node import uptime_seconds
from rewindmq.engine.partition.counters import SIZE_BOUNDS, SIZES, SIZES_SUM
from rewindmq.engine.partition.sessions import counts
from rewindmq.projections import system_calls
from rewindmq.schemas.metadata_events import ExchangeDeclared

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

AMQP: Labels = {"protocol": "amqp091"}


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
    used, _ = system_calls.open_descriptors()
    yield single("process_open_fds", "Open file descriptors", used)
    yield single("process_open_tcp_sockets", "Open TCP sockets", len(connections_seen(broker)))
    yield single("process_resident_memory_bytes", "Memory used in bytes", resident_bytes())
    free = shutil.disk_usage(broker.config.data).free
    yield single("disk_space_available_bytes", "Disk space available in bytes", free)


def node_limits(broker: "Broker") -> Iterator[Metric]:
    _, most = system_calls.open_descriptors()
    yield single("process_max_fds", "Open file descriptors limit", most)
    yield single("process_max_tcp_sockets", "Open TCP sockets limit", most)
    yield single("resident_memory_limit_bytes", "Memory high watermark in bytes", broker.host.memory.limit_bytes)
    yield single(
        "disk_space_available_limit_bytes",
        "Free disk space low watermark in bytes",
        broker.host.alarms.disk_limit_bytes,
    )
    yield single("erlang_uptime_seconds", "Node uptime (no Erlang here; the dashboards' name)", uptime_seconds())


def alarms(broker: "Broker") -> Iterator[Metric]:
    disk = any(name == "disk" for name, _ in broker.host.alarms.in_effect())
    yield single(
        "alarms_free_disk_space_watermark",
        "is 1 if free disk space is below the limit, or the log or the state cannot be written",
        disk,
    )
    yield single("alarms_memory_used_watermark", "is 1 if the memory limit is reached", broker.host.alarms.memory)


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
    """Yield the counters of AMQP 0-9-1, which have no labels, because the broker speaks no other protocol."""
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


async def clusterwide(broker: "Broker", work: Work, chosen: list[str], vhosts: list[str] | None) -> list[Metric]:
    """Return the metrics with names rabbitmq_cluster_..."""
    topology = broker.topology
    found: list[Metric] = []
    if "vhost_status" in chosen:
        metric = Metric("vhost_status", "gauge", "Whether a given vhost is running")
        found.append(metric)
        for vhost in await by_key(work, topology.vhosts, lambda name: vhosts is None or name in vhosts):
            metric.add(1, {"vhost": vhost.vhost})
    if "exchange_bindings" not in chosen and "exchange_names" not in chosen:
        return found
    exchanges = await by_key(work, topology.exchanges, lambda key: vhosts is None or key[0] in vhosts)
    if "exchange_bindings" in chosen:
        metric = Metric("exchange_bindings", "gauge", "Number of bindings for an exchange. This value is cluster-wide.")
        found.append(metric)
        async for each in work.over(exchanges):
            bindings = 0
            async for bound in work.over(topology.bindings_from(each.vhost, each.exchange)):
                bindings += broker.router.is_live(bound)
            metric.add(bindings, of_exchange(each))
    if "exchange_names" in chosen:
        samples = (("", of_exchange(each), 1.0) for each in exchanges)
        help = "Enumerates exchanges without any additional info."
        found.append(Metric("exchange_name", "gauge", help, more=samples))
    return found


def of_exchange(exchange: ExchangeDeclared) -> Labels:
    return {"vhost": exchange.vhost, "exchange": exchange.exchange, "type": exchange.type}
