"""Types of the broker as a whole: overview, nodes, health."""

from typing import Annotated, Literal, NotRequired, TypedDict

from rewindmq.engine.http.shapes.basics import Churn, Depth, MessageStats, Names, Rate, Time
from rewindmq.engine.http.shapes.standby import Standby


class User(TypedDict):
    """The user that asks."""

    name: str
    tags: list[str]
    is_internal_user: bool


class Name(TypedDict):
    """A name."""

    name: str


class Level(TypedDict):
    """A level of the log."""

    level: Annotated[str, "debug, info, warning or error"]


class Value(TypedDict):
    """A value, of the kind that the thing has."""

    value: object


class ExchangeType(TypedDict):
    """An exchange type, or a mechanism of login."""

    name: str
    description: str
    enabled: bool


class Listener(TypedDict):
    """An open listener."""

    node: str
    protocol: str
    ip_address: str
    port: int
    socket_opts: dict[str, object]


class Context(TypedDict):
    """A listener of the management API or of the metrics."""

    node: str
    description: str
    path: str
    ip: str
    port: str
    ssl_opts: list[object]
    protocol: str


class Alarm(TypedDict):
    """An alarm that is in effect."""

    node: str
    resource: str
    reason: str


class LogPartition(TypedDict):
    """A partition of the log. All events below `state_offset` are folded."""

    partition: str
    topic: Annotated[str | None, "The topic and partition in Kafka"]
    next_offset: int
    durable_offset: int
    state_offset: int
    leader: str
    members: list[str]
    online: list[str]
    owned: Annotated[bool, "Timers and dead letters are this node's duty"]


class Archive(TypedDict):
    """The progress of the archive. A field is null while it is unknown."""

    url: str
    archived_until: Time | None
    archived_bytes: int | None
    lag_records: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    freed_bytes: int
    stays: Annotated[str | None, "Why segments that may leave this machine do not"]
    retention: Annotated[str | None, "What a person has to do about Kafka's own retention"]
    lost: Annotated[dict[str, list[int]], "By partition: the offsets that Kafka removed before they were archived"]
    failures: int
    error: str | None


class Floor(TypedDict):
    """The last trim of a partition."""

    partition: str
    offset: int
    until: Time
    trimmed: Time
    user: str
    reason: str
    findings: list[str]


class Trims(TypedDict):
    """The limit of --keep-history, and what was trimmed."""

    keep_seconds: int | None
    before: Time | None
    floors: list[Floor]
    stays: Annotated[Names, "By partition: why older history is not trimmed"]
    freed_bytes: int
    failures: int
    error: str | None


class HistoryCosts(TypedDict):
    """The costs of the history. A field is null while it is unknown, `archive` also if there is none."""

    local_bytes: int | None
    kafka_bytes: int | None
    growth_bytes_per_day: int | None
    disk_full_in_days: float | None
    archive: Archive | None
    trims: Trims


class Fork(TypedDict):
    """Where this history branched from another one."""

    parent: str
    identity: str
    moment: str
    made: Time
    positions: dict[str, int]
    source: str


class ObjectTotals(TypedDict):
    """The number of objects of each kind."""

    channels: int
    connections: int
    consumers: int
    exchanges: int
    queues: int


class Overview(TypedDict):
    """The broker at a glance. A user without the tag monitoring sees no address of the machine."""

    management_version: str
    rates_mode: str
    exchange_types: list[ExchangeType]
    sample_retention_policies: dict[str, list[int]]
    product_name: str
    product_version: str
    machine_version: Annotated[int, "The machine version that the history follows"]
    known_machine_version: Annotated[
        int, "The newest one that this program knows; if it is higher, `rewindmq finalize_upgrade` is due"
    ]
    rabbitmq_version: str
    python_version: str
    build: Literal["pure", "compiled"]
    node: str
    cluster_name: str
    disable_stats: bool
    enable_queue_totals: bool
    is_op_policy_updating_enabled: bool
    uptime_seconds: int
    data: str
    log: list[LogPartition]
    publishing_blocked: Annotated[str | None, "Why publishers are held back"]
    alarms: list[Alarm]
    counters_age_ms: Annotated[int | None, "The age of the oldest figures that came from an owner; null: none did"]
    object_totals: ObjectTotals
    message_stats: NotRequired[MessageStats]
    churn_rates: NotRequired[Churn]
    queue_totals: NotRequired[Depth]
    statistics_db_event_queue: NotRequired[int]
    listeners: NotRequired[list[Listener]]
    contexts: NotRequired[list[Context]]
    history: NotRequired[HistoryCosts]
    fork: NotRequired[Fork | None]
    standby: NotRequired[Standby]


class PartitionClock(TypedDict):
    """The time in a partition of the log."""

    partition: str
    log_time: Time
    difference_ms: int
    queues_ahead_ms: int


class Clock(TypedDict):
    """The time in the log beside the wall clock of the node."""

    wall_time: Time
    difference_ms: int
    partitions: list[PartitionClock]


class ClockRepair(TypedDict):
    """The time in the log before it was set and after."""

    before: Time
    after: Time
    moved_ms: int


class FinalizedUpgrade(TypedDict):
    """The machine version that the history followed, and the one that it follows now."""

    before: int
    after: int


class HeldDay(TypedDict):
    """A queue that still has messages of a day whose bodies are due to expire."""

    day: str
    vhost: str
    queue: str
    messages: int


class Expiry(TypedDict):
    """The expiry of bodies by --keep-bodies."""

    keep_days: int | None
    expired_days: int
    last_expired: str | None
    held: list[HeldDay]
    problem: str | None


class Application(TypedDict):
    """A program of the node."""

    name: str
    description: str
    version: str


class NearNode(TypedDict):
    """A node that folds a partition."""

    name: str
    address: Annotated[str, "host:port of its AMQP listener, as it announced it"]


class NearQueue(TypedDict):
    """The nodes that are near a queue."""

    vhost: str
    queue: str
    partition: str
    owner: Annotated[str | None, "null: it has not said so to this node"]
    nodes: Annotated[list[NearNode], "The nodes that fold the partition whatever their clients do, the owner first"]


class PlacedPartition(TypedDict):
    """A partition, and the nodes at which it is."""

    partition: str
    owner: Annotated[str | None, "null: it has not said so to this node"]
    folded_at: Annotated[list[str], "The nodes that fold it whatever their clients do"]
    folded_here: Annotated[bool, "Whether the node that answers folds it now"]
    queues: int
    messages: int
    consumers: int
    consumers_at: Annotated[dict[str, int], "By node: the consumers of its clients, as far as they are published"]
    counters_age_ms: Annotated[int | None, "The age of the figures, where they came from the owner"]


class NodeBasics(TypedDict):
    """The facts that any node knows about another."""

    name: str
    type: str
    running: bool
    address: str
    epoch: int
    owned_partitions: Annotated[list[str] | None, "null: only the node itself knows"]
    partitions: list[object]
    applications: list[Application]


class Node(NodeBasics, total=False):
    """A node. Of another node only what its join says is known: the required fields."""

    being_drained: bool
    os_pid: str
    build: str
    uptime: Annotated[int, "Milliseconds"]
    mem_limit: int
    mem_alarm: bool
    mem_calculation_strategy: str
    disk_free_limit: int
    disk_free_alarm: bool
    fd_total: int
    sockets_total: int
    cluster_links: list[object]
    processors: int
    db_dir: str
    log_files: list[str]
    config_files: list[str]
    rates_mode: str
    exchange_types: list[ExchangeType]
    enabled_plugins: list[str]
    clock: Clock
    expired_bodies: Expiry
    auth_mechanisms: list[ExchangeType]
    contexts: list[Context]
    mem_used: int
    mem_used_details: Rate
    fd_used: int
    fd_used_details: Rate
    sockets_used: int
    sockets_used_details: Rate
    disk_free: int
    disk_free_details: Rate
    context_switches: int
    context_switches_details: Rate
    connection_created: int
    connection_created_details: Rate
    connection_closed: int
    connection_closed_details: Rate
    channel_created: int
    channel_created_details: Rate
    channel_closed: int
    channel_closed_details: Rate
    queue_declared: int
    queue_declared_details: Rate
    queue_created: int
    queue_created_details: Rate
    queue_deleted: int
    queue_deleted_details: Rate


class Memory(TypedDict):
    """The memory of the process, and what of it is held for clients, by kind."""

    memory: dict[str, int | str | dict[str, int]]


class FeatureFlag(TypedDict):
    """A feature flag of RabbitMQ's whose feature exists here."""

    name: str
    desc: str
    doc_url: str
    state: str
    stability: str
    provided_by: str


class DeprecatedFeature(TypedDict):
    """A feature that RabbitMQ has deprecated."""

    name: str
    desc: str
    deprecation_phase: str
    doc_url: str
    provided_by: str


class Authentication(TypedDict):
    """The ways for a browser to log in."""

    oauth_enabled: bool


class Passed(TypedDict):
    """A health check that passed."""

    status: Literal["ok"]
    reason: NotRequired[str]
    port: NotRequired[int]
    protocol: NotRequired[str]


class CriticalQueue(TypedDict):
    """A quorum queue that would lose its quorum."""

    name: str
    virtual_host: str
    type: str
    partition: str
    readable_name: str


class Failed(TypedDict):
    """A health check that failed."""

    status: Literal["failed"]
    reason: str
    alarms: NotRequired[list[Alarm]]
    missing: NotRequired[int | str]
    ports: NotRequired[list[int]]
    protocols: NotRequired[list[str]]
    expired: NotRequired[list[dict[str, object]]]
    queues: NotRequired[list[CriticalQueue]]


class WaysToLogIn(TypedDict):
    """The ways for a browser to log in, besides a password or a token."""

    provider: Annotated[str | None, "The host of the identity provider; null: there is none"]
    refused: Annotated[str, "Why the last sign-in of this browser failed, said once; or empty"]


class Login(TypedDict):
    """A user's name and password, or any name and a token in the place of the password."""

    username: str
    password: str
