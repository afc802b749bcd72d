"""Virtual hosts: made, changed, and deleted with everything in them."""

import asyncio
from collections.abc import Sequence

from rewindmq.engine.broker.queues import queues_in
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.host.eager import to_the_end
from rewindmq.engine.host.slices import Pace, in_slices
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.rules.policy_keys import DECLARABLE_TYPES
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import QueueDeleted
from rewindmq.schemas.metadata_events import VhostCreated, VhostDeleted
from rewindmq.schemas.values import Actor


class Vhosts:
    def __init__(self, metadata: Metadata, partitions: Sequence[Partition], turns: Turns) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._partitions = partitions
        self._turns = turns
        self._leaving: dict[str, asyncio.Event] = {}  # deleted vhosts that still have queues; set when they have none

    async def create(
        self, actor: Actor, vhost: str, description: str, tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> None:
        """Make a vhost, or give one that exists this description, these tags and this default queue type ("": none).
        If a vhost of this name is being deleted, its queues go first.

        PreconditionFailed: there is no such queue type."""
        if default_queue_type not in ("", *DECLARABLE_TYPES):
            raise PreconditionFailed(f"Unsupported default queue type '{default_queue_type}'")
        await self.until_deleted(vhost)
        changed = VhostCreated(vhost, description, tags, default_queue_type)
        if self._topology.vhosts.get(vhost) != changed:
            await self._metadata.ask(actor, changed)

    async def delete(self, actor: Actor, vhost: str) -> None:
        """Delete a vhost with its queues, exchanges, bindings, policies and permissions, and close its sessions.

        NotFound."""
        check_vhost(self._topology, vhost)
        await to_the_end(self._delete(actor, vhost))

    async def _delete(self, actor: Actor, vhost: str) -> None:
        left = self._leaving[vhost] = asyncio.Event()
        try:
            await self._metadata.ask(actor, VhostDeleted(vhost))
            await self.delete_queues(actor, vhost)
        finally:
            self._leaving.pop(vhost, None)
            left.set()

    async def delete_queues(self, actor: Actor, vhost: str) -> None:
        """Delete the queues of a vhost, in slices: other work gets turns in between. If the broker dies meanwhile, the
        next start deletes the others."""
        for partition in self._partitions:
            await partition.enter()
        pace = Pace(self._turns.written)
        async for partition, queue in in_slices(queues_in(self._partitions, vhost)):
            partition.append(actor, QueueDeleted(vhost, queue.name, if_unused=False, if_empty=False))
            await pace.changed()
        for partition in self._partitions:
            await partition.folded()

    def delete_queues_now(self, actor: Actor, vhost: str) -> None:
        """Delete the queues of a vhost at once, for a start: no client is connected yet."""
        for partition, queue in queues_in(self._partitions, vhost):
            partition.append(actor, QueueDeleted(vhost, queue.name, if_unused=False, if_empty=False))

    async def until_deleted(self, vhost: str | None = None) -> None:
        """Wait until this vhost (None: every vhost that is being deleted) has no queues left."""
        for name in [name for name in self._leaving if vhost in (None, name)]:
            while name in self._leaving:
                await self._leaving[name].wait()


def check_vhost(topology: Topology, vhost: str) -> None:
    """NotFound: there is no such vhost."""
    if vhost not in topology.vhosts:
        raise NotFound(f"vhost '{vhost}' does not exist")
