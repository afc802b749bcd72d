"""Types of the entries of definitions. The HTTP API shows them as well (engine/http/shapes/)."""

import json
from typing import TYPE_CHECKING, Any, Literal

from rewindmq.engine.broker.parameters import OPERATOR_POLICY
from rewindmq.engine.broker.passwords import exported
from rewindmq.engine.partition.queue_counters import Listed, QueueCounters
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.schemas.metadata_events import ParameterSet
from rewindmq.schemas.views import LEFT_OUT, From, View

if TYPE_CHECKING:
    from rewindmq.projections.topology.topology import Topology
    from rewindmq.schemas.metadata_events import (
        Bound,
        ExchangeDeclared,
        GlobalParameterSet,
        OperatorPolicySet,
        PolicySet,
        UserSet,
        VhostCreated,
    )

of_user: "From[[UserSet, Topology]]" = From()
of_vhost: "From[VhostCreated]" = From()
of_policy: "From[PolicySet | OperatorPolicySet]" = From()
of_parameter: "From[ParameterSet | OperatorPolicySet]" = From()
of_global: "From[GlobalParameterSet]" = From()
of_queue: "From[Listed]" = From()
of_exchange: "From[ExchangeDeclared]" = From()
of_bound: "From[Bound]" = From()


class AccountView(View):
    """A user."""

    name: str
    password_hash: str = of_user(lambda user, _: exported(user.password_hash)[0])
    hashing_algorithm: str = of_user(lambda user, _: exported(user.password_hash)[1])
    tags: list[str]
    limits: dict[str, int] = of_user(lambda user, topology: topology.user_limits.get(user.name, {}))


class PermissionsView(View):
    """The permissions of a user in a virtual host."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissionsView(View):
    """The permissions of a user for routing keys of an exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class VhostMetadataView(View):
    """Description, tags and default queue type of a virtual host."""

    description: str
    tags: list[str]
    default_queue_type: str = of_vhost.maybe(lambda vhost: vhost.default_queue_type or LEFT_OUT)


class PolicyView(View):
    vhost: str
    name: str
    pattern: str
    apply_to: str = of_policy(lambda policy: policy.apply_to, name="apply-to")
    definition: dict[str, object] = of_policy(lambda policy: json.loads(policy.definition))
    priority: int


class ParameterView(View):
    """A runtime parameter."""

    vhost: str
    component: str = of_parameter(lambda each: each.component if isinstance(each, ParameterSet) else OPERATOR_POLICY)
    name: str
    value: object = of_parameter(lambda each: parameter_value(each))


def parameter_value(parameter: "ParameterSet | OperatorPolicySet") -> object:
    """The value of a parameter. That of an operator policy is the policy, without its name."""
    if isinstance(parameter, ParameterSet):
        return json.loads(parameter.value)
    policy = PolicyView.of(parameter).__dict__
    return {name: policy[name] for name in ("pattern", "definition", "priority", "apply-to")}


class GlobalParameterView(View):
    """A global parameter."""

    name: str
    value: object = of_global(lambda parameter: json.loads(parameter.value))


class QueueDefinitionView(View):
    """A queue, as it was declared."""

    name: str
    vhost: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any] = of_queue(lambda queue: arguments_of(queue))


def arguments_of(queue: Listed) -> dict[str, Any]:
    """The arguments of a queue."""
    return dict(queue.argument_table) if isinstance(queue, QueueCounters) else table_of(queue.arguments)


class ExchangeDefinitionView(View):
    """An exchange, as it was declared."""

    name: str = of_exchange(lambda exchange, *_: exchange.exchange)
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any] = of_exchange(lambda exchange, *_: table_of(exchange.arguments))


class BindingDefinitionView(View):
    """A binding, as it was made."""

    source: str
    vhost: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: dict[str, Any] = of_bound(lambda bound: table_of(bound.arguments))
