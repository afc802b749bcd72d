"""Repairs work that a node began with one event but, because it died, did not complete with another.

Examples: a policy is set but not applied, a vhost is deleted but its queues are not, a queue is gone but its bindings
are not. The owner of the partition finishes the work.

    look()      once a heartbeat           names that looked unfinished earlier, and the next names of a round
                unfinished at three looks  the owner appends the missing event

Rules of this file
- All such work is found at a queue's name. A round checks all names, `NAMES_A_LOOK` a heartbeat, so it never holds the
  loop for long, however many queues there are. The next round begins when routes have changed since this one began.
- A name that looks unfinished is checked at every heartbeat. It is repaired after `LOOKS_BEFORE_REPAIR` looks, because
  most such work is just in progress. A second repair does no harm.
- This node may have read further in one partition than in another. Such a difference is not repaired. If names have
  moved to other partitions, a queue's number does not reveal it, so this node first reads to the end of the log.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from rewindmq import failpoints
from rewindmq.engine.partition.metadata import unbound
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import QueueDeleted
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.values import BROKER

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

LOOKS_BEFORE_REPAIR = 3
NAMES_A_LOOK = 2_000

Name = tuple[str, str]  # vhost and queue

logger = logging.getLogger(__name__)


class Repairs:
    """The search for unfinished work and its repair, a few names a heartbeat."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._topology = broker.topology
        self._round: Iterator[Name] = iter(())
        self._version = -1  # of the routing, when the last round began
        self._tasks: dict[Queue | Bound, asyncio.Task[None]] = {}  # of `_begin`
        self._seen: dict[Name, dict[str, int]] = {}  # unfinished work there, and its number of looks

    def look_at_everything(self) -> None:
        """Begin another round after this one, even if no route changes, because no owner may have looked yet."""
        self._version = -1

    def look(self) -> None:
        """Check the next names, and repair work that has been unfinished for long enough."""
        before, self._seen = self._seen, {}
        due: dict[str, Callable[[], object]] = {}
        names = dict.fromkeys((*before, *self._next_names()))
        failpoints.reached("repair.before_look", names)
        for name in names:
            broken = self._broken(name)
            if broken:
                counts = before.get(name, {})
                seen = self._seen[name] = {what: counts.get(what, 0) + 1 for what in broken}
                for what, mend in broken.items():
                    if seen[what] == LOOKS_BEFORE_REPAIR:
                        seen[what] = 0
                        due[what] = mend
        for what, mend in due.items():
            logger.warning("%s: repaired", what)
            mend()

    def _next_names(self) -> list[Name]:
        version = self._broker.router.version
        names = list(islice(self._round, NAMES_A_LOOK))
        if len(names) < NAMES_A_LOOK and self._version != version:
            self._version = version
            self._round = self._names()
            names += islice(self._round, NAMES_A_LOOK - len(names))
        return names

    def _names(self) -> Iterator[Name]:
        """Yield the names of existing queues, of queues with bindings, and of queues that should exist."""
        for partition in self._broker.partitions:
            if partition.owned:
                yield from list(partition.machine.by_name)
        yield from self._topology.bound_queues()
        yield from self._broker.hidden.names()

    def _places(self, name: Name) -> list[Partition]:
        """Return the partitions with a queue of this name: one, or more if a moved queue has left a remainder. If there
        is none: the partition where it would be."""
        partitions = self._broker.partitions
        there = [each for each in partitions if name in each.machine.by_name]  # this is cheaper than hashing the name
        return there or [self._broker.homes.of(*name)]

    def _broken(self, name: Name) -> dict[str, Callable[[], object]]:
        """Return the unfinished work at this name, in words, each with its repair."""
        broken: dict[str, Callable[[], object]] = {}
        places, homes = self._places(name), self._broker.homes
        for partition in places:
            if partition.owned and (queue := partition.machine.queue(*name)) is not None:
                self._broken_queue(partition, queue, broken)
        home = places[0] if not homes.has_moves else homes.of(*name)
        if home.owned and not homes.is_held(*name):
            self._broken_home(home, name, broken)
        return broken

    def _broken_home(self, partition: Partition, name: Name, broken: dict[str, Callable[[], object]]) -> None:
        """Note the unfinished work at this name that belongs to no queue."""
        queue = partition.machine.queue(*name)
        hidden = self._broker.hidden.broken_at(partition, *name)
        if hidden is not None:
            broken[hidden[0]] = partial(partition.append, BROKER, hidden[1])
        live = None if queue is None else queue.queue_id
        for bound in self._topology.bindings_to(name[0], "queue", name[1]):
            if bound.queue_id == live:
                continue
            if bound.queue_id < partition.machine.next_offset:
                gone = partial(self._broker.metadata.append, BROKER, unbound(bound))
                broken[f"{bound}, whose queue is gone"] = gone
            elif self._topology.placement.earlier:  # its number may be of the name's former partition
                unbind = partial(self._unbind_if_gone, bound)
                broken[f"{bound}, whose queue may be gone"] = partial(self._begin, bound, unbind)

    def _broken_queue(self, partition: Partition, queue: Queue, broken: dict[str, Callable[[], object]]) -> None:
        topology = self._topology
        where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        if queue.vhost in topology.deleted_vhosts:
            gone = QueueDeleted(queue.vhost, queue.name, if_unused=False, if_empty=False)
            broken[f"{where} of a deleted vhost"] = partial(partition.append, BROKER, gone)
            return
        applied = self._broker.effective_policies.outstanding(queue)
        newest = max((policy.version for policy in (queue.policy, queue.operator_policy) if policy), default=-1)
        if applied is not None and queue.vhost in topology.vhosts and newest < topology.next_offset:
            apply = partial(self._apply_when_known, partition, queue)
            broken[f"policies of {where}"] = partial(self._begin, queue, apply)

    def _begin(self, of: Queue | Bound, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin a repair that has to wait for something, unless it is already waiting."""
        if of not in self._tasks:
            task = self._tasks[of] = asyncio.ensure_future(work())
            task.add_done_callback(lambda _: self._tasks.pop(of, None))

    async def _unbind_if_gone(self, bound: Bound) -> None:
        """Remove a binding if its queue is gone. Its binder had folded the queue, so that is not past the log's end."""
        await self._broker.certainty.wait()
        homes = self._broker.homes
        name = bound.vhost, bound.destination
        home, queue = homes.of(*name), homes.queue(*name)
        is_gone = queue is None or queue.queue_id != bound.queue_id
        if is_gone and home.owned and not homes.is_held(*name):
            self._broker.metadata.append(BROKER, unbound(bound))
            self._broker.turns.end()

    async def _apply_when_known(self, partition: Partition, queue: Queue) -> None:
        """Give the queue its policies, once every node knows them (awareness.py)."""
        await self._broker.nodes.until_known(self._topology.next_offset)
        applied = self._broker.effective_policies.outstanding(queue)
        if applied is not None and partition.owned and not queue.gone:
            partition.append(BROKER, applied)
            self._broker.turns.end()

    def stop(self) -> None:
        """Stop repairing."""
        for task in list(self._tasks.values()):
            task.cancel()
