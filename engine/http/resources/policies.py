"""Policies and operator policies over HTTP (S-019), and what a change of one would do at once to what is queued.

A user with the tag policymaker sets policies, only an administrator sets operator policies, as in RabbitMQ.

    GET /api/policies/{vhost}/{name}/effects?pattern=...&definition=JSON[&priority=0][&apply-to=all][&limit=20]
    GET /api/policies/{vhost}/{name}/effects?clear=true
    GET /api/operator-policies/{vhost}/{name}/effects?...        the same

These are ours, and change nothing. The user may set the policy, so the user may see its effects: names of queues, and
counts. The process that reads the past answers (engine/rewind/policy_effects.py), within DEADLINE_SECONDS.
"""

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import cast

from starlette.responses import Response

from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.definitions.shapes import PolicyView
from rewindmq.engine.host.loop_share import by_key
from rewindmq.engine.http.call import Call, bad_request, done, not_found, reply, text
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, POLICYMAKER, Folds, Query, operation
from rewindmq.engine.http.resources.outcomes import DEADLINE_SECONDS, definition_of, found
from rewindmq.engine.http.resources.past import number_of
from rewindmq.engine.http.shapes.topology import PolicyEffectsView, PolicyWish
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.rewind.outcomes import Deadline
from rewindmq.engine.rewind.policy_effects import Change, policy_effects
from rewindmq.schemas.metadata_events import OperatorPolicyCleared, OperatorPolicySet, PolicyCleared, PolicySet

EFFECTS = (
    Query("pattern", str, "Of the policy that is tried"),
    Query("definition", str, "... as JSON"),
    Query("priority", int, "..., 0 by default"),
    Query("apply-to", str, "..., all by default"),
    Query("clear", bool, "The policy in the path is cleared; then the others are left out"),
    Query("limit", int, "Queues in the answer, at most 500; the default is 20"),
)


MAX_QUEUES = 500  # in one answer about effects
PRIORITY = re.compile(r"-?[0-9]{1,18}")
Set = PolicySet | OperatorPolicySet


async def policies_in(call: Call, policies: Mapping[tuple[str, str], Set], vhosts: set[str]) -> Response:
    """Return the answer with the policies of these vhosts."""
    return await listed(call, await by_key(call.work, policies, lambda key: key[0] in vhosts), PolicyView.of)


def policy_in_path(call: Call, policies: Mapping[tuple[str, str], Set]) -> Set:
    """Return the policy in the path. Raises ApiError (404)."""
    policy = policies.get((call.policymakers_vhost, call.segment("name")))
    if policy is None:
        raise not_found()
    return policy


@operation("Lists the policies", folds=Folds.COUNTERS, listing=PolicyView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/policies."""
    return await policies_in(call, call.broker.topology.policies, set(call.visible_vhosts()))


@operation("Lists the operator policies", folds=Folds.COUNTERS, listing=PolicyView)
async def list_all_operator(call: Call) -> Response:
    """Answer GET /api/operator-policies."""
    return await policies_in(call, call.broker.topology.operator_policies, set(call.visible_vhosts()))


@operation("Lists the policies of a virtual host", folds=Folds.COUNTERS, listing=PolicyView)
async def list_vhost(call: Call) -> Response:
    """Answer GET /api/policies/{vhost}."""
    return await policies_in(call, call.broker.topology.policies, {call.vhost})


@operation("Lists the operator policies of a virtual host", folds=Folds.COUNTERS, listing=PolicyView)
async def list_vhost_operator(call: Call) -> Response:
    """Answer GET /api/operator-policies/{vhost}."""
    return await policies_in(call, call.broker.topology.operator_policies, {call.vhost})


@operation("Shows a policy", folds=Folds.COUNTERS, who=POLICYMAKER, answer=PolicyView)
async def show(call: Call) -> Response:
    """Answer GET /api/policies/{vhost}/{name}."""
    return reply(PolicyView.of(policy_in_path(call, call.broker.topology.policies)))


@operation("Shows an operator policy", folds=Folds.COUNTERS, who=ADMINISTRATOR, answer=PolicyView)
async def show_operator(call: Call) -> Response:
    """Answer GET /api/operator-policies/{vhost}/{name}."""
    call.require()
    return reply(PolicyView.of(policy_in_path(call, call.broker.topology.operator_policies)))


async def policy_in_body(call: Call) -> tuple[str, dict[str, object], int, str]:
    """(pattern, definition, priority, apply-to) in the body. The broker checks the values."""
    content = await call.body("pattern", "definition")
    definition = content["definition"]
    if not isinstance(definition, dict):
        raise bad_request("definition must be a JSON object")
    priority = cast(int, content.get("priority", 0))
    return text(content, "pattern", ""), dict(definition), priority, text(content, "apply-to", "all")


@operation(
    "Sets a policy",
    folds=Folds.IF_CHANGED,
    act="policies",
    who=POLICYMAKER,
    body=PolicyWish,
    answers={201: None, 204: None},
)
async def put(call: Call) -> Response:
    """Answer PUT /api/policies/{vhost}/{name}."""
    vhost, name = call.policymakers_vhost, call.segment("name")
    new = (vhost, name) not in call.broker.topology.policies
    await call.broker.policies.set(call.actor(), vhost, name, *await policy_in_body(call))
    await call.durable()
    return done(new)


@operation(
    "Sets an operator policy",
    folds=Folds.IF_CHANGED,
    act="policies",
    who=ADMINISTRATOR,
    body=PolicyWish,
    answers={201: None, 204: None},
)
async def put_operator(call: Call) -> Response:
    """Answer PUT /api/operator-policies/{vhost}/{name}."""
    call.require()
    vhost, name = call.vhost, call.segment("name")
    new = (vhost, name) not in call.broker.topology.operator_policies
    await call.broker.operator_policies.set(call.actor(), vhost, name, *await policy_in_body(call))
    await call.durable()
    return done(new)


@operation("Clears a policy", folds=Folds.IF_CHANGED, act="policies", who=POLICYMAKER, answers={204: None})
async def delete(call: Call) -> Response:
    """Answer DELETE /api/policies/{vhost}/{name}."""
    policy = policy_in_path(call, call.broker.topology.policies)
    await call.broker.policies.clear(call.actor(), policy.vhost, policy.name)
    await call.durable()
    return Response(status_code=204)


@operation("Clears an operator policy", folds=Folds.IF_CHANGED, act="policies", who=ADMINISTRATOR, answers={204: None})
async def delete_operator(call: Call) -> Response:
    """Answer DELETE /api/operator-policies/{vhost}/{name}."""
    call.require()
    policy = policy_in_path(call, call.broker.topology.operator_policies)
    await call.broker.operator_policies.clear(call.actor(), policy.vhost, policy.name)
    await call.durable()
    return Response(status_code=204)


# -- effects ----------------------------------------------------------------------------------------------------------


@operation(
    "Shows what a change of a policy would do at once",
    folds=Folds.NONE,
    who=POLICYMAKER,
    query=EFFECTS,
    answer=PolicyEffectsView,
    errors=(429,),
)
async def show_effects(call: Call) -> Response:
    """Answer GET /api/policies/{vhost}/{name}/effects."""
    vhost = call.policymakers_vhost
    if call.asks("clear"):
        cleared = policy_in_path(call, call.broker.topology.policies)
        return await answered(call, PolicyCleared(cleared.vhost, cleared.name))
    return await answered(call, PolicySet(vhost, call.segment("name"), *asked(call, False)))


@operation(
    "Shows what a change of an operator policy would do at once",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    query=EFFECTS,
    answer=PolicyEffectsView,
    errors=(429,),
)
async def show_operator_effects(call: Call) -> Response:
    """Answer GET /api/operator-policies/{vhost}/{name}/effects."""
    call.require()
    if call.asks("clear"):
        cleared = policy_in_path(call, call.broker.topology.operator_policies)
        return await answered(call, OperatorPolicyCleared(cleared.vhost, cleared.name))
    return await answered(call, OperatorPolicySet(call.vhost, call.segment("name"), *asked(call, True)))


def asked(call: Call, operator: bool) -> tuple[str, str, int, str]:
    """(pattern, definition, priority, apply-to) of the query, checked as those of a policy that is set.

    Raises ApiError (400), PreconditionFailed."""
    query = call.request.query_params
    if "pattern" not in query or "definition" not in query:
        raise bad_request("give pattern and definition, or clear=true")
    definition = definition_of(call, "definition", checked=False)
    pattern, apply_to = query["pattern"], query.get("apply-to", "all")
    given = query.get("priority", "0")
    priority: object = int(given) if PRIORITY.fullmatch(given) else given
    follows = (call.broker.config.semantics, call.broker.topology.machine_version)
    checked = checked_definition(call.segment("name"), pattern, definition, priority, apply_to, operator, *follows)
    return pattern, checked, int(given), apply_to


async def answered(call: Call, change: Change) -> Response:
    """Return the answer of the process that reads the past."""
    most = number_of(call, "limit", 20)
    if most > MAX_QUEUES:
        raise bad_request(f"limit is at most {MAX_QUEUES}")
    await call.durable()  # a reader sees only written events
    return await found(call, partial(found_effects, change, time.time_ns() // 1_000_000, most))


def found_effects(change: Change, now_ms: int, most: int, history: Location) -> PolicyEffectsView:
    """Return the effects. Raises RewindError, LogError."""
    return PolicyEffectsView.of(policy_effects(history, change, now_ms, most, Deadline(DEADLINE_SECONDS)))
