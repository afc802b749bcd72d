"""Types of queues and of their messages."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Self, TypedDict, TypeVar

from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.shapes.basics import (
    Encoding,
    MessageId,
    Names,
    Properties,
    QueueStatsView,
    RateView,
    Table,
    Time,
    shown,
)
from rewindmq.engine.http.shapes.clients import ChannelDetailsView, ListedConsumerView, PeerView, node_of_session
from rewindmq.engine.http.shapes.topology import name_of
from rewindmq.engine.http.statistics import statistics
from rewindmq.engine.partition.queue_counters import Listed, QueueCounters
from rewindmq.projections.machine.data.message_word import is_redelivered, size_of
from rewindmq.projections.machine.rules.profile import RABBITMQ_4_3
from rewindmq.projections.machine.rules.settings import shown_definition
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.amqp.json_arguments import table_of, types_of
from rewindmq.schemas.values import EPOCH_SHIFT, Policy
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.counters import Served
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.engine.rewind.queue_at import PastMessage, PastQueue
    from rewindmq.projections.machine.data.queue import Consumer, Queue

T = TypeVar("T")
of_queue: "From[[Listed, PartitionReading, Broker]]" = From()
of_unacked: "From[[Consumer, int, int, Broker]]" = From()
of_message: "From[[PastMessage, int]]" = From()  # so far the clock of its expiry is ahead of the queue's time
of_past: "From[[PastQueue, int]]" = From()
of_past_queue: "From[PastQueue]" = From()


class PlainQueueView(View):
    """A queue, with `disable_stats=true`."""

    name: str
    vhost: str
    type: Literal["classic", "quorum", "stream"]
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Table = of_queue(
        lambda queue, _, __: (
            dict(queue.argument_table) if isinstance(queue, QueueCounters) else table_of(queue.arguments)
        )
    )
    argument_types: Names = of_queue(
        lambda queue, _, __: (
            dict(queue.argument_types) if isinstance(queue, QueueCounters) else types_of(queue.arguments)
        )
    )
    node: Annotated[str, "The owner of its partition; of an exclusive queue the node of its connection"]
    folded_at: Annotated[list[str], "The nodes that fold its partition whatever their clients do"]
    state: Literal["running", "paused"] = of_queue(lambda queue, _, __: "paused" if queue.paused else "running")
    policy: str | None = of_queue.maybe(lambda queue, _, broker: name_of(policy_of(queue, broker)) or LEFT_OUT)
    counters_age_ms: Annotated[int | None, "The age of the figures, where they came from the owner"] = of_queue.maybe(
        lambda queue, partition, _: partition.counters_age_ms if isinstance(queue, QueueCounters) else LEFT_OUT
    )
    leader: str = LEFT_OUT
    members: list[str] = LEFT_OUT
    online: list[str] = LEFT_OUT
    messages: int = LEFT_OUT
    messages_ready: int = LEFT_OUT
    messages_unacknowledged: int = LEFT_OUT

    @classmethod
    def placed(cls, broker: "Broker", partition: "PartitionReading", queue: Listed, figures: dict[str, Any]) -> Self:
        """Return the view of a queue, with these figures and with the nodes at which it is."""
        place = broker.nodes.place(partition)
        figures["node"], figures["folded_at"] = node_of(broker, queue, place.owner), list(place.folded_at)
        if queue.type in ("quorum", "stream"):
            members = broker.nodes.members(partition)
            figures |= {"leader": members.leader, "members": list(members.members), "online": list(members.online)}
        return cls.of(queue, partition, broker, **figures)


def policy_of(queue: Listed, broker: "Broker") -> Policy | None:
    """Return the policy that holds for a queue."""
    if not isinstance(queue, QueueCounters):
        return queue.policy
    return broker.topology.effective_policy(queue.vhost, queue.name, queue.type)


def operator_policy_of(queue: Listed, broker: "Broker") -> Policy | None:
    """Return the operator policy that holds for a queue."""
    if not isinstance(queue, QueueCounters):
        return queue.operator_policy
    return broker.topology.effective_operator_policy(queue.vhost, queue.name, queue.type)


def node_of(broker: "Broker", queue: Listed, owner: str | None) -> str:
    """Return the node of a queue.

    An exclusive queue is at the node of its connection. Any other is at every node, and nearest at the owner of its
    partition."""
    joined = broker.topology.nodes.get(queue.owner >> EPOCH_SHIFT) if queue.exclusive else None
    return (owner or broker.config.node) if joined is None else joined.node


def head_timestamp(partition: "PartitionReading", queue: Listed) -> int | None:
    """Return the earlier `timestamp` property of the first ready message and of the oldest held one.

    Of classic queues only, as in RabbitMQ."""
    if isinstance(queue, QueueCounters) or queue.type != "classic" or queue.gone:
        return None
    heads = [*islice(queue.ready_ids(), 1), *sorted(min(each.held) for each in queue.holders.values() if each.held)[:1]]
    found = (properties_of(partition.message(queue.queue_id, head).properties).get("timestamp") for head in heads)
    return min((each for each in found if isinstance(each, int)), default=None)


def wait_of(queue: Listed, partition: "PartitionReading", of: "Callable[[Served], tuple[int, int]]") -> Any:
    """Return the mean of a queue's sampled waits since the broker's start, in ms; None if there is none."""
    if isinstance(queue, QueueCounters):
        return LEFT_OUT
    served = partition.served.get(queue)
    sum_ms, count = (0, 0) if served is None else of(served)
    return round(sum_ms / count, 3) if count else None


def of_4_3(how: "Callable[[Queue], T]") -> T:
    """Declare a field that only a quorum queue of RabbitMQ 4.3 has (rabbit_quorum_queue.erl, handle_tick)."""
    return of_queue.maybe(
        lambda queue, _, __: (
            LEFT_OUT
            if isinstance(queue, QueueCounters) or not queue.quorum or queue.profile is not RABBITMQ_4_3
            else how(queue)
        )
    )


def levels_of(queue: "Queue") -> dict[str, int]:
    """Return the number of ready messages by priority."""
    assert queue.prioritized is not None
    return {str(level): count for level, count in queue.prioritized.counts().items()}


def retry_of(queue: "Queue") -> str:
    """Return the way in which a queue delays messages that come back."""
    settings = queue.settings
    retry = f"{settings.retry} (min: {settings.retry_min_ms}ms, max: {settings.retry_max_ms}ms)"
    return retry if settings.retry else "disabled"


def tag_of_exclusive(queue: Listed) -> str | None:
    """Return the tag of the exclusive consumer."""
    if isinstance(queue, QueueCounters):
        return queue.exclusive_tag
    alone = queue.exclusive_consumer()
    return None if alone is None else alone.tag


def tag_of_active(queue: Listed) -> str | None:
    """Return the tag of the single active consumer."""
    if isinstance(queue, QueueCounters):
        return queue.active_tag
    return None if queue.active is None else queue.active.tag


def definition_of(queue: Listed, broker: "Broker") -> Table:
    """Return the definition of both policies together, as plain JSON."""
    found = shown_definition(policy_of(queue, broker), operator_policy_of(queue, broker))
    return json.loads(json.dumps(found, allow_nan=False)) if found else {}


def readers_of(queue: Listed, broker: "Broker") -> dict[str, int]:
    """Return the number of consumers by node."""
    nodes = (node_of_session(broker, each.session) or broker.config.node for each in queue.consumers())
    return dict(Counter(nodes))


def owner_of(queue: Listed, broker: "Broker") -> dict[str, str | int | None]:
    """Return the connection of an exclusive queue; of another node, or one that is just closing, node and session."""
    session = broker.sessions.by_id.get(queue.owner)
    if session is None:
        return {"node": node_of_session(broker, queue.owner), "session_id": queue.owner}
    return PeerView.of(session, broker).__dict__


class QueueView(PlainQueueView, total=False):
    """A queue. Fields besides the required ones are missing with `disable_stats=true`."""

    messages_details: RateView = LEFT_OUT
    messages_ready_details: RateView = LEFT_OUT
    messages_unacknowledged_details: RateView = LEFT_OUT
    policy: str | None = of_queue(lambda queue, _, broker: name_of(policy_of(queue, broker)))
    operator_policy: str | None = of_queue(lambda queue, _, broker: name_of(operator_policy_of(queue, broker)))
    effective_policy_definition: Table = of_queue(lambda queue, _, broker: definition_of(queue, broker))
    consumers: int = of_queue(lambda queue, _, __: queue.consumer_count())
    exclusive_consumer_tag: str | None = of_queue(lambda queue, _, __: tag_of_exclusive(queue))
    single_active_consumer_tag: str | None = of_queue(lambda queue, _, __: tag_of_active(queue))
    messages_dlx: Annotated[int, "Dead letters that the target has not confirmed yet"]
    message_bytes: int = of_queue(lambda queue, _, __: queue.message_bytes_ready + queue.message_bytes_unacked)
    message_bytes_ready: int = of_queue(lambda queue, _, __: queue.message_bytes_ready + queue.in_lookahead()[1])
    message_bytes_unacknowledged: int = of_queue(
        lambda queue, _, __: queue.message_bytes_unacked - queue.in_lookahead()[1]
    )
    message_bytes_dlx: int
    head_message_timestamp: int | None = LEFT_OUT
    oldest_ready_age_ms: Annotated[int | None, "Age of the oldest ready message"] = of_queue.maybe(
        lambda queue, partition, _: LEFT_OUT if isinstance(queue, QueueCounters) else partition.oldest_age_ms(queue)
    )
    delivery_wait_avg_ms: Annotated[float | None, "Mean time from publish to delivery, sampled"] = of_queue.maybe(
        lambda queue, partition, _: wait_of(queue, partition, lambda each: (each.delivery_wait_ms, each.delivery_waits))
    )
    ack_wait_avg_ms: Annotated[float | None, "Mean time from delivery to ack, sampled"] = of_queue.maybe(
        lambda queue, partition, _: wait_of(queue, partition, lambda each: (each.ack_wait_ms, each.ack_waits))
    )
    queue_id: Annotated[int, "The offset of its declaration"]
    partition: str = of_queue(lambda _, partition, __: partition.name)
    outcomes: Annotated[dict[str, int], "Messages by outcome"] = of_queue(lambda queue, _, __: dict(queue.counters))
    message_stats: QueueStatsView = LEFT_OUT
    readers: Annotated[dict[str, int], "Of a stream: its consumers by node"] = of_queue(
        lambda queue, _, broker: readers_of(queue, broker) if queue.type == "stream" else LEFT_OUT
    )
    owner_pid_details: dict[str, str | int | None] = of_queue(
        lambda queue, _, broker: owner_of(queue, broker) if queue.exclusive else LEFT_OUT
    )
    messages_by_priority: dict[str, int] = of_4_3(levels_of)
    messages_active_priorities: int = of_4_3(lambda queue: len(levels_of(queue)))
    messages_ready_returned: int = of_4_3(lambda queue: queue.returned.count)
    messages_delayed: int = of_4_3(lambda queue: queue.messages_delayed)
    delayed_retry: str = of_4_3(retry_of)
    delivery_limit: int | str = of_4_3(
        lambda queue: "unlimited" if queue.settings.delivery_limit is None else queue.settings.delivery_limit
    )
    next_delayed_at: int | None = of_4_3(
        lambda queue: queue.delayed.first_expiry() if queue.delayed and queue.delayed.count else LEFT_OUT
    )
    last_delayed_at: int | None = of_4_3(
        lambda queue: queue.delayed.last_expiry() if queue.delayed and queue.delayed.count else LEFT_OUT
    )

    @classmethod
    def shown(cls, broker: "Broker", partition: "PartitionReading", queue: Listed, head: bool) -> Self:
        """Return the view of a queue as RabbitMQ shows it.

        Figures that RabbitMQ keeps and we do not (RAM, disk reads) are left out. `head`: also look at the first
        message, which may read RocksDB. Of a queue that is not folded here, it has the counters of its owner, and their
        age."""
        figures = statistics(broker).queue_shown(partition, queue)
        figures["head_message_timestamp"] = head_timestamp(partition, queue) if head else None
        return cls.placed(broker, partition, queue, figures)


class QueueWithConsumersView(QueueView, total=False):
    """A queue with its consumers."""

    consumer_details: list[ListedConsumerView] = LEFT_OUT
    deliveries: list[object] = of_queue(lambda *_: [])
    incoming: list[object] = of_queue(lambda *_: [])


class QueueWish(TypedDict, total=False):
    """A queue that is to be declared."""

    durable: Annotated[bool, "Default: false"]
    auto_delete: Annotated[bool, "Default: false"]
    arguments: Table


class ActionWish(TypedDict):
    """An action of mirrors."""

    action: Literal["sync", "cancel_sync"]


class UnackedMessageView(View):
    """A message that a consumer holds; `consumer_tag` is empty for a basic.get."""

    message_id: MessageId = of_unacked(lambda _, message_id, *__: message_id)
    consumer_tag: str = of_unacked(lambda holder, *_: holder.tag)
    message_bytes: int = of_unacked(lambda _, __, word, ___: size_of(word))
    redelivered: bool = of_unacked(lambda _, __, word, ___: is_redelivered(word))
    channel_details: ChannelDetailsView = of_unacked(
        lambda holder, _, __, broker: ChannelDetailsView.at(broker, holder.session, holder.channel)
    )


class PeekedMessageView(View):
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


class GotMessageView(View):
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


class StayedView(View):
    """A message that stayed where it was."""

    message: MessageId
    reason: str


class RemovedView(View):
    """The messages that were deleted, and those that stayed."""

    removed: list[int]
    stayed: list[StayedView]


class MovedView(View):
    """The messages that were moved, and those that stayed. `arrived`: whether the targets have them already."""

    moved: list[int]
    arrived: bool
    stayed: list[StayedView]


class PublishWish(TypedDict):
    """A message that is to be published."""

    properties: Annotated[object, "An object with the properties' names, or []"]
    routing_key: str
    payload: str
    payload_encoding: Encoding


class RoutedView(View):
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


class PastMomentView(View):
    """The moment of an answer."""

    partition: str
    offset: int
    time: Time = of_past_queue(lambda past: format_time(past.time_ms))
    time_ms: int


class PastMessageView(View):
    """A message as it was."""

    message_id: MessageId = of_message(lambda message, _: message.view.message_id)
    position: Annotated[int, "From the head of the queue; -1: a consumer had it"] = of_message(
        lambda message, _: message.view.position
    )
    state: str = of_message(lambda message, _: message.view.state)
    payload_bytes: int = of_message(lambda message, _: message.view.size)
    redelivered: bool = of_message(lambda message, _: message.view.redelivered)
    delivery_count: int = of_message(lambda message, _: message.view.delivery_count)
    expires: Time | None = of_message(
        lambda message, ahead_ms: None if (at := message.view.expires_ms) is None else format_time(at - ahead_ms)
    )
    consumer: int | None = of_message(lambda message, _: message.view.consumer)
    published: Time = of_message(lambda message, _: format_time(message.published_ms))
    exchange: str = of_message(lambda message, _: message.published.route.exchange)
    routing_key: str = of_message(lambda message, _: message.published.route.routing_key)
    properties: Properties = of_message(lambda message, _: properties_of(message.published.properties))
    payload: str
    payload_encoding: Encoding

    @classmethod
    def cut(cls, message: "PastMessage", ahead_ms: int, truncate: int) -> Self:
        """Return the view of a message, with at most this number of bytes of its body."""
        payload, encoding = shown(message.published.body, "auto", truncate)
        return cls.of(message, ahead_ms, payload=payload, payload_encoding=encoding)


class PastQueueView(View):
    """A queue as it was, with its first messages."""

    name: str = of_past(lambda past, _: past.queue.name)
    vhost: str = of_past(lambda past, _: past.queue.vhost)
    type: str = of_past(lambda past, _: past.queue.type)
    durable: bool = of_past(lambda past, _: past.queue.durable)
    arguments: Table = of_past(lambda past, _: table_of(past.queue.arguments))
    policy: str | None = of_past(lambda past, _: name_of(past.queue.policy))
    operator_policy: str | None = of_past(lambda past, _: name_of(past.queue.operator_policy))
    messages: int = of_past(lambda past, _: past.queue.messages_ready + past.queue.messages_unacked)
    messages_ready: int = of_past(lambda past, _: past.queue.messages_ready)
    messages_unacknowledged: int = of_past(lambda past, _: past.queue.messages_unacked)
    message_bytes_ready: int = of_past(lambda past, _: past.queue.message_bytes_ready)
    message_bytes_unacknowledged: int = of_past(lambda past, _: past.queue.message_bytes_unacked)
    consumers: int = of_past(lambda past, _: past.queue.consumer_count())
    outcomes: dict[str, int] = of_past(lambda past, _: dict(past.queue.counters))
    at: PastMomentView = of_past(lambda past, _: PastMomentView.of(past))
    message_details: list[PastMessageView] = of_past(
        lambda past, truncate: [PastMessageView.cut(each, past.ahead_ms, truncate) for each in past.messages]
    )
