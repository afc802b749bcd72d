"""The partitions in which a queue was, one after the other, for questions about its past.

    partition_visits(reader, "/", "orders")        [PartitionVisit(queues-0, until_ms=...), PartitionVisit(queues-2)]
                                                   it moved (topology/placement.py)
    log_at(reader, "/", "orders", at)   the partition to ask about one moment
    log_between(...)                    ... about a range

Rules of this file
- A queue that nobody moved has one stay, without bounds.
- While a queue moved its messages were in two partitions. No answer about such a moment would be whole, so it is
  refused (BetweenPartitions). The text names the moments before and after.
- An offset is one of the partition that `At.partition` names, or else of the partition in which the queue is now.
- A queue that moved is another incarnation in each partition. Who may read one of them may read the others.
- What consumers held when the queue moved stays where it was until it is settled (placement/leftover_queues.py).
"""

from dataclasses import dataclass
from itertools import pairwise

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import queue_partition
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.marks import moment, name_in
from rewindmq.projections.rewind import At, OutsideHistory, format_time
from rewindmq.projections.topology.placement import Move, Moving, Placement
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Origin


class BetweenPartitions(OutsideHistory):
    """The queue was on its way to another partition at that moment, or within the range. The text says when."""


@dataclass(frozen=True, slots=True)
class PartitionVisit:
    """A queue's name led to this partition from `since_ms` to `until_ms` (exclusive). None: no bound.

    Between two stays the queue moved. `number`: of the partition."""

    log: HistoryPartition
    number: int
    since_ms: int | None
    until_ms: int | None

    def has(self, first_ms: int, last_ms: int) -> bool:
        """Return True if the queue was here all the time from `first_ms` to `last_ms`."""
        return (self.since_ms is None or self.since_ms <= first_ms) and (
            self.until_ms is None or last_ms < self.until_ms
        )


def partition_visits(reader: HistoryReader, vhost: str, queue: str) -> list[PartitionVisit]:
    """The partitions of a queue in the order of time; the last one is where it is now. Raises LogError."""
    placement, made_with = reader.placement, len(reader.queues)
    moves = placement.moves.get((vhost, queue), [])
    moving = placement.moving.get((vhost, queue))
    # a queue that was deleted on its way was in the partition that it left until then
    began = {move.ended_ms: move.began_ms if move.to_id >= 0 else move.ended_ms for move in moves}
    bounds = sorted({*began, *(each.until_ms for each in placement.earlier)})
    found: list[PartitionVisit] = []

    def add(number: int, since_ms: int | None, until_ms: int | None) -> None:
        if found and found[-1].number == number and found[-1].until_ms == since_ms:
            since_ms = found.pop().since_ms
        found.append(PartitionVisit(_log(reader, number), number, since_ms, until_ms))

    since_ms = None
    for bound in bounds:
        add(placement.home_at(vhost, queue, bound - 1, made_with), since_ms, began.get(bound, bound))
        since_ms = bound
    if moving is not None:
        add(moving.source, since_ms, moving.began_ms)
        since_ms = NOT_YET
    add(placement.home(vhost, queue, made_with), since_ms, None)
    return found


NOT_YET = 1 << 62  # milliseconds: a queue that is on its way has not come


def _log(reader: HistoryReader, number: int) -> HistoryPartition:
    if number >= len(reader.queues):
        raise LogError(f"a queue is in partition queues-{number}, and only {len(reader.queues)} partitions are read")
    return reader.queues[number]


def log_of(reader: HistoryReader, vhost: str, queue: str) -> HistoryPartition:
    """The log of the partition that the queue is in now. Raises LogError."""
    return _log(reader, reader.placement.home(vhost, queue, len(reader.queues)))


def log_named(reader: HistoryReader, name: str) -> HistoryPartition:
    """The log of the partition with this name. Raises OutsideHistory."""
    found = next((log for log in reader.queues if log.name == name), None)
    if found is None:
        raise OutsideHistory(f"there is no partition {name}")
    return found


def log_at(reader: HistoryReader, vhost: str, queue: str, at: At) -> HistoryPartition:
    """The log of the partition in which the queue was at a moment. Raises BetweenPartitions, OutsideHistory."""
    if at.time_ms is None:
        return log_of(reader, vhost, queue) if at.partition is None else log_named(reader, at.partition)
    return log_between(reader, vhost, queue, at, at)


def log_between(reader: HistoryReader, vhost: str, queue: str, start: At, end: At) -> HistoryPartition:
    """The log of the partition in which the queue was from one moment to another one.

    Raises BetweenPartitions, OutsideHistory."""
    every = partition_visits(reader, vhost, queue)
    wanted = [each for each in every if _may_have(each, start) and _may_have(each, end)]
    if start.time_ms is None and end.time_ms is None and start.partition is end.partition is None:
        return every[-1].log
    if start.time_ms is not None and end.time_ms is not None:
        first_ms, last_ms = min(start.time_ms, end.time_ms), max(start.time_ms, end.time_ms)
        wanted = [each for each in wanted if each.has(first_ms, last_ms)]
    if not wanted:
        raise BetweenPartitions(_when(every, vhost, queue))
    return wanted[-1].log


def _may_have(stay: PartitionVisit, at: At) -> bool:
    if at.time_ms is not None:
        return stay.has(at.time_ms, at.time_ms)
    return stay.until_ms is None if at.partition is None else stay.log.name == at.partition


def moment_in(text: str, vhost: str, queue: str, topology: Topology, made_with: int) -> At:
    """The moment that a time or a mark means for a queue: a mark holds for the partition in which the queue was then.

    `made_with`: the number of queue partitions. Raises UnreadableTime, NoSuchMark, BetweenPartitions."""
    placement, marked = topology.placement, topology.marked.get(name_in(text) or "")
    if marked is None or not placement.count:
        number = placement.home(vhost, queue, made_with)
    else:
        moved = placement.moves_at(vhost, queue, marked[0])
        if moved is not None and not (isinstance(moved, Move) and moved.to_id < 0):
            way = f"from {queue_partition(moved.source)} to {queue_partition(moved.target)}"
            raise BetweenPartitions(f"queue '{queue}' in vhost '{vhost}' went {way} when the mark was set")
        number = placement.home_at(vhost, queue, marked[0], made_with)
    return moment(text, queue_partition(number), lambda: topology.marks)


def _when(every: list[PartitionVisit], vhost: str, queue: str) -> str:
    ways = []
    for left, reached in pairwise(every):
        way = f"{left.log.name} to {reached.log.name}"
        assert left.until_ms is not None, "only the last stay has no end"
        if reached.since_ms == NOT_YET:
            ways.append(f"{way} since {format_time(left.until_ms)}: ask for an earlier moment, or when it is there")
        else:
            assert reached.since_ms is not None, "only the first stay has no beginning"
            ways.append(
                f"{way} from {format_time(left.until_ms)} to {format_time(reached.since_ms)}:"
                " ask for moments before that, or for moments since"
            )
    return f"queue '{queue}' in vhost '{vhost}' went from {'; and from '.join(ways)}"


@dataclass(frozen=True, slots=True)
class QueueLineage:
    """The incarnations of one queue: `queue_id`, and where it moved, `lives`: (partition, incarnation) of each stay.

    An incarnation is an offset: two queues in two partitions may have the same."""

    queue_id: int
    lives: frozenset[tuple[str, int]]

    def ids_in(self, partition: str) -> frozenset[int]:
        """The incarnations in this partition."""
        if not self.lives:
            return frozenset((self.queue_id,))
        return frozenset(queue_id for name, queue_id in self.lives if name == partition)


def lineage_of(placement: Placement, vhost: str, queue: str, queue_id: int) -> QueueLineage:
    """The incarnations that are one queue with `queue_id`, which is one where the name leads now, or an older one."""
    chains: list[list[tuple[int, int]]] = []
    for move in placement.moves.get((vhost, queue), ()):
        if -1 in (move.from_id, move.to_id):
            continue
        if chains and chains[-1][-1] == (move.source, move.from_id):
            chains[-1].append((move.target, move.to_id))
        else:
            chains.append([(move.source, move.from_id), (move.target, move.to_id)])
    home = placement.home(vhost, queue, 1)
    found = [chain for chain in chains if (home, queue_id) in chain]
    found = found or [chain for chain in chains if any(life == queue_id for _, life in chain)]
    lives = {(queue_partition(number), life) for number, life in found[-1]} if found else set()
    return QueueLineage(queue_id, frozenset(lives))


def is_unclear(placement: Placement, vhost: str, queue: str, queue_id: int) -> bool:
    """Return True if the present queue has, by chance, the number that an earlier queue of its name had elsewhere.

    The number alone could not tell the past of the one from that of the other."""
    moving = placement.moving.get((vhost, queue))
    left = moving is not None and moving.from_id == queue_id
    number = moving.source if moving is not None and left else placement.home(vhost, queue, 1)
    lives = lineage_of(placement, vhost, queue, queue_id).lives
    return bool(lives) and (queue_partition(number), queue_id) not in lives


def first_in(stay: PartitionVisit, placement: Placement, vhost: str, queue: str, queue_id: int | None) -> int | None:
    """The declaration, for this stay, of the queue whose incarnation is `queue_id`; None: it was not there.

    `queue_id` None: of any queue, so 0."""
    if queue_id is None:
        return 0
    same = lineage_of(placement, vhost, queue, queue_id)
    if not same.lives and stay.until_ms is not None:
        return None  # what was there is another queue of this name
    ids = same.ids_in(stay.log.name)  # several, if it came back to this partition
    for move in placement.moves.get((vhost, queue), ()):
        if (move.target, move.ended_ms) == (stay.number, stay.since_ms) and move.to_id in ids:
            return move.to_id
    return min(ids, default=None)


def lowest(
    every: list[PartitionVisit], placement: Placement, vhost: str, queue: str, queue_id: int | None
) -> dict[HistoryPartition, int]:
    """The partitions in which the queue was whose incarnation is `queue_id`, each with its first declaration there.

    `queue_id` None: of any queue, so 0."""
    found: dict[HistoryPartition, int] = {}
    for stay in every:
        first = first_in(stay, placement, vhost, queue, queue_id)
        if first is not None:
            found[stay.log] = min(first, found.get(stay.log, first))
    return found


def came_from(reader: HistoryReader, origin: Origin | None) -> HistoryPartition | None:
    """The partition from where a message with this origin came along with its queue; None: it did not.

    None, too, if the history there does not reach back to the publish of the message."""
    if origin is None or origin.reason != RELOCATED:
        return None
    moves = reader.placement.moves.get((origin.vhost, origin.queue), [])
    moving = reader.placement.moving.get((origin.vhost, origin.queue))
    left: list[Move | Moving] = [*moves]
    if moving is not None:
        left.append(moving)
    for each in left:
        named = reader.placement.as_origin(origin.vhost, origin.queue, each.source)
        if (each.from_id, named) == (origin.queue_id, origin.partition) and each.source < len(reader.queues):
            log = reader.queues[each.source]
            return log if log.start_offset <= origin.message_id else None
    return None


def is_told_before(reader: HistoryReader, published: Published) -> bool:
    """Return True if the message moved along with its queue, and the history has its first publish."""
    return came_from(reader, published.origin) is not None
