"""Types of virtual hosts, exchanges, bindings, policies, parameters and definitions."""

from typing import Annotated, Literal, NotRequired, TypedDict

from rewindmq.engine.http.shapes.basics import Deliveries, Depth, Names, Table


class VhostMetadata(TypedDict):
    """Description, tags and default queue type of a virtual host."""

    description: str
    tags: list[str]
    default_queue_type: NotRequired[str]


class Vhost(Depth):
    """A virtual host. `message_stats` counts the deliveries of its queues; publishes are not counted by vhost."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    metadata: VhostMetadata
    tracing: bool
    cluster_state: Names
    message_stats: NotRequired[Deliveries]


class VhostWish(TypedDict, total=False):
    """A virtual host that is to be made, or changed. A field that is missing is removed."""

    description: str
    tags: Annotated[str | list[str], "Names, or one text with commas between them"]
    default_queue_type: str | None
    defaultqueuetype: Annotated[str | None, "As default_queue_type"]
    tracing: Annotated[bool | str | None, "The firehose; a missing field changes nothing"]


class Exchange(TypedDict):
    """An exchange."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    argument_types: Names
    policy: str | None
    messages_delayed: NotRequired[Annotated[int, "Of an exchange of the type x-delayed-message"]]


class ExchangeInAndOut(Exchange):
    """An exchange. Messages are not counted by exchange: these lists are empty."""

    incoming: list[object]
    outgoing: list[object]


class ExchangeWish(TypedDict, total=False):
    """An exchange that is to be declared."""

    type: Annotated[str, "Default: direct"]
    durable: Annotated[bool, "Default: false"]
    auto_delete: Annotated[bool, "Default: false"]
    internal: Annotated[bool, "Default: false"]
    arguments: Table


class Binding(TypedDict):
    """A binding. `properties_key` names it among those of the same two ends."""

    source: str
    vhost: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: Table
    argument_types: Names
    properties_key: str


class LostBinding(Binding):
    """A binding that cannot be made again."""

    reason: str


class BindingWish(TypedDict, total=False):
    """A binding that is to be made."""

    routing_key: str
    arguments: Table


Policy = TypedDict(
    "Policy",
    {"vhost": str, "name": str, "pattern": str, "apply-to": str, "definition": Table, "priority": int},
)
PolicyWish = TypedDict(
    "PolicyWish",
    {
        "pattern": str,
        "definition": Table,
        "priority": NotRequired[Annotated[int, "Default: 0"]],
        "apply-to": NotRequired[Annotated[str, "Default: all"]],
    },
)


class Leaving(TypedDict):
    """Messages that would leave, by outcome and by the rule that decides."""

    outcome: str
    rule: str | None
    messages: int


class QueueEffect(TypedDict):
    """The effect that a change of a policy would have on a queue."""

    vhost: str
    name: str
    messages: int
    before: Annotated[str | None, "The policy that it has"]
    after: Annotated[str | None, "The policy that it would have"]
    removed: list[Leaving]
    dead_lettered: int
    refuses: bool


class PolicyEffects(TypedDict):
    """The immediate effects of a change of a policy."""

    matched: int
    matched_now: int
    changed: int
    refusing: Annotated[int, "Queues that would refuse publishes"]
    removed: list[Leaving]
    dead_lettered: int
    queues: Annotated[list[QueueEffect], "Those that lose the most messages"]
    not_seen: Annotated[list[str] | int, "What the time did not suffice for"]
    complete: bool


class Parameter(TypedDict):
    """A runtime parameter."""

    vhost: str
    component: str
    name: str
    value: object


class GlobalParameter(TypedDict):
    """A global parameter."""

    name: str
    value: object


class ParameterWish(TypedDict):
    """A value that is to be set."""

    value: object


class Definitions(TypedDict, total=False):
    """All that a broker has besides messages, as RabbitMQ exports it. Those of one virtual host do not name it."""

    rabbit_version: str
    rabbitmq_version: str
    product_name: str
    product_version: str
    users: list[Table]
    vhosts: list[Table]
    permissions: list[Table]
    topic_permissions: list[Table]
    parameters: list[Table]
    global_parameters: list[Table]
    policies: list[Table]
    queues: list[Table]
    exchanges: list[Table]
    bindings: list[Table]
