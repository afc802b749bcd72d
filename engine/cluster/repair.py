"""What a node began with one event and did not end with another, because it died between the two: a policy set and not
applied, a vhost deleted and not its queues, a queue gone and not its bindings. The owner of the partition finishes it.

    look()      once a heartbeat      names that looked half done before, and the next ones of a round
                seen so three times   the event that is missing is appended

Rules of this file
- All of that is found at a queue's name. A round goes through all names there are, `NAMES_A_LOOK` a heartbeat: however
  many queues there are, the loop is not held for long. The next one begins when routes have changed since this one did.
- What looks half done is looked at with every heartbeat, and mended when it has stood so for so many looks: most of it
  is only under way. Mended twice it does no harm.
- Not what only looks so because this node has read further in one partition than in the other.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from rewindmq.engine.runtime.metadata import NOT_RECORDED, unbound
from rewindmq.engine.runtime.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import QueueDeleted
from rewindmq.schemas.values import BROKER

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

LOOKS_BEFORE_MENDING = 3
NAMES_A_LOOK = 2_000

Name = tuple[str, str]  # vhost and queue

logger = logging.getLogger(__name__)


class Mending:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._topology = broker.topology
        self._round: Iterator[Name] = iter(())
        self._version = -1  # of the routing, when the last round began
        self._seen: dict[Name, dict[str, int]] = {}  # what looks half done there, and how often it was seen so

    def look_at_everything(self) -> None:
        """Nobody may have looked so far: there is a round to come, whatever changes."""
        self._version = -1

    def look(self) -> None:
        before, self._seen = self._seen, {}
        due: dict[str, Callable[[], object]] = {}
        for name in dict.fromkeys((*before, *self._next_names())):
            broken = self._broken(name)
            if broken:
                counts = before.get(name, {})
                seen = self._seen[name] = {what: counts.get(what, 0) + 1 for what in broken}
                for what, mend in broken.items():
                    if seen[what] == LOOKS_BEFORE_MENDING:
                        seen[what] = 0
                        due[what] = mend
        for what, mend in due.items():
            logger.warning("%s: mended", what)
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
        """Of queues that are there, that have bindings, and that should be there."""
        for partition in self._broker.partitions:
            if partition.owned:
                yield from list(partition.machine.by_name)
        yield from self._topology.bound_queues()
        yield from self._broker.hidden.names()

    def _home(self, name: Name) -> Partition:
        for partition in self._broker.partitions:
            if name in partition.machine.by_name:  # that costs less than to hash the name
                return partition
        return self._broker.queues.partition_for(*name)

    def _broken(self, name: Name) -> dict[str, Callable[[], object]]:
        """What is half done at this name, in words, and what mends it."""
        broken: dict[str, Callable[[], object]] = {}
        partition = self._home(name)
        if not partition.owned:
            return broken
        queue = partition.machine.queue(*name)
        if queue is not None:
            self._broken_queue(partition, queue, broken)
        hidden = self._broker.hidden.broken_at(partition, *name)
        if hidden is not None:
            broken[hidden[0]] = partial(partition.append, BROKER, hidden[1])
        live = None if queue is None else (queue.queue_id, NOT_RECORDED)
        for bound in self._topology.bindings_to(name[0], "queue", name[1]):
            if bound.queue_id < partition.machine.next_offset and (live is None or bound.queue_id not in live):
                gone = partial(self._broker.metadata.append, BROKER, unbound(bound))
                broken[f"{bound}, whose queue is gone"] = gone
        return broken

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
            broken[f"policies of {where}"] = partial(partition.append, BROKER, applied)
