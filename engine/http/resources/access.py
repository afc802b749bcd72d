"""Users, permissions and topic permissions over HTTP, for administrators."""

from starlette.responses import Response

from rewindmq.engine.broker.limits import checked_user_limits
from rewindmq.engine.broker.passwords import rabbitmq_hash
from rewindmq.engine.broker.users import check_patterns, hash_of_user, tags_of_user
from rewindmq.engine.definitions.shapes import AccountView, PermissionsView, TopicPermissionsView
from rewindmq.engine.host.loop_share import by_key
from rewindmq.engine.http.call import Call, bad_request, done, missing, not_found, reply, short, text
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, operation
from rewindmq.engine.http.shapes.access import (
    AccountWish,
    PasswordHashView,
    PermissionsWish,
    TopicPermissionsWish,
    UsersWish,
)
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.json_values import Json
from rewindmq.schemas.metadata_events import PermissionsSet, TopicPermissionsSet, UserSet


# -- users
def user_named(call: Call) -> UserSet:
    """Return the user in the path. Raises ApiError (404)."""
    user = call.broker.topology.users.get(call.segment("user"))
    if user is None:
        raise not_found()
    return user


async def user_items(call: Call, names: list[str]) -> Response:
    """Return the answer with these users."""
    topology = call.broker.topology
    return await listed(call, [topology.users[name] for name in names], lambda user: AccountView.of(user, topology))


@operation("Lists the users", folds=Folds.NONE, who=ADMINISTRATOR, listing=AccountView)
async def list_users(call: Call) -> Response:
    """Answer GET /api/users."""
    call.require()
    return await user_items(call, sorted(call.broker.topology.users))


@operation("Lists the users that may enter no virtual host", folds=Folds.NONE, who=ADMINISTRATOR, listing=AccountView)
async def users_without_permissions(call: Call) -> Response:
    """Answer GET /api/users/without-permissions."""
    call.require()
    topology = call.broker.topology
    having = {user for _, user in topology.permissions}
    return await user_items(call, [name for name in sorted(topology.users) if name not in having])


@operation("Shows a user", folds=Folds.NONE, who=ADMINISTRATOR, answer=AccountView)
async def show_user(call: Call) -> Response:
    """Answer GET /api/users/{user}."""
    call.require()
    return reply(AccountView.of(user_named(call), call.broker.topology))


@operation(
    "Makes or changes a user",
    folds=Folds.NONE,
    act="users",
    who=ADMINISTRATOR,
    body=AccountWish,
    answers={201: None, 204: None},
)
async def put_user(call: Call) -> Response:
    """Answer PUT /api/users/{user}.

    Without `password` and `password_hash` (and without `keep_password`, ours) the user can no longer log in, as in
    RabbitMQ. `permissions`, by vhost, are for a new user only. `limits` are added to those that are set."""
    call.require()
    name = call.segment("user")
    content = await call.body()
    broker, new = call.broker, name not in call.broker.topology.users
    tags, password_hash = tags_of_user(content), hash_of_user(content)
    permissions = permissions_from(broker.topology, content.get("permissions") if new else None)
    limits = content.get("limits")
    if limits is not None:
        checked_user_limits(limits)
    if password_hash is not None:
        await broker.access.users.set_hash(call.actor(), name, password_hash, tags)
    elif content.get("keep_password") is True:
        await broker.access.users.set(call.actor(), name, None, tags)
    else:
        await broker.access.users.set(call.actor(), name, text(content, "password", ""), tags)
    if isinstance(limits, dict):
        await broker.access.users.set_limits(call.actor(), name, broker.topology.user_limits.get(name, {}) | limits)
    for vhost, (configure, write, read) in permissions.items():
        await broker.access.users.set_permissions(call.actor(), vhost, name, configure, write, read)
    await call.durable()
    return done(new)


def permissions_from(topology: Topology, given: Json) -> dict[str, tuple[str, str, str]]:
    """Return the permissions in a body, checked before the first of them is set."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request("permissions must be an object by vhost")
    found = {}
    for vhost, rights in given.items():
        if vhost not in topology.vhosts:
            raise missing(f"vhost '{vhost}' of the permissions does not exist")
        if not isinstance(rights, dict):
            raise bad_request(f"the permissions in vhost '{vhost}' must be an object")
        configure, write, read = (text(rights, key, "") for key in ("configure", "write", "read"))
        check_patterns(configure, write, read)
        found[vhost] = (configure, write, read)
    return found


@operation("Deletes a user", folds=Folds.NONE, act="users", who=ADMINISTRATOR, answers={204: None})
async def delete_user(call: Call) -> Response:
    """Answer DELETE /api/users/{user}."""
    call.require()
    await call.broker.access.users.delete(call.actor(), user_named(call).name)
    await call.durable()
    return Response(status_code=204)


@operation("Deletes users", folds=Folds.NONE, act="users", who=ADMINISTRATOR, body=UsersWish, answers={204: None})
async def delete_users(call: Call) -> Response:
    """Answer POST /api/users/bulk-delete. A user that does not exist counts as deleted."""
    call.require()
    content = await call.body("users")
    names = content["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users must be a list of names")
    actor = call.actor()
    for name in map(str, names):
        if name in call.broker.topology.users:
            await call.broker.access.users.delete(actor, name)
    await call.durable()
    return Response(status_code=204)


@operation("Makes a hash for password_hash", folds=Folds.NONE, who=ADMINISTRATOR, answer=PasswordHashView)
async def hash_password(call: Call) -> Response:
    """Answer GET /api/auth/hash_password/{password}: a hash as RabbitMQ's, for a user's `password_hash`."""
    call.require()
    return reply(PasswordHashView(ok=rabbitmq_hash(call.segment("password"))))


# -- permissions
async def permissions_of(call: Call, vhost: str | None = None, user: str | None = None) -> Response:
    """Return the answer with permissions, of one vhost or one user if asked."""

    def wanted(key: tuple[str, str]) -> bool:
        return vhost in (None, key[0]) and user in (None, key[1])

    return await listed(call, await by_key(call.work, call.broker.topology.permissions, wanted), PermissionsView.of)


@operation("Lists the permissions of all users", folds=Folds.NONE, who=ADMINISTRATOR, listing=PermissionsView)
async def list_permissions(call: Call) -> Response:
    """Answer GET /api/permissions."""
    call.require()
    return await permissions_of(call)


@operation("Lists the permissions in a virtual host", folds=Folds.NONE, who=ADMINISTRATOR, listing=PermissionsView)
async def vhost_permissions(call: Call) -> Response:
    """Answer GET /api/vhosts/{vhost}/permissions."""
    call.require()
    return await permissions_of(call, vhost=call.vhost)


@operation("Lists the permissions of a user", folds=Folds.NONE, who=ADMINISTRATOR, listing=PermissionsView)
async def user_permissions(call: Call) -> Response:
    """Answer GET /api/users/{user}/permissions."""
    call.require()
    return await permissions_of(call, user=user_named(call).name)


def permissions_named(call: Call) -> PermissionsSet:
    """Return the permissions in the path. Raises ApiError (404)."""
    call.require()
    found = call.broker.topology.permissions.get((call.segment("vhost"), call.segment("user")))
    if found is None:
        raise not_found()
    return found


@operation(
    "Shows the permissions of a user in a virtual host", folds=Folds.NONE, who=ADMINISTRATOR, answer=PermissionsView
)
async def show_permissions(call: Call) -> Response:
    """Answer GET /api/permissions/{vhost}/{user}."""
    return reply(PermissionsView.of(permissions_named(call)))


def vhost_and_user(call: Call) -> tuple[str, str]:
    """Return the vhost and the user in the path. Raises ApiError when one is missing."""
    vhost, user = call.segment("vhost"), call.segment("user")
    if vhost not in call.broker.topology.vhosts or user not in call.broker.topology.users:
        raise missing("vhost_or_user_not_found")
    return vhost, user


@operation(
    "Sets the permissions of a user in a virtual host",
    folds=Folds.NONE,
    act="permissions",
    who=ADMINISTRATOR,
    body=PermissionsWish,
    answers={201: None, 204: None},
)
async def put_permissions(call: Call) -> Response:
    """Answer PUT /api/permissions/{vhost}/{user}."""
    call.require()
    topology = call.broker.topology
    vhost, user = vhost_and_user(call)
    content = await call.body("configure", "write", "read")
    new = (vhost, user) not in topology.permissions
    patterns = [text(content, key, "") for key in ("configure", "write", "read")]
    await call.broker.access.users.set_permissions(call.actor(), vhost, user, *patterns)
    await call.durable()
    return done(new)


@operation(
    "Clears the permissions of a user in a virtual host",
    folds=Folds.NONE,
    act="permissions",
    who=ADMINISTRATOR,
    answers={204: None},
)
async def delete_permissions(call: Call) -> Response:
    """Answer DELETE /api/permissions/{vhost}/{user}."""
    found = permissions_named(call)
    await call.broker.access.users.clear_permissions(call.actor(), found.vhost, found.user)
    await call.durable()
    return Response(status_code=204)


# -- topic permissions
async def topic_permissions(call: Call, vhost: str | None = None, user: str | None = None) -> list[TopicPermissionsSet]:
    """Topic permissions, of one vhost or one user if asked."""

    def wanted(key: tuple[str, str, str]) -> bool:
        return vhost in (None, key[0]) and user in (None, key[1])

    return await by_key(call.work, call.broker.topology.topic_permissions, wanted)


@operation(
    "Lists the topic permissions of all users", folds=Folds.NONE, who=ADMINISTRATOR, listing=TopicPermissionsView
)
async def list_topic_permissions(call: Call) -> Response:
    """Answer GET /api/topic-permissions."""
    call.require()
    return await listed(call, await topic_permissions(call), TopicPermissionsView.of)


@operation(
    "Lists the topic permissions in a virtual host", folds=Folds.NONE, who=ADMINISTRATOR, listing=TopicPermissionsView
)
async def vhost_topic_permissions(call: Call) -> Response:
    """Answer GET /api/vhosts/{vhost}/topic-permissions."""
    call.require()
    return await listed(call, await topic_permissions(call, vhost=call.vhost), TopicPermissionsView.of)


@operation("Lists the topic permissions of a user", folds=Folds.NONE, who=ADMINISTRATOR, listing=TopicPermissionsView)
async def user_topic_permissions(call: Call) -> Response:
    """Answer GET /api/users/{user}/topic-permissions."""
    call.require()
    return await listed(call, await topic_permissions(call, user=user_named(call).name), TopicPermissionsView.of)


async def topic_permissions_named(call: Call, exchange: str | None) -> list[TopicPermissionsView]:
    """Return the topic permissions in the path. Raises ApiError (404)."""
    call.require()
    found = await topic_permissions(call, call.segment("vhost"), call.segment("user"))
    found = [each for each in found if exchange in (None, each.exchange)]
    if not found:
        raise not_found()
    return [TopicPermissionsView.of(each) for each in found]


@operation(
    "Shows the topic permissions of a user in a virtual host, by exchange",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=list[TopicPermissionsView],
)
async def show_topic_permissions(call: Call) -> Response:
    """Answer GET /api/topic-permissions/{vhost}/{user}: a list, with an entry for each exchange."""
    return reply(await topic_permissions_named(call, None))


@operation(
    "Sets topic permissions of a user for an exchange",
    folds=Folds.NONE,
    act="permissions",
    who=ADMINISTRATOR,
    body=TopicPermissionsWish,
    answers={201: None, 204: None},
)
async def put_topic_permissions(call: Call) -> Response:
    """Answer PUT /api/topic-permissions/{vhost}/{user}."""
    call.require()
    vhost, user = vhost_and_user(call)
    content = await call.body("exchange", "write", "read")
    had = bool(await topic_permissions(call, vhost, user))
    exchange, write, read = (text(content, key, "") for key in ("exchange", "write", "read"))
    await call.broker.access.users.set_topic_permissions(
        call.actor(), vhost, user, short("exchange", exchange), write, read
    )
    await call.durable()
    return done(not had)


@operation(
    "Clears topic permissions of a user", folds=Folds.NONE, act="permissions", who=ADMINISTRATOR, answers={204: None}
)
async def delete_topic_permissions(call: Call) -> Response:
    """Answer DELETE /api/topic-permissions/{vhost}/{user}.

    It removes the permissions for the exchange that is named; without one, all of the user in the vhost."""
    exchange = call.exchange if "exchange" in call.request.path_params else None
    await topic_permissions_named(call, exchange)
    await call.broker.access.users.clear_topic_permissions(
        call.actor(), call.segment("vhost"), call.segment("user"), exchange
    )
    await call.durable()
    return Response(status_code=204)
