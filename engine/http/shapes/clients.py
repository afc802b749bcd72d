"""Types of connections, channels and consumers."""

from typing import Annotated, NotRequired, TypedDict

from rewindmq.engine.http.shapes.basics import MessageStats, Rate, Table


class Connection(TypedDict):
    """A connection. Fields of the network are there where a client has one."""

    name: str
    peer_host: str
    peer_port: int
    ssl: bool
    ssl_protocol: str | None
    ssl_key_exchange: str | None
    ssl_cipher: str | None
    ssl_hash: str | None
    peer_cert_subject: str | None
    peer_cert_issuer: str | None
    peer_cert_validity: str | None
    user: str
    vhost: str
    node: str
    state: Annotated[str, "running, blocking, blocked, flow ..."]
    type: str
    protocol: str
    channels: int
    host: str
    port: int
    connected_at: Annotated[int, "Milliseconds since 1970"]
    client_properties: Table
    user_provided_name: NotRequired[Annotated[str, "The connection_name among the client_properties"]]
    session_id: Annotated[int, "The session in the events of the history"]
    user_who_performed_action: str
    recv_oct: NotRequired[int]
    recv_oct_details: NotRequired[Rate]
    send_oct: NotRequired[int]
    send_oct_details: NotRequired[Rate]
    auth_mechanism: NotRequired[str]
    channel_max: NotRequired[int]
    frame_max: NotRequired[int]
    timeout: NotRequired[Annotated[int, "Seconds of the heartbeat"]]
    recv_cnt: NotRequired[int]
    send_cnt: NotRequired[int]
    send_pend: NotRequired[int]


class UserConnection(TypedDict):
    """A connection of a user."""

    name: str
    vhost: str
    user: str
    node: str


class Peer(TypedDict):
    """Name and address of a connection."""

    name: str
    peer_host: str
    peer_port: int


class Session(TypedDict):
    """A session of another node. `node` null: no live node knows it."""

    node: str | None
    session_id: int


class Channel(TypedDict):
    """A channel. `message_stats` is there after its first count."""

    name: str
    number: int
    user: str
    vhost: str
    node: str
    state: str
    confirm: bool
    transactional: bool
    atomic_commits: bool
    prefetch_count: int
    global_prefetch_count: int
    consumer_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    messages_uncommitted: int
    acks_uncommitted: int
    connection_details: Peer
    user_who_performed_action: str
    message_stats: NotRequired[MessageStats]


class QueueName(TypedDict):
    """The name of a queue."""

    name: str
    vhost: str


class ChannelDetails(TypedDict):
    """The channel of a consumer. Of a channel at another node, its number, node and session are known."""

    number: int
    node: str | None
    session_id: NotRequired[int]
    connection_name: NotRequired[str]
    name: NotRequired[str]
    peer_host: NotRequired[str]
    peer_port: NotRequired[int]
    user: NotRequired[str]


class Consumer(TypedDict):
    """A consumer."""

    queue: QueueName
    consumer_tag: str
    channel_details: ChannelDetails
    ack_required: bool
    active: bool
    activity_status: str
    arguments: Table
    exclusive: bool
    prefetch_count: int
    priority: int
    messages_unacknowledged: int
    counters_age_ms: NotRequired[Annotated[int | None, "The age of the figures, where they came from the owner"]]


class ChannelWithConsumers(Channel):
    """A channel with its consumers. Messages are not counted by exchange or queue: these lists are empty."""

    consumer_details: list[Consumer]
    publishes: list[object]
    deliveries: list[object]
