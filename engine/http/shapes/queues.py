"""Types of queues and of their messages."""

from typing import Annotated, Literal, NotRequired, TypedDict

from rewindmq.engine.http.shapes.basics import (
    MessageId,
    Names,
    Properties,
    QueueStats,
    Rate,
    Table,
    Time,
)
from rewindmq.engine.http.shapes.clients import ChannelDetails, Consumer

Encoding = Literal["string", "base64"]


class QueueBasics(TypedDict):
    """A queue, with `disable_stats=true`."""

    name: str
    vhost: str
    type: Literal["classic", "quorum", "stream"]
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Table
    argument_types: Names
    node: Annotated[str, "The owner of its partition; of an exclusive queue the node of its connection"]
    folded_at: Annotated[list[str], "The nodes that fold its partition whatever their clients do"]
    state: Literal["running", "paused"]
    policy: NotRequired[str | None]
    counters_age_ms: NotRequired[Annotated[int | None, "The age of the figures, where they came from the owner"]]
    leader: NotRequired[str]
    members: NotRequired[list[str]]
    online: NotRequired[list[str]]
    messages: NotRequired[int]
    messages_ready: NotRequired[int]
    messages_unacknowledged: NotRequired[int]


class Queue(QueueBasics, total=False):
    """A queue. Fields besides the required ones are missing with `disable_stats=true`."""

    messages_details: Rate
    messages_ready_details: Rate
    messages_unacknowledged_details: Rate
    operator_policy: str | None
    effective_policy_definition: Table
    consumers: int
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    messages_dlx: Annotated[int, "Dead letters that the target has not confirmed yet"]
    message_bytes: int
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_dlx: int
    head_message_timestamp: int | None
    queue_id: Annotated[int, "The offset of its declaration"]
    partition: str
    outcomes: Annotated[dict[str, int], "Messages by what became of them"]
    message_stats: QueueStats
    readers: Annotated[dict[str, int], "Of a stream: its consumers by node"]
    owner_pid_details: dict[str, str | int | None]
    messages_by_priority: dict[str, int]
    messages_active_priorities: int
    messages_ready_returned: int
    messages_delayed: int
    delayed_retry: str
    delivery_limit: int | str
    next_delayed_at: int | None
    last_delayed_at: int | None


class QueueWithConsumers(Queue, total=False):
    """A queue with its consumers."""

    consumer_details: list[Consumer]
    deliveries: list[object]
    incoming: list[object]


class QueueWish(TypedDict, total=False):
    """A queue that is to be declared."""

    durable: Annotated[bool, "Default: false"]
    auto_delete: Annotated[bool, "Default: false"]
    arguments: Table


class Action(TypedDict):
    """An action of mirrors."""

    action: Literal["sync", "cancel_sync"]


class UnackedMessage(TypedDict):
    """A message that a consumer holds; `consumer_tag` is empty for a basic.get."""

    message_id: MessageId
    consumer_tag: str
    message_bytes: int
    redelivered: bool
    channel_details: ChannelDetails


class PeekedMessage(TypedDict):
    """A message that stays in the queue, with the first 64 bytes of its body."""

    message_id: MessageId
    exchange: str
    routing_key: str
    properties: Properties
    payload: str
    payload_encoding: Encoding
    payload_bytes: int
    redelivered: bool
    delivery_count: int


class GetWish(TypedDict):
    """The messages that are to be taken from a queue."""

    count: Annotated[int | str, "At most 100,000"]
    ackmode: Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
    encoding: Literal["auto", "base64"]
    truncate: NotRequired[Annotated[int | str | None, "Bytes of each body"]]


class GotMessage(TypedDict):
    """A message that was taken from a queue."""

    payload_bytes: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: Annotated[int, "Messages that were ready then"]
    properties: Properties
    payload: str
    payload_encoding: Encoding


class RemoveWish(TypedDict):
    """The messages that are to be deleted."""

    messages: list[int]
    partition: NotRequired[Annotated[str, "The one that the ids are of; a queue that has moved needs it"]]
    reason: NotRequired[str]


class MoveWish(RemoveWish):
    """The messages that are to be moved, to a queue or through an exchange."""

    to: NotRequired[Annotated[str, "A queue of the virtual host"]]
    exchange: NotRequired[str]
    routing_key: NotRequired[str]


class Stayed(TypedDict):
    """A message that stayed where it was."""

    message: MessageId
    reason: str


class Removed(TypedDict):
    """The messages that were deleted, and those that stayed."""

    removed: list[int]
    stayed: list[Stayed]


class Moved(TypedDict):
    """The messages that were moved, and those that stayed. `arrived`: whether the targets have them already."""

    moved: list[int]
    arrived: bool
    stayed: list[Stayed]


class PublishWish(TypedDict):
    """A message that is to be published."""

    properties: Annotated[object, "An object with the properties' names, or []"]
    routing_key: str
    payload: str
    payload_encoding: Encoding


class Routed(TypedDict):
    """The answer to a publish: `routed` is true if a queue took the message."""

    routed: bool


Member = TypedDict(
    "Member",
    {
        "Node Name": str,
        "Raft State": Literal["leader", "follower", "noproc"],
        "Membership": str,
        "Last Log Index": int | str,
        "Last Written": int | str,
        "Last Applied": int | str,
        "Commit Index": int | str,
        "Snapshot Index": int | str,
        "Term": int | str,
        "Machine Version": int,
    },
)
Led = TypedDict("Led", {"Node name": str, "Number of quorum queues": int})


class MemberWish(TypedDict):
    """A broker of Kafka's, by its id or address."""

    node: str


class GrowWish(TypedDict):
    """The queues that are to have a member on a broker of Kafka's."""

    strategy: Literal["all", "even"]
    queue_pattern: str
    vhost_pattern: str


class RebalanceWish(TypedDict, total=False):
    """The queues whose preferred leaders are to lead; all by default."""

    queue_pattern: str
    vhost_pattern: str


class WantedMembers(TypedDict):
    """A partition with its members, and with those that it is to have."""

    partition: str
    members: list[int]
    wanted: list[int]


class ByKafka(TypedDict):
    """The work that is left for Kafka's own tool."""

    error: str
    reason: str
    reassignment: NotRequired[object]
    command: NotRequired[str]
    partitions: NotRequired[list[WantedMembers]]


class PastMoment(TypedDict):
    """The moment of an answer."""

    partition: str
    offset: int
    time: Time
    time_ms: int


class PastMessage(TypedDict):
    """A message as it was."""

    message_id: MessageId
    position: Annotated[int, "From the head of the queue; -1: a consumer had it"]
    state: str
    payload_bytes: int
    redelivered: bool
    delivery_count: int
    expires: Time | None
    consumer: int | None
    published: Time
    exchange: str
    routing_key: str
    properties: Properties
    payload: str
    payload_encoding: Encoding


class PastQueue(TypedDict):
    """A queue as it was, with its first messages."""

    name: str
    vhost: str
    type: str
    durable: bool
    arguments: Table
    policy: str | None
    operator_policy: str | None
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    consumers: int
    outcomes: dict[str, int]
    at: PastMoment
    message_details: list[PastMessage]
