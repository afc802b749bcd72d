"""Exchanges over HTTP, and publishing through one: a publish is routed, logged and confirmed as an AMQP client's is."""

import asyncio
import base64
import binascii
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.amqp.basic_publish import (
    BasicPublish,
    RouteCheck,
    held_name,
    homes_of,
    message,
    reaches_none,
    route_by_content,
)
from rewindmq.engine.config import MAX_MESSAGE_SIZE
from rewindmq.engine.errors import AmqpError, MessageTooLarge, PreconditionFailed, refusal
from rewindmq.engine.host.loop_share import by_key
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    arguments_in,
    bad_request,
    boolean,
    done,
    not_found,
    reply,
    short,
    text,
    until_free,
)
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.properties import properties_from
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.refusals import note_refusal
from rewindmq.engine.http.shapes.queues import PublishWish, RoutedView
from rewindmq.engine.http.shapes.topology import ExchangeInAndOutView, ExchangeView, ExchangeWish
from rewindmq.engine.partition.counters import Tally
from rewindmq.engine.partition.flow_control import LARGE_BYTES, no_room
from rewindmq.engine.routing.portions import RouteTakesLong, in_turns
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import ParsedProperties, parse
from rewindmq.schemas.metadata_events import ExchangeDeclared

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.sessions import Session
    from rewindmq.engine.routing.router import Destination


@operation("Lists the exchanges of all virtual hosts", folds=Folds.COUNTERS, listing=ExchangeView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/exchanges."""
    return await exchanges_in(call, set(call.visible_vhosts()))


@operation("Lists the exchanges of a virtual host", folds=Folds.COUNTERS, listing=ExchangeView)
async def list_vhost(call: Call) -> Response:
    """Answer GET /api/exchanges/{vhost}."""
    return await exchanges_in(call, {call.vhost})


async def exchanges_in(call: Call, vhosts: set[str]) -> Response:
    """Return the answer with the exchanges of these vhosts."""
    broker = call.broker
    found = await by_key(call.work, broker.topology.exchanges, lambda key: key[0] in vhosts)
    return await listed(call, found, lambda exchange: ExchangeView.of(exchange, broker))


def exchange_of(call: Call) -> ExchangeDeclared:
    """Return the exchange in the path. Raises ApiError (404)."""
    found = call.broker.topology.exchanges.get((call.vhost, call.exchange))
    if found is None:
        raise not_found()
    return found


@operation("Shows an exchange", folds=Folds.COUNTERS, answer=ExchangeInAndOutView)
async def show(call: Call) -> Response:
    """Answer GET /api/exchanges/{vhost}/{exchange}."""
    return reply(ExchangeInAndOutView.of(exchange_of(call), call.broker))


@operation("Declares an exchange", folds=Folds.NAMED, body=ExchangeWish, answers={201: None, 204: None})
async def declare(call: Call) -> Response:
    """Answer PUT /api/exchanges/{vhost}/{exchange}."""
    vhost, name = call.vhost, call.exchange
    content = await call.body()
    durable, auto_delete = boolean(content, "durable", False), boolean(content, "auto_delete", False)
    internal = boolean(content, "internal", False)
    arguments = arguments_in(content)
    new = (vhost, name) not in call.broker.topology.exchanges
    async with call.session(vhost) as session:
        kind = text(content, "type", "direct")
        await call.broker.exchanges.declare(session, name, kind, False, durable, auto_delete, internal, arguments)
    await call.durable()
    return done(new)


@operation(
    "Deletes an exchange",
    folds=Folds.NAMED,
    act="delete",
    query=(Query("if-unused", bool, "Only if nothing is bound to it"),),
    answers={204: None},
)
async def delete(call: Call) -> Response:
    """Answer DELETE /api/exchanges/{vhost}/{exchange}."""
    exchange = exchange_of(call)
    async with call.session(exchange.vhost) as session:
        await call.broker.exchanges.delete(session, exchange.exchange, call.asks("if-unused"))
    await call.durable()
    return Response(status_code=204)


class Outcome:
    """Waits for the confirm of one publish in every partition that it went to.

    It is a `Confirms` of rewindmq.engine.partition.partition."""

    def __init__(self, partitions: int, counters: dict[str, int]) -> None:
        self.missing = partitions
        self.counters = counters
        self.refused = False
        self.routed = True
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirm(self, sequence: int, refused: bool) -> None:
        self.missing -= 1
        self.refused = self.refused or refused
        if self.missing == 0:
            self.counters["global_messages_confirmed_total"] += not self.refused
            if not self.done.done():  # the request may have been given up
                self.done.set_result(None)

    def nowhere(self) -> None:
        """Note that no queue took the publish: its queues were gone when it arrived."""
        self.routed = False
        self.counters["global_messages_unroutable_returned_total"] += 1


@operation(
    "Publishes a message, and answers when it is durable", folds=Folds.NAMED, body=PublishWish, answer=RoutedView
)
async def publish(call: Call) -> Response:
    """Answer POST .../publish: {"routed": bool} once it is durable; 400 if a queue refused it (S-009)."""
    vhost = call.vhost
    content = await call.body("properties", "routing_key", "payload", "payload_encoding")
    if call.broker.turns.blocked is not None:
        raise bad_request(f"publishing is blocked: {call.broker.turns.blocked}")
    properties = properties_from(content["properties"])
    routing_key = short("routing_key", text(content, "routing_key", ""))
    body = decoded(text(content, "payload", ""), text(content, "payload_encoding", ""))
    try:
        async with call.session(vhost) as session:
            counts = session.publishes
            counts.received += 1
            counts.unfinished += 1
            try:
                outcome = await send(call.broker, session, call.exchange, routing_key, properties, body)
            except (AmqpError, ApiError) as error:
                counts.unfinished -= 1
                counts.refuse(error)
                raise
            counts.unfinished -= 1
    except AmqpError as error:
        note_refusal(call.broker, call.request, call, error)
        raise bad_request(f"{error.reply_code} {error.reply_text}") from None
    await call.durable()
    if outcome is not None:
        await outcome.done
        if outcome.refused:
            raise bad_request("rejected Unable to publish message. Check queue limits.")
    return reply(RoutedView(routed=outcome is not None and outcome.routed))


async def send(
    broker: "Broker", session: "Session", exchange: str, routing_key: str, raw: bytes, body: bytes
) -> Outcome | None:
    """Publishes. Returns None if the message was not routed anywhere, and is in no history.

    Raises ApiError (400) if the disk has no room for it."""
    limit = broker.config.max_message_size
    if len(body) > limit:
        raise MessageTooLarge(exchange, len(body), limit, limit != MAX_MESSAGE_SIZE)
    try:
        parsed = parse(raw)
        subject = broker.subjects.subject_of(parsed)
    except PropertyError as error:
        raise refusal(error) from None
    if parsed.user_id not in (None, session.user) and "impersonator" not in broker.access.control.tags(session):
        raise PreconditionFailed(
            f"user_id property set to '{parsed.user_id}' but authenticated user was '{session.user}'"
        )
    target = BasicPublish(exchange, routing_key, mandatory=True)
    target.needs_content = broker.router.needs_content(session.vhost, exchange)
    destinations = await destinations_of(broker, session, target, parsed)
    logged, encryption = body, None
    traced = session.vhost in broker.firehose.vhosts
    if destinations or traced:
        logged, encryption = await broker.subjects.make_key_and_encrypt(subject, body)
    if encryption is not None:
        broker.sessions.check_open(session)
        destinations = await destinations_of(broker, session, target, parsed)  # looked up again after the wait
    size = len(body) * max(1, len(destinations))  # each partition logs it
    if size >= LARGE_BYTES and not broker.keeper.flow.has_room(size):
        raise bad_request(f"publishing is blocked: {no_room(size)}")
    if traced:
        queues = [queue for destination in destinations for queue in destination.route.queues]
        broker.firehose.published(session, 0, exchange, routing_key, raw, logged, encryption, queues)
    tally = Tally()
    tally.another_size(len(body))
    tally.received = tally.received_confirm = 1
    tally.routed = sum(len(destination.route.queues) for destination in destinations)
    if reaches_none(destinations):
        tally.unroutable_returned = 1
        broker.exchanges.count_unrouted(session.vhost, exchange, 1)
        if not destinations:
            broker.exchanges.group_unrouted(session.actor, session.vhost, exchange, routing_key, raw)
    tally.confirmed = int(not destinations)
    outcome = Outcome(len(destinations), broker.counters)
    outcome.routed = not reaches_none(destinations)
    check = RouteCheck(len(destinations), outcome.nowhere)
    for destination in destinations:
        published = message(destination, parsed, logged, encryption)
        if outcome.routed:
            position = check.publish(destination, session.actor, published)
        else:
            position = destination.partition.publish(session.actor, published)
        session.publishes.logged_copy(destination.partition)
        destination.partition.await_durable(position, outcome, 1)
    if destinations:
        session.publishes.copies -= 1  # one of them is the publish itself
    else:
        session.publishes.grouped += 1
    tally.merge_into(broker.counters)
    return outcome if destinations else None


async def destinations_of(
    broker: "Broker", session: "Session", target: BasicPublish, parsed: ParsedProperties
) -> "tuple[Destination, ...]":
    """Return the destinations of a publish, once no queue of them is on its way to another partition.

    This node folds their partitions: only a fold knows whether a queue is still there."""

    async def routed() -> "tuple[Destination, ...]":
        try:
            return route_by_content(target, parsed, broker, session)
        except RouteTakesLong as long:
            found = await in_turns(long.search, broker.router.share, lambda: broker.sessions.is_open(session))
            broker.sessions.check_open(session)
            return found or ()

    read_to_end = partial(broker.sessions.read_to_end, session)
    while True:
        destinations = await broker.certainty.assured(routed, read_to_end)
        if reaches_none(destinations):
            await read_to_end()
            destinations = await routed()
        held = held_name(target, destinations, parsed, broker, session.vhost)
        if held is not None:
            await until_free(broker, session.vhost, held)
            broker.sessions.check_open(session)
            continue
        partitions = [destination.partition for destination in destinations if destination.route.queues]
        if not partitions and target.exchange == "":
            partitions = homes_of(target, parsed, broker, session.vhost)
        paused = [partition for partition in partitions if not partition.current]
        if not paused:
            return destinations
        for partition in paused:
            await partition.enter()
        broker.sessions.check_open(session)


def decoded(payload: str, encoding: str) -> bytes:
    """Return the bytes of a payload. Raises ApiError (400)."""
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise bad_request(f"unsupported_encoding: {encoding}")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"not_base64: {payload[:100]}") from None
