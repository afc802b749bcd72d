"""The operator's half of the broker: policies, virtual hosts, users and permissions.

Rules of this file
- Everything is an event in the metadata log, with the user who did it.
- A policy change is carried through at once: every queue whose effective policy is another one now gets a
  `PolicyApplied` event in its own partition (S-028, S-167).
"""

import re
from collections.abc import Iterator

from engine.auth import Access
from engine.config import Config
from engine.errors import NotFound, PreconditionFailed
from engine.metadata import Metadata
from engine.partition import Partition
from engine.policies import checked_definition
from engine.sessions import Session
from projections.machine.queue import Queue
from projections.topology import Topology
from schemas.events import (
    BROKER,
    Actor,
    OperatorPolicyCleared,
    OperatorPolicySet,
    PermissionsCleared,
    PermissionsSet,
    PolicyApplied,
    PolicyCleared,
    PolicySet,
    QueueDeleted,
    UserDeleted,
    UserSet,
    VhostCreated,
    VhostDeleted,
)


class Administration:
    config: Config
    metadata: Metadata
    topology: Topology
    access: Access
    partitions: list[Partition]
    sessions: dict[int, Session]  # open client connections (AMQP and HTTP) by session_id

    # -- policies -----------------------------------------------------------------------------------------------------

    async def set_policy(
        self, user: str, vhost: str, name: str, pattern: str, definition: dict[str, object], priority: int,
        apply_to: str,
    ) -> None:  # fmt: skip
        """PreconditionFailed with RabbitMQ's validation text for a bad pattern, key or value; NotFound: the vhost."""
        self._check_vhost(vhost)
        text = checked_definition(name, pattern, definition, priority, apply_to, operator=False)
        await self.metadata.ask(Actor(user, 0), PolicySet(vhost, name, pattern, text, priority, apply_to))
        await self.apply_policies(Actor(user, 0), vhost)

    async def clear_policy(self, user: str, vhost: str, name: str) -> None:
        """NotFound when there is none."""
        if (vhost, name) not in self.topology.policies:
            raise NotFound(f"policy '{name}' in vhost '{vhost}' does not exist")
        await self.metadata.ask(Actor(user, 0), PolicyCleared(vhost, name))
        await self.apply_policies(Actor(user, 0), vhost)

    async def set_operator_policy(
        self, user: str, vhost: str, name: str, pattern: str, definition: dict[str, object], priority: int,
        apply_to: str,
    ) -> None:  # fmt: skip
        self._check_vhost(vhost)
        text = checked_definition(name, pattern, definition, priority, apply_to, operator=True)
        await self.metadata.ask(Actor(user, 0), OperatorPolicySet(vhost, name, pattern, text, priority, apply_to))
        await self.apply_policies(Actor(user, 0), vhost)

    async def clear_operator_policy(self, user: str, vhost: str, name: str) -> None:
        """NotFound when there is none."""
        if (vhost, name) not in self.topology.operator_policies:
            raise NotFound(f"operator policy '{name}' in vhost '{vhost}' does not exist")
        await self.metadata.ask(Actor(user, 0), OperatorPolicyCleared(vhost, name))
        await self.apply_policies(Actor(user, 0), vhost)

    async def apply_policies(self, actor: Actor, vhost: str | None = None) -> None:
        """Tell every queue of the vhost (None: of all) whose effective policies are not those it has."""
        for partition, queue in self.all_queues(vhost):
            applied = None if queue.gone else self.other_policies(queue)  # gone: it expired with the event before
            if applied is not None:
                partition.append(actor, applied)
        for partition in self.partitions:
            await partition.folded()

    def other_policies(self, queue: Queue) -> PolicyApplied | None:
        """The policies that are in force for a queue, unless it has them."""
        policy = self.topology.effective_policy(queue.vhost, queue.name, queue.type)
        operator_policy = self.topology.effective_operator_policy(queue.vhost, queue.name, queue.type)
        if policy == queue.policy and operator_policy == queue.operator_policy:
            return None
        return PolicyApplied(queue.vhost, queue.name, policy, operator_policy)

    # -- virtual hosts ------------------------------------------------------------------------------------------------

    async def create_vhost(self, user: str, vhost: str, description: str) -> None:
        """With its default exchanges (they are there by rule); of a vhost that exists only the description changes."""
        if vhost not in self.topology.vhosts or self.topology.vhosts[vhost].description != description:
            await self.metadata.ask(Actor(user, 0), VhostCreated(vhost, description))

    async def delete_vhost(self, user: str, vhost: str) -> None:
        """With its queues, exchanges, bindings, policies and permissions; its sessions are closed. NotFound."""
        self._check_vhost(vhost)
        await self.metadata.ask(Actor(user, 0), VhostDeleted(vhost))
        await self.delete_queues_of(Actor(user, 0), vhost)

    async def delete_queues_of(self, actor: Actor, vhost: str) -> None:
        for partition, queue in self.all_queues(vhost):
            partition.append(actor, QueueDeleted(vhost, queue.name, if_unused=False, if_empty=False))
        for partition in self.partitions:
            await partition.folded()

    def _check_vhost(self, vhost: str) -> None:
        if vhost not in self.topology.vhosts:
            raise NotFound(f"vhost '{vhost}' does not exist")

    # -- users and permissions ----------------------------------------------------------------------------------------

    async def set_user(self, user: str, name: str, password: str | None, tags: tuple[str, ...]) -> None:
        """Make or change a user. `password` None: keep the one there is; "": cannot log in."""
        known = self.topology.users.get(name)
        if password is None:
            password_hash = "" if known is None else known.password_hash
        else:
            password_hash = self.access.hash(password) if password else ""
        await self.metadata.ask(Actor(user, 0), UserSet(name, password_hash, tags))

    async def delete_user(self, user: str, name: str) -> None:
        """NotFound when there is none. Its connections are closed."""
        self._check_user(name)
        await self.metadata.ask(Actor(user, 0), UserDeleted(name))

    async def set_permissions(self, user: str, vhost: str, name: str, configure: str, write: str, read: str) -> None:
        """NotFound for an unknown vhost or user, PreconditionFailed for a bad regular expression."""
        self._check_vhost(vhost)
        self._check_user(name)
        for pattern in (configure, write, read):
            try:
                re.compile(pattern)
            except re.error as error:
                raise PreconditionFailed(f"invalid regular expression '{pattern}': {error}") from None
        await self.metadata.ask(Actor(user, 0), PermissionsSet(vhost, name, configure, write, read))

    async def clear_permissions(self, user: str, vhost: str, name: str) -> None:
        self._check_vhost(vhost)
        self._check_user(name)
        await self.metadata.ask(Actor(user, 0), PermissionsCleared(vhost, name))

    def _check_user(self, name: str) -> None:
        if name not in self.topology.users:
            raise NotFound(f"user '{name}' does not exist")

    # -- looking ------------------------------------------------------------------------------------------------------

    def all_queues(self, vhost: str | None = None) -> list[tuple[Partition, Queue]]:
        """The queues of a vhost (None: of all), each with its partition, ordered by (vhost, name)."""
        found = [
            (partition, queue)
            for partition in self.partitions
            for queue in partition.machine.queues()
            if vhost is None or queue.vhost == vhost
        ]
        found.sort(key=lambda pair: (pair[1].vhost, pair[1].name))
        return found

    def queues(self, vhost: str | None = None) -> Iterator[Queue]:
        for _, queue in self.all_queues(vhost):
            yield queue


async def first_user(metadata: Metadata, access: Access) -> None:
    """guest / guest, an administrator with all permissions in `/`, in a log that has no event yet."""
    await metadata.ask(BROKER, UserSet("guest", access.hash("guest"), ("administrator",)))
    await metadata.ask(BROKER, PermissionsSet("/", "guest", ".*", ".*", ".*"))
