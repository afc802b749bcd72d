"""Vhosts, users and permissions over HTTP. Only an administrator changes them or sees all of them; password hashes
are not shown."""

from starlette.responses import Response

from engine.http.call import Call, Json, bad_request, done, not_found, reply, text
from engine.http.listing import Item, listed
from schemas.events import PermissionsSet, UserSet


# -- vhosts
def vhost_item(call: Call, vhost: str) -> Item:
    queues = [
        queue for partition in call.broker.partitions for queue in partition.machine.queues() if queue.vhost == vhost
    ]
    ready, unacked = sum(queue.messages_ready for queue in queues), sum(queue.messages_unacked for queue in queues)
    description = call.broker.topology.vhosts[vhost].description
    return {
        "name": vhost, "description": description, "tags": [], "metadata": {"description": description, "tags": []},
        "tracing": False, "cluster_state": {call.broker.config.node: "running"}, "messages": ready + unacked,
        "messages_ready": ready, "messages_unacknowledged": unacked,
    }  # fmt: skip


async def list_vhosts(call: Call) -> Response:
    return listed(call, [vhost_item(call, vhost) for vhost in call.visible_vhosts()])


async def show_vhost(call: Call) -> Response:
    return reply(vhost_item(call, call.vhost))


async def put_vhost(call: Call) -> Response:
    call.require()
    name = call.segment("vhost")
    content = await call.body()
    known = call.broker.topology.vhosts.get(name)
    new = known is None
    await call.broker.create_vhost(call.user, name, text(content, "description", known.description if known else ""))
    if new:  # who makes a vhost may use it, as in RabbitMQ's API
        await call.broker.set_permissions(call.user, name, call.user, ".*", ".*", ".*")
    await call.durable()
    return done(new)


async def delete_vhost(call: Call) -> Response:
    call.require()
    name = call.segment("vhost")
    if name not in call.broker.topology.vhosts:
        raise not_found()
    await call.broker.delete_vhost(call.user, name)
    await call.durable()
    return Response(status_code=204)


# -- users
def user_item(user: UserSet) -> Item:
    return {"name": user.name, "tags": list(user.tags), "has_password": bool(user.password_hash), "limits": {}}


def user_named(call: Call) -> UserSet:
    user = call.broker.topology.users.get(call.segment("user"))
    if user is None:
        raise not_found()
    return user


async def list_users(call: Call) -> Response:
    call.require()
    return listed(call, [user_item(user) for _, user in sorted(call.broker.topology.users.items())])


async def show_user(call: Call) -> Response:
    call.require()
    return reply(user_item(user_named(call)))


def tags_from(value: Json) -> tuple[str, ...]:
    """Tags as a list or separated by commas; RabbitMQ takes both."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags must be a list of names, or names separated by commas")
    return tuple(str(tag) for tag in value)


async def put_user(call: Call) -> Response:
    """Without `password` (and without `keep_password`, ours) the user cannot log in any more, as in RabbitMQ."""
    call.require()
    name = call.segment("user")
    content = await call.body()
    if "tags" not in content:
        raise bad_request("tags_not_present")
    tags = tags_from(content["tags"])
    if "password_hash" in content and content["password_hash"] not in ("", None):
        raise bad_request("password_hash is not taken: RabbitMQ's hashes are not ours, give the password")
    password = None if content.get("keep_password") is True else text(content, "password", "")
    new = name not in call.broker.topology.users
    await call.broker.set_user(call.user, name, password, tags)
    await call.durable()
    return done(new)


async def delete_user(call: Call) -> Response:
    call.require()
    await call.broker.delete_user(call.user, user_named(call).name)
    await call.durable()
    return Response(status_code=204)


# -- permissions
def permissions_item(permissions: PermissionsSet) -> Item:
    return {
        "user": permissions.user, "vhost": permissions.vhost, "configure": permissions.configure,
        "write": permissions.write, "read": permissions.read,
    }  # fmt: skip


def permissions_items(call: Call, vhost: str | None = None, user: str | None = None) -> list[Item]:
    call.require()
    return [
        permissions_item(each)
        for (home, name), each in sorted(call.broker.topology.permissions.items())
        if vhost in (None, home) and user in (None, name)
    ]


async def list_permissions(call: Call) -> Response:
    return listed(call, permissions_items(call))


async def vhost_permissions(call: Call) -> Response:
    return listed(call, permissions_items(call, vhost=call.vhost))


async def user_permissions(call: Call) -> Response:
    call.require()
    return listed(call, permissions_items(call, user=user_named(call).name))


def permissions_named(call: Call) -> PermissionsSet:
    call.require()
    found = call.broker.topology.permissions.get((call.segment("vhost"), call.segment("user")))
    if found is None:
        raise not_found()
    return found


async def show_permissions(call: Call) -> Response:
    return reply(permissions_item(permissions_named(call)))


async def put_permissions(call: Call) -> Response:
    call.require()
    vhost, user = call.segment("vhost"), call.segment("user")
    topology = call.broker.topology
    if vhost not in topology.vhosts or user not in topology.users:
        raise bad_request("vhost_or_user_not_found")
    content = await call.body("configure", "write", "read")
    new = (vhost, user) not in topology.permissions
    patterns = [text(content, key, "") for key in ("configure", "write", "read")]
    await call.broker.set_permissions(call.user, vhost, user, *patterns)
    await call.durable()
    return done(new)


async def delete_permissions(call: Call) -> Response:
    found = permissions_named(call)
    await call.broker.clear_permissions(call.user, found.vhost, found.user)
    await call.durable()
    return Response(status_code=204)
