"""Virtual hosts over HTTP.

An administrator and a monitoring user see all in the listing, other users those that they may enter. Only an
administrator may ask for one by its name, and change it.
"""

from collections.abc import Container
from itertools import groupby
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.broker.users import tags_from
from rewindmq.engine.definitions.load import default_queue_type
from rewindmq.engine.host.loop_share import Work, by_key
from rewindmq.engine.http.call import Call, bad_request, done, not_found, reply, text
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, operation
from rewindmq.engine.http.shapes.topology import VhostView, VhostWish
from rewindmq.engine.http.statistics import AT_ONCE, Numbers, depth_of, statistics, summed
from rewindmq.schemas.metadata_events import VhostCreated

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker


async def numbers_of(broker: "Broker", work: Work, vhosts: Container[str]) -> dict[str, tuple[Numbers, Numbers]]:
    """Return the depth of the queues in each of these vhosts, and the counts of their deliveries.

    A vhost without queues has no entry."""
    known = statistics(broker)
    found: dict[str, tuple[Numbers, Numbers]] = {}
    queues = await broker.queues.listed(work, vhosts)
    for first in range(0, len(queues), AT_ONCE):
        for vhost, pairs in groupby(queues[first : first + AT_ONCE], lambda pair: pair[1].vhost):
            some = list(pairs)
            before, served_before = found.get(vhost, ({}, {}))
            depth, served = depth_of(queue for _, queue in some), known.of_queues(some)
            found[vhost] = summed((before, depth)), summed((served_before, served))
        if work.due:
            await work.give_way()
    return found


def view_of(call: Call, vhost: VhostCreated, numbers: dict[str, tuple[Numbers, Numbers]]) -> VhostView:
    """Return the view of a vhost.

    message_stats counts the deliveries of its queues only: publishes are not counted by vhost."""
    key, known = ("vhost", vhost.vhost), statistics(call.broker)
    depth, served = numbers.get(vhost.vhost) or (depth_of(()), known.of_queues(()))
    served = {name: value for name, value in served.items() if name != "publish"}
    return VhostView.of(vhost, call.broker, **known.rates.shown(key, depth), **known.message_stats(key, served))


@operation("Lists the virtual hosts", folds=Folds.COUNTERS, listing=VhostView)
async def list_vhosts(call: Call) -> Response:
    """Answer GET /api/vhosts."""
    names = set(call.monitored_vhosts())
    vhosts = await by_key(call.work, call.broker.topology.vhosts, names.__contains__)
    numbers = await numbers_of(call.broker, call.work, names)
    return await listed(call, vhosts, lambda vhost: view_of(call, vhost, numbers))


def named(call: Call) -> str:
    """Return the vhost in the path, for an administrator."""
    call.require()
    name = call.segment("vhost")
    if name not in call.broker.topology.vhosts:
        raise not_found()
    return name


@operation("Shows a virtual host", folds=Folds.COUNTERS, who=ADMINISTRATOR, answer=VhostView)
async def show_vhost(call: Call) -> Response:
    """Answer GET /api/vhosts/{vhost}."""
    vhost = call.broker.topology.vhosts[named(call)]
    return reply(view_of(call, vhost, await numbers_of(call.broker, call.work, {vhost.vhost})))


@operation(
    "Makes or changes a virtual host",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=VhostWish,
    answers={201: None, 204: None},
)
async def put_vhost(call: Call) -> Response:
    """Answer PUT /api/vhosts/{vhost}.

    A field that is not in the body is removed from a vhost that exists, as in RabbitMQ."""
    call.require()
    name = call.segment("vhost")
    content = await call.body()
    tags = tags_from(content.get("tags") or "")
    kind = default_queue_type(content.get("default_queue_type", content.get("defaultqueuetype")))
    tracing = content.get("tracing")
    if tracing not in (None, True, False, "true", "false"):
        raise bad_request("tracing must be true or false")
    new = name not in call.broker.topology.vhosts
    await call.broker.vhosts.create(call.actor(), name, text(content, "description", ""), tags, kind)
    if new and call.grant is None:  # the user who makes a vhost may use it, as in RabbitMQ's API
        await call.broker.access.users.set_permissions(call.actor(), name, call.user, ".*", ".*", ".*")
    await call.durable()
    if tracing is not None:  # a vhost keeps its tracing where the body does not name it, as in RabbitMQ
        call.broker.firehose.switch(name, tracing in (True, "true"))
    return done(new)


@operation(
    "Deletes a virtual host with all that is in it",
    folds=Folds.IF_CHANGED,
    act="delete",
    who=ADMINISTRATOR,
    answers={204: None},
)
async def delete_vhost(call: Call) -> Response:
    """Answer DELETE /api/vhosts/{vhost}."""
    await call.broker.vhosts.delete(call.actor(), named(call))
    await call.durable()
    return Response(status_code=204)


@operation(
    "Starts a virtual host at a node. Here it always runs", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None}
)
async def start_vhost(call: Call) -> Response:
    """Answer POST /api/vhosts/{vhost}/start/{node}.

    A vhost of RabbitMQ's can be down on a node. Ours always runs."""
    named(call)
    node = call.segment("node")
    if node != call.broker.config.node and node not in (each.node for each in call.broker.topology.nodes.values()):
        raise bad_request(f"Request to node {node} failed: there is no such node")
    return Response(status_code=204)
