"""Connections, channels and consumers: what is connected now. All of it is read from the broker's open sessions and
from the queues' consumers in the machine, so nothing is counted twice.

Where many nodes share a log, a node knows its own connections and their channels, and the consumers of all.
"""

from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.http.call import Call, not_found, reply
from engine.http.listing import Item, listed
from engine.http.properties import plain
from schemas.events import EPOCH_SHIFT

if TYPE_CHECKING:
    from engine.broker import Broker, ChannelStatus, Session
    from projections.machine.queue import ConsumerView, Queue


def connection_name(broker: "Broker", session: "Session") -> str:
    if " -> " in session.peer:
        return session.peer
    return f"{session.peer} -> {broker.config.host}:{broker.config.amqp_port}"


def peer_details(broker: "Broker", session: "Session") -> Item:
    host, _, port = session.peer.split(" -> ")[0].rpartition(":")
    return {
        "name": connection_name(broker, session), "peer_host": host or session.peer,
        "peer_port": int(port) if port.isdigit() else 0,
    }  # fmt: skip


def elsewhere(broker: "Broker", session_id: int) -> Item:
    """What is known of a session that is not of this node, or is just going: the events of all nodes name it, and who
    has connected is known only to its node (None: to none that is alive)."""
    joined = broker.topology.nodes.get(session_id >> EPOCH_SHIFT)
    return {"node": None if joined is None else joined.node, "session_id": session_id}


def visible_sessions(call: Call, vhost: str | None) -> list["Session"]:
    """All of them for a monitoring user, else the user's own."""
    everyone = "administrator" in call.tags or "monitoring" in call.tags
    return [
        session
        for _, session in sorted(call.broker.sessions.items())
        if (everyone or session.user == call.user) and vhost in (None, session.vhost)
    ]


async def connections(call: Call) -> Response:
    return listed(call, [connection_item(call.broker, session) for session in visible_sessions(call, None)])


async def vhost_connections(call: Call) -> Response:
    return listed(call, [connection_item(call.broker, session) for session in visible_sessions(call, call.vhost)])


def session_named(call: Call) -> "Session":
    name = call.segment("name")
    for session in visible_sessions(call, None):
        if connection_name(call.broker, session) == name:
            return session
    raise not_found()


async def connection(call: Call) -> Response:
    return reply(connection_item(call.broker, session_named(call)))


async def close_connection(call: Call) -> Response:
    """320 CONNECTION_FORCED to the client, with the caller's X-Reason as RabbitMQ has it."""
    session = session_named(call)
    if session.close is not None:
        session.close(call.request.headers.get("x-reason", "Closed via management plugin"))
        call.broker.end_of_turn()
    return Response(status_code=204)


def connection_item(broker: "Broker", session: "Session") -> Item:
    config = broker.config
    over_amqp = session.close is not None
    return peer_details(broker, session) | {
        "user": session.user, "vhost": session.vhost, "node": config.node, "state": "running",
        "type": "network" if over_amqp else "direct", "protocol": "AMQP 0-9-1" if over_amqp else "Direct 0-9-1",
        "auth_mechanism": "PLAIN", "channels": len(session.channels), "channel_max": config.channel_max,
        "frame_max": config.frame_max, "host": config.host, "port": config.amqp_port, "ssl": False,
        "connected_at": session.connected_at_ms, "client_properties": plain(session.client_properties),
        "session_id": session.session_id, "user_who_performed_action": session.user,
    }  # fmt: skip


async def channels(call: Call) -> Response:
    return listed(call, channel_items(call, None))


async def vhost_channels(call: Call) -> Response:
    return listed(call, channel_items(call, call.vhost))


def channel_items(call: Call, vhost: str | None) -> list[Item]:
    """Each open channel with the number of its consumers and of the messages that they hold."""
    consuming: dict[tuple[int, int], tuple[int, int]] = {}
    for partition in call.broker.partitions:
        for queue in partition.machine.queues():
            for consumer in queue.consumers():
                count, unacked = consuming.get((consumer.session, consumer.channel), (0, 0))
                consuming[consumer.session, consumer.channel] = (count + 1, unacked + consumer.unacked)
    return [
        channel_item(call.broker, session, channel, *consuming.get((session.session_id, channel.number), (0, 0)))
        for session in visible_sessions(call, vhost)
        for _, channel in sorted(session.channels.items())
    ]


def channel_item(broker: "Broker", session: "Session", channel: "ChannelStatus", count: int, unacked: int) -> Item:
    connection = peer_details(broker, session)
    return {
        "name": f"{connection['name']} ({channel.number})", "number": channel.number, "user": session.user,
        "vhost": session.vhost, "node": broker.config.node, "state": "running", "confirm": channel.confirm,
        "transactional": False, "prefetch_count": channel.prefetch, "global_prefetch_count": channel.global_prefetch,
        "consumer_count": count, "messages_unacknowledged": unacked, "messages_uncommitted": 0, "acks_uncommitted": 0,
        "connection_details": dict(connection), "user_who_performed_action": session.user,
    }  # fmt: skip


def channel_details(broker: "Broker", session_id: int, number: int) -> Item:
    session = broker.sessions.get(session_id)
    if session is None:
        return {"number": number, **elsewhere(broker, session_id)}
    connection = peer_details(broker, session)
    return {
        "connection_name": connection["name"], "name": f"{connection['name']} ({number})", "number": number,
        "node": broker.config.node, "peer_host": connection["peer_host"], "peer_port": connection["peer_port"],
        "user": session.user,
    }  # fmt: skip


async def consumers(call: Call) -> Response:
    return listed(call, consumer_items(call, set(call.visible_vhosts())))


async def vhost_consumers(call: Call) -> Response:
    return listed(call, consumer_items(call, {call.vhost}))


def consumer_items(call: Call, vhosts: set[str]) -> list[Item]:
    found = [
        (queue, consumer)
        for partition in call.broker.partitions
        for queue in partition.machine.queues()
        if queue.vhost in vhosts
        for consumer in queue.consumers()
    ]
    found.sort(key=lambda pair: (pair[0].vhost, pair[0].name, pair[1].consumer))
    return [consumer_item(call.broker, queue, consumer) for queue, consumer in found]


def consumer_item(broker: "Broker", queue: "Queue", consumer: "ConsumerView") -> Item:
    return {
        "queue": {"name": queue.name, "vhost": queue.vhost}, "consumer_tag": consumer.tag,
        "channel_details": channel_details(broker, consumer.session, consumer.channel),
        "ack_required": not consumer.no_ack, "active": True, "activity_status": "up",
        "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
        "exclusive": consumer.exclusive, "prefetch_count": consumer.prefetch, "priority": consumer.priority,
        "messages_unacknowledged": consumer.unacked,
    }  # fmt: skip
