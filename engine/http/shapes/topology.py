"""Types of virtual hosts, exchanges, bindings, policies, parameters and definitions."""

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict
from urllib.parse import quote_plus

from rewindmq.engine.definitions.shapes import BindingDefinitionView, ExchangeDefinitionView, VhostMetadataView
from rewindmq.engine.http.shapes.basics import DeliveriesView, LeavingView, Names, Table, counted, leaving
from rewindmq.engine.http.statistics import DEPTH
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE
from rewindmq.schemas.amqp.json_arguments import types_of
from rewindmq.schemas.values import Argument, Policy
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.rewind.policy_effects import PolicyEffects, QueueEffect
    from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared, VhostCreated

of_vhost: "From[[VhostCreated, Broker]]" = From()
of_exchange: "From[[ExchangeDeclared, Broker]]" = From()
of_bound: "From[Bound]" = From()
of_effect: "From[QueueEffect]" = From()
of_effects: "From[PolicyEffects]" = From()


@counted(*DEPTH)
class VhostView(View):
    """A virtual host. `message_stats` counts the deliveries of its queues; publishes are not counted by vhost."""

    name: str = of_vhost(lambda vhost, _: vhost.vhost)
    description: str
    tags: list[str]
    default_queue_type: str = of_vhost(lambda vhost, _: vhost.default_queue_type or "undefined")
    metadata: VhostMetadataView = of_vhost(lambda vhost, _: VhostMetadataView.of(vhost))
    tracing: bool = of_vhost(lambda vhost, broker: vhost.vhost in broker.firehose.vhosts)
    cluster_state: Names = of_vhost(lambda _, broker: {broker.config.node: "running"})
    message_stats: DeliveriesView = LEFT_OUT


class VhostWish(TypedDict, total=False):
    """A virtual host that is to be made, or changed. A field that is missing is removed."""

    description: str
    tags: Annotated[str | list[str], "Names, or one text with commas between them"]
    default_queue_type: str | None
    defaultqueuetype: Annotated[str | None, "As default_queue_type"]
    tracing: Annotated[bool | str | None, "The firehose; a missing field changes nothing"]


class ExchangeView(ExchangeDefinitionView):
    """An exchange."""

    argument_types: Names = of_exchange(lambda exchange, _: types_of(exchange.arguments))
    policy: str | None = of_exchange(
        lambda exchange, broker: name_of(broker.topology.effective_exchange_policy(exchange.vhost, exchange.exchange))
    )
    messages_delayed: Annotated[int, "Of an exchange of the type x-delayed-message"] = of_exchange.maybe(
        lambda exchange, broker: messages_delayed(exchange, broker)
    )


def name_of(policy: Policy | None) -> str | None:
    """Return the name of a policy."""
    return None if policy is None else policy.name


def messages_delayed(exchange: "ExchangeDeclared", broker: "Broker") -> int:
    """Return the messages that an exchange delays; left out for one that delays none."""
    hidden = broker.hidden.of(exchange.vhost, exchange.exchange) if exchange.type == DELAYED_EXCHANGE else None
    return LEFT_OUT if hidden is None else hidden.messages_delayed


class ExchangeInAndOutView(ExchangeView):
    """An exchange. Messages are not counted by exchange: these lists are empty."""

    incoming: list[object] = of_exchange(lambda *_: [])
    outgoing: list[object] = of_exchange(lambda *_: [])


class ExchangeWish(TypedDict, total=False):
    """An exchange that is to be declared."""

    type: Annotated[str, "Default: direct"]
    durable: Annotated[bool, "Default: false"]
    auto_delete: Annotated[bool, "Default: false"]
    internal: Annotated[bool, "Default: false"]
    arguments: Table


def properties_key(routing_key: str, arguments: tuple[Argument, ...]) -> str:
    """Return the name of a binding among those of the same two ends."""
    key = quote_plus(routing_key).replace("~", "%7E")
    if not arguments:
        return key or "~"
    canonical = json.dumps([[each.name, each.type, repr(each.value)] for each in arguments], allow_nan=False).encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()[:6]).decode()
    return f"{key}~{digest}"


class BindingView(BindingDefinitionView):
    """A binding. `properties_key` names it among those of the same two ends."""

    argument_types: Names = of_bound(lambda bound: types_of(bound.arguments))
    properties_key: str = of_bound(lambda bound: properties_key(bound.routing_key, bound.arguments))


class LostBindingView(BindingView):
    """A binding that cannot be made again."""

    reason: str


class BindingWish(TypedDict, total=False):
    """A binding that is to be made."""

    routing_key: str
    arguments: Table


PolicyWish = TypedDict(
    "PolicyWish",
    {
        "pattern": str,
        "definition": Table,
        "priority": NotRequired[Annotated[int, "Default: 0"]],
        "apply-to": NotRequired[Annotated[str, "Default: all"]],
    },
)


class QueueEffectView(View):
    """The effect that a change of a policy would have on a queue."""

    vhost: str
    name: str = of_effect(lambda effect: effect.queue)
    messages: int
    before: Annotated[str | None, "The policy that it has"] = of_effect(lambda effect: name_of(effect.before))
    after: Annotated[str | None, "The policy that it would have"] = of_effect(lambda effect: name_of(effect.after))
    removed: list[LeavingView] = of_effect(lambda effect: leaving(effect.removed))
    dead_lettered: int
    refuses: bool


class PolicyEffectsView(View):
    """The immediate effects of a change of a policy."""

    matched: int
    matched_now: int
    changed: int
    refusing: Annotated[int, "Queues that would refuse publishes"]
    removed: list[LeavingView] = of_effects(lambda effects: leaving(effects.removed))
    dead_lettered: int
    queues: Annotated[list[QueueEffectView], "Those that lose the most messages"] = of_effects(
        lambda effects: [QueueEffectView.of(each) for each in effects.worst]
    )
    not_seen: Annotated[list[str] | int, "What the time did not suffice for"]
    complete: bool = of_effects(lambda effects: not effects.not_seen)


class ParameterWish(TypedDict):
    """A value that is to be set."""

    value: object


class DefinitionsDocument(TypedDict, total=False):
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
