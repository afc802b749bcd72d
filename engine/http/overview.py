"""The broker as a whole: overview, node, who asks, and health checks."""

import os
import resource
import shutil
import sys
import time
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.config import RABBITMQ_VERSION, VERSION
from engine.http.call import ApiError, Call, not_found, reply
from engine.http.listing import Item, listed

if TYPE_CHECKING:
    from engine.broker import Broker
    from engine.partition import Partition

STARTED = time.monotonic()
EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic")


def uptime_seconds() -> float:
    return time.monotonic() - STARTED


def resident_bytes() -> int:
    """Memory of this process, from /proc where there is one, else the largest it has been."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_descriptors() -> tuple[int, int]:
    """(open, most)"""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return used, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def totals(broker: "Broker") -> dict[str, int]:
    queues = [queue for partition in broker.partitions for queue in partition.machine.queues()]
    ready, unacked = sum(queue.messages_ready for queue in queues), sum(queue.messages_unacked for queue in queues)
    return {
        "messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked,
        "queues": len(queues), "consumers": sum(queue.consumer_count() for queue in queues),
        "connections": len(broker.sessions), "channels": sum(len(each.channels) for each in broker.sessions.values()),
        "exchanges": len(broker.topology.exchanges),
    }  # fmt: skip


async def overview(call: Call) -> Response:
    broker = call.broker
    now = totals(broker)
    config = broker.config
    exchange_types = [
        {"name": name, "description": f"AMQP {name} exchange, as per the AMQP specification", "enabled": True}
        for name in EXCHANGE_TYPES
    ]
    item: Item = {
        "product_name": "RewindMQ", "product_version": VERSION, "rabbitmq_version": RABBITMQ_VERSION,
        "management_version": RABBITMQ_VERSION, "python_version": sys.version.split()[0], "node": config.node,
        "cluster_name": config.cluster_name, "rates_mode": "none", "exchange_types": exchange_types,
        "queue_totals": {key: now[key] for key in ("messages", "messages_ready", "messages_unacknowledged")},
        "object_totals": {key: now[key] for key in ("channels", "connections", "consumers", "exchanges", "queues")},
        "message_stats": {}, "churn_rates": {}, "uptime_seconds": int(uptime_seconds()), "data": str(config.data),
        "listeners": [
            {"node": config.node, "protocol": protocol, "ip_address": config.host, "port": port}
            for protocol, port in (("amqp", config.amqp_port), ("http", config.http_port))
        ],
        "log": [log_item(broker, partition) for partition in broker.partitions],
        "publishing_blocked": broker.blocked,
    }  # fmt: skip
    return reply(item)


def log_item(broker: "Broker", partition: "Partition") -> Item:
    """`leader`, `members`, `online`: Kafka's brokers, or this node."""
    members = broker.keeper.members(partition)
    return {
        "partition": partition.name, "topic": broker.config.queues_topic, "next_offset": partition.next_offset,
        "durable_offset": partition.durable_offset, "state_offset": partition.machine.next_offset,
        "leader": members.leader, "members": list(members.members), "online": list(members.online),
        "owned": partition.owned,
    }  # fmt: skip


async def whoami(call: Call) -> Response:
    return reply({"name": call.user, "tags": list(call.tags), "is_internal_user": False})


async def version(call: Call) -> Response:
    return reply(RABBITMQ_VERSION)


def node_items(broker: "Broker") -> list[Item]:
    """All nodes that share the log and are alive, by name. Of the others it is known what they said when they joined.
    `owned_partitions`: whose duties (timers, dead letters) the node has; null: that only the node itself can tell."""
    own = broker.keeper.epoch
    others: list[Item] = [
        {"name": joined.node, "type": "disc", "running": True, "address": joined.address, "epoch": epoch,
         "owned_partitions": None, "partitions": [],
         "applications": [{"name": "rewindmq", "description": "RewindMQ", "version": joined.version}]}
        for epoch, joined in broker.topology.nodes.items()
        if epoch != own
    ]  # fmt: skip
    return sorted([node_item(broker), *others], key=lambda item: str(item["name"]))


def node_item(broker: "Broker") -> Item:
    used, most = open_descriptors()
    config = broker.config
    return {
        "name": config.node, "type": "disc", "running": broker.keeper.joined, "os_pid": str(os.getpid()),
        "address": config.address, "epoch": broker.keeper.epoch,
        "owned_partitions": [partition.name for partition in broker.partitions if partition.owned],
        "uptime": int(uptime_seconds() * 1000), "mem_used": resident_bytes(), "mem_alarm": False,
        "disk_free": shutil.disk_usage(config.data).free, "disk_free_alarm": broker.blocked is not None,
        "fd_used": used, "fd_total": most, "sockets_used": len(broker.sessions), "partitions": [],
        "processors": os.cpu_count() or 1, "db_dir": str(config.data), "rates_mode": "none",
        "applications": [{"name": "rewindmq", "description": "RewindMQ", "version": VERSION},
                         {"name": "uvicorn", "description": "ASGI server", "version": installed_version("uvicorn")}],
    }  # fmt: skip


async def nodes(call: Call) -> Response:
    call.require("monitoring")
    return listed(call, node_items(call.broker))


async def node(call: Call) -> Response:
    call.require("monitoring")
    for item in node_items(call.broker):
        if item["name"] == call.segment("node"):
            return reply(item)
    raise not_found()


async def alarms(call: Call) -> Response:
    """503 while publishing is held back: the only alarm there is."""
    if call.broker.blocked is not None:
        raise ApiError(503, "failed", f"There are alarms in effect on the node: {call.broker.blocked}")
    return reply({"status": "ok"})


async def healthy(call: Call) -> Response:
    return reply({"status": "ok"})


async def ready(call: Call) -> Response:
    """503 while a node that was declared lost has not joined again: it turns clients away."""
    if not call.broker.keeper.joined:
        raise ApiError(503, "failed", "the node was declared lost and joins again")
    return reply({"status": "ok"})
