"""Bindings over HTTP.

A binding's `properties_key` names it among the bindings of the same two ends. It is the routing key, encoded as
RabbitMQ encodes it (a space is `+`, `~` is `%7E`). If the binding has arguments, `~` and a digest of them follow. The
digest is our own: RabbitMQ's is a hash of an Erlang term (rabbit_mgmt_format.erl `pack_binding_props/2`).
"""

from itertools import chain
from urllib.parse import quote_plus, unquote

from starlette.responses import Response

from rewindmq.engine.http.call import Call, arguments_in, not_found, reply, short, text
from rewindmq.engine.http.listing import listed, listed_queues
from rewindmq.engine.http.reference.operation import Folds, operation
from rewindmq.engine.http.resources.exchanges import exchange_of
from rewindmq.engine.http.shapes.topology import BindingView, BindingWish, properties_key
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.schemas.metadata_events import Bound

KINDS = {"q": "queue", "e": "exchange"}


@operation("Lists the bindings of all virtual hosts", folds=Folds.COUNTERS, listing=BindingView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/bindings."""
    return await listed(call, await bindings_in(call, call.visible_vhosts()), BindingView.of)


@operation("Lists the bindings of a virtual host", folds=Folds.COUNTERS, listing=BindingView)
async def list_vhost(call: Call) -> Response:
    """Answer GET /api/bindings/{vhost}."""
    return await listed(call, await bindings_in(call, [call.vhost]), BindingView.of)


async def bindings_in(call: Call, vhosts: list[str]) -> list[Bound]:
    """Return the bindings of each vhost, the default exchange's first: every queue is bound to it by its name."""
    by_vhost: dict[str, list[Bound]] = {vhost: [] for vhost in vhosts}
    async for _, queue in call.work.over(await listed_queues(call, set(vhosts))):
        by_vhost[queue.vhost].append(default_binding(queue.vhost, queue.name))
    async for bound in call.broker.exchanges.bindings_by_source(call.work, by_vhost):
        if call.broker.router.is_live(bound):
            by_vhost[bound.vhost].append(bound)
    return list(chain.from_iterable(by_vhost.values()))


def default_binding(vhost: str, queue: str) -> Bound:
    """Return the binding of a queue to the default exchange."""
    return Bound(vhost, "", "queue", queue, queue)


@operation("Lists the bindings of a queue", folds=Folds.QUEUE, listing=BindingView)
async def of_queue(call: Call) -> Response:
    """Answer GET /api/queues/{vhost}/{queue}/bindings."""
    queue = call.queue()
    bound = call.broker.topology.bindings_to(queue.vhost, "queue", queue.name)
    found = sorted((each for each in bound if call.broker.router.is_live(each)), key=lambda each: each.source)
    return await listed(call, [default_binding(queue.vhost, queue.name), *found], BindingView.of)


@operation("Lists the bindings from an exchange", folds=Folds.COUNTERS, listing=BindingView)
async def from_exchange(call: Call) -> Response:
    """Answer GET /api/exchanges/{vhost}/{exchange}/bindings/source."""
    exchange = exchange_of(call)
    if exchange.exchange == "":
        queues = await listed_queues(call, {exchange.vhost})
        found = [default_binding(queue.vhost, queue.name) async for _, queue in call.work.over(queues)]
    else:
        bound = call.broker.topology.bindings_from(exchange.vhost, exchange.exchange)
        found = [each for each in bound if call.broker.router.is_live(each)]
    return await listed(call, found, BindingView.of)


@operation("Lists the bindings to an exchange", folds=Folds.NONE, listing=BindingView)
async def to_exchange(call: Call) -> Response:
    """Answer GET /api/exchanges/{vhost}/{exchange}/bindings/destination."""
    exchange = exchange_of(call)
    found = call.broker.topology.bindings_to(exchange.vhost, "exchange", exchange.exchange)
    return await listed(call, found, BindingView.of)


def ends_named(call: Call) -> tuple[str, str, str, str]:
    """(vhost, source, destination type, destination) in the path."""
    kind = KINDS.get(call.segment("kind"))
    if kind is None:
        raise not_found()
    return call.vhost, call.exchange, kind, call.segment("destination")


def ends(call: Call) -> tuple[str, str, str, str]:
    """Return the two ends in the path. Raises ApiError (404) if one of them does not exist."""
    vhost, source, kind, destination = ends_named(call)
    exchanges = call.broker.topology.exchanges
    if (vhost, source) not in exchanges:
        raise not_found(f"no exchange '{source}' in vhost '{vhost}'", "not_found")
    if kind == "exchange":
        if (vhost, destination) not in exchanges:
            raise not_found(f"no exchange '{destination}' in vhost '{vhost}'", "not_found")
    elif call.broker.queues.get(vhost, destination) is None:
        raise not_found(f"no queue '{destination}' in vhost '{vhost}'", "not_found")
    return vhost, source, kind, destination


def bindings_between(call: Call) -> list[Bound]:
    """Return the bindings between the two ends in the path."""
    vhost, source, kind, destination = ends_named(call)
    if source == "":
        there = (
            kind == "queue" and call.broker.queues.get(vhost, destination) is not None and not is_hidden(destination)
        )
        return [default_binding(vhost, destination)] if there else []
    bound = call.broker.topology.bindings_to(vhost, kind, destination)
    return [each for each in bound if each.source == source and call.broker.router.is_live(each)]


@operation("Lists the bindings between two ends", folds=Folds.DESTINATION, answer=list[BindingView])
async def between(call: Call) -> Response:
    """Answer GET /api/bindings/{vhost}/e/{exchange}/{kind}/{destination}."""
    return reply([BindingView.of(each) for each in bindings_between(call)])


@operation(
    "Makes a binding. The header Location has its properties_key",
    folds=Folds.DESTINATION,
    body=BindingWish,
    answers={201: None},
)
async def bind(call: Call) -> Response:
    """Answer POST /api/bindings/{vhost}/e/{exchange}/{kind}/{destination}."""
    vhost, source, kind, destination = ends(call)
    content = await call.body()
    routing_key = short("routing_key", text(content, "routing_key", ""))
    arguments = arguments_in(content)
    async with call.session(vhost) as session:
        await call.broker.exchanges.bind(session, source, kind, destination, routing_key, arguments)
    await call.durable()
    location = f"{quote_plus(destination)}/{quote_plus(properties_key(routing_key, arguments))}"
    return Response(status_code=201, headers={"location": location})


def binding_named(call: Call) -> Bound:
    """Return the binding with the properties_key in the path, as it stands or percent-encoded once more.

    Clients send it in both forms."""
    wanted = {call.segment("key"), unquote(call.segment("key")), str(call.request.path_params["key"])}
    for each in bindings_between(call):
        key = properties_key(each.routing_key, each.arguments)
        if key in wanted or unquote(key) in wanted:
            return each
    raise not_found()


@operation("Shows a binding", folds=Folds.DESTINATION, answer=BindingView)
async def show(call: Call) -> Response:
    """Answer GET /api/bindings/{vhost}/e/{exchange}/{kind}/{destination}/{key}."""
    return reply(BindingView.of(binding_named(call)))


@operation("Removes a binding", folds=Folds.DESTINATION, answers={204: None})
async def unbind(call: Call) -> Response:
    """Answer DELETE /api/bindings/{vhost}/e/{exchange}/{kind}/{destination}/{key}."""
    each = binding_named(call)
    async with call.session(each.vhost) as session:
        await call.broker.exchanges.unbind(
            session, each.source, each.destination_type, each.destination, each.routing_key, each.arguments
        )
    await call.durable()
    return Response(status_code=204)
