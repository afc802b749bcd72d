"""Which partition a queue is in: the fold of the events of placement (schemas/placement_events.py).

    home(vhost, queue)     moving?  the partition to which it goes
                           staying? the partition in which it stays
                           else     by the hash of its name, out of `count` partitions (rules/partition_hash.py)

    PartitionsAdded        count 2, wanted 6      as before; nodes are started again, and work with 6
    NamesHeld              count 2, wanted 6      names that 6 would place elsewhere, and that no queue has, wait
    QueuesStay ...                                the queues that are elsewhere by 6
    PlacementChanged       count 6                new names are placed by 6; the queues that exist stay
    QueueMoveBegan         one of them moves      its name waits, and leads to the new partition
    QueueMoveEnded                                it is there
    QueueMoveBegan, to where it was               the move is given up: it stays

Rules of this file
- A log that nobody repartitioned has no such event. Then `count` is 0, and queues are placed by the number of
  partitions that the log was made with.
- The past is kept: `home_at` says where a queue was at a moment.
- A binding names the incarnation of its queue (`Bound.queue_id`). A queue that moved is another incarnation, in another
  partition, and keeps its bindings: with QueueMoveEnded they name the new one (topology.py).
- An incarnation is the offset of an event, so it means something only together with its partition: two incarnations of
  a queue, in two partitions, may have the same number.
- Names are held, or queues move, and never both: a queue on its way stands in no list of those that stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.json_texts import Nonsense
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    PlacementEvent,
    QueueMoveBegan,
    QueueMoveEnded,
    QueuesStay,
)

Name = tuple[str, str]  # vhost and queue


@dataclass(frozen=True, slots=True)
class Moving:
    """A queue on its way: from incarnation `from_id` in partition `source` to partition `target`, since `began_ms`.

    `from_id` -1: only the name goes."""

    source: int
    from_id: int
    target: int
    began_ms: int


@dataclass(frozen=True, slots=True)
class Move:
    """A queue went from incarnation `from_id` in partition `source` to incarnation `to_id` in partition `target`.

    `began_ms`, `ended_ms`: when. An id of -1: there was no such queue, and only the name went."""

    source: int
    from_id: int
    target: int
    to_id: int
    began_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """The placement of queues until `until_ms`: by `count`, except for the queues that were `staying` at that time."""

    until_ms: int
    count: int
    staying: dict[Name, int]


class Placement:
    """See the module.

    `count`: queues are placed by it; 0: nobody repartitioned. `wanted`: the number of partitions that the log has
    according to the last PartitionsAdded; it differs from `count` until the placement has changed. `held`: names wait.
    `staying`: the queues that are elsewhere than `count` says -> their partition. `gathered`: the same for `wanted`,
    since NamesHeld. `moves`: by name, in their order. `earlier`: in the order of time."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = 0
        self.held = False
        self.staying: dict[Name, int] = {}
        self.gathered: dict[Name, int] = {}
        self.moving: dict[Name, Moving] = {}
        self.moves: dict[Name, list[Move]] = {}
        self.earlier: list[Earlier] = []

    # -- looking ------------------------------------------------------------------------------------------------------

    def home(self, vhost: str, queue: str, made_with: int) -> int:
        """Return the number of the partition that holds the queue of this name, or would hold it.

        `made_with`: the number of partitions, for a log that nobody repartitioned."""
        if not self.count:
            return partition_of(vhost, queue, made_with)
        name = (vhost, queue)
        if name in self.moving:
            return self.moving[name].target
        if name in self.staying:
            return self.staying[name]
        return partition_of(vhost, queue, self.count)

    def home_at(self, vhost: str, queue: str, time_ms: int, made_with: int) -> int:
        """The number of the partition in which the queue was at this time. While it moved: the one that it left."""
        name = (vhost, queue)
        left = next((each for each in self.moves.get(name, ()) if time_ms < each.ended_ms), self.moving.get(name))
        then = next((each for each in self.earlier if time_ms < each.until_ms), None)
        if then is not None and (left is None or then.until_ms <= left.began_ms):
            return then.staying.get(name, partition_of(vhost, queue, then.count))
        return self.home(vhost, queue, made_with) if left is None else left.source

    def moves_at(self, vhost: str, queue: str, time_ms: int) -> Move | Moving | None:
        """Return the move that was under way at this time: the queue's messages were in two partitions."""
        name = (vhost, queue)
        moving = self.moving.get(name)
        if moving is not None and time_ms >= moving.began_ms:
            return moving
        return next((each for each in self.moves.get(name, ()) if each.began_ms <= time_ms < each.ended_ms), None)

    def goes_elsewhere(self, vhost: str, queue: str) -> bool:
        """Return True if the wanted number of partitions would place this name in another partition."""
        return self.wanted != self.count and self.home(vhost, queue, 0) != partition_of(vhost, queue, self.wanted)

    def followed(self, vhost: str, queue: str, partition: int, queue_id: int) -> int:
        """Return the incarnation that the queue has now which was `queue_id` in this partition.

        -1: it was deleted on its way."""
        for move in self.moves.get((vhost, queue), ()):
            if (move.source, move.from_id) == (partition, queue_id):
                partition, queue_id = move.target, move.to_id
        return queue_id

    def has_left(self, vhost: str, queue: str, partition: int, queue_id: int) -> bool:
        """Return True if the queue was this incarnation in this partition, and has moved away from there."""
        return any((each.source, each.from_id) == (partition, queue_id) for each in self.moves.get((vhost, queue), ()))

    def as_origin(self, vhost: str, queue: str, partition: int) -> int:
        """Return the number of this partition as `Origin.partition` names it for letters of the queue.

        -1 for the partition in which queues of this name were before anybody repartitioned."""
        first = self.made_with
        return -1 if not first or partition == partition_of(vhost, queue, first) else partition

    def strays(self) -> Iterator[tuple[int, Name, int]]:
        """Yield the queues that have left a partition: partition, name, incarnation. What is left of them is to
        follow."""
        for name, moving in self.moving.items():
            if moving.from_id != -1:
                yield moving.source, name, moving.from_id
        for name, moves in self.moves.items():
            for move in moves:
                if move.from_id != -1:
                    yield move.source, name, move.from_id

    @property
    def made_with(self) -> int:
        """The number of partitions with which the log was made; 0: nobody repartitioned."""
        return self.earlier[0].count if self.earlier else self.count

    def only(self, vhost: str, queue: str) -> "Placement":
        """Return the same for one queue alone, as a copy: for a question about it in another process."""
        name = (vhost, queue)
        part = Placement()
        part.count, part.wanted, part.held = self.count, self.wanted, self.held
        for mine, its in ((self.staying, part.staying), (self.gathered, part.gathered)):
            if name in mine:
                its[name] = mine[name]
        if name in self.moving:
            part.moving[name] = self.moving[name]
        if name in self.moves:
            part.moves[name] = list(self.moves[name])
        for each in self.earlier:
            staying = {name: each.staying[name]} if name in each.staying else {}
            part.earlier.append(Earlier(each.until_ms, each.count, staying))
        return part

    # -- folding ------------------------------------------------------------------------------------------------------

    def apply(self, timestamp_ms: int, event: PlacementEvent) -> None:
        """Apply an event. Nonsense: it does not fit, and changes nothing."""
        if isinstance(event, PartitionsAdded):
            self._add(event)
        elif isinstance(event, NamesHeld):
            self._hold(event)
        elif isinstance(event, QueuesStay):
            self._gather(event)
        elif isinstance(event, PlacementChanged):
            self._change(timestamp_ms, event)
        elif isinstance(event, QueueMoveBegan):
            self._begin_move(timestamp_ms, event)
        else:
            self._end_move(timestamp_ms, event)

    def _add(self, event: PartitionsAdded) -> None:
        if self.count not in (0, event.before) or not 0 < event.before < event.partitions:
            raise Nonsense(f"queues are placed by {self.count} partitions, not {event.before}")
        if self.wanted not in (0, self.count, event.partitions):
            raise Nonsense(f"{self.wanted} partitions were added, and queues are not placed by them yet")
        self.count, self.wanted = event.before, event.partitions

    def _hold(self, event: NamesHeld) -> None:
        if event.partitions != self.wanted or self.wanted == self.count:
            raise Nonsense(f"the log has {self.wanted} partitions, and queues are placed by {self.count}")
        if self.moving:
            raise Nonsense("a queue is on its way")
        if not self.held:  # else a second owner of this duty says it again, and the first one goes on
            self.held, self.gathered = True, {}

    def _gather(self, event: QueuesStay) -> None:
        if not self.held or not 0 <= event.partition < self.wanted:
            raise Nonsense(f"no names are held for queues of partition {event.partition}")
        for each in event.queues:
            if event.partition != partition_of(each.vhost, each.queue, self.wanted):
                self.gathered[each.vhost, each.queue] = event.partition

    def _change(self, timestamp_ms: int, event: PlacementChanged) -> None:
        if not self.held or event.partitions != self.wanted:
            raise Nonsense("no names are held for this number of partitions")
        self.earlier.append(Earlier(timestamp_ms, self.count, self.staying))
        self.count, self.staying, self.gathered, self.held = self.wanted, self.gathered, {}, False

    def _begin_move(self, timestamp_ms: int, event: QueueMoveBegan) -> None:
        name = (event.vhost, event.queue)
        source, moving = self.staying.get(name), self.moving.get(name)
        if moving is not None and event.partition == moving.source:
            del self.moving[name]  # given up: it stays for now
            return
        if self.held or source is None or event.partition != partition_of(*name, self.count):
            raise Nonsense(f"queue {event.queue!r} in vhost {event.vhost!r} does not wait to go there")
        if moving is None:
            self.moving[name] = Moving(source, event.queue_id, event.partition, timestamp_ms)
        elif event.queue_id > moving.from_id:  # it was declared anew before all nodes knew that its name waits
            self.moving[name] = replace(moving, from_id=event.queue_id)

    def _end_move(self, timestamp_ms: int, event: QueueMoveEnded) -> None:
        name = (event.vhost, event.queue)
        moving = self.moving.pop(name, None)
        if moving is None:
            raise Nonsense(f"queue {event.queue!r} in vhost {event.vhost!r} is not on its way")
        self.staying.pop(name, None)
        move = Move(moving.source, moving.from_id, moving.target, event.queue_id, moving.began_ms, timestamp_ms)
        self.moves.setdefault(name, []).append(move)

    # -- stored -------------------------------------------------------------------------------------------------------

    def for_digest(self) -> dict[str, Any]:
        """Return the state for the topology's digest: empty where nobody repartitioned."""
        if not self.count:
            return {}
        return {
            "count": self.count,
            "wanted": self.wanted,
            "held": self.held,
            "staying": sorted([*name, at] for name, at in self.staying.items()),
            "gathered": sorted([*name, at] for name, at in self.gathered.items()),
            "moving": sorted([*name, at.source, at.from_id, at.target] for name, at in self.moving.items()),
            "moves": [
                [*name, move.source, move.from_id, move.target, move.to_id]
                for name in sorted(self.moves)
                for move in self.moves[name]
            ],
        }
