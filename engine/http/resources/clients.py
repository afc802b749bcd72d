"""Connections, channels and consumers over HTTP: those that are open now.

They are read from the broker's sessions and from the consumers in the machine, so nothing is counted twice. Of several
nodes on one log, a node knows its own connections and channels, and the consumers of all nodes. Of a partition that it
does not fold, it lists the consumers that the owner has published.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import Call, not_found
from rewindmq.engine.http.listing import Item, listed, listed_queues, queues_in, single
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.shapes.clients import Channel as ChannelJson
from rewindmq.engine.http.shapes.clients import ChannelWithConsumers, Connection, UserConnection
from rewindmq.engine.http.shapes.clients import Consumer as ConsumerJson
from rewindmq.engine.http.statistics import of_channel, statistics
from rewindmq.engine.runtime.consumer_counters import ListedConsumer, PublishedConsumer
from rewindmq.projections.history.properties import json_form
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.schemas.values import EPOCH_SHIFT

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.engine.runtime.queue_counters import Listed
    from rewindmq.engine.runtime.sessions import ChannelStatus, Link, Session


REASON = (Query("X-Reason", str, "The client is told this reason"),)


def peer_details(broker: "Broker", session: "Session") -> Item:
    """Name and address of a connection."""
    host, _, port = session.peer.split(" -> ")[0].rpartition(":")
    return {
        "name": broker.config.both_ends(session.peer),
        "peer_host": host.strip("[]") or session.peer,
        "peer_port": int(port) if port.isdigit() else 0,
    }


def elsewhere(broker: "Broker", session_id: int) -> Item:
    """The data of a session that is not of this node, or is just closing.

    The events of all nodes name the session. Only its own node knows its client (None: no live node knows it)."""
    joined = broker.topology.nodes.get(session_id >> EPOCH_SHIFT)
    return {"node": None if joined is None else joined.node, "session_id": session_id}


def visible_sessions(call: Call, vhost: str | None) -> list["Session"]:
    """All sessions for a monitoring user, else the user's own."""
    return [
        session
        for _, session in sorted(call.broker.sessions.by_id.items())
        if (call.monitors or session.user == call.user) and vhost in (None, session.vhost)
    ]


@operation("Lists the open connections", folds=Folds.COUNTERS, listing=Connection)
async def connections(call: Call) -> Response:
    """Answers GET /api/connections."""
    return await connections_of(call, visible_sessions(call, None))


@operation("Lists the open connections to a virtual host", folds=Folds.COUNTERS, listing=Connection)
async def vhost_connections(call: Call) -> Response:
    """Answers GET /api/vhosts/{vhost}/connections."""
    return await connections_of(call, visible_sessions(call, call.vhost))


async def connections_of(call: Call, sessions: "list[Session]") -> Response:
    """The answer with the connections of these sessions."""
    return await listed(call, sessions, lambda session: connection_item(call.broker, session))


def session_named(call: Call) -> "Session":
    """The session of the connection in the path. Raises ApiError (404)."""
    name = call.segment("name")
    for session in visible_sessions(call, None):
        if call.broker.config.both_ends(session.peer) == name:
            return session
    raise not_found()


@operation("Shows a connection", folds=Folds.COUNTERS, columns=True, answer=Connection)
async def connection(call: Call) -> Response:
    """Answers GET /api/connections/{name}."""
    return single(call, connection_item(call.broker, session_named(call)))


@operation("Closes a connection", folds=Folds.NONE, headers=REASON, answers={204: None})
async def close_connection(call: Call) -> Response:
    """Answers DELETE /api/connections/{name}.

    The client receives 320 CONNECTION_FORCED, with the caller's X-Reason as RabbitMQ has it. A user may close its own
    connections, an administrator all."""
    close(call, [session_named(call)])
    return Response(status_code=204)


def close(call: Call, sessions: "list[Session]") -> None:
    """Closes connections, for the reason of X-Reason. Raises ApiError for connections of another user."""
    if any(session.user != call.user for session in sessions):
        call.require()
    for session in sessions:
        if session.close is not None:
            session.close(call.request.headers.get("x-reason", "Closed via management plugin"))
    call.broker.turns.end()


def sessions_of_user(call: Call) -> "list[Session]":
    """The sessions of the user in the path that the asking user may see."""
    user = call.segment("user")
    return [session for session in visible_sessions(call, None) if session.user == user]


@operation("Lists the open connections of a user", folds=Folds.COUNTERS, listing=UserConnection)
async def user_connections(call: Call) -> Response:
    """Answers GET /api/connections/username/{user}."""
    return await listed(
        call,
        [
            {
                "name": call.broker.config.both_ends(session.peer),
                "vhost": session.vhost,
                "user": session.user,
                "node": call.broker.config.node,
            }
            for session in sessions_of_user(call)
        ],
    )


@operation("Closes the connections of a user", folds=Folds.NONE, headers=REASON, answers={204: None})
async def close_user_connections(call: Call) -> Response:
    """Answers DELETE /api/connections/username/{user}."""
    close(call, sessions_of_user(call))
    return Response(status_code=204)


TLS = (
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
)


def tls_item(link: "Link | None") -> Item:
    """The TLS of a connection; null if it is not known, or there is none."""
    item: Item = {"ssl": link is not None and link.tls is not None, **dict.fromkeys(TLS)}
    if link is not None and link.tls is not None:
        peer = link.tls
        item |= {"ssl_protocol": peer.version, "ssl_cipher": peer.cipher, "peer_cert_subject": peer.subject or None}
    return item


def state_of(broker: "Broker", link: "Link | None") -> str:
    """The state of a connection.

    `blocking`: publishing is held back, and the client has not published since (rabbit_reader.erl)."""
    if link is None:
        return "running"
    return "blocking" if link.state == "running" and broker.turns.blocked is not None else link.state


def connection_item(broker: "Broker", session: "Session") -> Item:
    """A connection as JSON."""
    config, link = broker.config, session.link
    over_tls = config.tls if link is not None and link.tls is not None else None
    peer = peer_details(broker, session)
    item = (
        peer
        | tls_item(link)
        | {
            "user": session.user,
            "vhost": session.vhost,
            "node": config.node,
            "state": state_of(broker, link),
            "type": "network" if link else "direct",
            "protocol": "AMQP 0-9-1" if link else "Direct 0-9-1",
            "channels": len(session.channels),
            "host": str(peer["name"]).split(" -> ")[1].rpartition(":")[0].strip("[]"),
            "port": config.amqp_port if over_tls is None else over_tls.port,
            "connected_at": session.connected_at_ms,
            "client_properties": json_form(session.client_properties),
            "session_id": session.session_id,
            "user_who_performed_action": session.user,
        }
    )
    if isinstance(name := session.client_properties.get("connection_name"), str):
        item["user_provided_name"] = name
    if link is None:
        return item
    traffic = statistics(broker).rates.shown(
        session.session_id, {"recv_oct": link.received_octets, "send_oct": link.sent_octets}
    )
    return (
        item
        | traffic
        | {
            "auth_mechanism": link.auth_mechanism,
            "channel_max": link.channel_max,
            "frame_max": link.frame_max,
            "timeout": link.heartbeat_seconds,
            "recv_cnt": link.received_count,
            "send_cnt": link.sent_count,
            "send_pend": 0,
        }
    )


@operation("Lists the open channels", folds=Folds.COUNTERS, listing=ChannelJson)
async def channels(call: Call) -> Response:
    """Answers GET /api/channels."""
    return await channels_of(call, visible_sessions(call, None))


@operation("Lists the open channels to a virtual host", folds=Folds.COUNTERS, listing=ChannelJson)
async def vhost_channels(call: Call) -> Response:
    """Answers GET /api/vhosts/{vhost}/channels."""
    return await channels_of(call, visible_sessions(call, call.vhost))


@operation("Lists the channels of a connection", folds=Folds.COUNTERS, listing=ChannelJson)
async def connection_channels(call: Call) -> Response:
    """Answers GET /api/connections/{name}/channels."""
    return await channels_of(call, [session_named(call)])


@operation("Shows a channel with its consumers", folds=Folds.COUNTERS, columns=True, answer=ChannelWithConsumers)
async def channel(call: Call) -> Response:
    """Answers GET /api/channels/{channel}: one channel, with its consumers."""
    broker, name = call.broker, call.segment("name")
    for session in visible_sessions(call, None):
        for number, status in sorted(session.channels.items()):
            if f"{broker.config.both_ends(session.peer)} ({number})" == name:
                at = session.session_id, number
                consumers = await consumers_of_this_node(call)
                of_it = [(queue, each) for _, queue, each in consumers if (each.session, each.channel) == at]
                return single(
                    call,
                    channel_item(broker, session, status, len(of_it))
                    | {
                        "consumer_details": [consumer_item(broker, *each) for each in of_it],
                        "publishes": [],
                        "deliveries": [],
                    },
                )
    raise not_found()


async def channels_of(call: Call, sessions: "list[Session]") -> Response:
    """The answer with these sessions' channels, each with the number of its consumers."""
    consuming = Counter((consumer.session, consumer.channel) for _, _, consumer in await consumers_of_this_node(call))
    found = [(session, channel) for session in sessions for _, channel in sorted(session.channels.items())]
    return await listed(
        call, found, lambda pair: channel_item(call.broker, *pair, consuming[pair[0].session_id, pair[1].number])
    )


def channel_item(broker: "Broker", session: "Session", channel: "ChannelStatus", consumers: int) -> Item:
    """A channel as JSON."""
    connection = peer_details(broker, session)
    stats = statistics(broker).message_stats((session.session_id, channel.number), of_channel(channel))
    unconfirmed = channel.tally.unconfirmed if channel.confirm else 0
    return stats | {
        "name": f"{connection['name']} ({channel.number})",
        "number": channel.number,
        "user": session.user,
        "vhost": session.vhost,
        "node": broker.config.node,
        "state": "running",
        "confirm": channel.confirm,
        "transactional": channel.transactional,
        "atomic_commits": not broker.keeper.reads_back,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "consumer_count": consumers,
        "messages_unacknowledged": len(channel.settlement.unacked),
        "messages_unconfirmed": unconfirmed,
        "messages_uncommitted": channel.messages_uncommitted,
        "acks_uncommitted": channel.acks_uncommitted,
        "connection_details": dict(connection),
        "user_who_performed_action": session.user,
    }


def channel_details(broker: "Broker", session_id: int, number: int) -> Item:
    """The channel of a consumer as JSON, also of another node."""
    session = broker.sessions.by_id.get(session_id)
    if session is None:
        return {"number": number, **elsewhere(broker, session_id)}
    connection = peer_details(broker, session)
    return {
        "connection_name": connection["name"],
        "name": f"{connection['name']} ({number})",
        "number": number,
        "node": broker.config.node,
        "peer_host": connection["peer_host"],
        "peer_port": connection["peer_port"],
        "user": session.user,
    }


@operation("Lists the consumers", folds=Folds.CONSUMERS, listing=ConsumerJson)
async def consumers(call: Call) -> Response:
    """Answers GET /api/consumers."""
    return await consumers_of(call, set(call.monitored_vhosts()))


@operation("Lists the consumers in a virtual host", folds=Folds.CONSUMERS, listing=ConsumerJson)
async def vhost_consumers(call: Call) -> Response:
    """Answers GET /api/consumers/{vhost}."""
    return await consumers_of(call, {call.monitored_vhost})


async def consumers_of(call: Call, vhosts: set[str]) -> Response:
    """The answer with the consumers of these vhosts."""
    found = await consumers_in(call, await listed_queues(call, vhosts))

    def shown(each: "tuple[Partition, Listed, ListedConsumer]") -> Item:
        partition, queue, consumer = each
        item = consumer_item(call.broker, queue, consumer)
        if isinstance(consumer, PublishedConsumer):
            item["counters_age_ms"] = partition.counters_age_ms
        return item

    return await listed(call, found, shown)


async def consumers_of_this_node(call: Call) -> "list[tuple[Partition, Listed, ListedConsumer]]":
    """The consumers in the partitions that are folded here: those of this node's clients are among them."""
    return await consumers_in(call, await queues_in(call, call.broker.topology.vhosts))


async def consumers_in(
    call: Call, queues: "Sequence[tuple[Partition, Listed]]"
) -> "list[tuple[Partition, Listed, ListedConsumer]]":
    """The consumers of these queues, by queue and number."""
    return [
        (partition, queue, consumer)
        async for partition, queue in call.work.over(queues)
        for consumer in consumers_by_number(queue)
    ]


def consumers_by_number(queue: "Listed") -> "list[ListedConsumer]":
    """The consumers of a queue, in the order in which they came."""
    found: list[ListedConsumer] = list(queue.consumers())
    return sorted(found, key=lambda each: each.consumer)


def consumer_item(broker: "Broker", queue: "Listed", consumer: ListedConsumer) -> Item:
    """A consumer as JSON."""
    arguments = consumer.argument_table if isinstance(consumer, PublishedConsumer) else table_of(consumer.arguments)
    return {
        "queue": {"name": queue.name, "vhost": queue.vhost},
        "consumer_tag": consumer.tag,
        "channel_details": channel_details(broker, consumer.session, consumer.channel),
        "ack_required": not consumer.no_ack,
        "active": consumer.active,
        "activity_status": consumer.activity_status,
        "arguments": arguments,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "messages_unacknowledged": consumer.unacked,
    }
