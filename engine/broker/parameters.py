"""Runtime parameters of vhosts, and global parameters: set, cleared and shown.

Rules of this file
- Texts are RabbitMQ 3.13's (rabbit_runtime_parameters.erl). A component that is not known is refused: RabbitMQ refuses
  those of plugins that are not enabled (shovel, federation-upstream), which are not here either.
- `vhost-limits` holds the limits of a vhost, under the name `limits`, as in RabbitMQ. In RabbitMQ an operator policy is
  a parameter, too: so the component `operator_policy` is accepted and listed here, and sets an operator policy.
- Global parameters have no component, and any JSON value.
"""

import json
from collections.abc import Mapping

from rewindmq.engine.broker import limits
from rewindmq.engine.broker.policies import Policies
from rewindmq.engine.broker.vhosts import check_vhost
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.topology.topology import VHOST_LIMITS, Topology
from rewindmq.schemas.metadata_events import (
    GlobalParameterCleared,
    GlobalParameterSet,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
)
from rewindmq.schemas.values import Actor

CLUSTER_NAME = "cluster_name"  # the global parameter that holds it, as in RabbitMQ
OPERATOR_POLICY = "operator_policy"
OPERATOR_POLICY_KEYS = ("definition", "pattern", "priority")  # it must have these


class Parameters:
    """`default_cluster_name`: as long as no operator gives the cluster a name."""

    def __init__(self, metadata: Metadata, operator_policies: Policies, default_cluster_name: str) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._operator_policies = operator_policies
        self._default_cluster_name = default_cluster_name

    async def set(self, actor: Actor, vhost: str, component: str, name: str, value: object) -> None:
        """Set a parameter. NotFound: the vhost. PreconditionFailed, with RabbitMQ's text."""
        check_vhost(self._topology, vhost)
        check_parameter(component, name, value)
        if component == OPERATOR_POLICY and isinstance(value, dict):
            given = (value["pattern"], value["definition"], value["priority"], value.get("apply-to", "all"))
            await self._operator_policies.set(actor, vhost, name, *given)
            return
        changed = ParameterSet(vhost, component, name, limits.canonical(value))
        if self._topology.parameters.get((vhost, component, name)) != changed:
            await self._metadata.ask(actor, changed)

    async def clear(self, actor: Actor, vhost: str, component: str, name: str) -> None:
        """Clear a parameter. NotFound: the vhost, or the parameter."""
        check_vhost(self._topology, vhost)
        if component == OPERATOR_POLICY:
            await self._operator_policies.clear(actor, vhost, name)
            return
        if (vhost, component, name) not in self._topology.parameters:
            raise NotFound(f"parameter '{name}' of component '{component}' in vhost '{vhost}' does not exist")
        await self._metadata.ask(actor, ParameterCleared(vhost, component, name))

    async def set_vhost_limits(self, actor: Actor, vhost: str, definition: object) -> None:
        """Set all limits of a vhost: a limit that `definition` lacks is lifted. NotFound, PreconditionFailed."""
        await self.set(actor, vhost, *VHOST_LIMITS, definition)

    async def set_global(self, actor: Actor, name: str, value: object) -> None:
        changed = GlobalParameterSet(name, limits.canonical(value))
        if self._topology.global_parameters.get(name) != changed:
            await self._metadata.ask(actor, changed)

    async def clear_global(self, actor: Actor, name: str) -> None:
        """Clear a global parameter. NotFound."""
        if name not in self._topology.global_parameters:
            raise NotFound(f"global parameter '{name}' does not exist")
        await self._metadata.ask(actor, GlobalParameterCleared(name))

    @property
    def cluster_name(self) -> str:
        """The name that an operator gave the cluster, else the default."""
        named = self._topology.global_parameters.get(CLUSTER_NAME)
        name = None if named is None else json.loads(named.value)
        return name if isinstance(name, str) and name else self._default_cluster_name


def check_parameter(component: str, name: str, value: object) -> None:
    """PreconditionFailed with all that is wrong."""
    if component == "policy":
        raise PreconditionFailed("policies may not be set using this method")
    if (component, name) == VHOST_LIMITS:
        wrong = limits.problems(name, limits.VHOST_LIMITS, value)
    elif component == VHOST_LIMITS[0]:
        wrong = [f"component {component} has the parameter {VHOST_LIMITS[1]} only, not {name}"]
    elif component == OPERATOR_POLICY:
        wrong = _operator_policy_problems(name, value)
    else:
        wrong = [f"component {component} not found"]
    if wrong:
        raise PreconditionFailed("Validation failed\n\n" + "".join(f"{problem}\n" for problem in wrong))


def _operator_policy_problems(name: str, value: object) -> list[str]:
    """The keys only: rewindmq.engine.broker.policies checks the values."""
    if not isinstance(value, Mapping):
        return limits.problems(name, (), value)
    known = (*OPERATOR_POLICY_KEYS, "apply-to")
    missing = [f'Key "{key}" not found in {name}' for key in OPERATOR_POLICY_KEYS if key not in value]
    return limits.problems(name, (), {key: value[key] for key in value if key not in known}) + missing


def all_parameters(topology: Topology) -> dict[tuple[str, str, str], ParameterSet | OperatorPolicySet]:
    """All parameters by vhost, component and name; operator policies are among them, as in RabbitMQ."""
    policies = {(each.vhost, OPERATOR_POLICY, each.name): each for each in topology.operator_policies.values()}
    return topology.parameters | policies
