"""The broker as a whole: overview, nodes, version, the logged-in user. Health checks are in health.py.

RabbitMQ's figures about Erlang (processes, schedulers, its memory) have no counterpart, and are left out.
"""

import os
import resource
import shutil
import sys
import time
from collections.abc import Container
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, cast

from starlette.responses import Response

from rewindmq import builds
from rewindmq.engine.broker.history_size import KAFKA, LOCAL
from rewindmq.engine.broker.parameters import CLUSTER_NAME
from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.http.call import Call, bad_request, not_found, reply, text
from rewindmq.engine.http.followers import standby_item
from rewindmq.engine.http.listing import STATS, Item, listed, single
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.resources.clients import visible_sessions
from rewindmq.engine.http.resources.clock import clock_item
from rewindmq.engine.http.resources.erasures import expiry_item
from rewindmq.engine.http.shapes.node import Level, Memory, Name, Node, Overview, User, Value
from rewindmq.engine.http.statistics import AT_ONCE, Numbers, depth_of, of_channel, of_node, statistics, summed
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.logging_setup import LEVELS, set_level
from rewindmq.engine.routing.exchange_types import EXCHANGE_TYPES
from rewindmq.engine.runtime.loop_share import Work
from rewindmq.engine.runtime.watermarks import disk_limit, memory_watermark, resident_bytes
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.rewind import format_time

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.engine.runtime.sessions import Session

STARTED = time.monotonic()
PLUGINS = ("rabbitmq_management", "rabbitmq_prometheus")  # RabbitMQ's plugins that are built in here
MECHANISMS = {"AMQPLAIN": "QPid AMQPLAIN mechanism", "PLAIN": "SASL PLAIN authentication mechanism"}


def uptime_seconds() -> float:
    """Seconds since the process started."""
    return time.monotonic() - STARTED


def open_descriptors() -> tuple[int, int]:
    """The open file descriptors, and the most that there may be."""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return used, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def totals(
    broker: "Broker", work: Work, vhosts: Container[str] | None = None, sessions: "list[Session] | None" = None
) -> dict[str, int]:
    """The totals of these vhosts and sessions, or of all."""
    pairs = await broker.queues.listed(work, broker.topology.vhosts if vhosts is None else vhosts)
    depth, consumers = depth_of(()), 0
    for first in range(0, len(pairs), AT_ONCE):
        queues = [queue for _, queue in pairs[first : first + AT_ONCE]]
        depth = summed((depth, depth_of(queues)))
        consumers += sum(queue.consumer_count() for queue in queues)
        if work.due:
            await work.give_way()
    open_sessions = list(broker.sessions.by_id.values()) if sessions is None else sessions
    return {
        **depth,
        "queues": len(pairs),
        "consumers": consumers,
        "connections": len(open_sessions),
        "channels": sum(len(each.channels) for each in open_sessions),
        "exchanges": sum(vhosts is None or vhost in vhosts for vhost, _ in broker.topology.exchanges),
    }


@operation("Shows the broker at a glance", folds=Folds.COUNTERS, query=STATS, columns=True, answer=Overview)
async def overview(call: Call) -> Response:
    """Answers GET /api/overview.

    A user without the tag monitoring sees its own vhosts and connections only, and no address of the machine."""
    broker = call.broker
    config = broker.config
    monitors = call.monitors
    item: Item = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "product_name": "RewindMQ",
        "product_version": VERSION,
        "machine_version": broker.topology.machine_version,
        "known_machine_version": MACHINE_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "python_version": sys.version.split()[0],
        "build": builds.running().kind,
        "node": config.node,
        "cluster_name": broker.parameters.cluster_name,
        "disable_stats": call.asks("disable_stats"),
        "enable_queue_totals": call.asks("enable_queue_totals"),
        "is_op_policy_updating_enabled": True,
        "uptime_seconds": int(uptime_seconds()),
        "data": str(config.data),
        "log": [log_item(broker, partition) for partition in broker.partitions],
        "publishing_blocked": broker.turns.blocked,
        "alarms": alarms_of(broker),
    }
    vhosts, sessions = call.monitored_vhosts(), visible_sessions(call, None)
    now = await (totals(broker, call.work) if monitors else totals(broker, call.work, vhosts, sessions))
    ages = [age for partition in broker.partitions if (age := partition.counters_age_ms) is not None]
    item["counters_age_ms"] = max(ages, default=None)
    item["object_totals"] = {key: now[key] for key in ("channels", "connections", "consumers", "exchanges", "queues")}
    if not call.asks("disable_stats"):
        item |= overview_stats(broker, now, call.user if not monitors else None, sessions)
    if monitors:
        item |= {"listeners": listeners(broker), "contexts": contexts(broker)}
        item |= {"history": history_item(broker), "fork": fork_item(broker), "standby": standby_item(broker)}
    return single(call, item)


def overview_stats(broker: "Broker", now: dict[str, int], user: str | None, sessions: "list[Session]") -> Item:
    """The statistics in the overview: the node's or, for a `user`, those of its connections."""
    known = statistics(broker)
    messages, churn = of_node(broker)
    if user is not None:
        messages = summed(of_channel(channel) for session in sessions for channel in session.channels.values())
    rates_key = "node" if user is None else f"user {user}"
    depth: Numbers = {key: now[key] for key in ("messages", "messages_ready", "messages_unacknowledged")}
    return {
        "message_stats": known.rates.shown((rates_key, "message_stats"), messages),
        "churn_rates": known.rates.shown(("node", "churn"), churn),
        "queue_totals": known.rates.shown((rates_key, "queue_totals"), depth),
        "statistics_db_event_queue": 0,
    }


def history_item(broker: "Broker") -> Item:
    """Return the costs of the history as JSON. A value is null while it is unknown, `archive` also if there is none."""
    size = broker.history_size
    full_in_days = size.full_in_days
    growth = size.growth_per_day
    return {
        "local_bytes": size.total_bytes if size.by_partition and size.tier == LOCAL else None,
        "kafka_bytes": size.total_bytes if size.by_partition and size.tier == KAFKA else None,
        "growth_bytes_per_day": None if growth is None else int(growth),
        "disk_full_in_days": None if full_in_days is None else round(full_in_days, 1),
        "archive": None if broker.archive is None else broker.archive.item(),
        "trims": broker.trims.item(),
    }


def alarms_of(broker: "Broker") -> list[Item]:
    """The alarms of this node."""
    node = broker.config.node
    return [{"node": node, "resource": name, "reason": reason} for name, reason in broker.alarms.in_effect()]


def fork_item(broker: "Broker") -> Item | None:
    """Where this history branched from another one; None: it is no fork."""
    forks = broker.topology.history.forks
    if not forks:
        return None
    event = forks[-1].event
    return {
        "parent": event.parent,
        "identity": event.identity,
        "moment": event.moment,
        "made": format_time(forks[-1].time_ms),
        "positions": {METADATA: forks[-1].at, **dict(event.positions)},
        "source": event.source,
    }


def exchange_types() -> list[Item]:
    """The exchange types that exist."""
    return [{"name": name, "description": kind.description, "enabled": True} for name, kind in EXCHANGE_TYPES.items()]


def open_listeners(broker: "Broker") -> list[tuple[str, str, int]]:
    """The listeners that take connections: (protocol, address, port) of each.

    An operator may have suspended those for AMQP."""
    listeners = broker.listeners
    suspended = listeners is not None and not listeners.open
    return [each for each in broker.config.listeners if not (suspended and each[0].startswith("amqp"))]


def listeners(broker: "Broker") -> list[Item]:
    """The open listeners of the node."""
    return [
        {"node": broker.config.node, "protocol": protocol, "ip_address": address, "port": port, "socket_opts": {}}
        for protocol, address, port in open_listeners(broker)
    ]


def contexts(broker: "Broker") -> list[Item]:
    """The listeners of the management API."""
    names = {"http": "RabbitMQ Management", "https": "RabbitMQ Management", "http/prometheus": "RabbitMQ Prometheus"}
    return [
        {
            "node": broker.config.node,
            "description": names[protocol],
            "path": "/",
            "ip": address,
            "port": str(port),
            "ssl_opts": [],
            "protocol": protocol,
        }
        for protocol, address, port in broker.config.listeners
        if protocol in names
    ]


def log_item(broker: "Broker", partition: "Partition") -> Item:
    """The log as JSON. `leader`, `members`, `online`: Kafka's brokers, or this node."""
    members = broker.keeper.members(partition)
    return {
        "partition": partition.name,
        "topic": broker.config.topic_of(partition.name),
        "next_offset": partition.next_offset,
        "durable_offset": partition.durable_offset,
        "state_offset": partition.machine.next_offset,
        "leader": members.leader,
        "members": list(members.members),
        "online": list(members.online),
        "owned": partition.owned,
    }


@operation("Shows the user that asks", folds=Folds.COUNTERS, answer=User)
async def whoami(call: Call) -> Response:
    """Answers GET /api/whoami."""
    return reply({"name": call.user, "tags": list(call.tags), "is_internal_user": call.grant is None})


@operation("Shows the version of RabbitMQ whose rules hold", folds=Folds.COUNTERS, answer=str)
async def version(call: Call) -> Response:
    """Answers GET /api/version."""
    return reply(RABBITMQ_VERSION)


@operation("Shows the name of the cluster", folds=Folds.COUNTERS, answer=Name)
async def cluster_name(call: Call) -> Response:
    """Answers GET /api/cluster-name."""
    return reply({"name": call.broker.parameters.cluster_name})


@operation("Names the cluster", folds=Folds.NONE, who=ADMINISTRATOR, body=Name, answers={204: None})
async def set_cluster_name(call: Call) -> Response:
    """Answers PUT /api/cluster-name {"name": ...}, for administrators.

    The name is a global parameter, as in RabbitMQ."""
    call.require()
    content = await call.body("name")
    name = text(content, "name", "")
    if not name:
        raise bad_request("the cluster's name must not be empty")
    await call.broker.parameters.set_global(call.actor(), CLUSTER_NAME, name)
    await call.durable()
    return Response(status_code=204)


# -- nodes ------------------------------------------------------------------------------------------------------------


def node_items(broker: "Broker") -> list[Item]:
    """All nodes that share the log and are alive, by name.

    The other nodes are described by the events with which they joined. `owned_partitions`: the partitions whose duties
    (timers, dead letters) the node has; null: only the node itself knows."""
    own = broker.keeper.epoch
    owned, knows = owned_partitions(broker)
    others: list[Item] = [
        {
            "name": joined.node,
            "type": "disc",
            "running": True,
            "address": joined.address,
            "epoch": epoch,
            "owned_partitions": owned.get(joined.node, []) if knows else None,
            "partitions": [],
            "applications": [{"name": "rewindmq", "description": "RewindMQ", "version": joined.version}],
        }
        for epoch, joined in broker.topology.nodes.items()
        if epoch != own
    ]
    return sorted([node_item(broker), *others], key=lambda item: str(item["name"]))


def owned_partitions(broker: "Broker") -> tuple[dict[str, list[str]], bool]:
    """The partitions of each node, as far as their owners have said it, and whether each one has."""
    owned: dict[str, list[str]] = {}
    knows = True
    for partition in broker.partitions:
        owner = broker.keeper.place(partition).owner
        if owner is None:
            knows = False
        else:
            owned.setdefault(owner, []).append(partition.name)
    return owned, knows


def node_item(broker: "Broker") -> Item:
    """This node as JSON."""
    used, most = open_descriptors()
    config = broker.config
    switches = resource.getrusage(resource.RUSAGE_SELF)
    numbers: Numbers = {
        "mem_used": resident_bytes(),
        "fd_used": used,
        "sockets_used": len(broker.sessions.by_id),
        "disk_free": shutil.disk_usage(config.data).free,
        "context_switches": switches.ru_nvcsw + switches.ru_nivcsw,
    }
    _, churn = of_node(broker)
    known = statistics(broker).rates
    return {
        "name": config.node,
        "type": "disc",
        "running": broker.keeper.joined,
        "being_drained": False,
        "os_pid": str(os.getpid()),
        "address": config.address,
        "epoch": broker.keeper.epoch,
        "owned_partitions": [partition.name for partition in broker.partitions if partition.owned],
        "build": str(builds.running()),
        "uptime": int(uptime_seconds() * 1000),
        "mem_limit": broker.memory.limit_bytes,
        "mem_alarm": broker.alarms.memory,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": broker.alarms.disk_limit_bytes,
        "disk_free_alarm": any(name == "disk" for name, _ in broker.alarms.in_effect()),
        "fd_total": most,
        "sockets_total": most,
        "partitions": [],
        "cluster_links": [],
        "processors": os.cpu_count() or 1,
        "db_dir": str(config.data),
        "log_files": ["<stderr>"],
        "config_files": [],
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "enabled_plugins": list(PLUGINS),
        "clock": clock_item(broker),
        "expired_bodies": expiry_item(broker),
        "auth_mechanisms": [
            {"name": name, "description": description, "enabled": True} for name, description in MECHANISMS.items()
        ],
        "contexts": contexts(broker),
        "applications": [
            {"name": "rewindmq", "description": "RewindMQ", "version": VERSION},
            {"name": "uvicorn", "description": "ASGI server", "version": installed_version("uvicorn")},
        ],
        **known.shown(("node", "usage"), numbers),
        **known.shown(("node", "churn"), churn),
    }


@operation("Lists the nodes", folds=Folds.COUNTERS, who=MONITORING, listing=Node)
async def nodes(call: Call) -> Response:
    """Answers GET /api/nodes."""
    call.require("monitoring")
    return await listed(call, node_items(call.broker))


def node_named(call: Call) -> Item:
    """The node in the path. Raises ApiError (404)."""
    call.require("monitoring")
    for item in node_items(call.broker):
        if item["name"] == call.segment("node"):
            return item
    raise not_found()


@operation("Shows a node", folds=Folds.COUNTERS, who=MONITORING, columns=True, answer=Node)
async def node(call: Call) -> Response:
    """Answers GET /api/nodes/{node}."""
    return single(call, node_named(call))


@operation(
    "Sets the level of the node's log until it stops",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=Level,
    answers={204: None},
)
async def set_log_level(call: Call) -> Response:
    """Answers PUT .../log-level {"level": ...}, for administrators. The level holds until the node stops."""
    call.require()
    if call.segment("node") != call.broker.config.node:
        raise not_found()
    content = await call.body("level")
    level = text(content, "level", "")
    if level not in LEVELS:
        raise bad_request(f"the level must be one of {', '.join(LEVELS)}")
    set_level(level)
    return Response(status_code=204)


@operation("Shows the memory of the node", folds=Folds.COUNTERS, who=MONITORING, answer=Memory)
async def memory(call: Call) -> Response:
    """Answers GET .../memory in the shape of RabbitMQ's.

    It shows the memory of this process, and the part that is held for clients, by kind (engine/runtime/memory.py)."""
    item = node_named(call)
    if "mem_used" not in item:  # another node
        raise not_found()
    used, account = cast(int, item["mem_used"]), call.broker.memory
    held = {kind.value: size for kind, size in account.by_kind.items()}
    return reply({"memory": {**held, "strategy": "rss", "total": {"rss": used, "held": account.held_bytes}}})


# -- limits -----------------------------------------------------------------------------------------------------------


@operation(
    "Sets vm_memory_high_watermark or disk_free_limit until the node stops",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=Value,
    answers={204: None},
)
async def set_limit(call: Call) -> Response:
    """Answers PUT .../limits/vm_memory_high_watermark or disk_free_limit {"value": "0.4"}.

    The value is as `rewindmq start` takes it. It holds for this node, until it stops."""
    call.require()
    if call.segment("node") != call.broker.config.node:
        raise not_found("only this node's limits can be set here", "not_found")
    setters = {
        "vm_memory_high_watermark": (memory_watermark, call.broker.alarms.set_memory_limit),
        "disk_free_limit": (disk_limit, call.broker.alarms.set_disk_limit),
    }
    parse, put = setters.get(call.segment("limit"), (None, None))
    if parse is None or put is None:
        raise not_found()
    content = await call.body("value")
    try:
        put(parse(str(content["value"])))
    except ValueError as error:
        raise bad_request(str(error)) from None
    return Response(status_code=204)
