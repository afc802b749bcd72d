"""What a change of a policy would do at once to what is queued. Nothing is changed.

    GET /api/policies/{vhost}/{name}/effects?pattern=...&definition=JSON[&priority=0][&apply-to=all][&limit=20]
    GET /api/policies/{vhost}/{name}/effects?clear=true
    GET /api/operator-policies/{vhost}/{name}/effects?...        the same

The user may set the policy, so the user may see its effects: names of queues, and counts. The process that reads the
past answers (engine/rewind/policy_effects.py), within DEADLINE_SECONDS.
"""

import re
import time
from functools import partial

from starlette.responses import Response

from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.http.call import Call, bad_request
from rewindmq.engine.http.listing import Item
from rewindmq.engine.http.resources.outcomes import DEADLINE_SECONDS, definition_of, found
from rewindmq.engine.http.resources.past import number_of
from rewindmq.engine.http.resources.policies import policy_in_path
from rewindmq.engine.log.location import History
from rewindmq.engine.rewind.outcomes import Deadline
from rewindmq.engine.rewind.policy_effects import Change, PolicyEffects, QueueEffect, policy_effects
from rewindmq.schemas.metadata_events import OperatorPolicyCleared, OperatorPolicySet, PolicyCleared, PolicySet
from rewindmq.schemas.values import Policy

MAX_QUEUES = 500  # in one answer
PRIORITY = re.compile(r"-?[0-9]{1,18}")


async def show(call: Call) -> Response:
    """Answers GET /api/policies/{vhost}/{name}/effects."""
    vhost = call.policymakers_vhost
    if call.asks("clear"):
        cleared = policy_in_path(call, call.broker.topology.policies)
        return await answered(call, PolicyCleared(cleared.vhost, cleared.name))
    return await answered(call, PolicySet(vhost, call.segment("name"), *asked(call, False)))


async def show_operator(call: Call) -> Response:
    """Answers GET /api/operator-policies/{vhost}/{name}/effects."""
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
    text = query.get("priority", "0")
    priority: object = int(text) if PRIORITY.fullmatch(text) else text
    semantics = call.broker.config.semantics
    checked = checked_definition(call.segment("name"), pattern, definition, priority, apply_to, operator, semantics)
    return pattern, checked, int(text), apply_to


async def answered(call: Call, change: Change) -> Response:
    """The answer of the process that reads the past."""
    most = number_of(call, "limit", 20)
    if most > MAX_QUEUES:
        raise bad_request(f"limit is at most {MAX_QUEUES}")
    await call.durable()  # a reader sees only written events
    return await found(call, partial(found_effects, change, time.time_ns() // 1_000_000, most))


def found_effects(change: Change, now_ms: int, most: int, history: History) -> Item:
    """The effects as JSON. Raises RewindError, LogError."""
    effects = policy_effects(history, change, now_ms, most, Deadline(DEADLINE_SECONDS))
    return {
        "matched": effects.matched,
        "matched_now": effects.matched_now,
        "changed": effects.changed,
        "refusing": effects.refusing,
        "removed": removed_items(effects),
        "dead_lettered": effects.dead_lettered,
        "queues": [queue_item(each) for each in effects.worst],
        "not_seen": effects.not_seen,
        "complete": not effects.not_seen,
    }


def removed_items(found: PolicyEffects | QueueEffect) -> list[Item]:
    """What would leave, by outcome and rule, as JSON."""
    return [
        {"outcome": outcome, "rule": rule or None, "messages": messages}
        for (outcome, rule), messages in sorted(found.removed.items())
    ]


def queue_item(effect: QueueEffect) -> Item:
    """A queue as JSON."""
    return {
        "vhost": effect.vhost,
        "name": effect.queue,
        "messages": effect.messages,
        "before": named(effect.before),
        "after": named(effect.after),
        "removed": removed_items(effect),
        "dead_lettered": effect.dead_lettered,
        "refuses": effect.refuses,
    }


def named(policy: Policy | None) -> str | None:
    """The name of a policy."""
    return None if policy is None else policy.name
