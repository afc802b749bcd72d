"""The events of history, one class per event type, field for field the Avro record of its name in `schemas/avsc/`.

Rules of this file
- An event records a **request** (or that time passed). Its outcome (delivered, dropped, expired, dead-lettered) is
  never an event, because the queue machine derives it, each time the same (docs/design.md#one-idea).
- Times are milliseconds since 1970, sizes bytes, durations end in `_ms`. A message's id is the offset of its Published.
- Fields are only ever added, at the end of a record and with a default (see `schemas/README.md`). `event` stays the
  last field of the envelope and `body` that of `Published`, because readers rely on that to ignore bodies.

    Envelope { timestamp, actor { user, session }, event: one of the classes below }

This file has the events of a queue partition, except an operator's (`operator_events.py`). Those of the metadata log
are in `metadata_events.py`, `access_events.py` and `placement_events.py`.
Both have `BrokerStarted`, `NodeLost`, `MachineUpgraded`, `SessionClosed`, `PastRead` and those of `clock_events.py`.
`values.py` has the values that they carry.
"""

from dataclasses import dataclass
from typing import Any, Final

from rewindmq.schemas.access_events import (
    AccessEvent,
    AccessRefused,
    LoginRefused,
    SessionCounted,
    SessionOpened,
    UnroutedCounted,
)
from rewindmq.schemas.clock_events import ClockEvent, ClockSet, ClockStepped
from rewindmq.schemas.metadata_events import (
    BodiesExpired,
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    GlobalParameterCleared,
    GlobalParameterSet,
    HistoryForked,
    HistoryTrimmed,
    MarkDeleted,
    MarkSet,
    NodeJoined,
    OperatorPolicyCleared,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    SubjectErased,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    Unbound,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.operator_events import MessageRemoved, OperatorEvent, QueuePaused, QueueResumed
from rewindmq.schemas.pickles import pickle_by_fields
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    PlacementEvent,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import PARTS, Argument, Encryption, MovedFrom, Origin, Policy, Route, UnroutedLetter

# --- events of a queue partition -------------------------------------------------------------------------------------

# One of the first five is made for each message or delivery. They are not frozen, because a frozen dataclass costs
# three times as much to make. They have their own `__init__`, because mypyc does not compile the dataclass's.


@dataclass(init=False, slots=True)
class Published:
    """A message was published and routed to `route.queues`.

    `properties` are the raw AMQP property flags and values from the content header. Those with an effect are parsed:
    `expiration_ms` and `priority` (None if absent), `persistent` (delivery mode 2). `body_size` is the plain size; if
    `encryption` is None it is not stored, because it is the length of `body`. A reader that ignores bodies gets
    `body = b""` and the true `body_size`.

    Callers name the arguments after `properties`. Only the two places that make an event for each plain message
    (engine/amqp/publish_path.py, codec.py) pass them by position, because keywords double the time in Python."""

    route: Route
    properties: bytes
    expiration_ms: int | None
    priority: int | None
    persistent: bool
    origin: Origin | None
    encryption: Encryption | None
    body: bytes
    body_size: int

    def __init__(
        self,
        route: Route,
        properties: bytes,
        expiration_ms: int | None = None,
        priority: int | None = None,
        persistent: bool = False,
        origin: Origin | None = None,
        encryption: Encryption | None = None,
        body: bytes = b"",
        body_size: int = 0,
    ) -> None:
        self.route = route
        self.properties = properties
        self.expiration_ms = expiration_ms
        self.priority = priority
        self.persistent = persistent
        self.origin = origin
        self.encryption = encryption
        self.body = body
        self.body_size = body_size


@dataclass(init=False, slots=True)
class Acked:
    """`consumer` acked messages.

    `messages` are inclusive ranges of message ids, ascending. A range names exactly the consecutive ids first..last,
    and the consumer holds each of them."""

    vhost: str
    queue: str
    consumer: int
    messages: tuple[tuple[int, int], ...]

    def __init__(self, vhost: str, queue: str, consumer: int, messages: tuple[tuple[int, int], ...]) -> None:
        self.vhost = vhost
        self.queue = queue
        self.consumer = consumer
        self.messages = messages


@dataclass(init=False, slots=True)
class Nacked:
    """`consumer` gave messages back.

    `method`: nack, reject, recover, or timeout (the broker took them back from a consumer that did not settle them in
    time). `messages` as in `Acked`."""

    vhost: str
    queue: str
    consumer: int
    messages: tuple[tuple[int, int], ...]
    requeue: bool
    method: str

    def __init__(
        self,
        vhost: str,
        queue: str,
        consumer: int,
        messages: tuple[tuple[int, int], ...],
        requeue: bool,
        method: str,
    ) -> None:
        self.vhost = vhost
        self.queue = queue
        self.consumer = consumer
        self.messages = messages
        self.requeue = requeue
        self.method = method


@dataclass(init=False, slots=True)
class Credited:
    """The broker grants a consumer without prefetch (or with no_ack) `credit` more deliveries.

    For a consumer with a prefetch: `credit` >= 0 is its lookahead, the number it may hold beyond its prefetch. `credit`
    < 0: the lookahead ends, and the messages from -1 - `credit` on were not sent."""

    vhost: str
    queue: str
    consumer: int
    credit: int

    def __init__(self, vhost: str, queue: str, consumer: int, credit: int) -> None:
        self.vhost = vhost
        self.queue = queue
        self.consumer = consumer
        self.credit = credit


@dataclass(init=False, slots=True)
class Fetched:
    """A client called basic.get.

    `consumer` is the holder under which an unacknowledged message is kept, `channel` the client's channel."""

    vhost: str
    queue: str
    consumer: int
    channel: int
    no_ack: bool

    def __init__(self, vhost: str, queue: str, consumer: int, channel: int, no_ack: bool) -> None:
        self.vhost = vhost
        self.queue = queue
        self.consumer = consumer
        self.channel = channel
        self.no_ack = no_ack


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """A queue was declared. For an existing queue the event only renews the lease (S-053).

    The offset of the first such event is the queue's incarnation (`queue_id`). `type`: classic, quorum or stream.
    `owner` is the session of an exclusive queue, or 0. `semantics` names the profile (`rabbitmq-3.13`). The effective
    policies are part of the event, so that a partition can be folded without any other log. `moved_from`: the queue
    moved here from another partition."""

    vhost: str
    queue: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    owner: int
    arguments: tuple[Argument, ...]
    semantics: str
    policy: Policy | None = None
    operator_policy: Policy | None = None
    moved_from: MovedFrom | None = None


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A client asked to delete a queue. The fold decides `if_unused` and `if_empty`."""

    vhost: str
    queue: str
    if_unused: bool
    if_empty: bool


@dataclass(frozen=True, slots=True)
class PolicyApplied:
    """Another effective policy (or operator policy) applies to the queue from here on. None: none does."""

    vhost: str
    queue: str
    policy: Policy | None
    operator_policy: Policy | None


@dataclass(frozen=True, slots=True)
class ConsumerAttached:
    """A client called basic.consume. `consumer` is unique in the whole history.

    With `prefetch` > 0 and not `no_ack`, at most `prefetch` deliveries are outstanding. Otherwise the consumer starts
    with `credit` deliveries and gets more by `Credited`. `global_prefetch` > 0: the limit of outstanding deliveries to
    all consumers of the channel together (basic.qos global), in addition to the consumer's own limit."""

    vhost: str
    queue: str
    consumer: int
    channel: int
    tag: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    credit: int
    global_prefetch: int
    priority: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class ConsumerCancelled:
    """A consumer ended (basic.cancel). It gets no more deliveries, and keeps its unacknowledged messages."""

    vhost: str
    queue: str
    consumer: int


@dataclass(frozen=True, slots=True)
class Purged:
    """A client called queue.purge: all ready messages are dropped."""

    vhost: str
    queue: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and something was due. Appended only if no other event carries the time (docs/design.md#one-idea)."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A connection (`channel` 0) or one of its channels is gone.

    Its consumers are detached and the messages that they hold return. A connection's exclusive queues are deleted with
    it. In the metadata log it only records the end of the session."""

    session: int
    channel: int


@dataclass(frozen=True, slots=True)
class DeadLettersForwarded:
    """Every dead letter of the source queue up to `sequence` is durable in its targets, or has none.

    The source may forget these letters. `relocated`: the event is about messages that moved with the queue to another
    partition, and about no others; otherwise about all others. `taken`: the source's next letter gets a larger number
    than this, because a target has seen letters up to this number whose deaths a recovery lacks; 0: no number is.
    `unrouted`: those of them that no queue took."""

    vhost: str
    queue: str
    queue_id: int
    sequence: int
    relocated: bool = False
    taken: int = 0
    unrouted: tuple[UnroutedLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A broker's claim of the digest (SHA-256, hex) of the partition's canonical state after `offset` was applied.

    The fold ignores it; an audit compares it. `node`: the claiming node, if nodes share a log. `final`: a
    broker's last word at a clean stop. If another event is last in an embedded log, its broker crashed."""

    offset: int
    digest: str
    node: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """Every node that folds this event claims its state right after it (`Checkpointed`)."""


@dataclass(frozen=True, slots=True)
class BrokerStarted:
    """A broker took the log over.

    In a queue partition every earlier session is gone; transient queues and messages are lost (S-074, S-075). In the
    metadata log its offset is the broker's epoch. `after_crash` (in a queue partition): the previous broker did not
    stop cleanly, so it may have delivered messages by events that never became durable."""

    node: str
    version: str
    machine_version: int
    after_crash: bool = False


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node's life that began with `epoch` is over, in every partition of the log.

    Its sessions and transient queues end with it, and events that it may still write have no effect. `reason`: lapsed
    (no heartbeat), restarted (it joined again), stopped."""

    node: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class GlobalPrefetchSet:
    """A client called basic.qos with global on a channel with consumers.

    From here on at most `prefetch` deliveries to all of them are outstanding (0: no limit). Consumers attached earlier
    are also bound, but not those of quorum queues (S-097)."""

    session: int
    channel: int
    prefetch: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """An existing queue was declared again, which renews its lease (S-053).

    The event changes nothing if the queue is gone or is another incarnation than `queue_id`. It never makes a queue."""

    vhost: str
    queue: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class PastRead:
    """A client read the past of a queue, or, in the metadata log, of several (then `queue` is empty).

    The fold ignores it, because a reader of the past changes nothing in the present. `way` basic.consume has
    x-stream-offset or x-rewind-to among `arguments`, and its `consumer` is unique as in `ConsumerAttached`. Otherwise
    `way` is an HTTP request, and `request` its question; equal ones of a session within a minute are logged once."""

    vhost: str
    queue: str
    consumer: int
    channel: int
    tag: str
    arguments: tuple[Argument, ...]
    way: str = "basic.consume"
    request: str = ""


@dataclass(frozen=True, slots=True)
class MachineUpgraded:
    """From here on the fold decides by this machine version."""

    machine_version: int


@dataclass(frozen=True, slots=True)
class QueueDrained:
    """Up to `count` messages of a moving queue leave for its new partition, in the same way as dead letters.

    They are the first ones in the order of delivery, then delayed ones; held ones stay. None of them died. The
    event changes nothing if the queue is gone or is another incarnation than `queue_id`."""

    vhost: str
    queue: str
    queue_id: int
    count: int


# --- heartbeats, which are not history --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAlive:
    """The node is alive.

    This event is only in the topic `nodes`, which is kept for an hour and never folded into a state."""

    node: str
    epoch: int
    metadata_offset: int = -1


@dataclass(frozen=True, slots=True)
class QueueRefuses:
    """A queue was declared that refuses duplicates, or messages when it is full.

    This event is only in the topic `nodes`, for nodes that do not fold the queue's partition."""

    vhost: str
    queue: str
    partition: str
    offset: int


QueueEvent = (
    Published
    | Acked
    | Nacked
    | Credited
    | Fetched
    | QueueDeclared
    | QueueDeleted
    | PolicyApplied
    | ConsumerAttached
    | ConsumerCancelled
    | Purged
    | Tick
    | SessionClosed
    | DeadLettersForwarded
    | Checkpointed
    | BrokerStarted
    | MachineUpgraded
    | GlobalPrefetchSet
    | NodeLost
    | CheckpointAsked
    | LeaseRenewed
    | PastRead
    | ClockEvent
    | OperatorEvent
    | QueueDrained
)
MetadataEvent = (
    BrokerStarted
    | MachineUpgraded
    | VhostCreated
    | VhostDeleted
    | UserSet
    | UserDeleted
    | PermissionsSet
    | PermissionsCleared
    | ExchangeDeclared
    | ExchangeDeleted
    | Bound
    | Unbound
    | PolicySet
    | PolicyCleared
    | OperatorPolicySet
    | OperatorPolicyCleared
    | NodeJoined
    | NodeLost
    | TopicPermissionsSet
    | TopicPermissionsCleared
    | ParameterSet
    | ParameterCleared
    | GlobalParameterSet
    | GlobalParameterCleared
    | UserLimitsSet
    | SubjectErased
    | MarkSet
    | MarkDeleted
    | HistoryTrimmed
    | HistoryForked
    | BodiesExpired
    | AccessEvent
    | SessionClosed
    | PastRead
    | ClockEvent
    | PlacementEvent
)
Event = QueueEvent | MetadataEvent | NodeAlive | QueueRefuses

# The order of the envelope's union in Avro: an index is for ever, and new types are added at the end.
EVENT_TYPES: Final[tuple[type[Event], ...]] = (
    Published,
    Acked,
    Nacked,
    Credited,
    Fetched,
    QueueDeclared,
    QueueDeleted,
    PolicyApplied,
    ConsumerAttached,
    ConsumerCancelled,
    Purged,
    Tick,
    SessionClosed,
    DeadLettersForwarded,
    Checkpointed,
    BrokerStarted,
    MachineUpgraded,
    VhostCreated,
    VhostDeleted,
    UserSet,
    UserDeleted,
    PermissionsSet,
    PermissionsCleared,
    ExchangeDeclared,
    ExchangeDeleted,
    Bound,
    Unbound,
    PolicySet,
    PolicyCleared,
    OperatorPolicySet,
    OperatorPolicyCleared,
    GlobalPrefetchSet,
    NodeJoined,
    NodeLost,
    NodeAlive,
    CheckpointAsked,
    LeaseRenewed,
    PastRead,
    TopicPermissionsSet,
    TopicPermissionsCleared,
    ParameterSet,
    ParameterCleared,
    GlobalParameterSet,
    GlobalParameterCleared,
    UserLimitsSet,
    SubjectErased,
    MarkSet,
    MarkDeleted,
    ClockStepped,
    ClockSet,
    HistoryTrimmed,
    HistoryForked,
    BodiesExpired,
    SessionOpened,
    LoginRefused,
    AccessRefused,
    MessageRemoved,
    QueuePaused,
    QueueResumed,
    QueueRefuses,
    PartitionsAdded,
    NamesHeld,
    QueuesStay,
    PlacementChanged,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueDrained,
    UnroutedCounted,
    SessionCounted,
)

# The class of a record of this name; a record that is not here becomes a plain tuple.
CLASSES: Final[dict[str, Any]] = {cls.__name__: cls for cls in (*EVENT_TYPES, *PARTS, QueueName)}

pickle_by_fields(*CLASSES.values())
