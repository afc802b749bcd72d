"""Users, what they may do, and their limits: the part of the broker that changes them."""

import json
from collections.abc import Mapping

from rewindmq.engine.broker import limits
from rewindmq.engine.broker.access_control import ITSELF, Access
from rewindmq.engine.broker.passwords import imported
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.runtime.metadata import Metadata
from rewindmq.projections.rules.patterns import refusal, shown
from rewindmq.projections.topology.topology import Topology
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
    metadata: Metadata
    topology: Topology
    access: Access

    async def set_user(self, user: str, name: str, password: str | None, tags: tuple[str, ...]) -> None:
        """Make or change a user. `password` None: keep the one there is; "": cannot log in."""
        known = self.topology.users.get(name)
        if password is None:
            password_hash = "" if known is None else known.password_hash
        else:
            password_hash = self.access.hash(password) if password else ""
        await self.set_user_hash(user, name, password_hash, tags)

    async def set_user_hash(self, user: str, name: str, password_hash: str, tags: tuple[str, ...]) -> None:
        """`password_hash` in the form in which it is kept (rewindmq.engine.broker.passwords `imported`)."""
        if name == ITSELF:
            raise PreconditionFailed("a user's name cannot be empty")
        changed = UserSet(name, password_hash, tags)
        if self.topology.users.get(name) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    async def delete_user(self, user: str, name: str) -> None:
        """NotFound when there is none. Its connections are closed."""
        self._check_user(name)
        await self.metadata.ask(Actor(user, 0), UserDeleted(name))

    # -- permissions --------------------------------------------------------------------------------------------------

    async def set_permissions(self, user: str, vhost: str, name: str, configure: str, write: str, read: str) -> None:
        """NotFound for an unknown vhost or user, PreconditionFailed for a bad regular expression."""
        self._check_vhost(vhost)
        self._check_user(name)
        check_patterns(configure, write, read)
        changed = PermissionsSet(vhost, name, configure, write, read)
        if self.topology.permissions.get((vhost, name)) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    async def clear_permissions(self, user: str, vhost: str, name: str) -> None:
        self._check_vhost(vhost)
        self._check_user(name)
        await self.metadata.ask(Actor(user, 0), PermissionsCleared(vhost, name))

    async def set_topic_permissions(
        self, user: str, vhost: str, name: str, exchange: str, write: str, read: str
    ) -> None:
        """Which routing keys of a topic exchange, which need not be there. NotFound, PreconditionFailed as above."""
        self._check_vhost(vhost)
        self._check_user(name)
        check_patterns(write, read)
        changed = TopicPermissionsSet(vhost, name, exchange, write, read)
        if self.topology.topic_permissions.get((vhost, name, exchange)) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    async def clear_topic_permissions(self, user: str, vhost: str, name: str, exchange: str | None) -> None:
        """Those for an exchange, or for all (None)."""
        self._check_vhost(vhost)
        self._check_user(name)
        for home, who, which in list(self.topology.topic_permissions):
            if (home, who) == (vhost, name) and exchange in (None, which):
                await self.metadata.ask(Actor(user, 0), TopicPermissionsCleared(vhost, name, which))

    # -- limits -------------------------------------------------------------------------------------------------------

    async def set_user_limits(self, user: str, name: str, definition: object) -> None:
        """All of them: those that are not there are lifted. NotFound, PreconditionFailed."""
        self._check_user(name)
        text = limits.checked_user_limits(definition)
        if self.topology.user_limits.get(name, {}) != json.loads(text):
            await self.metadata.ask(Actor(user, 0), UserLimitsSet(name, text))

    def _check_user(self, name: str) -> None:
        if name not in self.topology.users:
            raise NotFound(f"user '{name}' does not exist")

    def _check_vhost(self, vhost: str) -> None:
        if vhost not in self.topology.vhosts:
            raise NotFound(f"vhost '{vhost}' does not exist")


def check_patterns(*patterns: str) -> None:
    """PreconditionFailed for one that cannot be set."""
    for pattern in patterns:
        wrong = refusal(pattern)
        if wrong is not None:
            raise PreconditionFailed(f"invalid regular expression {shown(pattern)}: {wrong}")


def tags_from(value: object) -> tuple[str, ...]:
    """Tags as a list or separated by commas; RabbitMQ takes both, of users and of vhosts. PreconditionFailed."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise PreconditionFailed("tags must be a list of names, or names separated by commas")
    stripped = (tag.strip() for tag in value)
    return tuple(tag for tag in stripped if tag)


def tags_of_user(given: Mapping[str, object]) -> tuple[str, ...]:
    """Of a user's JSON; RabbitMQ still takes `administrator`, which was there before there were tags."""
    if given.get("tags") is not None:
        return tags_from(given["tags"])
    if "administrator" in given:
        return ("administrator",) if given["administrator"] in (True, "true") else ()
    raise PreconditionFailed("tags_not_present")


def hash_of_user(given: Mapping[str, object], default: str = "rabbit_password_hashing_sha256") -> str | None:
    """The hash that a user's JSON brings, in the form in which it is kept; None: it brings none. `default`: its
    algorithm, unless it is said. PreconditionFailed."""
    password_hash = given.get("password_hash")
    if password_hash is None:
        return None
    if given.get("password") is not None:
        raise PreconditionFailed("both_password_and_password_hash_are_provided")
    algorithm = given.get("hashing_algorithm") or default
    if not isinstance(password_hash, str) or not isinstance(algorithm, str):
        raise PreconditionFailed("password_hash and hashing_algorithm must be strings")
    return imported(password_hash, algorithm)


async def first_user(metadata: Metadata, access: Access) -> None:
    """guest / guest, an administrator with all permissions in `/`, in a log that has no event yet."""
    await metadata.ask(BROKER, UserSet("guest", access.hash("guest"), ("administrator",)))
    await metadata.ask(BROKER, PermissionsSet("/", "guest", ".*", ".*", ".*"))
