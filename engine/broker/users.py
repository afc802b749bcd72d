"""Users, their permissions and their limits: every change is an event in the metadata log."""

import json
from collections.abc import Mapping

from rewindmq.engine.broker import limits
from rewindmq.engine.broker.access_control import ITSELF, Access
from rewindmq.engine.broker.passwords import BEGINS_OURS, OURS, imported
from rewindmq.engine.broker.vhosts import check_vhost
from rewindmq.engine.config import Config
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.rules.patterns import refusal, shown
from rewindmq.schemas.metadata_events import (
    PermissionsCleared,
    PermissionsSet,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    UserDeleted,
    UserLimitsSet,
    UserSet,
)
from rewindmq.schemas.values import BROKER, Actor


class Users:
    def __init__(self, metadata: Metadata, access: Access) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._access = access

    async def set(self, actor: Actor, name: str, password: str | None, tags: tuple[str, ...]) -> None:
        """Make or change a user. `password` None: it stays as it is; "": the user cannot log in."""
        known = self._topology.users.get(name)
        if password is None:
            password_hash = "" if known is None else known.password_hash
        else:
            password_hash = self._access.hash(password) if password else ""
        await self.set_hash(actor, name, password_hash, tags)

    async def set_hash(self, actor: Actor, name: str, password_hash: str, tags: tuple[str, ...]) -> None:
        """Make or change a user. `password_hash`: as `rewindmq.engine.broker.passwords.imported` returns it."""
        if name == ITSELF:
            raise PreconditionFailed("a user's name cannot be empty")
        changed = UserSet(name, password_hash, tags)
        if self._topology.users.get(name) != changed:
            await self._metadata.ask(actor, changed)

    async def delete(self, actor: Actor, name: str) -> None:
        """Delete a user and close its connections. NotFound."""
        self._check_user(name)
        await self._metadata.ask(actor, UserDeleted(name))

    # -- permissions --------------------------------------------------------------------------------------------------

    async def set_permissions(self, actor: Actor, vhost: str, name: str, configure: str, write: str, read: str) -> None:
        """Set a user's permissions in a vhost.

        NotFound: the vhost or the user. PreconditionFailed: one of the patterns is no regular expression."""
        check_vhost(self._topology, vhost)
        self._check_user(name)
        check_patterns(configure, write, read)
        changed = PermissionsSet(vhost, name, configure, write, read)
        if self._topology.permissions.get((vhost, name)) != changed:
            await self._metadata.ask(actor, changed)

    async def clear_permissions(self, actor: Actor, vhost: str, name: str) -> None:
        check_vhost(self._topology, vhost)
        self._check_user(name)
        await self._metadata.ask(actor, PermissionsCleared(vhost, name))

    async def set_topic_permissions(
        self, actor: Actor, vhost: str, name: str, exchange: str, write: str, read: str
    ) -> None:
        """Set the routing keys of a topic exchange that a user may use. The exchange need not exist.

        Raises as `set_permissions`."""
        check_vhost(self._topology, vhost)
        self._check_user(name)
        check_patterns(write, read)
        changed = TopicPermissionsSet(vhost, name, exchange, write, read)
        if self._topology.topic_permissions.get((vhost, name, exchange)) != changed:
            await self._metadata.ask(actor, changed)

    async def clear_topic_permissions(self, actor: Actor, vhost: str, name: str, exchange: str | None) -> None:
        """Clear a user's topic permissions for an exchange, or for all exchanges (None)."""
        check_vhost(self._topology, vhost)
        self._check_user(name)
        for home, who, which in list(self._topology.topic_permissions):
            if (home, who) == (vhost, name) and exchange in (None, which):
                await self._metadata.ask(actor, TopicPermissionsCleared(vhost, name, which))

    # -- limits -------------------------------------------------------------------------------------------------------

    async def set_limits(self, actor: Actor, name: str, definition: object) -> None:
        """Set all limits of a user: a limit that `definition` lacks is lifted. NotFound, PreconditionFailed."""
        self._check_user(name)
        text = limits.checked_user_limits(definition)
        if self._topology.user_limits.get(name, {}) != json.loads(text):
            await self._metadata.ask(actor, UserLimitsSet(name, text))

    def _check_user(self, name: str) -> None:
        if name not in self._topology.users:
            raise NotFound(f"user '{name}' does not exist")


def check_patterns(*patterns: str) -> None:
    """PreconditionFailed: one of the patterns is no regular expression."""
    for pattern in patterns:
        wrong = refusal(pattern)
        if wrong is not None:
            raise PreconditionFailed(f"invalid regular expression {shown(pattern)}: {wrong}")


def tags_from(value: object) -> tuple[str, ...]:
    """The tags of a user or a vhost, given as a list or separated by commas, as RabbitMQ does. PreconditionFailed."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise PreconditionFailed("tags must be a list of names, or names separated by commas")
    stripped = (tag.strip() for tag in value)
    return tuple(tag for tag in stripped if tag)


def tags_of_user(given: Mapping[str, object]) -> tuple[str, ...]:
    """The tags in a user's JSON. RabbitMQ still takes `administrator`, which is older than tags. PreconditionFailed."""
    if given.get("tags") is not None:
        return tags_from(given["tags"])
    if "administrator" in given:
        return ("administrator",) if given["administrator"] in (True, "true") else ()
    raise PreconditionFailed("tags_not_present")


def hash_of_user(given: Mapping[str, object], default: str = "rabbit_password_hashing_sha256") -> str | None:
    """The password hash in a user's JSON, as `imported` returns it. None: the JSON has none. `default`: the algorithm
    if the JSON names none and the hash is not one of RewindMQ's. PreconditionFailed."""
    password_hash = given.get("password_hash")
    if password_hash is None:
        return None
    if given.get("password") is not None:
        raise PreconditionFailed("both_password_and_password_hash_are_provided")
    if not isinstance(password_hash, str):
        raise PreconditionFailed("password_hash and hashing_algorithm must be strings")
    algorithm = given.get("hashing_algorithm") or (OURS if password_hash.startswith(BEGINS_OURS) else default)
    if not isinstance(algorithm, str):
        raise PreconditionFailed("password_hash and hashing_algorithm must be strings")
    return imported(password_hash, algorithm)


async def first_user(metadata: Metadata, access: Access, config: Config) -> None:
    """Make the first user, an administrator with all permissions in `/`, for a log that has no event yet."""
    name = config.default_user
    await metadata.ask(BROKER, UserSet(name, access.hash(config.default_pass), ("administrator",)))
    await metadata.ask(BROKER, PermissionsSet("/", name, ".*", ".*", ".*"))
