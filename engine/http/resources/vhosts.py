"""Virtual hosts over HTTP. Who sees them: an administrator and a monitoring user all, others those that they may enter;
only an administrator sees one by its name and changes it."""

from starlette.responses import Response

from rewindmq.engine.broker.users import tags_from
from rewindmq.engine.definitions.document import metadata_of
from rewindmq.engine.definitions.load import default_queue_type
from rewindmq.engine.http.call import Call, bad_request, done, not_found, reply, text
from rewindmq.engine.http.listing import Item, listed
from rewindmq.engine.http.statistics import depth_of, statistics


def vhost_item(call: Call, name: str) -> Item:
    """message_stats: of what its queues delivered, for what was published is not counted by vhost."""
    queues = list(call.broker.visible_queues(name))
    known = statistics(call.broker)
    depth = depth_of([queue for _, queue in queues])
    served = known.of_queues(queues)
    served.pop("publish", None)
    vhost = call.broker.topology.vhosts[name]
    return {
        "name": name, "description": vhost.description, "tags": list(vhost.tags),
        "default_queue_type": vhost.default_queue_type or "undefined", "metadata": metadata_of(vhost),
        "tracing": name in call.broker.firehose.vhosts, "cluster_state": {call.broker.config.node: "running"},
        **known.rates.shown(("vhost", name), depth), **known.message_stats(("vhost", name), served),
    }  # fmt: skip


async def list_vhosts(call: Call) -> Response:
    return await listed(call, call.monitored_vhosts(), lambda vhost: vhost_item(call, vhost))


def named(call: Call) -> str:
    """The vhost in the path, for an administrator."""
    call.require()
    name = call.segment("vhost")
    if name not in call.broker.topology.vhosts:
        raise not_found()
    return name


async def show_vhost(call: Call) -> Response:
    return reply(vhost_item(call, named(call)))


async def put_vhost(call: Call) -> Response:
    """What the body does not say is taken away from a vhost that exists, as in RabbitMQ."""
    call.require()
    name = call.segment("vhost")
    content = await call.body()
    tags = tags_from(content.get("tags") or "")
    kind = default_queue_type(content.get("default_queue_type", content.get("defaultqueuetype")))
    tracing = content.get("tracing")
    if tracing not in (None, True, False, "true", "false"):
        raise bad_request("tracing must be true or false")
    new = name not in call.broker.topology.vhosts
    await call.broker.create_vhost(call.user, name, text(content, "description", ""), tags, kind)
    if new:  # who makes a vhost may use it, as in RabbitMQ's API
        await call.broker.set_permissions(call.user, name, call.user, ".*", ".*", ".*")
    await call.durable()
    if tracing is not None:  # a vhost keeps its tracing where the body does not name it, as in RabbitMQ
        call.broker.firehose.switch(name, tracing in (True, "true"))
    return done(new)


async def delete_vhost(call: Call) -> Response:
    await call.broker.delete_vhost(call.user, named(call))
    await call.durable()
    return Response(status_code=204)


async def start_vhost(call: Call) -> Response:
    """A vhost of RabbitMQ's can be down on a node, ours can't: it is running already."""
    named(call)
    node = call.segment("node")
    if node != call.broker.config.node and node not in (each.node for each in call.broker.topology.nodes.values()):
        raise bad_request(f"Request to node {node} failed: there is no such node")
    return Response(status_code=204)
