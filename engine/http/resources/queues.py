"""Queues over HTTP: list, show, declare, delete, purge, pause. messages.py takes messages out."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.erasure.key_content import NotAtHand
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    arguments_in,
    bad_request,
    boolean,
    done,
    natural,
    not_found,
    reply,
    text,
)
from rewindmq.engine.http.listing import STATS, columns_of, listed, listed_queues, single
from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.shapes.basics import ErrorView, ReasonWish, shown
from rewindmq.engine.http.shapes.clients import ListedConsumerView
from rewindmq.engine.http.shapes.queues import (
    ActionWish,
    PeekedMessageView,
    PlainQueueView,
    QueueView,
    QueueWish,
    QueueWithConsumersView,
    UnackedMessageView,
)
from rewindmq.engine.http.statistics import depth_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.json_values import Json

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.projections.machine.data.queue import Queue

MOST_REASON = 1_000  # letters
PEEKED_BYTES = 64  # bytes of a body, as in rabbitmq-queues


@operation("Lists the queues of all virtual hosts", folds=Folds.COUNTERS, query=STATS, listing=QueueView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/queues and /api/queues/detailed: here both have all fields."""
    return await queues_of(call, set(call.visible_vhosts()))


@operation("Lists the queues of a virtual host", folds=Folds.COUNTERS, query=STATS, listing=QueueView)
async def list_vhost(call: Call) -> Response:
    """Answer GET /api/queues/{vhost}."""
    return await queues_of(call, {call.vhost})


Listing = tuple["PartitionReading", "Listed"]


def _depth(name: str) -> Callable[[Listing], object]:
    return lambda pair: depth_of([pair[1]])[name]


# Of a QueueView: what the desk filters and sorts by. A whole view takes fifty times as long.
FIELDS: Mapping[str, Callable[[Listing], object]] = {
    "name": lambda pair: pair[1].name,
    "vhost": lambda pair: pair[1].vhost,
    "type": lambda pair: pair[1].type,
    "consumers": lambda pair: pair[1].consumer_count(),
    "messages": _depth("messages"),
    "messages_ready": _depth("messages_ready"),
    "messages_unacknowledged": _depth("messages_unacknowledged"),
}


async def queues_of(call: Call, vhosts: set[str]) -> Response:
    """Return the answer with the queues of these vhosts."""
    broker, found = call.broker, await listed_queues(call, vhosts)
    if call.asks("disable_stats"):
        with_totals = call.asks("enable_queue_totals")

        def plain(pair: Listing) -> PlainQueueView:
            return PlainQueueView.placed(broker, *pair, {**depth_of([pair[1]])} if with_totals else {})

        return await listed(call, found, plain)
    columns = columns_of(call.request.query_params)
    head = columns is not None and "head_message_timestamp" in columns
    return await listed(call, found, lambda pair: QueueView.shown(broker, *pair, head), FIELDS)


@operation("Shows a queue", folds=Folds.QUEUE, columns=True, answer=QueueWithConsumersView)
async def show(call: Call) -> Response:
    """Answer GET /api/queues/{vhost}/{queue}."""
    queue = call.queue()
    partition = home_of(call.broker, queue)
    columns = columns_of(call.request.query_params)
    head = columns is None or "head_message_timestamp" in columns
    view = QueueWithConsumersView.shown(call.broker, partition, queue, head)
    if columns is None or "consumer_details" in columns:
        view.consumer_details = [ListedConsumerView.of(consumer, queue, call.broker) for consumer in queue.consumers()]
    return single(call, view)


@operation("Lists the messages that consumers hold", folds=Folds.QUEUE, listing=UnackedMessageView)
async def unacked(call: Call) -> Response:
    """Answer GET .../unacked, as LavinMQ does: the unacked messages, with their consumers.

    `consumer_tag` is "" for a basic.get."""
    queue = call.queue()
    call.require_read(queue)
    found = [(holder, *each) for holder in queue.holders.values() for each in holder.held.items()]
    return await listed(call, found, lambda each: UnackedMessageView.of(*each, call.broker))


async def opened(partition: "PartitionReading", message: Published) -> Published:
    """Return the message as a client gets it. ApiError (503): its key is in a Vault that does not answer."""
    while True:
        try:
            return partition.decrypted(message)
        except NotAtHand as missing:
            try:
                await asyncio.shield(partition.fetch_key(missing.key_id))
            except OSError as error:
                raise ApiError(503, "service_unavailable", f"the key of a message cannot be read: {error}") from None


@operation(
    "Shows a ready message, which stays where it is; the next one is 1", folds=Folds.QUEUE, answer=PeekedMessageView
)
async def peek(call: Call) -> Response:
    """Answer GET .../peek/N: the Nth ready message from the front (the next is 1), which stays where it is.

    The path is ours: RabbitMQ has it at the command line only, for quorum queues."""
    queue = call.queue()
    call.require_read(queue)
    position = natural(call.segment("position"))
    if position is None or position < 1:
        raise bad_request("positions are numbers from 1 on")
    beyond = position > queue.messages_ready
    view = None if beyond else next(islice(queue.messages(), position - 1, None), None)
    if view is None or view.state != "ready":
        raise not_found("Target queue does not have a message at that position", "not_found")
    home = home_of(call.broker, queue)
    message = await opened(home, home.message(queue.queue_id, view.message_id))
    message = call.withheld(queue.vhost).hide(message, queue.name)
    payload, encoding = shown(message.body, "auto", PEEKED_BYTES)
    return reply(
        PeekedMessageView.of(
            view,
            exchange=message.route.exchange,
            routing_key=message.route.routing_key,
            properties=properties_of(message.properties),
            payload=payload,
            payload_encoding=encoding,
            payload_bytes=message.body_size,
        )
    )


@operation(
    "Carries out an action of mirrors. There are none",
    folds=Folds.QUEUE,
    who=ADMINISTRATOR,
    body=ActionWish,
    answers={204: None},
)
async def act(call: Call) -> Response:
    """Answer POST .../actions: these are actions of mirrors. There are no mirrors, so nothing is left to do."""
    call.require()
    call.queue()
    action = (await call.body("action"))["action"]
    if action not in ("sync", "cancel_sync"):
        return reply(ErrorView(error="bad_request", reason=["unknown", action]), 400)
    return Response(status_code=204)


def home_of(broker: "Broker", queue: "Queue") -> "PartitionReading":
    """Return the partition of a queue."""
    return broker.queues.partition_for(queue.vhost, queue.name)


@operation("Declares a queue", folds=Folds.QUEUE, body=QueueWish, answers={201: None, 204: None})
async def declare(call: Call) -> Response:
    """Answer PUT /api/queues/{vhost}/{queue}."""
    vhost, name = call.vhost, call.segment("queue")
    content = await call.body()
    arguments = arguments_in(content)
    durable, auto_delete = boolean(content, "durable", False), boolean(content, "auto_delete", False)
    new = call.broker.queues.get(vhost, name) is None
    async with call.session(vhost) as session:
        await call.broker.queues.declare(session, name, False, durable, False, auto_delete, arguments)
    await call.durable()
    return done(new)


@operation(
    "Deletes a queue. The header X-Messages-Deleted counts its messages",
    folds=Folds.QUEUE,
    act="delete",
    query=(
        Query("if-unused", bool, "Only if it has no consumers"),
        Query("if-empty", bool, "Only if it has no messages"),
    ),
    answers={204: None},
)
async def delete(call: Call) -> Response:
    """Answer DELETE /api/queues/{vhost}/{queue}."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        deleted = await call.broker.queues.delete(session, queue.name, call.asks("if-unused"), call.asks("if-empty"))
    await call.durable()
    response = Response(status_code=204)
    response.headers["x-messages-deleted"] = str(deleted)
    return response


@operation(
    "Removes all ready messages. The header X-Messages-Purged counts them",
    folds=Folds.QUEUE,
    act="purge",
    answers={204: None},
)
async def purge(call: Call) -> Response:
    """Answer DELETE /api/queues/{vhost}/{queue}/contents."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        purged = await call.broker.queues.purge(session, queue.name)
    await call.durable()
    response = Response(status_code=204)
    response.headers["x-messages-purged"] = str(purged)
    return response


@operation("Pauses a queue: it delivers nothing", folds=Folds.QUEUE, act="pause", body=ReasonWish, answers={204: None})
async def pause(call: Call) -> Response:
    """Answer PUT .../pause, as LavinMQ does; the body may have a `reason`."""
    queue = call.queue()
    reason = call.own_reason(reason_in(await call.body()))
    async with call.session(queue.vhost) as session:
        await call.broker.queues.pause(session, queue.name, reason)
    await call.durable()
    return Response(status_code=204)


@operation("Resumes a paused queue", folds=Folds.QUEUE, act="pause", answers={204: None})
async def resume(call: Call) -> Response:
    """Answer PUT .../resume, as LavinMQ does."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        await call.broker.queues.resume(session, queue.name)
    await call.durable()
    return Response(status_code=204)


def reason_in(content: dict[str, Json]) -> str:
    """Return the reason of a body, or "". Raises ApiError (400)."""
    reason = text(content, "reason", "")
    if len(reason) > MOST_REASON:
        raise bad_request(f"the reason is longer than {MOST_REASON} letters")
    return reason
