"""Types that many answers share."""

from typing import Annotated, NotRequired, TypedDict

Names = dict[str, str]
Table = dict[str, object]
Time = Annotated[str, "ISO 8601 in UTC, with milliseconds"]
MessageId = Annotated[int, "The offset of the message's publish in its partition"]


class Error(TypedDict):
    """Why a request was refused."""

    error: Annotated[str, "A short word, as RabbitMQ has it"]
    reason: Annotated[object, "A sentence for people; a list where an action of a queue is not known"]


class Rate(TypedDict):
    """The growth of a count per second."""

    rate: float


class Depth(TypedDict):
    """Numbers of messages, each with its rate."""

    messages: int
    messages_details: Rate
    messages_ready: int
    messages_ready_details: Rate
    messages_unacknowledged: int
    messages_unacknowledged_details: Rate


class Deliveries(TypedDict):
    """Counts since the node's start, each with its rate."""

    ack: int
    ack_details: Rate
    deliver_get: int
    deliver_get_details: Rate
    deliver: int
    deliver_details: Rate
    deliver_no_ack: int
    deliver_no_ack_details: Rate
    get: int
    get_details: Rate
    get_no_ack: int
    get_no_ack_details: Rate
    get_empty: int
    get_empty_details: Rate
    redeliver: int
    redeliver_details: Rate


class QueueStats(Deliveries):
    """Counts of a queue since the node's start, each with its rate."""

    publish: int
    publish_details: Rate


class MessageStats(QueueStats):
    """Counts of a node or of a channel, each with its rate."""

    confirm: int
    confirm_details: Rate
    return_unroutable: int
    return_unroutable_details: Rate
    drop_unroutable: int
    drop_unroutable_details: Rate


class Churn(TypedDict):
    """The numbers of things that came and went since the node's start, each with its rate."""

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


class Properties(TypedDict):
    """The properties of a message that were given, without BCC."""

    content_type: NotRequired[str]
    content_encoding: NotRequired[str]
    headers: NotRequired[Table]
    delivery_mode: NotRequired[int]
    priority: NotRequired[int]
    correlation_id: NotRequired[str]
    reply_to: NotRequired[str]
    expiration: NotRequired[str]
    message_id: NotRequired[str]
    timestamp: NotRequired[int]
    type: NotRequired[str]
    user_id: NotRequired[str]
    app_id: NotRequired[str]
    cluster_id: NotRequired[str]
    undecodable: NotRequired[Annotated[str, "Base64 of bytes in the history that are no properties"]]


class Moment(TypedDict):
    """An offset of a partition, and its time."""

    offset: int
    time: Time


class Why(TypedDict):
    """The reason of a change, which the history keeps."""

    reason: NotRequired[str]
