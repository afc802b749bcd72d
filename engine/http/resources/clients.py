"""Connections, channels and consumers over HTTP: those that are open now.

They are read from the broker's sessions and from the consumers in the machine, so nothing is counted twice. Of several
nodes on one log, a node knows its own connections and channels, and the consumers of all nodes. Of a partition that it
does not fold, it lists the consumers that the owner has published.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import Call, not_found
from rewindmq.engine.http.listing import Item, listed, listed_queues, queues_in, single
from rewindmq.engine.http.reference.operation import Folds, operation
from rewindmq.engine.http.shapes.clients import (
    ChannelView,
    ChannelWithConsumersView,
    ConnectionView,
    ListedConsumerView,
    UserConnectionView,
)
from rewindmq.engine.http.statistics import of_channel, statistics
from rewindmq.engine.partition.consumer_counters import ListedConsumer, PublishedConsumer

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.engine.partition.sessions import ChannelStatus, Session


def visible_sessions(call: Call, vhost: str | None) -> list["Session"]:
    """Return all sessions for a monitoring user, otherwise the user's own."""
    return [
        session
        for _, session in sorted(call.broker.sessions.by_id.items())
        if (call.monitors or session.user == call.user) and vhost in (None, session.vhost)
    ]


@operation("Lists the open connections", folds=Folds.COUNTERS, listing=ConnectionView)
async def connections(call: Call) -> Response:
    """Answer GET /api/connections."""
    return await connections_of(call, visible_sessions(call, None))


@operation("Lists the open connections to a virtual host", folds=Folds.COUNTERS, listing=ConnectionView)
async def vhost_connections(call: Call) -> Response:
    """Answer GET /api/vhosts/{vhost}/connections."""
    return await connections_of(call, visible_sessions(call, call.vhost))


async def connections_of(call: Call, sessions: "list[Session]") -> Response:
    """Return the answer with the connections of these sessions."""
    return await listed(call, sessions, lambda session: connection_view(call.broker, session))


def session_named(call: Call) -> "Session":
    """Return the session of the connection in the path. Raises ApiError (404)."""
    name = call.segment("name")
    for session in visible_sessions(call, None):
        if call.broker.config.both_ends(session.peer) == name:
            return session
    raise not_found()


@operation("Shows a connection", folds=Folds.COUNTERS, columns=True, answer=ConnectionView)
async def connection(call: Call) -> Response:
    """Answer GET /api/connections/{name}."""
    return single(call, connection_view(call.broker, session_named(call)))


@operation("Closes a connection", folds=Folds.NONE, act="close_connection", answers={204: None})
async def close_connection(call: Call) -> Response:
    """Answer DELETE /api/connections/{name}.

    The client receives 320 CONNECTION_FORCED, with the caller's X-Reason as RabbitMQ has it. A user may close its own
    connections, an administrator all."""
    close(call, [session_named(call)])
    return Response(status_code=204)


def close(call: Call, sessions: "list[Session]") -> None:
    """Close connections, for the reason of X-Reason. Their ends in the history say by whom and why.

    Raises ApiError for connections of another user."""
    if any(session.user != call.user for session in sessions):
        call.require()
    call.require_reason()
    why = f"closed by {call.user}" + (f": {call.reason}" if call.reason else "")
    for session in sessions:
        if session.close is not None:
            if call.keeps_reasons:
                session.actor = replace(session.actor, reason=why)
            session.close(call.reason or "Closed via management plugin")
    call.broker.turns.end()


def sessions_of_user(call: Call) -> "list[Session]":
    """Return the sessions of the user in the path that the asking user may see."""
    user = call.segment("user")
    return [session for session in visible_sessions(call, None) if session.user == user]


@operation("Lists the open connections of a user", folds=Folds.COUNTERS, listing=UserConnectionView)
async def user_connections(call: Call) -> Response:
    """Answer GET /api/connections/username/{user}."""
    return await listed(call, sessions_of_user(call), lambda session: UserConnectionView.of(session, call.broker))


@operation("Closes the connections of a user", folds=Folds.NONE, act="close_connection", answers={204: None})
async def close_user_connections(call: Call) -> Response:
    """Answer DELETE /api/connections/username/{user}."""
    close(call, sessions_of_user(call))
    return Response(status_code=204)


def connection_view(broker: "Broker", session: "Session") -> ConnectionView:
    """Return the view of a connection, with the rates of its traffic."""
    traffic: Item = {}
    if session.link is not None:
        octets = {"recv_oct": session.link.received_octets, "send_oct": session.link.sent_octets}
        traffic = statistics(broker).rates.shown(session.session_id, octets)
    return ConnectionView.of(session, broker, **traffic)


@operation("Lists the open channels", folds=Folds.COUNTERS, listing=ChannelView)
async def channels(call: Call) -> Response:
    """Answer GET /api/channels."""
    return await channels_of(call, visible_sessions(call, None))


@operation("Lists the open channels to a virtual host", folds=Folds.COUNTERS, listing=ChannelView)
async def vhost_channels(call: Call) -> Response:
    """Answer GET /api/vhosts/{vhost}/channels."""
    return await channels_of(call, visible_sessions(call, call.vhost))


@operation("Lists the channels of a connection", folds=Folds.COUNTERS, listing=ChannelView)
async def connection_channels(call: Call) -> Response:
    """Answer GET /api/connections/{name}/channels."""
    return await channels_of(call, [session_named(call)])


@operation("Shows a channel with its consumers", folds=Folds.COUNTERS, columns=True, answer=ChannelWithConsumersView)
async def channel(call: Call) -> Response:
    """Answer GET /api/channels/{channel}: one channel, with its consumers."""
    broker, name = call.broker, call.segment("name")
    for session in visible_sessions(call, None):
        for number, status in sorted(session.channels.items()):
            if f"{broker.config.both_ends(session.peer)} ({number})" == name:
                at = session.session_id, number
                consumers = await consumers_of_this_node(call)
                of_it = [(queue, each) for _, queue, each in consumers if (each.session, each.channel) == at]
                view = ChannelWithConsumersView.of(
                    status,
                    session,
                    broker,
                    consumer_count=len(of_it),
                    consumer_details=[ListedConsumerView.of(each, queue, broker) for queue, each in of_it],
                    **stats_of(broker, session, status),
                )
                return single(call, view)
    raise not_found()


async def channels_of(call: Call, sessions: "list[Session]") -> Response:
    """Return the answer with these sessions' channels, each with the number of its consumers."""
    consuming = Counter((consumer.session, consumer.channel) for _, _, consumer in await consumers_of_this_node(call))
    found = [(session, channel) for session in sessions for _, channel in sorted(session.channels.items())]

    def shown(pair: "tuple[Session, ChannelStatus]") -> ChannelView:
        session, channel = pair
        count, stats = consuming[session.session_id, channel.number], stats_of(call.broker, *pair)
        return ChannelView.of(channel, session, call.broker, consumer_count=count, **stats)

    return await listed(call, found, shown)


def stats_of(broker: "Broker", session: "Session", channel: "ChannelStatus") -> Item:
    """Return the message_stats of a channel, if it has any."""
    return statistics(broker).message_stats((session.session_id, channel.number), of_channel(channel))


@operation("Lists the consumers", folds=Folds.CONSUMERS, listing=ListedConsumerView)
async def consumers(call: Call) -> Response:
    """Answer GET /api/consumers."""
    return await consumers_of(call, set(call.monitored_vhosts()))


@operation("Lists the consumers in a virtual host", folds=Folds.CONSUMERS, listing=ListedConsumerView)
async def vhost_consumers(call: Call) -> Response:
    """Answer GET /api/consumers/{vhost}."""
    return await consumers_of(call, {call.monitored_vhost})


async def consumers_of(call: Call, vhosts: set[str]) -> Response:
    """Return the answer with the consumers of these vhosts."""
    found = await consumers_in(call, await listed_queues(call, vhosts))

    def shown(each: "tuple[PartitionReading, Listed, ListedConsumer]") -> ListedConsumerView:
        partition, queue, consumer = each
        view = ListedConsumerView.of(consumer, queue, call.broker)
        if isinstance(consumer, PublishedConsumer):
            view.counters_age_ms = partition.counters_age_ms
        return view

    return await listed(call, found, shown)


async def consumers_of_this_node(call: Call) -> "list[tuple[PartitionReading, Listed, ListedConsumer]]":
    """Return the consumers in the partitions that are folded here: those of this node's clients are among them."""
    return await consumers_in(call, await queues_in(call, call.broker.topology.vhosts))


async def consumers_in(
    call: Call, queues: "Sequence[tuple[PartitionReading, Listed]]"
) -> "list[tuple[PartitionReading, Listed, ListedConsumer]]":
    """Return the consumers of these queues, by queue and number."""
    return [
        (partition, queue, consumer)
        async for partition, queue in call.work.over(queues)
        for consumer in consumers_by_number(queue)
    ]


def consumers_by_number(queue: "Listed") -> "list[ListedConsumer]":
    """Return the consumers of a queue, in the order in which they came."""
    found: list[ListedConsumer] = list(queue.consumers())
    return sorted(found, key=lambda each: each.consumer)
