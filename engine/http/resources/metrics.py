"""Prometheus, by RabbitMQ's paths and names (docs/behaviours/interfaces.md#metrics). Only exact figures are shown.

    /metrics                   of the node: figures of queues, channels and connections are added up
    /metrics/per-object        one sample for each of them
    /metrics/detailed          only the families asked for (`family`, more than once), as rabbitmq_detailed_...; `vhost`
                               (more than once) and `queue` (a regular expression) choose among the queues
    /metrics/memory-breakdown  the memory of this process

A family is RabbitMQ's (prometheus_rabbitmq_core_metrics_collector.erl), without the figures of Erlang and of its
stores. Names (of vhosts, queues, exchanges, channels, connections) are shown for the vhosts that the user may see. At
the metrics' own port all names are shown. Figures without names count everything. Counters count from the broker's
start, except two of ours that follow from the history: the outcomes of messages count over the life of each queue,
quarantined records over that of the log.
"""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.host.watermarks import resident_bytes
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.http.metrics.exposition import MEDIA_TYPE, Metric, exposition, lines_of, single
from rewindmq.engine.http.metrics.history import history_metrics, queue_history
from rewindmq.engine.http.metrics.node import NODE, clusterwide, global_counters, info, object_totals
from rewindmq.engine.http.metrics.ours import (
    door_metrics,
    follower_metrics,
    history_counters,
    log_gauges,
    loop_stalls,
    memory_held,
    oldest_ready,
    queue_waits,
    unrouted_publishes,
    waits,
)
from rewindmq.engine.http.metrics.per_object import (
    CHANNELS,
    CONNECTIONS,
    QUEUES,
    all_queues,
    channels_seen,
    connections_seen,
    of_objects,
    queues_seen,
)
from rewindmq.engine.http.pieces import answer
from rewindmq.engine.http.reference.operation import Query
from rewindmq.engine.http.resources.overview import totals
from rewindmq.engine.http.statistics import statistics

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

MAX_PATTERN = 1_000  # of a regular expression
CHOICE = (
    Query("family", list[str], "A family of metrics; more than once for more of them"),
    Query("vhost", list[str], "Only the queues of these virtual hosts"),
    Query("queue", str, "Only the queues whose names this regular expression matches"),
)


async def metrics(broker: "Broker", apart: bool = False, seen: list[str] | None = None) -> Response:
    """Return the answer to /metrics, and with `apart` to /metrics/per-object. `seen`: the vhosts shown; None: all."""
    work = Work(broker.host.loop_share)
    found = list(info(broker, "per-object" if apart else "aggregated"))
    for of_node in NODE.values():
        found += of_node(broker)
    now = await totals(broker, work)
    found += object_totals(now)
    pairs = await broker.queues.listed(work, broker.topology.vhosts)
    vhosts = seen if apart else None
    if apart:
        shown = [pair for pair in pairs if vhosts is None or pair[1].vhost in vhosts]
        found += of_objects(QUEUES, QUEUES, await queues_seen(broker, work, shown), True)
        found.append(await queue_history(broker, work, pairs, shown))
        found += await queue_waits(work, shown)
    else:
        found += of_objects(QUEUES, QUEUES, [await all_queues(work, statistics(broker), pairs)], False)
        found.append(await oldest_ready(work, pairs))
    found += of_objects(CHANNELS, CHANNELS, await channels_seen(broker, work, pairs, vhosts), apart)
    found += of_objects(CONNECTIONS, CONNECTIONS, connections_seen(broker, vhosts), apart)
    found += [
        *global_counters(broker, now["consumers"]),
        *log_gauges(broker),
        *unrouted_publishes(broker),
        *door_metrics(broker),
        loop_stalls(broker),
        *waits(broker),
        *follower_metrics(broker),
        *await history_counters(broker, work, pairs),
        *history_metrics(broker),
        memory_held(broker),
    ]
    return await answer(exposition(work, [("rabbitmq_", metric) for metric in found]), MEDIA_TYPE)


async def detailed(broker: "Broker", request: Request, seen: list[str] | None = None) -> Response:
    """Return the answer to /metrics/detailed. `seen`: the vhosts shown; None: all.

    A family that is not known is left out, as in RabbitMQ."""
    query = request.query_params
    families = query.getlist("family")
    vhosts = [each for each in query.getlist("vhost") if each in broker.topology.vhosts] or seen
    if vhosts is not None and seen is not None:
        vhosts = [each for each in vhosts if each in seen]
    work = Work(broker.host.loop_share)
    everywhere = await broker.queues.listed(work, broker.topology.vhosts)
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
    clusters = await clusterwide(broker, work, families, vhosts)
    return await answer(
        exposition(
            work,
            [
                *(("rabbitmq_", metric) for metric in info(broker, "detailed")),
                *(("rabbitmq_detailed_", metric) for metric in found),
                *(("rabbitmq_cluster_", metric) for metric in clusters),
            ],
        ),
        MEDIA_TYPE,
    )


def memory_breakdown(broker: "Broker") -> Response:
    """Return the answer to /metrics/memory-breakdown.

    RabbitMQ divides the memory among Erlang's processes and tables. Here it is one process's."""
    rss = single("memory_rss_bytes", "Resident memory of the process", resident_bytes())
    found = (*info(broker, "memory-breakdown"), rss, memory_held(broker))
    return exposed("".join(line for metric in found for line in lines_of(metric, "rabbitmq_")))


def exposed(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type=MEDIA_TYPE)
