"""Policies and operator policies over HTTP (S-019).

A user with the tag policymaker sets policies, only an administrator sets operator policies, as in RabbitMQ.
"""

import json
from collections.abc import Mapping
from typing import cast

from starlette.responses import Response

from rewindmq.engine.http.call import Call, bad_request, done, not_found, reply, text
from rewindmq.engine.http.listing import Item, listed
from rewindmq.engine.runtime.loop_share import by_key
from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet

Set = PolicySet | OperatorPolicySet


def policy_item(policy: Set) -> Item:
    """A policy as JSON."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": json.loads(policy.definition),
        "priority": policy.priority,
    }


async def policies_in(call: Call, policies: Mapping[tuple[str, str], Set], vhosts: set[str]) -> Response:
    """The answer with the policies of these vhosts."""
    return await listed(call, await by_key(call.work, policies, lambda key: key[0] in vhosts), policy_item)


def policy_in_path(call: Call, policies: Mapping[tuple[str, str], Set]) -> Set:
    """The policy in the path. Raises ApiError (404)."""
    policy = policies.get((call.policymakers_vhost, call.segment("name")))
    if policy is None:
        raise not_found()
    return policy


async def list_all(call: Call) -> Response:
    """Answers GET /api/policies."""
    return await policies_in(call, call.broker.topology.policies, set(call.visible_vhosts()))


async def list_all_operator(call: Call) -> Response:
    """Answers GET /api/operator-policies."""
    return await policies_in(call, call.broker.topology.operator_policies, set(call.visible_vhosts()))


async def list_vhost(call: Call) -> Response:
    """Answers GET /api/policies/{vhost}."""
    return await policies_in(call, call.broker.topology.policies, {call.vhost})


async def list_vhost_operator(call: Call) -> Response:
    """Answers GET /api/operator-policies/{vhost}."""
    return await policies_in(call, call.broker.topology.operator_policies, {call.vhost})


async def show(call: Call) -> Response:
    """Answers GET /api/policies/{vhost}/{name}."""
    return reply(policy_item(policy_in_path(call, call.broker.topology.policies)))


async def show_operator(call: Call) -> Response:
    """Answers GET /api/operator-policies/{vhost}/{name}."""
    call.require()
    return reply(policy_item(policy_in_path(call, call.broker.topology.operator_policies)))


async def policy_in_body(call: Call) -> tuple[str, dict[str, object], int, str]:
    """(pattern, definition, priority, apply-to) in the body. The broker checks the values."""
    content = await call.body("pattern", "definition")
    definition = content["definition"]
    if not isinstance(definition, dict):
        raise bad_request("definition must be a JSON object")
    priority = cast(int, content.get("priority", 0))
    return text(content, "pattern", ""), dict(definition), priority, text(content, "apply-to", "all")


async def put(call: Call) -> Response:
    """Answers PUT /api/policies/{vhost}/{name}."""
    vhost, name = call.policymakers_vhost, call.segment("name")
    new = (vhost, name) not in call.broker.topology.policies
    await call.broker.policies.set(call.actor(), vhost, name, *await policy_in_body(call))
    await call.durable()
    return done(new)


async def put_operator(call: Call) -> Response:
    """Answers PUT /api/operator-policies/{vhost}/{name}."""
    call.require()
    vhost, name = call.vhost, call.segment("name")
    new = (vhost, name) not in call.broker.topology.operator_policies
    await call.broker.operator_policies.set(call.actor(), vhost, name, *await policy_in_body(call))
    await call.durable()
    return done(new)


async def delete(call: Call) -> Response:
    """Answers DELETE /api/policies/{vhost}/{name}."""
    policy = policy_in_path(call, call.broker.topology.policies)
    await call.broker.policies.clear(call.actor(), policy.vhost, policy.name)
    await call.durable()
    return Response(status_code=204)


async def delete_operator(call: Call) -> Response:
    """Answers DELETE /api/operator-policies/{vhost}/{name}."""
    call.require()
    policy = policy_in_path(call, call.broker.topology.operator_policies)
    await call.broker.operator_policies.clear(call.actor(), policy.vhost, policy.name)
    await call.durable()
    return Response(status_code=204)
