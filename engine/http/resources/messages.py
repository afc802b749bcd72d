"""Messages over HTTP: got, deleted one by one, moved.

POST /api/queues/{vhost}/{queue}/get is RabbitMQ's way to look at messages, and it changes the queue. It is an AMQP
basic.get by the HTTP user, also in the history.

An answer has MAX_GOT bytes of bodies (`truncate` cuts them first), or one larger message. Beyond that the
answer has fewer messages than `count`, and the others stay in the queue. The messages count as memory of the broker
until the client has them, and are sent as fast as the client reads.

An operator deletes single messages, or moves them (engine/broker/removals.py):

    DELETE /api/queues/{vhost}/{queue}/messages/{id}      deletes one message; ?reason=TEXT
    POST   /api/queues/{vhost}/{queue}/messages/remove    {"messages": [ids], "reason": "..."}
    POST   /api/queues/{vhost}/{queue}/messages/move      the same, and {"to": "queue"}, or
                                                          {"exchange": "...", "routing_key": "..."}

An id is the offset of the message's publish, as `find` and the queue at a moment show it. A request names at most
MOST_REMOVED messages. A POST answers with the messages that left, and with the reason of each that stayed. A DELETE
answers 404 if the message is not in the queue, 409 if a consumer has it. 409 is also the answer to a move that has no
way: nothing left then.
"""

import base64
import codecs
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.broker.queues import is_next_large
from rewindmq.engine.broker.removals import Removal, has_arrived
from rewindmq.engine.erasure.key_content import NotAtHand
from rewindmq.engine.errors import NotImplementedByBroker, PreconditionFailed
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http import pieces
from rewindmq.engine.http.bodies import MAX_VALUES
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    bad_request,
    in_time,
    integer,
    natural,
    not_found,
    reply,
    short,
    text,
)
from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.resources.queues import home_of, opened, reason_in
from rewindmq.engine.http.shapes.basics import shown
from rewindmq.engine.http.shapes.queues import (
    GetWish,
    GotMessageView,
    MovedView,
    MoveWish,
    RemovedView,
    RemoveWish,
    StayedView,
)
from rewindmq.projections.machine.events.removal import MOST_REMOVED
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.schemas.events import Nacked, Published
from rewindmq.schemas.json_values import Json, compact_text

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.partition import Partition
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.projections.machine.data.effects import FetchReply
    from rewindmq.projections.machine.data.queue import Queue

ACKMODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
MAX_GET = 100_000  # messages in one answer
MAX_GOT = 33_554_432  # bytes of their bodies
WAVE, WAVE_BYTES = 1_000, 1_048_576  # messages taken at once: other requests have their turn in between
BODY_PIECE = 196_608  # bytes of a body that become JSON at once; divisible by 3, for base64


@dataclass(frozen=True, slots=True)
class Got:
    message_id: int
    message: Published  # with the shown part of its body
    redelivered: bool
    messages_ready: int


class Taken:
    """The target of basic.gets. It keeps the shown part of the messages that it was given."""

    def __init__(self, truncate: int | None, hide: Callable[[Published], Published]) -> None:
        self.truncate = truncate
        self.hide = hide
        self.messages: list[Got] = []

    def fetched(self, partition: "Partition", effect: "FetchReply", message: Published | None) -> None:
        if message is not None:
            with suppress(NotAtHand):  # it was when the request began
                message = self._shown(partition.decrypted(message))
            self.messages.append(Got(effect.message_id, message, effect.redelivered, effect.messages_ready))

    async def open(self, partition: "Partition", broker: "Broker") -> None:
        """Decrypt what could not be decrypted at once."""
        for index, got in enumerate(self.messages):
            if got.message.encryption is not None:
                try:
                    message = await opened(partition, got.message)
                except ApiError as error:  # it is taken, and is answered without its body
                    message = broker.subjects.unreadable(got.message, error.reason)
                self.messages[index] = replace(got, message=self._shown(message))

    def _shown(self, message: Published) -> Published:
        seen = self.hide(message)
        return seen if self.truncate is None else replace(seen, body=seen.body[: self.truncate])


async def fetch_keys(call: Call, partition: "PartitionReading", queue: "Queue", count: int) -> None:
    """Have the keys of the next messages at hand, if a Vault has them, before any is taken. ApiError (503)."""
    if call.broker.subjects.keys.vault() is None:
        return
    for view in list(islice(queue.messages(), count)):
        if view.state == "ready":
            await opened(partition, partition.message(queue.queue_id, view.message_id))


@operation("Takes messages from a queue", folds=Folds.QUEUE, body=GetWish, answer=list[GotMessageView])
async def get(call: Call) -> Response:
    """Answer POST .../get.

    Messages that are not acked go back (or are rejected) once all were taken, so that none is taken twice. As many are
    taken at once as seem to be there: on a log that is read back each wait is a round trip."""
    queue = call.queue()
    content = await call.body("count", "ackmode", "encoding")
    mode, encoding = text(content, "ackmode", ""), text(content, "encoding", "")
    count = integer(content, "count", 1)
    truncate = integer(content, "truncate", 0) if content.get("truncate") is not None else None
    if mode not in ACKMODES:
        raise bad_request(f"ackmode is one of {', '.join(ACKMODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    if not 0 <= count <= MAX_GET or (truncate is not None and truncate < 0):
        raise bad_request(f"count is a number from 0 to {MAX_GET}, truncate is not negative")
    no_ack = mode == "ack_requeue_false"
    withheld = call.withheld(queue.vhost)
    taken = Taken(truncate, lambda message: withheld.hide(message, queue.name))
    back: list[tuple[int, Partition, int]] = []  # (message id, its partition, holder)
    async with call.session(queue.vhost) as session:
        while len(taken.messages) < count:
            if is_next_large(queue):
                await call.work.give_way()
            before = len(taken.messages)
            wave = next_wave(call, queue, taken, count - before)
            if wave == 0:
                break
            await fetch_keys(call, home_of(call.broker, queue), queue, wave)
            async with in_time():
                partition, queue, holder = await call.broker.consumers.fetch(
                    session, session.channel, taken, queue.name, no_ack, wave
                )
            call.broker.turns.end()
            await taken.open(partition, call.broker)
            if not no_ack:
                back += ((got.message_id, partition, holder) for got in taken.messages[before:])
            if len(taken.messages) < before + wave:  # the queue is empty, or was for a moment
                break
            if call.work.due:
                await call.work.give_way()
        method, requeue = ("reject" if mode.startswith("reject") else "nack"), mode.endswith("true")
        for message_id, partition, holder in sorted(back, key=itemgetter(0)):
            span = ((message_id, message_id),)
            partition.append(session.actor, Nacked(queue.vhost, queue.name, holder, span, requeue, method))
    await call.durable()
    return await pieces.answer(as_json(call.work, taken.messages, encoding))


def next_wave(call: Call, queue: "Queue", taken: Taken, most: int) -> int:
    """Return the number of messages to take at once.

    Their memory is held from here on. 0: the answer has as many as it may."""
    room = MAX_GOT - sum(len(got.message.body) for got in taken.messages)
    wave = read_bytes = shown_bytes = 0
    for view in islice(queue.messages(), min(most, WAVE)):
        size = view.size if taken.truncate is None else min(view.size, taken.truncate)
        if view.state != "ready":
            break
        if shown_bytes + size > room and (wave or taken.messages):
            if not wave:
                return 0
            break
        if wave and read_bytes + view.size > WAVE_BYTES:
            break
        wave, read_bytes, shown_bytes = wave + 1, read_bytes + view.size, shown_bytes + size
    wave = wave or 1  # the queue seems to be empty: one message is asked for all the same
    try:
        call.hold(shown_bytes)
    except ApiError:
        if not taken.messages:
            raise
        return 0
    return wave


async def as_json(work: Work, messages: list[Got], encoding: str) -> AsyncIterator[str]:
    """Yield the JSON of messages in pieces."""
    before = "["
    for got in messages:
        message = got.message
        yield (
            before
            + compact_text(
                {
                    "payload_bytes": message.body_size,
                    "redelivered": got.redelivered,
                    "exchange": message.route.exchange,
                    "routing_key": message.route.routing_key,
                    "message_count": got.messages_ready,
                    "properties": properties_of(message.properties),
                }
            )[:-1]
            + ',"payload":'
        )
        async for piece in payload(work, message.body, encoding):
            yield piece
        before = "},"
        if work.due:
            await work.give_way()
    yield "[]" if before == "[" else "}]"


async def payload(work: Work, body: bytes, encoding: str) -> AsyncIterator[str]:
    """Yield the value of `payload`, and `payload_encoding`."""
    if len(body) <= BODY_PIECE:
        whole, name = shown(body, encoding, None)
        yield f'{compact_text(whole)},"payload_encoding":"{name}"'
        return
    is_text = encoding == "auto" and await is_utf8(work, body)
    decoder = codecs.getincrementaldecoder("utf-8")()
    yield '"'
    for first in range(0, len(body), BODY_PIECE):
        part = body[first : first + BODY_PIECE]
        yield compact_text(decoder.decode(part))[1:-1] if is_text else base64.b64encode(part).decode()
        if work.due:
            await work.give_way()
    yield f'","payload_encoding":"{"string" if is_text else "base64"}"'


async def is_utf8(work: Work, body: bytes) -> bool:
    """Return True if a body is UTF-8. A long body is checked in slices."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for first in range(0, len(body), BODY_PIECE):
            decoder.decode(body[first : first + BODY_PIECE])
            if work.due:
                await work.give_way()
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


# -- single messages ---------------------------------------------------------------------------------------------------


@operation(
    "Deletes a message",
    folds=Folds.QUEUE,
    act="move",
    query=(
        Query("reason", str, "Why; the history keeps it"),
        Query("partition", str, "The one that the id is of; a queue that has moved needs it"),
    ),
    answers={204: None},
    errors=(409,),
)
async def delete(call: Call) -> Response:
    """Answer DELETE .../messages/{id}."""
    queue = queue_of(call)
    message_id = natural(call.segment("id"))
    if message_id is None:
        raise bad_request("a message id is a whole number")
    reason = call.own_reason(reason_in({"reason": call.request.query_params.get("reason", "")}))
    removal = await _remove(call, queue, [message_id], call.request.query_params.get("partition"), reason)
    if removal.stayed:
        why = f"message {message_id} stays in queue '{queue}': {removal.stayed[message_id]}"
        if removal.held:
            raise ApiError(409, "conflict", why)
        raise not_found(f"message {message_id} is not in queue '{queue}'", "not_found")
    return Response(status_code=204)


@operation("Deletes messages", folds=Folds.QUEUE, act="move", body=RemoveWish, answer=RemovedView, errors=(409,))
async def remove(call: Call) -> Response:
    """Answer POST .../messages/remove."""
    queue = queue_of(call)
    content = await call.body("messages", most_values=MOST_REMOVED + MAX_VALUES)
    removal = await _remove(call, queue, ids_in(content), partition_in(content), call.own_reason(reason_in(content)))
    return reply(RemovedView(removed=removal.left, stayed=stayed_in(removal)))


@operation(
    "Moves messages to a queue, or through an exchange",
    folds=Folds.QUEUE,
    act="move",
    body=MoveWish,
    answer=MovedView,
    errors=(409,),
)
async def move(call: Call) -> Response:
    """Answer POST .../messages/move."""
    queue = queue_of(call)
    content = await call.body("messages", most_values=MOST_REMOVED + MAX_VALUES)
    ids, ids_of, reason = ids_in(content), partition_in(content), call.own_reason(reason_in(content))
    exchange, routing_key = way_in(content)
    if call.broker.turns.blocked is not None:
        raise bad_request(f"publishing is blocked: {call.broker.turns.blocked}")
    try:
        async with call.session(call.vhost) as session, in_time():
            removal = await call.broker.removals.move(session, queue, ids, ids_of, exchange, routing_key, reason)
    except (PreconditionFailed, NotImplementedByBroker) as error:
        raise ApiError(409, "conflict", error.text) from None
    await call.durable()
    return reply(MovedView(moved=removal.left, arrived=await has_arrived(removal), stayed=stayed_in(removal)))


async def _remove(call: Call, queue: str, ids: list[int], ids_of: str | None, reason: str) -> Removal:
    try:
        async with call.session(call.vhost) as session, in_time():
            removal = await call.broker.removals.remove(session, queue, ids, ids_of, reason)
    except (PreconditionFailed, NotImplementedByBroker) as error:
        raise ApiError(409, "conflict", error.text) from None
    await call.durable()
    return removal


def queue_of(call: Call) -> str:
    """Return the queue in the path; that of a delayed exchange may be named, too. Raises ApiError (404)."""
    name = call.segment("queue")
    if not is_delay_queue(name):
        return call.queue_named(call.vhost, name).name
    if call.broker.queues.get(call.vhost, name) is None:
        raise not_found()
    return name


def ids_in(content: dict[str, Json]) -> list[int]:
    """Return the message ids of a body. Raises ApiError (400)."""
    ids = content["messages"]
    if not isinstance(ids, list) or not ids:
        raise bad_request("messages is a list of message ids")
    if len(ids) > MOST_REMOVED:
        raise bad_request(f"at most {MOST_REMOVED} messages at a time")
    found = [each for each in ids if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
    if len(found) < len(ids):
        raise bad_request("a message id is a whole number")
    return found


def partition_in(content: dict[str, Json]) -> str | None:
    """Return the partition that the ids of a body are of, or None. Raises ApiError (400)."""
    return text(content, "partition", "") or None


def way_in(content: dict[str, Json]) -> tuple[str, str]:
    """Return the exchange and routing key of a body. Raises ApiError (400)."""
    if ("to" in content) == ("exchange" in content):
        raise bad_request("give either to, the name of a queue, or exchange with routing_key")
    if "to" in content:
        return "", short("to", text(content, "to", ""))
    return short("exchange", text(content, "exchange", "")), short("routing_key", text(content, "routing_key", ""))


def stayed_in(removal: Removal) -> list[StayedView]:
    """Return the messages that stayed."""
    return [StayedView(message=message_id, reason=why) for message_id, why in removal.stayed.items()]
