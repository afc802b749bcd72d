"""Limits of vhosts and users over HTTP. A user who sees a vhost sees its limits; administrators change them."""

from starlette.responses import Response

from rewindmq.engine.http.call import Call, not_found
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, operation
from rewindmq.engine.http.shapes.access import LimitWish, UserLimitsView, VhostLimitsView


@operation("Lists the limits of virtual hosts", folds=Folds.NONE, listing=VhostLimitsView)
async def list_vhosts_limits(call: Call) -> Response:
    """Answer GET /api/vhost-limits."""
    topology = call.broker.topology
    found = [
        VhostLimitsView(vhost=vhost, value=value)
        async for vhost in call.work.over(call.monitored_vhosts())
        if (value := topology.vhost_limits(vhost))
    ]
    return await listed(call, found)


@operation("Lists the limits of a virtual host", folds=Folds.NONE, listing=VhostLimitsView)
async def vhost_limits(call: Call) -> Response:
    """Answer GET /api/vhost-limits/{vhost}."""
    vhost = call.monitored_vhost
    value = call.broker.topology.vhost_limits(vhost)
    return await listed(call, [VhostLimitsView(vhost=vhost, value=value)] if value else [])


@operation("Sets a limit of a virtual host", folds=Folds.NONE, who=ADMINISTRATOR, body=LimitWish, answers={204: None})
async def put_vhost_limit(call: Call) -> Response:
    """Answer PUT /api/vhost-limits/{vhost}/{name}."""
    call.require()
    vhost, name = call.vhost, call.segment("name")
    content = await call.body("value")
    changed = call.broker.topology.vhost_limits(vhost) | {name: content["value"]}
    await call.broker.parameters.set_vhost_limits(call.actor(), vhost, changed)
    await call.durable()
    return Response(status_code=204)


@operation("Clears a limit of a virtual host", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None})
async def delete_vhost_limit(call: Call) -> Response:
    """Answer DELETE /api/vhost-limits/{vhost}/{name}. A limit that is not set is not an error."""
    call.require()
    vhost, name = call.vhost, call.segment("name")
    left = {key: value for key, value in call.broker.topology.vhost_limits(vhost).items() if key != name}
    await call.broker.parameters.set_vhost_limits(call.actor(), vhost, left)
    await call.durable()
    return Response(status_code=204)


@operation("Lists the limits of users", folds=Folds.NONE, listing=UserLimitsView)
async def list_users_limits(call: Call) -> Response:
    """Answer GET /api/user-limits."""
    found = sorted(call.broker.topology.user_limits.items())
    return await listed(call, [UserLimitsView(user=user, value=value) for user, value in found])


def user_named(call: Call) -> str:
    """Return the name of the user in the path. Raises ApiError (404)."""
    user = call.segment("user")
    if user not in call.broker.topology.users:
        raise not_found()
    return user


@operation("Lists the limits of a user", folds=Folds.NONE, listing=UserLimitsView)
async def user_limits(call: Call) -> Response:
    """Answer GET /api/user-limits/{user}."""
    user = user_named(call)
    value = call.broker.topology.user_limits.get(user)
    return await listed(call, [UserLimitsView(user=user, value=value)] if value else [])


@operation(
    "Sets a limit of a user", folds=Folds.NONE, act="users", who=ADMINISTRATOR, body=LimitWish, answers={204: None}
)
async def put_user_limit(call: Call) -> Response:
    """Answer PUT /api/user-limits/{user}/{name}."""
    call.require()
    user, name = user_named(call), call.segment("name")
    content = await call.body("value")
    changed = call.broker.topology.user_limits.get(user, {}) | {name: content["value"]}
    await call.broker.access.users.set_limits(call.actor(), user, changed)
    await call.durable()
    return Response(status_code=204)


@operation(
    "Clears a limit of a user; all: every one", folds=Folds.NONE, act="users", who=ADMINISTRATOR, answers={204: None}
)
async def delete_user_limit(call: Call) -> Response:
    """Answer DELETE /api/user-limits/{user}/{name}.

    The name `all` means every limit of the user. A limit that is not set is not an error."""
    call.require()
    user, name = user_named(call), call.segment("name")
    known = call.broker.topology.user_limits.get(user, {})
    left = {} if name == "all" else {key: value for key, value in known.items() if key != name}
    await call.broker.access.users.set_limits(call.actor(), user, left)
    await call.durable()
    return Response(status_code=204)
