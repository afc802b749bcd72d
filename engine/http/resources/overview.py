"""The broker as a whole: overview, nodes, version, the logged-in user. Health checks are in health.py.

RabbitMQ's figures about Erlang (processes, schedulers, its memory) have no counterpart, and are left out.
"""

import resource
import shutil
from collections.abc import Container
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.broker.parameters import CLUSTER_NAME
from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.host.watermarks import disk_limit, memory_watermark, resident_bytes
from rewindmq.engine.http.call import Call, bad_request, not_found, reply, text
from rewindmq.engine.http.listing import STATS, Item, listed, single
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.resources.clients import visible_sessions
from rewindmq.engine.http.shapes.node import (
    ApplicationView,
    LevelWish,
    MemoryView,
    Name,
    NodeView,
    ObjectTotalsView,
    OverviewView,
    UserView,
    ValueWish,
)
from rewindmq.engine.http.statistics import AT_ONCE, Numbers, depth_of, of_channel, of_node, statistics, summed
from rewindmq.engine.logging_setup import LEVELS, set_level
from rewindmq.projections import system_calls

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.sessions import Session


async def totals(
    broker: "Broker", work: Work, vhosts: Container[str] | None = None, sessions: "list[Session] | None" = None
) -> dict[str, int]:
    """Return the totals of these vhosts and sessions, or of all."""
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


@operation("Shows the broker at a glance", folds=Folds.COUNTERS, query=STATS, columns=True, answer=OverviewView)
async def overview(call: Call) -> Response:
    """Answer GET /api/overview.

    A user without the tag monitoring sees its own vhosts and connections only, and no address of the machine."""
    broker = call.broker
    monitors = call.monitors
    vhosts, sessions = call.monitored_vhosts(), visible_sessions(call, None)
    now = await (totals(broker, call.work) if monitors else totals(broker, call.work, vhosts, sessions))
    stats: Item = {}
    if not call.asks("disable_stats"):
        stats = overview_stats(broker, now, call.user if not monitors else None, sessions)
    totals_of = {name: now[name] for name in ("channels", "connections", "consumers", "exchanges", "queues")}
    return single(call, OverviewView.of(broker, call, object_totals=ObjectTotalsView(**totals_of), **stats))


def overview_stats(broker: "Broker", now: dict[str, int], user: str | None, sessions: "list[Session]") -> Item:
    """Return the statistics in the overview: the node's or, for a `user`, those of its connections."""
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


@operation("Shows the user that asks", folds=Folds.COUNTERS, answer=UserView)
async def whoami(call: Call) -> Response:
    """Answer GET /api/whoami."""
    return reply(UserView(name=call.user, tags=list(call.tags), is_internal_user=call.grant is None))


@operation("Shows the version of RabbitMQ whose rules hold", folds=Folds.COUNTERS, answer=str)
async def version(call: Call) -> Response:
    """Answer GET /api/version."""
    return reply(RABBITMQ_VERSION)


@operation("Shows the name of the cluster", folds=Folds.COUNTERS, answer=Name)
async def cluster_name(call: Call) -> Response:
    """Answer GET /api/cluster-name."""
    return reply({"name": call.broker.parameters.cluster_name})


@operation("Names the cluster", folds=Folds.NONE, who=ADMINISTRATOR, body=Name, answers={204: None})
async def set_cluster_name(call: Call) -> Response:
    """Answer PUT /api/cluster-name {"name": ...}, for administrators.

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


def node_views(broker: "Broker") -> list[NodeView]:
    """Return all nodes that share the log and are alive, by name.

    The other nodes are described by the events with which they joined. `owned_partitions`: the partitions whose duties
    (timers, dead letters) the node has; null: only the node itself knows."""
    own = broker.keeper.epoch
    owned, knows = owned_partitions(broker)
    others = [
        NodeView(
            name=joined.node,
            type="disc",
            running=True,
            address=joined.address,
            epoch=epoch,
            owned_partitions=owned.get(joined.node, []) if knows else None,
            partitions=[],
            applications=[ApplicationView(name="rewindmq", description="RewindMQ", version=joined.version)],
        )
        for epoch, joined in broker.topology.nodes.items()
        if epoch != own
    ]
    return sorted([own_view(broker), *others], key=lambda view: view.name)


def owned_partitions(broker: "Broker") -> tuple[dict[str, list[str]], bool]:
    """Return the partitions of each node, as far as their owners have said it, and whether each one has."""
    owned: dict[str, list[str]] = {}
    knows = True
    for partition in broker.partitions:
        owner = broker.nodes.place(partition).owner
        if owner is None:
            knows = False
        else:
            owned.setdefault(owner, []).append(partition.name)
    return owned, knows


def own_view(broker: "Broker") -> NodeView:
    """Return the view of this node."""
    switches = resource.getrusage(resource.RUSAGE_SELF)
    numbers: Numbers = {
        "mem_used": resident_bytes(),
        "fd_used": system_calls.open_descriptors()[0],
        "sockets_used": len(broker.sessions.by_id),
        "disk_free": shutil.disk_usage(broker.config.data).free,
        "context_switches": switches.ru_nvcsw + switches.ru_nivcsw,
    }
    _, churn = of_node(broker)
    known = statistics(broker).rates
    return NodeView.of(
        broker,
        name=broker.config.node,
        type="disc",
        running=broker.nodes.joined,
        address=broker.config.address,
        epoch=broker.keeper.epoch,
        owned_partitions=[partition.name for partition in broker.partitions if partition.owned],
        partitions=[],
        applications=[
            ApplicationView(name="rewindmq", description="RewindMQ", version=VERSION),
            ApplicationView(name="uvicorn", description="ASGI server", version=installed_version("uvicorn")),
        ],
        **known.shown(("node", "usage"), numbers),
        **known.shown(("node", "churn"), churn),
    )


@operation("Lists the nodes", folds=Folds.COUNTERS, who=MONITORING, listing=NodeView)
async def nodes(call: Call) -> Response:
    """Answer GET /api/nodes."""
    call.require("monitoring")
    return await listed(call, node_views(call.broker))


def node_named(call: Call) -> NodeView:
    """Return the node in the path. Raises ApiError (404)."""
    call.require("monitoring")
    for view in node_views(call.broker):
        if view.name == call.segment("node"):
            return view
    raise not_found()


@operation("Shows a node", folds=Folds.COUNTERS, who=MONITORING, columns=True, answer=NodeView)
async def node(call: Call) -> Response:
    """Answer GET /api/nodes/{node}."""
    return single(call, node_named(call))


@operation(
    "Sets the level of the node's log until it stops",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=LevelWish,
    answers={204: None},
)
async def set_log_level(call: Call) -> Response:
    """Answer PUT .../log-level {"level": ...}, for administrators. The level holds until the node stops."""
    call.require()
    if call.segment("node") != call.broker.config.node:
        raise not_found()
    content = await call.body("level")
    level = text(content, "level", "")
    if level not in LEVELS:
        raise bad_request(f"the level must be one of {', '.join(LEVELS)}")
    set_level(level)
    return Response(status_code=204)


@operation("Shows the memory of the node", folds=Folds.COUNTERS, who=MONITORING, answer=MemoryView)
async def memory(call: Call) -> Response:
    """Answer GET .../memory in the shape of RabbitMQ's.

    It shows the memory of this process, and the part that is held for clients, by kind (engine/host/memory.py)."""
    if node_named(call).name != call.broker.config.node:
        raise not_found()
    account = call.broker.host.memory
    held = {kind.value: size for kind, size in account.by_kind.items()}
    total = {"rss": resident_bytes(), "held": account.held_bytes}
    return reply(MemoryView(memory={**held, "strategy": "rss", "total": total}))


# -- limits -----------------------------------------------------------------------------------------------------------


@operation(
    "Sets vm_memory_high_watermark or disk_free_limit until the node stops",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=ValueWish,
    answers={204: None},
)
async def set_limit(call: Call) -> Response:
    """Answer PUT .../limits/vm_memory_high_watermark or disk_free_limit {"value": "0.4"}.

    The value is as `rewindmq start` takes it. It holds for this node, until it stops."""
    call.require()
    if call.segment("node") != call.broker.config.node:
        raise not_found("only this node's limits can be set here", "not_found")
    setters = {
        "vm_memory_high_watermark": (memory_watermark, call.broker.host.alarms.set_memory_limit),
        "disk_free_limit": (disk_limit, call.broker.host.alarms.set_disk_limit),
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
