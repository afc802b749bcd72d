"""Types of connections, channels and consumers."""

from typing import TYPE_CHECKING, Annotated, Self

from rewindmq.engine.http.shapes.basics import MessageStatsView, Table, counted
from rewindmq.engine.partition.consumer_counters import ListedConsumer, PublishedConsumer
from rewindmq.projections.history.properties import json_form
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.schemas.values import EPOCH_SHIFT
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.sessions import ChannelStatus, Session
    from rewindmq.engine.tls import TlsPeer

of_session: "From[[Session, Broker]]" = From()
of_channel: "From[[ChannelStatus, Session, Broker]]" = From()
of_consumer: "From[[ListedConsumer, Listed, Broker]]" = From()


def node_of_session(broker: "Broker", session_id: int) -> str | None:
    """Return the node of a session that is not of this node, or is just closing; None: no live node knows it.

    The events of all nodes name the session. Only its own node knows its client."""
    joined = broker.topology.nodes.get(session_id >> EPOCH_SHIFT)
    return None if joined is None else joined.node


def address_of(session: "Session") -> tuple[str, int]:
    """Host and port of a client."""
    host, _, port = session.peer.split(" -> ")[0].rpartition(":")
    return host.strip("[]") or session.peer, int(port) if port.isdigit() else 0


def tls_of(session: "Session") -> "TlsPeer | None":
    """Return the TLS of a connection, if it has any that is known."""
    return None if session.link is None else session.link.tls


def state_of(session: "Session", broker: "Broker") -> str:
    """Return the state of a connection.

    `blocking`: publishing is held back, and the client has not published since (rabbit_reader.erl)."""
    if session.link is None:
        return "running"
    held_back = session.link.state == "running" and broker.turns.blocked is not None
    return "blocking" if held_back else session.link.state


def port_of(session: "Session", broker: "Broker") -> int:
    """Return the port of the listener to which a client is connected."""
    over_tls = broker.config.tls if tls_of(session) is not None else None
    return (over_tls and over_tls.port) or broker.config.amqp_port


class PeerView(View):
    """Name and address of a connection."""

    name: str = of_session(lambda session, broker: broker.config.both_ends(session.peer))
    peer_host: str = of_session(lambda session, _: address_of(session)[0])
    peer_port: int = of_session(lambda session, _: address_of(session)[1])


@counted("recv_oct", "send_oct", optional=True)
class ConnectionView(PeerView):
    """A connection. Fields of the network are there where a client has one."""

    ssl: bool = of_session(lambda session, _: tls_of(session) is not None)
    ssl_protocol: str | None = of_session(lambda session, _: None if (tls := tls_of(session)) is None else tls.version)
    ssl_key_exchange: str | None = None
    ssl_cipher: str | None = of_session(lambda session, _: None if (tls := tls_of(session)) is None else tls.cipher)
    ssl_hash: str | None = None
    peer_cert_subject: str | None = of_session(
        lambda session, _: None if (tls := tls_of(session)) is None else tls.subject or None
    )
    peer_cert_issuer: str | None = None
    peer_cert_validity: str | None = None
    user: str
    vhost: str
    node: str = of_session(lambda _, broker: broker.config.node)
    state: Annotated[str, "running, blocking, blocked, flow ..."] = of_session(state_of)
    type: str = of_session(lambda session, _: "network" if session.link else "direct")
    protocol: str = of_session(lambda session, _: "AMQP 0-9-1" if session.link else "Direct 0-9-1")
    channels: int = of_session(lambda session, _: len(session.channels))
    host: str = of_session(
        lambda session, broker: broker.config.both_ends(session.peer).split(" -> ")[1].rpartition(":")[0].strip("[]")
    )
    port: int = of_session(port_of)
    connected_at: Annotated[int, "Milliseconds since 1970"] = of_session(lambda session, _: session.connected_at_ms)
    client_properties: Table = of_session(lambda session, _: json_form(session.client_properties))
    user_provided_name: Annotated[str, "The connection_name among the client_properties"] = of_session.maybe(
        lambda session, _: (
            name if isinstance(name := session.client_properties.get("connection_name"), str) else LEFT_OUT
        )
    )
    session_id: Annotated[int, "The session in the events of the history"]
    user_who_performed_action: str = of_session(lambda session, _: session.user)
    auth_mechanism: str = of_session.maybe(lambda session, _: session.link.auth_mechanism if session.link else LEFT_OUT)
    channel_max: int = of_session.maybe(lambda session, _: session.link.channel_max if session.link else LEFT_OUT)
    frame_max: int = of_session.maybe(lambda session, _: session.link.frame_max if session.link else LEFT_OUT)
    timeout: Annotated[int, "Seconds of the heartbeat"] = of_session.maybe(
        lambda session, _: session.link.heartbeat_seconds if session.link else LEFT_OUT
    )
    recv_cnt: int = of_session.maybe(lambda session, _: session.link.received_count if session.link else LEFT_OUT)
    send_cnt: int = of_session.maybe(lambda session, _: session.link.sent_count if session.link else LEFT_OUT)
    send_pend: int = of_session.maybe(lambda session, _: 0 if session.link else LEFT_OUT)


class UserConnectionView(View):
    """A connection of a user."""

    name: str = of_session(lambda session, broker: broker.config.both_ends(session.peer))
    vhost: str
    user: str
    node: str = of_session(lambda _, broker: broker.config.node)


class ChannelView(View):
    """A channel. `message_stats` is there after its first count."""

    name: str = of_channel(
        lambda channel, session, broker: f"{broker.config.both_ends(session.peer)} ({channel.number})"
    )
    number: int
    user: str = of_channel(lambda _, session, __: session.user)
    vhost: str = of_channel(lambda _, session, __: session.vhost)
    node: str = of_channel(lambda _, __, broker: broker.config.node)
    state: str = "running"
    confirm: bool
    transactional: bool
    atomic_commits: bool = of_channel(lambda _, __, broker: not broker.nodes.reads_back)
    prefetch_count: int = of_channel(lambda channel, *_: channel.prefetch)
    global_prefetch_count: int = of_channel(lambda channel, *_: channel.global_prefetch)
    consumer_count: int
    messages_unacknowledged: int = of_channel(lambda channel, *_: len(channel.settlement.unacked))
    messages_unconfirmed: int = of_channel(lambda channel, *_: channel.tally.unconfirmed if channel.confirm else 0)
    messages_uncommitted: int
    acks_uncommitted: int
    connection_details: PeerView = of_channel(lambda _, session, broker: PeerView.of(session, broker))
    user_who_performed_action: str = of_channel(lambda _, session, __: session.user)
    message_stats: MessageStatsView = LEFT_OUT


class QueueNameView(View):
    """The name of a queue."""

    name: str
    vhost: str


class ChannelDetailsView(View):
    """The channel of a consumer. Of a channel at another node, its number, node and session are known."""

    number: int
    node: str | None
    session_id: int = LEFT_OUT
    connection_name: str = LEFT_OUT
    name: str = LEFT_OUT
    peer_host: str = LEFT_OUT
    peer_port: int = LEFT_OUT
    user: str = LEFT_OUT

    @classmethod
    def at(cls, broker: "Broker", session_id: int, number: int) -> Self:
        """Return the view of a channel by its session and number."""
        session = broker.sessions.by_id.get(session_id)
        if session is None:
            return cls(number=number, node=node_of_session(broker, session_id), session_id=session_id)
        name, (host, port) = broker.config.both_ends(session.peer), address_of(session)
        return cls(
            connection_name=name,
            name=f"{name} ({number})",
            number=number,
            node=broker.config.node,
            peer_host=host,
            peer_port=port,
            user=session.user,
        )


class ListedConsumerView(View):
    """A consumer."""

    queue: QueueNameView = of_consumer(lambda _, queue, __: QueueNameView.of(queue))
    consumer_tag: str = of_consumer(lambda consumer, *_: consumer.tag)
    channel_details: ChannelDetailsView = of_consumer(
        lambda consumer, _, broker: ChannelDetailsView.at(broker, consumer.session, consumer.channel)
    )
    ack_required: bool = of_consumer(lambda consumer, *_: not consumer.no_ack)
    active: bool
    activity_status: str
    arguments: Table = of_consumer(lambda consumer, *_: arguments_of(consumer))
    exclusive: bool
    prefetch_count: int = of_consumer(lambda consumer, *_: consumer.prefetch)
    priority: int
    messages_unacknowledged: int = of_consumer(lambda consumer, *_: consumer.unacked)
    counters_age_ms: Annotated[int | None, "The age of the figures, where they came from the owner"] = LEFT_OUT


def arguments_of(consumer: ListedConsumer) -> Table:
    """Return the arguments of a consumer."""
    return dict(consumer.argument_table) if isinstance(consumer, PublishedConsumer) else table_of(consumer.arguments)


class ChannelWithConsumersView(ChannelView):
    """A channel with its consumers. Messages are not counted by exchange or queue: these lists are empty."""

    consumer_details: list[ListedConsumerView]
    publishes: list[object] = of_channel(lambda *_: [])
    deliveries: list[object] = of_channel(lambda *_: [])
