"""Types of the broker as a whole: overview, nodes, health."""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from rewindmq import builds
from rewindmq.engine.broker.history_size import KAFKA, LOCAL
from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.http.shapes.basics import (
    ChurnView,
    DepthView,
    MessageStatsView,
    Names,
    Time,
    counted,
    time_or_none,
)
from rewindmq.engine.http.shapes.standby import StandbyView
from rewindmq.engine.http.statistics import CHURN
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.routing.exchange_types import EXCHANGE_TYPES
from rewindmq.projections import system_calls
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.broker.archive_status import ArchiveStatus
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.broker.clock_watch import ClockWatch
    from rewindmq.engine.broker.history_size import HistorySize
    from rewindmq.engine.broker.history_trims import HistoryTrims
    from rewindmq.engine.erasure.day_expiry import HeldBack
    from rewindmq.engine.http.call import Call
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.projections.topology.about_history import Floor, Fork

PLUGINS = ("rabbitmq_management", "rabbitmq_prometheus")  # RabbitMQ's plugins that are built in here
MECHANISMS = {"AMQPLAIN": "QPid AMQPLAIN mechanism", "PLAIN": "SASL PLAIN authentication mechanism"}
of_log: "From[[PartitionReading, Broker]]" = From()
of_archive: "From[ArchiveStatus]" = From()
of_floor: "From[Floor]" = From()
of_trims: "From[HistoryTrims]" = From()
of_fork: "From[Fork]" = From()
of_overview: "From[[Broker, Call]]" = From()
of_clock: "From[[PartitionReading, ClockWatch]]" = From()
of_broker: "From[Broker]" = From()
of_held: "From[[HeldBack, str]]" = From()


class UserView(View):
    """The user that asks."""

    name: str
    tags: list[str]
    is_internal_user: bool


class Name(TypedDict):
    """A name."""

    name: str


class LevelWish(TypedDict):
    """A level of the log."""

    level: Annotated[str, "debug, info, warning or error"]


class ValueWish(TypedDict):
    """A value, of the kind that the thing has."""

    value: object


class ExchangeTypeView(View):
    """An exchange type, or a mechanism of login."""

    name: str
    description: str
    enabled: bool


def exchange_types() -> list[ExchangeTypeView]:
    """Return the exchange types that exist."""
    return [
        ExchangeTypeView(name=name, description=kind.description, enabled=True) for name, kind in EXCHANGE_TYPES.items()
    ]


class ListenerView(View):
    """An open listener."""

    node: str
    protocol: str
    ip_address: str
    port: int
    socket_opts: dict[str, object]


def open_listeners(broker: "Broker") -> list[tuple[str, str, int]]:
    """Return the listeners that take connections: (protocol, address, port) of each.

    An operator may have suspended those for AMQP."""
    listeners = broker.host.listeners
    suspended = listeners is not None and not listeners.open
    return [each for each in broker.config.listeners if not (suspended and each[0].startswith("amqp"))]


def listeners(broker: "Broker") -> list[ListenerView]:
    """Return the open listeners of the node."""
    return [
        ListenerView(node=broker.config.node, protocol=protocol, ip_address=address, port=port, socket_opts={})
        for protocol, address, port in open_listeners(broker)
    ]


class ContextView(View):
    """A listener of the management API or of the metrics."""

    node: str
    description: str
    path: str
    ip: str
    port: str
    ssl_opts: list[object]
    protocol: str


def contexts(broker: "Broker") -> list[ContextView]:
    """Return the listeners of the management API."""
    names = {"http": "RabbitMQ Management", "https": "RabbitMQ Management", "http/prometheus": "RabbitMQ Prometheus"}
    return [
        ContextView(
            node=broker.config.node,
            description=names[protocol],
            path="/",
            ip=address,
            port=str(port),
            ssl_opts=[],
            protocol=protocol,
        )
        for protocol, address, port in broker.config.listeners
        if protocol in names
    ]


class AlarmView(View):
    """An alarm that is in effect."""

    node: str
    resource: str
    reason: str


def alarms_of(broker: "Broker") -> list[AlarmView]:
    """Return the alarms of this node."""
    node = broker.config.node
    return [AlarmView(node=node, resource=name, reason=reason) for name, reason in broker.host.alarms.in_effect()]


class LogPartitionView(View):
    """A partition of the log. All events below `state_offset` are folded."""

    partition: str = of_log(lambda partition, _: partition.name)
    topic: Annotated[str | None, "The topic and partition in Kafka"] = of_log(
        lambda partition, broker: broker.config.topic_of(partition.name)
    )
    next_offset: int
    durable_offset: int
    state_offset: int = of_log(lambda partition, _: partition.machine.next_offset)
    leader: str = of_log(lambda partition, broker: broker.nodes.members(partition).leader)
    members: list[str] = of_log(lambda partition, broker: list(broker.nodes.members(partition).members))
    online: list[str] = of_log(lambda partition, broker: list(broker.nodes.members(partition).online))
    owned: Annotated[bool, "Timers and dead letters are this node's duty"]


class ArchiveView(View):
    """The progress of the archive. A field is null while it is unknown."""

    url: str
    archived_until: Time | None = of_archive(lambda status: time_or_none(status.archived_until_ms))
    archived_bytes: int | None = of_archive(lambda status: status.archived_bytes if status.archived else None)
    lag_records: int | None = of_archive(
        lambda status: sum(each[1] for each in status.lags()) if status.lags() else None
    )
    lag_bytes: int | None = of_archive(lambda status: sum(each[2] for each in status.lags()) if status.lags() else None)
    lag_seconds: float | None = of_archive(
        lambda status: round(max(each[3] for each in status.lags()), 1) if status.lags() else None
    )
    freed_bytes: int
    stays: Annotated[str | None, "Why segments that may leave this machine do not"]
    retention: Annotated[str | None, "What a person has to do about Kafka's own retention"]
    lost: Annotated[dict[str, list[int]], "By partition: the offsets that Kafka removed before they were archived"] = (
        of_archive(lambda status: {name: list(hole) for name, hole in status.lost().items()})
    )
    failures: int
    error: str | None


class FloorView(View):
    """The last trim of a partition."""

    partition: str = of_floor(lambda floor: floor.event.partition)
    offset: int = of_floor(lambda floor: floor.event.offset)
    until: Time = of_floor(lambda floor: format_time(floor.event.until_ms))
    trimmed: Time = of_floor(lambda floor: format_time(floor.time_ms))
    user: str
    reason: str = of_floor(lambda floor: floor.event.reason)
    findings: list[str] = of_floor(lambda floor: list(floor.event.findings))


class TrimsView(View):
    """The limit of --keep-history, and what was trimmed."""

    keep_seconds: int | None = of_trims(lambda trims: None if trims.keep_ms is None else trims.keep_ms // 1_000)
    before: Time | None = of_trims(lambda trims: time_or_none(trims.before_ms))
    floors: list[FloorView] = of_trims(lambda trims: [FloorView.of(each) for _, each in sorted(trims.floors.items())])
    stays: Annotated[Names, "By partition: why older history is not trimmed"]
    freed_bytes: int
    failures: int
    error: str | None


class HistoryCostsView(View):
    """The costs of the history. A field is null while it is unknown, `archive` also if there is none."""

    local_bytes: int | None = of_broker(lambda broker: bytes_in(broker.history.size, LOCAL))
    kafka_bytes: int | None = of_broker(lambda broker: bytes_in(broker.history.size, KAFKA))
    growth_bytes_per_day: int | None = of_broker(
        lambda broker: None if (growth := broker.history.size.growth_per_day) is None else int(growth)
    )
    disk_full_in_days: float | None = of_broker(
        lambda broker: None if (days := broker.history.size.full_in_days) is None else round(days, 1)
    )
    archive: ArchiveView | None = of_broker(
        lambda broker: None if broker.history.archive is None else ArchiveView.of(broker.history.archive)
    )
    trims: TrimsView = of_broker(lambda broker: TrimsView.of(broker.history.trims))


def bytes_in(size: "HistorySize", tier: str) -> int | None:
    """Return the size of the history if it is in this tier, and was measured."""
    return size.total_bytes if size.by_partition and size.tier == tier else None


class ForkView(View):
    """Where this history branched from another one."""

    parent: str = of_fork(lambda fork: fork.event.parent)
    identity: str = of_fork(lambda fork: fork.event.identity)
    moment: str = of_fork(lambda fork: fork.event.moment)
    made: Time = of_fork(lambda fork: format_time(fork.time_ms))
    positions: dict[str, int] = of_fork(lambda fork: {METADATA: fork.at, **dict(fork.event.positions)})
    source: str = of_fork(lambda fork: fork.event.source)


class ObjectTotalsView(View):
    """The number of objects of each kind."""

    channels: int
    connections: int
    consumers: int
    exchanges: int
    queues: int


STARTED = time.monotonic()


def uptime_seconds() -> float:
    """Return seconds since the process started."""
    return time.monotonic() - STARTED


class OverviewView(View):
    """The broker at a glance. A user without the tag monitoring sees no address of the machine."""

    management_version: str = RABBITMQ_VERSION
    rates_mode: str = "basic"
    exchange_types: list[ExchangeTypeView] = of_overview(lambda *_: exchange_types())
    sample_retention_policies: dict[str, list[int]] = of_overview(
        lambda *_: {"global": [], "basic": [], "detailed": []}
    )
    product_name: str = "RewindMQ"
    product_version: str = VERSION
    machine_version: Annotated[int, "The machine version that the history follows"] = of_overview(
        lambda broker, _: broker.topology.machine_version
    )
    known_machine_version: Annotated[
        int, "The newest one that this program knows; if it is higher, `rewindmq finalize_upgrade` is due"
    ] = MACHINE_VERSION
    rabbitmq_version: str = RABBITMQ_VERSION
    python_version: str = of_overview(lambda *_: sys.version.split()[0])
    build: Literal["pure", "compiled"] = of_overview(lambda *_: kind_of_build())
    node: str = of_overview(lambda broker, _: broker.config.node)
    cluster_name: str = of_overview(lambda broker, _: broker.parameters.cluster_name)
    disable_stats: bool = of_overview(lambda _, call: call.asks("disable_stats"))
    enable_queue_totals: bool = of_overview(lambda _, call: call.asks("enable_queue_totals"))
    is_op_policy_updating_enabled: bool = True
    uptime_seconds: int = of_overview(lambda *_: int(uptime_seconds()))
    data: str = of_overview(lambda broker, _: str(broker.config.data))
    log: list[LogPartitionView] = of_overview(
        lambda broker, _: [LogPartitionView.of(partition, broker) for partition in broker.partitions]
    )
    publishing_blocked: Annotated[str | None, "Why publishers are held back"] = of_overview(
        lambda broker, _: broker.turns.blocked
    )
    alarms: list[AlarmView] = of_overview(lambda broker, _: alarms_of(broker))
    counters_age_ms: Annotated[int | None, "The age of the oldest figures that came from an owner; null: none did"] = (
        of_overview(lambda broker, _: oldest_ms(broker))
    )
    object_totals: ObjectTotalsView
    message_stats: MessageStatsView = LEFT_OUT
    churn_rates: ChurnView = LEFT_OUT
    queue_totals: DepthView = LEFT_OUT
    statistics_db_event_queue: int = LEFT_OUT
    listeners: list[ListenerView] = of_overview.maybe(
        lambda broker, call: listeners(broker) if call.monitors else LEFT_OUT
    )
    contexts: list[ContextView] = of_overview.maybe(
        lambda broker, call: contexts(broker) if call.monitors else LEFT_OUT
    )
    history: HistoryCostsView = of_overview.maybe(
        lambda broker, call: HistoryCostsView.of(broker) if call.monitors else LEFT_OUT
    )
    fork: ForkView | None = of_overview.maybe(lambda broker, call: last_fork(broker) if call.monitors else LEFT_OUT)
    standby: StandbyView = of_overview.maybe(lambda broker, call: StandbyView.of(broker) if call.monitors else LEFT_OUT)


def oldest_ms(broker: "Broker") -> int | None:
    """Return the age of the oldest figures that came from an owner; None: none did."""
    return max((age for each in broker.partitions if (age := each.counters_age_ms) is not None), default=None)


def kind_of_build() -> Literal["pure", "compiled"]:
    """Return the build that runs."""
    return "compiled" if builds.running().kind == builds.COMPILED else "pure"


def last_fork(broker: "Broker") -> ForkView | None:
    """Where this history branched from another one; None if it is not a fork."""
    forks = broker.topology.history.forks
    return ForkView.of(forks[-1]) if forks else None


class PartitionClockView(View):
    """The time in a partition of the log."""

    partition: str = of_clock(lambda partition, _: partition.name)
    log_time: Time = of_clock(lambda partition, _: format_time(partition.log_ms()))
    difference_ms: int = of_clock(lambda partition, watch: watch.difference_ms(partition))
    queues_ahead_ms: int = of_clock(lambda partition, _: partition.machine.ahead_ms)


class ClockView(View):
    """The time in the log beside the wall clock of the node."""

    wall_time: Time = of_broker(lambda broker: format_time(broker.host.clock_watch.clock.wall_ms()))
    difference_ms: int = of_broker(
        lambda broker: max((broker.host.clock_watch.difference_ms(each) for each in broker.partitions), key=abs)
    )
    partitions: list[PartitionClockView] = of_broker(
        lambda broker: [PartitionClockView.of(each, broker.host.clock_watch) for each in broker.partitions]
    )


class ClockRepairView(View):
    """The time in the log before it was set and after."""

    before: Time
    after: Time
    moved_ms: int


class FinalizedUpgrade(TypedDict):
    """The machine version that the history followed, and the one that it follows now."""

    before: int
    after: int


class HeldDayView(View):
    """A queue that still has messages of a day whose bodies are due to expire."""

    day: str = of_held(lambda _, day: day)
    vhost: str = of_held(lambda held, _: held.name[0])
    queue: str = of_held(lambda held, _: held.name[1])
    messages: int


class ExpiryView(View):
    """The expiry of bodies by --keep-bodies."""

    keep_days: int | None = of_broker(lambda broker: broker.history.expiry.keep_days)
    expired_days: int = of_broker(lambda broker: len(broker.topology.history.expired_days))
    last_expired: str | None = of_broker(lambda broker: max(broker.topology.history.expired_days, default=None))
    held: list[HeldDayView] = of_broker(
        lambda broker: [
            HeldDayView.of(each, day) for day, held in sorted(broker.history.expiry.held.items()) for each in held
        ]
    )
    problem: str | None = of_broker(lambda broker: broker.history.expiry.problem)


class ApplicationView(View):
    """A program of the node."""

    name: str
    description: str
    version: str


class NearNodeView(View):
    """A node that folds a partition."""

    name: str
    address: Annotated[str, "host:port of its AMQP listener, as it announced it"]


class NearQueueView(View):
    """The nodes that are near a queue."""

    vhost: str
    queue: str
    partition: str
    owner: Annotated[str | None, "null: it has not said so to this node"]
    nodes: Annotated[list[NearNodeView], "The nodes that fold the partition whatever their clients do, the owner first"]


class PlacedPartitionView(View):
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


class NodeBasicsView(View):
    """The facts that any node knows about another."""

    name: str
    type: str
    running: bool
    address: str
    epoch: int
    owned_partitions: Annotated[list[str] | None, "null: only the node itself knows"]
    partitions: list[object]
    applications: list[ApplicationView]


@counted("mem_used", "fd_used", "sockets_used", "disk_free", "context_switches", *CHURN, optional=True)
class NodeView(NodeBasicsView, total=False):
    """A node. Of another node only what its join says is known: the required fields."""

    being_drained: bool = False
    os_pid: str = of_broker(lambda _: str(os.getpid()))
    build: str = of_broker(lambda _: str(builds.running()))
    uptime: Annotated[int, "Milliseconds"] = of_broker(lambda _: int(uptime_seconds() * 1000))
    mem_limit: int = of_broker(lambda broker: broker.host.memory.limit_bytes)
    mem_alarm: bool = of_broker(lambda broker: broker.host.alarms.memory)
    mem_calculation_strategy: str = "rss"
    disk_free_limit: int = of_broker(lambda broker: broker.host.alarms.disk_limit_bytes)
    disk_free_alarm: bool = of_broker(lambda broker: any(name == "disk" for name, _ in broker.host.alarms.in_effect()))
    fd_total: int = of_broker(lambda _: system_calls.open_descriptors()[1])
    sockets_total: int = of_broker(lambda _: system_calls.open_descriptors()[1])
    cluster_links: list[object] = of_broker(lambda _: [])
    processors: int = of_broker(lambda _: os.cpu_count() or 1)
    db_dir: str = of_broker(lambda broker: str(broker.config.data))
    log_files: list[str] = of_broker(lambda _: ["<stderr>"])
    config_files: list[str] = of_broker(lambda _: [])
    rates_mode: str = "basic"
    exchange_types: list[ExchangeTypeView] = of_broker(lambda _: exchange_types())
    enabled_plugins: list[str] = of_broker(lambda _: list(PLUGINS))
    clock: ClockView = of_broker(ClockView.of)
    expired_bodies: ExpiryView = of_broker(ExpiryView.of)
    auth_mechanisms: list[ExchangeTypeView] = of_broker(
        lambda _: [ExchangeTypeView(name=name, description=text, enabled=True) for name, text in MECHANISMS.items()]
    )
    contexts: list[ContextView] = of_broker(lambda broker: contexts(broker))


class MemoryView(View):
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


class PassedView(View):
    """A health check that passed."""

    status: Literal["ok"]
    reason: str = LEFT_OUT
    port: int = LEFT_OUT
    protocol: str = LEFT_OUT


class CriticalQueueView(View):
    """A quorum queue that would lose its quorum."""

    name: str
    virtual_host: str
    type: str
    partition: str
    readable_name: str


class FailedView(View):
    """A health check that failed."""

    status: Literal["failed"]
    reason: str
    alarms: list[AlarmView] = LEFT_OUT
    missing: int | str = LEFT_OUT
    ports: list[int] = LEFT_OUT
    protocols: list[str] = LEFT_OUT
    expired: list[dict[str, object]] = LEFT_OUT
    queues: list[CriticalQueueView] = LEFT_OUT


class WaysToLogInView(View):
    """The ways for a browser to log in, besides a password or a token."""

    provider: Annotated[str | None, "The host of the identity provider; null: there is none"]
    refused: Annotated[str, "Why the last sign-in of this browser failed, said once; or empty"]


class LoginWish(TypedDict):
    """A user's name and password, or any name and a token in the place of the password."""

    username: str
    password: str
