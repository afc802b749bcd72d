"""Queues over HTTP: list, show, declare, delete, purge, pause. messages.py takes messages out."""

import asyncio
import base64
import json
from collections import Counter
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
from rewindmq.engine.http.listing import STATS, Item, columns_of, listed, listed_queues, single
from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.resources.clients import channel_details, consumer_item, elsewhere, peer_details
from rewindmq.engine.http.shapes.basics import Why
from rewindmq.engine.http.shapes.queues import Action, PeekedMessage, QueueWish, QueueWithConsumers, UnackedMessage
from rewindmq.engine.http.shapes.queues import Queue as QueueJson
from rewindmq.engine.http.statistics import depth_of, statistics
from rewindmq.engine.runtime.queue_counters import Listed, QueueCounters
from rewindmq.projections.machine.data.message_word import is_redelivered, size_of
from rewindmq.projections.machine.rules.profile import RABBITMQ_4_3
from rewindmq.projections.machine.rules.settings import effective_definition
from rewindmq.schemas.amqp.json_arguments import table_of, types_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.json_values import Json
from rewindmq.schemas.values import EPOCH_SHIFT, Policy

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.projections.machine.data.queue import Consumer, Queue

MOST_REASON = 1_000  # letters
PEEKED_BYTES = 64  # bytes of a body, as in rabbitmq-queues


@operation("Lists the queues of all virtual hosts", folds=Folds.COUNTERS, query=STATS, listing=QueueJson)
async def list_all(call: Call) -> Response:
    """Answers GET /api/queues and /api/queues/detailed: here both have all fields."""
    return await queues_of(call, set(call.visible_vhosts()))


@operation("Lists the queues of a virtual host", folds=Folds.COUNTERS, query=STATS, listing=QueueJson)
async def list_vhost(call: Call) -> Response:
    """Answers GET /api/queues/{vhost}."""
    return await queues_of(call, {call.vhost})


Listing = tuple["Partition", Listed]


def _depth(name: str) -> Callable[[Listing], object]:
    return lambda pair: depth_of([pair[1]])[name]


# Of `queue_item`: what the desk filters and sorts by. A whole item takes fifty times as long.
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
    """The answer with the queues of these vhosts."""
    broker, found = call.broker, await listed_queues(call, vhosts)
    if call.asks("disable_stats"):
        with_totals = call.asks("enable_queue_totals")
        return await listed(call, found, lambda pair: plain_item(broker, *pair, with_totals))
    columns = columns_of(call.request.query_params)
    head = columns is not None and "head_message_timestamp" in columns
    return await listed(call, found, lambda pair: queue_item(broker, *pair, head), FIELDS)


def plain_item(broker: "Broker", partition: "Partition", queue: Listed, with_totals: bool) -> Item:
    """A queue for `disable_stats=true`, with or without `enable_queue_totals=true`."""
    policy, _ = policies_of(broker, queue)
    place = broker.keeper.place(partition)
    if isinstance(queue, QueueCounters):
        table, types = queue.argument_table, queue.argument_types
    else:
        table, types = table_of(queue.arguments), dict(types_of(queue.arguments))
    item: Item = {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": table,
        "argument_types": types,
        "node": node_of(broker, queue, place.owner),
        "folded_at": list(place.folded_at),
        "state": "paused" if queue.paused else "running",
    }
    if policy:
        item["policy"] = policy.name
    if isinstance(queue, QueueCounters):
        item["counters_age_ms"] = partition.counters_age_ms
    if queue.type in ("quorum", "stream"):
        members = broker.keeper.members(partition)
        item |= {"leader": members.leader, "members": list(members.members), "online": list(members.online)}
    return item | depth_of([queue]) if with_totals else item


def policies_of(broker: "Broker", queue: Listed) -> tuple[Policy | None, Policy | None]:
    """The policy and the operator policy that hold for a queue."""
    if not isinstance(queue, QueueCounters):
        return queue.policy, queue.operator_policy
    which = queue.vhost, queue.name, queue.type
    return broker.topology.effective_policy(*which), broker.topology.effective_operator_policy(*which)


@operation("Shows a queue", folds=Folds.QUEUE, columns=True, answer=QueueWithConsumers)
async def show(call: Call) -> Response:
    """Answers GET /api/queues/{vhost}/{queue}."""
    queue = call.queue()
    partition = home_of(call.broker, queue)
    columns = columns_of(call.request.query_params)
    item = queue_item(call.broker, partition, queue, head=columns is None or "head_message_timestamp" in columns)
    if columns is None or "consumer_details" in columns:
        item["consumer_details"] = [consumer_item(call.broker, queue, consumer) for consumer in queue.consumers()]
    return single(call, item | {"deliveries": [], "incoming": []})


@operation("Lists the messages that consumers hold", folds=Folds.QUEUE, listing=UnackedMessage)
async def unacked(call: Call) -> Response:
    """Answers GET .../unacked, as LavinMQ does: the unacked messages, with their consumers.

    `consumer_tag` is "" for a basic.get."""
    queue = call.queue()
    call.require_read(queue)
    found = [(holder, *each) for holder in queue.holders.values() for each in holder.held.items()]
    return await listed(call, found, lambda each: unacked_item(call.broker, *each))


def unacked_item(broker: "Broker", holder: "Consumer", message_id: int, word: int) -> Item:
    """A message that a consumer holds, as JSON."""
    return {
        "message_id": message_id,
        "consumer_tag": holder.tag,
        "message_bytes": size_of(word),
        "redelivered": is_redelivered(word),
        "channel_details": channel_details(broker, holder.session, holder.channel),
    }


async def opened(partition: "Partition", message: Published) -> Published:
    """The message as a client gets it. ApiError (503): its key is in a Vault that does not answer."""
    while True:
        try:
            return partition.decrypted(message)
        except NotAtHand as missing:
            try:
                await asyncio.shield(partition.fetch_key(missing.key_id))
            except OSError as error:
                raise ApiError(503, "service_unavailable", f"the key of a message cannot be read: {error}") from None


@operation("Shows a ready message, which stays where it is; the next one is 1", folds=Folds.QUEUE, answer=PeekedMessage)
async def peek(call: Call) -> Response:
    """Answers GET .../peek/N: the Nth ready message from the front (the next is 1), which stays where it is.

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
    payload, encoding = shown(message.body, "auto", PEEKED_BYTES)
    return reply(
        {
            "message_id": view.message_id,
            "exchange": message.route.exchange,
            "routing_key": message.route.routing_key,
            "properties": properties_of(message.properties),
            "payload": payload,
            "payload_encoding": encoding,
            "payload_bytes": message.body_size,
            "redelivered": view.redelivered,
            "delivery_count": view.delivery_count,
        }
    )


@operation(
    "Carries out an action of mirrors. There are none",
    folds=Folds.QUEUE,
    who=ADMINISTRATOR,
    body=Action,
    answers={204: None},
)
async def act(call: Call) -> Response:
    """Answers POST .../actions: these are actions of mirrors. There are no mirrors, so nothing is left to do."""
    call.require()
    call.queue()
    action = (await call.body("action"))["action"]
    if action not in ("sync", "cancel_sync"):
        return reply({"error": "bad_request", "reason": ["unknown", action]}, 400)
    return Response(status_code=204)


def home_of(broker: "Broker", queue: "Queue") -> "Partition":
    """The partition of a queue."""
    return broker.queues.partition_for(queue.vhost, queue.name)


def queue_item(broker: "Broker", partition: "Partition", queue: Listed, head: bool) -> Item:
    """A queue as RabbitMQ shows it.

    Figures that RabbitMQ keeps and we do not (RAM, disk reads) are left out. `head`: also look at the first message,
    which may read RocksDB. Of a queue that is not folded here, it has the counters of its owner, and their age."""
    if isinstance(queue, QueueCounters):
        exclusive, active = queue.exclusive_tag, queue.active_tag
    else:
        alone = queue.exclusive_consumer()
        exclusive = None if alone is None else alone.tag
        active = None if queue.active is None else queue.active.tag
    policy, operator_policy = policies_of(broker, queue)
    _, ahead_bytes = queue.in_lookahead()
    item: Item = (
        plain_item(broker, partition, queue, False)
        | statistics(broker).queue_shown(partition, queue)
        | {
            "policy": policy.name if policy else None,
            "operator_policy": operator_policy.name if operator_policy else None,
            "effective_policy_definition": json.loads(
                json.dumps(effective_definition(policy, operator_policy), allow_nan=False)
            ),
            "consumers": queue.consumer_count(),
            "exclusive_consumer_tag": exclusive,
            "single_active_consumer_tag": active,
            "messages_dlx": queue.messages_dlx,
            "message_bytes": queue.message_bytes_ready + queue.message_bytes_unacked,
            "message_bytes_ready": queue.message_bytes_ready + ahead_bytes,
            "message_bytes_unacknowledged": queue.message_bytes_unacked - ahead_bytes,
            "message_bytes_dlx": queue.message_bytes_dlx,
            "head_message_timestamp": head_timestamp(partition, queue)
            if head and not isinstance(queue, QueueCounters)
            else None,
            "queue_id": queue.queue_id,
            "partition": partition.name,
            "outcomes": dict(queue.counters),
        }
    )
    if not isinstance(queue, QueueCounters) and queue.quorum and queue.profile is RABBITMQ_4_3:
        item |= of_rabbitmq_4_3(queue)
    if queue.type == "stream":
        nodes = (elsewhere(broker, each.session)["node"] or broker.config.node for each in queue.consumers())
        item["readers"] = dict(Counter(map(str, nodes)))
    if queue.exclusive:
        owner = broker.sessions.by_id.get(queue.owner)
        item["owner_pid_details"] = elsewhere(broker, queue.owner) if owner is None else peer_details(broker, owner)
    return item


def of_rabbitmq_4_3(queue: "Queue") -> Item:
    """The fields that RabbitMQ 4.3 shows of a quorum queue (rabbit_quorum_queue.erl handle_tick).

    They are its priorities and its delayed messages. Moments are milliseconds since 1970."""
    assert queue.prioritized is not None
    levels = queue.prioritized.counts()
    settings = queue.settings
    retry = f"{settings.retry} (min: {settings.retry_min_ms}ms, max: {settings.retry_max_ms}ms)"
    item: Item = {
        "messages_by_priority": {str(level): count for level, count in levels.items()},
        "messages_active_priorities": len(levels),
        "messages_ready_returned": queue.returned.count,
        "messages_delayed": queue.messages_delayed,
        "delayed_retry": retry if settings.retry else "disabled",
        "delivery_limit": "unlimited" if settings.delivery_limit is None else settings.delivery_limit,
    }
    if queue.delayed is not None and queue.delayed.count > 0:
        item |= {"next_delayed_at": queue.delayed.first_expiry(), "last_delayed_at": queue.delayed.last_expiry()}
    return item


def node_of(broker: "Broker", queue: Listed, owner: str | None) -> str:
    """The node of a queue.

    An exclusive queue is at the node of its connection. Any other is at every node, and nearest at the owner of its
    partition."""
    joined = broker.topology.nodes.get(queue.owner >> EPOCH_SHIFT) if queue.exclusive else None
    return (owner or broker.config.node) if joined is None else joined.node


def head_timestamp(partition: "Partition", queue: "Queue") -> Json:
    """The earlier `timestamp` property of the first ready message and of the oldest held one.

    Of classic queues only, as in RabbitMQ."""
    if queue.type != "classic" or queue.gone:
        return None
    heads = [*islice(queue.ready_ids(), 1), *sorted(min(each.held) for each in queue.holders.values() if each.held)[:1]]
    found = (properties_of(partition.message(queue.queue_id, head).properties).get("timestamp") for head in heads)
    return min((each for each in found if isinstance(each, int)), default=None)


@operation("Declares a queue", folds=Folds.QUEUE, body=QueueWish, answers={201: None, 204: None})
async def declare(call: Call) -> Response:
    """Answers PUT /api/queues/{vhost}/{queue}."""
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
    query=(
        Query("if-unused", bool, "Only if it has no consumers"),
        Query("if-empty", bool, "Only if it has no messages"),
    ),
    answers={204: None},
)
async def delete(call: Call) -> Response:
    """Answers DELETE /api/queues/{vhost}/{queue}."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        deleted = await call.broker.queues.delete(session, queue.name, call.asks("if-unused"), call.asks("if-empty"))
    await call.durable()
    response = Response(status_code=204)
    response.headers["x-messages-deleted"] = str(deleted)
    return response


@operation(
    "Removes all ready messages. The header X-Messages-Purged counts them", folds=Folds.QUEUE, answers={204: None}
)
async def purge(call: Call) -> Response:
    """Answers DELETE /api/queues/{vhost}/{queue}/contents."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        purged = await call.broker.queues.purge(session, queue.name)
    await call.durable()
    response = Response(status_code=204)
    response.headers["x-messages-purged"] = str(purged)
    return response


@operation("Pauses a queue: it delivers nothing", folds=Folds.QUEUE, body=Why, answers={204: None})
async def pause(call: Call) -> Response:
    """Answers PUT .../pause, as LavinMQ does; the body may have a `reason`."""
    queue = call.queue()
    reason = reason_in(await call.body())
    async with call.session(queue.vhost) as session:
        await call.broker.queues.pause(session, queue.name, reason)
    await call.durable()
    return Response(status_code=204)


@operation("Resumes a paused queue", folds=Folds.QUEUE, answers={204: None})
async def resume(call: Call) -> Response:
    """Answers PUT .../resume, as LavinMQ does."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        await call.broker.queues.resume(session, queue.name)
    await call.durable()
    return Response(status_code=204)


def reason_in(content: dict[str, Json]) -> str:
    """The reason of a body, or "". Raises ApiError (400)."""
    reason = text(content, "reason", "")
    if len(reason) > MOST_REASON:
        raise bad_request(f"the reason is longer than {MOST_REASON} letters")
    return reason


def shown(body: bytes, encoding: str, truncate: int | None) -> tuple[str, str]:
    """A body for JSON: (text, "string" or "base64").

    `encoding` auto: a string if the shown part is UTF-8."""
    cut = body if truncate is None else body[:truncate]
    if encoding == "auto":
        try:
            return cut.decode(), "string"
        except UnicodeDecodeError:
            return base64.b64encode(cut).decode(), "base64"
    return base64.b64encode(cut).decode(), "base64"
