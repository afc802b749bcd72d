"""The operator's half of the broker: policies, virtual hosts, parameters and erasures here, users in users.py.

Rules of this file
- Everything is an event in the metadata log, with the user who did it.
- A policy change is carried through at once: every queue whose effective policy is another one now gets a
  `PolicyApplied` event in its own partition (S-028, S-167).
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Container, Iterator
from operator import itemgetter

from rewindmq.engine.broker.limits import canonical
from rewindmq.engine.broker.parameters import OPERATOR_POLICY, check_parameter
from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.broker.users import Users
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.runtime.eager import to_the_end
from rewindmq.engine.runtime.loop_share import Work, by_key
from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.engine.runtime.slices import Pace, in_slices
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.rules.patterns import problem_in_history, shown
from rewindmq.projections.rules.queue_arguments import QUEUE_ARGUMENTS
from rewindmq.projections.topology.topology import VHOST_LIMITS
from rewindmq.schemas.events import PolicyApplied, QueueDeleted
from rewindmq.schemas.metadata_events import (
    Bound,
    GlobalParameterCleared,
    GlobalParameterSet,
    MarkDeleted,
    MarkSet,
    OperatorPolicyCleared,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PolicyCleared,
    PolicySet,
    SubjectErased,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.values import Actor

CLUSTER_NAME = "cluster_name"  # the global parameter that holds it, as in RabbitMQ


class Administration(Users):
    config: Config
    partitions: list[Partition]
    subjects: Subjects
    sessions: dict[int, Session]  # open client connections (AMQP and HTTP) by session_id
    turns: Turns
    leaving_vhosts: dict[str, asyncio.Event]  # deleted vhosts that still have queues; set when they have none

    # -- marks --------------------------------------------------------------------------------------------------------

    def positions(self) -> tuple[tuple[str, int], ...]:
        """This moment: of each partition, what is below has happened."""
        machines = [partition.machine for partition in self.partitions]
        return tuple((machine.partition, machine.next_offset) for machine in machines)

    async def set_mark(self, user: str, mark: MarkSet) -> None:
        """Its positions have to be durable."""
        await self.metadata.ask(Actor(user, 0), mark)

    async def clear_mark(self, user: str, name: str) -> None:
        await self.metadata.ask(Actor(user, 0), MarkDeleted(name))

    # -- policies -----------------------------------------------------------------------------------------------------

    async def set_policy(
        self,
        user: str,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, object],
        priority: int,
        apply_to: str,
    ) -> None:
        """PreconditionFailed with RabbitMQ's validation text for a bad pattern, key or value; NotFound: the vhost."""
        self._check_vhost(vhost)
        text = checked_definition(name, pattern, definition, priority, apply_to, False, self.config.semantics)
        self._check_pattern(pattern)
        changed = PolicySet(vhost, name, pattern, text, priority, apply_to)
        if self.topology.policies.get((vhost, name)) != changed:
            await self.metadata.ask(Actor(user, 0), changed)
            await to_the_end(self.apply_policies(Actor(user, 0), vhost))

    async def clear_policy(self, user: str, vhost: str, name: str) -> None:
        """NotFound when there is none."""
        if (vhost, name) not in self.topology.policies:
            raise NotFound(f"policy '{name}' in vhost '{vhost}' does not exist")
        await self.metadata.ask(Actor(user, 0), PolicyCleared(vhost, name))
        await to_the_end(self.apply_policies(Actor(user, 0), vhost))

    async def set_operator_policy(
        self,
        user: str,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, object],
        priority: int,
        apply_to: str,
    ) -> None:
        self._check_vhost(vhost)
        text = checked_definition(name, pattern, definition, priority, apply_to, True, self.config.semantics)
        self._check_pattern(pattern)
        changed = OperatorPolicySet(vhost, name, pattern, text, priority, apply_to)
        if self.topology.operator_policies.get((vhost, name)) != changed:
            await self.metadata.ask(Actor(user, 0), changed)
            await to_the_end(self.apply_policies(Actor(user, 0), vhost))

    async def clear_operator_policy(self, user: str, vhost: str, name: str) -> None:
        """NotFound when there is none."""
        if (vhost, name) not in self.topology.operator_policies:
            raise NotFound(f"operator policy '{name}' in vhost '{vhost}' does not exist")
        await self.metadata.ask(Actor(user, 0), OperatorPolicyCleared(vhost, name))
        await to_the_end(self.apply_policies(Actor(user, 0), vhost))

    def _check_pattern(self, pattern: str) -> None:
        """PreconditionFailed for one that nodes of an older version, which are alive, would skip."""
        problem = problem_in_history(pattern, self.topology.machine_version)
        if problem is not None:
            raise PreconditionFailed(f"pattern {shown(pattern)} is none to nodes of an older version: {problem}")

    async def apply_policies(self, actor: Actor, vhost: str | None = None) -> None:
        """Tell every queue of the vhost (None: of all) whose effective policies are not those it has. Others get turns
        in between: a queue that is declared meanwhile has the policies of then."""
        pace = Pace(self.turns.written)
        async for partition, queue in in_slices(self._queues_in(vhost)):
            if self._apply_policies_to(actor, partition, queue):
                await pace.changed()
        for partition in self.partitions:
            await partition.folded()

    def apply_policies_now(self, actor: Actor) -> None:
        """The same of all queues, while nobody is served yet."""
        for partition, queue in self._queues_in(None):
            self._apply_policies_to(actor, partition, queue)

    def _queues_in(self, vhost: str | None) -> Iterator[tuple[Partition, Queue]]:
        """Those that are there now, unless they go meanwhile. No queue is held on to: to free 10,000 of them at once
        takes 50 ms."""
        there = [(partition, deque(partition.machine.by_name.values())) for partition in self.partitions]
        for partition, queues in there:
            while queues:
                queue = queues.popleft()
                if vhost in (None, queue.vhost) and not queue.gone:
                    yield partition, queue

    def _apply_policies_to(self, actor: Actor, partition: Partition, queue: Queue) -> bool:
        """False: the queue has them already."""
        applied = self.other_policies(queue)
        if applied is None:
            return False
        partition.append(actor, applied)
        return True

    def other_policies(self, queue: Queue) -> PolicyApplied | None:
        """The policies that are in force for a queue, unless it has them."""
        if is_hidden(queue.name):
            return None
        policy = self.topology.effective_policy(queue.vhost, queue.name, queue.type)
        operator_policy = self.topology.effective_operator_policy(queue.vhost, queue.name, queue.type)
        if policy == queue.policy and operator_policy == queue.operator_policy:
            return None
        return PolicyApplied(queue.vhost, queue.name, policy, operator_policy)

    # -- virtual hosts ------------------------------------------------------------------------------------------------

    async def create_vhost(
        self, user: str, vhost: str, description: str, tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> None:
        """With its default exchanges (they are there by rule); a vhost that exists is given the description, tags and
        default queue type ("": none). A vhost of this name that is being deleted goes first. PreconditionFailed for a
        type that there is not."""
        if default_queue_type not in ("", *QUEUE_ARGUMENTS):
            raise PreconditionFailed(f"Unsupported default queue type '{default_queue_type}'")
        await self.vhosts_have_left(vhost)
        changed = VhostCreated(vhost, description, tags, default_queue_type)
        if self.topology.vhosts.get(vhost) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    async def delete_vhost(self, user: str, vhost: str) -> None:
        """With its queues, exchanges, bindings, policies and permissions; its sessions are closed. NotFound."""
        self._check_vhost(vhost)
        await to_the_end(self._delete_vhost(Actor(user, 0), vhost))

    async def _delete_vhost(self, actor: Actor, vhost: str) -> None:
        left = self.leaving_vhosts[vhost] = asyncio.Event()
        try:
            await self.metadata.ask(actor, VhostDeleted(vhost))
            await self.delete_queues_of(actor, vhost)
        finally:
            self.leaving_vhosts.pop(vhost, None)
            left.set()

    async def delete_queues_of(self, actor: Actor, vhost: str) -> None:
        """Others get turns in between. A crash leaves some of the queues, and the next start deletes them."""
        pace = Pace(self.turns.written)
        async for partition, queue in in_slices(self._queues_in(vhost)):
            partition.append(actor, QueueDeleted(vhost, queue.name, if_unused=False, if_empty=False))
            await pace.changed()
        for partition in self.partitions:
            await partition.folded()

    def delete_queues_now(self, actor: Actor, vhost: str) -> None:
        """The same, while nobody is served yet."""
        for partition, queue in self._queues_in(vhost):
            partition.append(actor, QueueDeleted(vhost, queue.name, if_unused=False, if_empty=False))

    async def vhosts_have_left(self, vhost: str | None = None) -> None:
        """Wait until this vhost (None: any) is not being deleted."""
        for name in [name for name in self.leaving_vhosts if vhost in (None, name)]:
            while name in self.leaving_vhosts:
                await self.leaving_vhosts[name].wait()

    # -- parameters ---------------------------------------------------------------------------------------------------

    async def set_parameter(self, user: str, vhost: str, component: str, name: str, value: object) -> None:
        """NotFound: the vhost. PreconditionFailed in RabbitMQ's words."""
        self._check_vhost(vhost)
        check_parameter(component, name, value)
        if component == OPERATOR_POLICY and isinstance(value, dict):
            given = (value["pattern"], value["definition"], value["priority"], value.get("apply-to", "all"))
            await self.set_operator_policy(user, vhost, name, *given)
            return
        changed = ParameterSet(vhost, component, name, canonical(value))
        if self.topology.parameters.get((vhost, component, name)) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    async def clear_parameter(self, user: str, vhost: str, component: str, name: str) -> None:
        """NotFound when there is none."""
        self._check_vhost(vhost)
        if component == OPERATOR_POLICY:
            await self.clear_operator_policy(user, vhost, name)
            return
        if (vhost, component, name) not in self.topology.parameters:
            raise NotFound(f"parameter '{name}' of component '{component}' in vhost '{vhost}' does not exist")
        await self.metadata.ask(Actor(user, 0), ParameterCleared(vhost, component, name))

    async def set_vhost_limits(self, user: str, vhost: str, definition: object) -> None:
        """All of them: those that are not there are lifted. NotFound, PreconditionFailed."""
        await self.set_parameter(user, vhost, *VHOST_LIMITS, definition)

    async def set_global_parameter(self, user: str, name: str, value: object) -> None:
        changed = GlobalParameterSet(name, canonical(value))
        if self.topology.global_parameters.get(name) != changed:
            await self.metadata.ask(Actor(user, 0), changed)

    @property
    def cluster_name(self) -> str:
        """The name that an operator gave the cluster; else the node's, or the prefix of the topics in Kafka."""
        named = self.topology.global_parameters.get(CLUSTER_NAME)
        name = None if named is None else json.loads(named.value)
        return name if isinstance(name, str) and name else self.config.cluster_name

    async def clear_global_parameter(self, user: str, name: str) -> None:
        """NotFound when there is none."""
        if name not in self.topology.global_parameters:
            raise NotFound(f"global parameter '{name}' does not exist")
        await self.metadata.ask(Actor(user, 0), GlobalParameterCleared(name))

    # -- subjects -----------------------------------------------------------------------------------------------------

    async def erase_subject(self, user: str, subject: str, reason: str) -> None:
        """Destroy the keys of a subject, then say so in the history. What a crash left of it is finished by asking
        again. NotFound: it has no keys. OSError: they can't be destroyed."""
        key_ids = await self.subjects.erase(subject)
        if not key_ids:
            raise NotFound(f"subject '{subject}' has no keys")
        await self.metadata.ask(Actor(user, 0), SubjectErased(subject, key_ids, reason))

    # -- looking ------------------------------------------------------------------------------------------------------

    def all_queues(self, vhost: str | None = None) -> list[tuple[Partition, Queue]]:
        """The queues of a vhost (None: of all), each with its partition, ordered by (vhost, name)."""
        found = [
            (key, partition, queue)
            for partition in self.partitions
            for key, queue in partition.machine.by_name.items()
            if vhost is None or key[0] == vhost
        ]
        found.sort(key=itemgetter(0))
        return [(partition, queue) for _, partition, queue in found]

    def visible_queues(self, vhost: str | None = None) -> list[tuple[Partition, Queue]]:
        """The same without those that the broker keeps for itself."""
        return [pair for pair in self.all_queues(vhost) if not is_hidden(pair[1].name)]

    async def queues_by_name(self, work: Work, vhosts: Container[str]) -> list[tuple[Partition, Queue]]:
        """As `visible_queues` of these vhosts, by vhost and name, in slices."""
        entries = [
            (key, (partition, queue))
            for partition in self.partitions
            async for key, queue in work.over(list(partition.machine.by_name.items()))
            if key[0] in vhosts and not is_hidden(key[1])
        ]
        return await work.in_order(entries)

    async def bindings_by_source(self, work: Work, vhosts: Container[str]) -> AsyncIterator[Bound]:
        """The bindings of these vhosts, by vhost and source and then in the order of binding, without the default
        exchange's: as `bindings` of the topology, in slices."""
        topology = self.topology
        async for exchange in work.over(await by_key(work, topology.exchanges, lambda key: key[0] in vhosts)):
            async for bound in work.over(topology.bindings_from(exchange.vhost, exchange.exchange)):
                yield bound

    def queues(self, vhost: str | None = None) -> Iterator[Queue]:
        for _, queue in self.all_queues(vhost):
            yield queue
