"""The bindings of a queue at a moment, from the metadata log, and how a queue that comes back is bound again
(restorations.py).

Time is the only order between the metadata log and the queue's partition. "Before the event at an offset" means here:
up to the event's time, without unbindings of this queue at that very time, since a deletion ends with them. (If the
clocks of several Kafka brokers differ, an unbinding may bear a time before the deletion's. Then it counts.)
"""

from dataclasses import dataclass, replace

from rewindmq.engine.broker.exchanges import Exchanges
from rewindmq.engine.errors import AmqpError, ConnectionForced
from rewindmq.engine.keeping.location import HistoryPartition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.partition.waits import time_of
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import events_of
from rewindmq.projections.rewind import At
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import Bound, Unbound


@dataclass(frozen=True, slots=True)
class LostBinding:
    """A binding that could not be made again, and why."""

    bound: Bound
    reason: str


def bindings_at(
    metadata: HistoryPartition,
    snapshots: Snapshots | None,
    log: HistoryPartition,
    vhost: str,
    queue: str,
    queue_id: int,
    at: At,
) -> tuple[Bound, ...]:
    """The bindings of this incarnation of the queue, in the order of binding. `log`: the queue's partition; `at`: a
    moment in it. `snapshots`: of the metadata log, to begin with the newest one before that moment."""
    until_ms = at.time_ms if at.offset is None else time_of(log, at.offset)
    begun = newest(snapshots, metadata, until_ms)
    topology = begun.topology
    for offset, timestamp_ms, actor, event in events_of(metadata, begun.next_offset or None):
        if until_ms is not None and timestamp_ms > until_ms:
            break
        ours = isinstance(event, Unbound) and (event.vhost, event.destination) == (vhost, queue)
        if not (ours and at.offset is not None and timestamp_ms == until_ms):
            topology.apply(offset, timestamp_ms, actor, event)
    return _of(topology, vhost, queue, queue_id)


def _of(topology: Topology, vhost: str, queue: str, queue_id: int) -> tuple[Bound, ...]:
    ids = {queue_id}
    moving = topology.placement.moving.get((vhost, queue))
    if moving is not None:  # its bindings name the new incarnation when it has moved
        ids.add(moving.from_id)
    return tuple(bound for bound in topology.bindings_to(vhost, "queue", queue) if bound.queue_id in ids)


def missing(topology: Topology, queue: Queue, bindings: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """The bindings that the queue, another incarnation, lacks. Empty where it has others: somebody bound it anew."""
    then = [replace(each, queue_id=queue.queue_id) for each in bindings]
    now = topology.bindings_to(queue.vhost, "queue", queue.name)
    if not set(now) <= set(then):
        return ()
    return tuple(each for each, again in zip(bindings, then, strict=True) if again not in now)


def split(topology: Topology, bindings: tuple[Bound, ...]) -> tuple[list[Bound], list[LostBinding]]:
    """The bindings that can be made again now, and those whose exchange is gone."""
    there = [each for each in bindings if (each.vhost, each.source) in topology.exchanges]
    gone = [
        LostBinding(each, f"there is no exchange '{each.source}' any more") for each in bindings if each not in there
    ]
    return there, gone


async def bind_again(
    exchanges: Exchanges, topology: Topology, session: Session, queue: str, bindings: tuple[Bound, ...]
) -> tuple[list[Bound], list[LostBinding]]:
    """Bind the queue. Returns the bindings that were made and those that were not: a user who may not bind gets the
    queue without them. ConnectionForced: the node was lost meanwhile."""
    there, lost = split(topology, bindings)
    made = []
    for each in there:
        try:
            await exchanges.bind(session, each.source, "queue", queue, each.routing_key, each.arguments)
            made.append(each)
        except ConnectionForced:
            raise
        except AmqpError as refusal:
            lost.append(LostBinding(each, refusal.text))
    return made, lost
