"""Runtime parameters: what components there are, what their values must be, and what there is.

Rules of this file
- Texts are RabbitMQ 3.13's (rabbit_runtime_parameters.erl). A component that is not known is refused: RabbitMQ refuses
  those of plugins that are not enabled (shovel, federation-upstream), which are not here either.
- `vhost-limits` holds the limits of a vhost, under the name `limits`, as in RabbitMQ. An operator policy is a parameter
  there, too: so `operator_policy` is taken here, and comes out again, but is the same as what set_operator_policy sets.
- Global parameters have no component and hold whatever they are given.
"""

import json
from collections.abc import Mapping

from rewindmq.engine.broker import limits
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.topology.topology import VHOST_LIMITS, Topology
from rewindmq.schemas.metadata_events import OperatorPolicySet, ParameterSet

OPERATOR_POLICY = "operator_policy"
OPERATOR_POLICY_KEYS = ("definition", "pattern", "priority")  # it must have these


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
    """What it says is judged where it is set (rewindmq.engine.broker.policies)."""
    if not isinstance(value, Mapping):
        return limits.problems(name, (), value)
    known = (*OPERATOR_POLICY_KEYS, "apply-to")
    missing = [f'Key "{key}" not found in {name}' for key in OPERATOR_POLICY_KEYS if key not in value]
    return limits.problems(name, (), {key: value[key] for key in value if key not in known}) + missing


def all_parameters(topology: Topology) -> dict[tuple[str, str, str], ParameterSet | OperatorPolicySet]:
    """By vhost, component and name, operator policies among them as in RabbitMQ."""
    policies = {(each.vhost, OPERATOR_POLICY, each.name): each for each in topology.operator_policies.values()}
    return topology.parameters | policies


def parameter_item(parameter: ParameterSet | OperatorPolicySet) -> dict[str, object]:
    """As it is shown: vhost, component, name and value."""
    if isinstance(parameter, ParameterSet):
        component, value = parameter.component, json.loads(parameter.value)
    else:
        component = OPERATOR_POLICY
        value = {
            "pattern": parameter.pattern,
            "definition": json.loads(parameter.definition),
            "priority": parameter.priority,
            "apply-to": parameter.apply_to,
        }
    return {"vhost": parameter.vhost, "component": component, "name": parameter.name, "value": value}
