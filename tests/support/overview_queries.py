"""The queries of RabbitMQ's dashboard RabbitMQ-Overview to Prometheus: names of metrics, their joins with the labels of
their node, and sums. Taken from rabbitmq_prometheus of RabbitMQ (main, August 2026).

There are two joins: the current one (`on(instance, job)`, with the endpoint), and that of the dashboards up to 3.13
(`on(instance)`).
"""

from collections.abc import Iterator

RANGE = "10s"  # Grafana's $__rate_interval, and $__range
JOINS = {
    "on(instance, job)": '{rabbitmq_cluster="CLUSTER", namespace="", rabbitmq_endpoint="aggregated"}',
    "on(instance)": '{rabbitmq_cluster="CLUSTER", namespace=""}',
}
# Figures at the top, added up
TOTALS = (
    "queue_messages_ready",
    "queue_messages_unacked",
    "global_publishers",
    "connections",
    "queues",
    "global_consumers",
    "channels",
)
SPEEDS = ("global_messages_delivered_total", "global_messages_received_total")
# By node, as they are
GAUGES = ("queues", "channels", "connections")
# By node, added up
SUMS = ("queue_messages_ready", "queue_messages_unacked")
# By node, a second
RATES = (
    "global_messages_received_total",
    "global_messages_routed_total",
    "global_messages_confirmed_total",
    "global_messages_unroutable_dropped_total",
    "global_messages_unroutable_returned_total",
    "global_messages_redelivered_total",
    "global_messages_delivered_consume_manual_ack_total",
    "global_messages_delivered_consume_auto_ack_total",
    "global_messages_acknowledged_total",
    "global_messages_delivered_get_auto_ack_total",
    "global_messages_get_empty_total",
    "global_messages_delivered_get_manual_ack_total",
    "queues_declared_total",
    "queues_created_total",
    "queues_deleted_total",
    "channels_opened_total",
    "channels_closed_total",
    "connections_opened_total",
    "connections_closed_total",
)
# By node: one less the other
LEFT = (
    ("process_max_fds", "process_open_fds"),
    ("disk_space_available_bytes", "disk_space_available_limit_bytes"),
)
BOUNDS = ("100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf")


def queries(cluster: str) -> Iterator[tuple[str, bool]]:
    """Yields each query, and whether its value may be 0 while messages of all kinds flow."""
    for on, labels in JOINS.items():
        yield from joined_by(on, f"rabbitmq_identity_info{labels}".replace("CLUSTER", cluster))


def joined_by(on: str, identity: str) -> Iterator[tuple[str, bool]]:
    """Yields the queries with one of the two joins."""
    of_node = f"* {on} group_left(rabbitmq_cluster, rabbitmq_node) {identity}"
    of_cluster = f"* {on} group_left(rabbitmq_cluster) {identity}"
    for name in TOTALS:
        yield f"sum(rabbitmq_{name} {of_cluster})", False
    for name in SPEEDS:
        yield f"sum(irate(rabbitmq_{name}[{RANGE}]) {of_cluster})", False
    yield f"count({identity})", False
    uptime = f"rabbitmq_erlang_uptime_seconds * {on} group_left(rabbitmq_version, erlang_version) rabbitmq_build_info"
    yield f"{uptime} {of_node}", False
    limit, used = "rabbitmq_resident_memory_limit_bytes", "rabbitmq_process_resident_memory_bytes"
    yield f"({limit} {of_node}) - ({used} {of_node})", False
    for most, now in LEFT:
        yield f"(rabbitmq_{most} - rabbitmq_{now}) {of_node}", False
    for name in GAUGES:
        yield f"rabbitmq_{name} {of_node}", False
    for name in SUMS:
        yield f"sum(rabbitmq_{name} {of_node}) by(rabbitmq_node)", False
    for name in RATES:
        yield f"sum({rate(name)} {of_node}) by(rabbitmq_node)", False
    asked, told = rate("global_messages_received_confirm_total"), rate("global_messages_confirmed_total")
    yield f"sum({asked} {of_node} - {told} {of_node}) by(rabbitmq_node)", True
    by_itself = rate("global_messages_delivered_consume_auto_ack_total")
    by_hand = rate("global_messages_delivered_consume_manual_ack_total")
    yield f"sum(({by_itself} {of_node}) + ({by_hand} {of_node})) by(rabbitmq_node)", False
    yield from sizes(of_node)


def rate(name: str) -> str:
    """Return the query for the growth of a counter per second."""
    return f"rate(rabbitmq_{name}[{RANGE}])"


def sizes(of_node: str) -> Iterator[tuple[str, bool]]:
    """Yields the mean size of messages, and the part of messages in each class of sizes."""

    def grown(name: str) -> str:
        return f"sum(increase(rabbitmq_message_size_bytes_{name}[{RANGE}]) {of_node})"

    yield f"{grown('sum')} / {grown('count')}", False
    everything = grown('bucket{le="+Inf"}')
    below = None
    for bound in BOUNDS:
        upto = grown(f'bucket{{le="{bound}"}}')
        part = upto if below is None else f"({upto} - {below})"
        yield f"{part} / {everything}", bound != "100.0"
        below = upto
