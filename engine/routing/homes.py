"""The homes of queues: which partition a name leads to at this node, and which names wait.

Rules of this file
- A name is held while its queue moves (`Placement.moving`), and for a moment before queues are placed by another number
  of partitions: then names without a queue are held that would be placed elsewhere. Whatever names a queue waits until
  the name is free: declarations, publishes, consumers, questions. Settlements go on: they name deliveries.
- A node holds a name from when it folds the event on. So what it appended before is in the partition that the queue
  leaves, and the move begins when all nodes have shown that they know (`Nodes.until_known`). So code that finds a
  partition by a name appends to it before it awaits anything, or asks `is_held` and `is_home` again.
- Thousands of clients may wait. So those look again whose name is free, or whose session has ended, and no others.
- A queue that has left a partition is a stray there, until what consumers hold of it is settled. The queue at home has
  the same name. A stray is in no listing, and has no bindings.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.topology.placement import Name, Placement

Key = TypeVar("Key")
Waiting = dict[asyncio.Future[None], None]  # in the order in which they came


def never() -> bool:
    """Return a caller that does not go away."""
    return False


class Homes:
    """`partitions`: the queue partitions that this node works with, by number."""

    def __init__(self, placement: Placement, partitions: Sequence[Partition]) -> None:
        self.placement = placement
        self._partitions = partitions
        self._of_name: dict[Name, Waiting] = {}
        self._of_session: dict[int, Waiting] = {}  # the same ones

    # -- where a queue is ---------------------------------------------------------------------------------------------

    def of(self, vhost: str, name: str) -> Partition:
        """Return the partition that holds the queue of this name, or would hold it."""
        return self._partitions[self.placement.home(vhost, name, len(self._partitions))]

    def locate(self, vhost: str, name: str) -> Partition | None:
        """Return the partition of a queue that a message can be routed to, or None.

        A queue that moves counts as being where it goes."""
        partition = self.of(vhost, name)
        if partition.may_have(vhost, name):
            return partition
        moving = self.placement.moving.get((vhost, name))
        return None if moving is None or moving.from_id == -1 else partition

    def queue(self, vhost: str, name: str) -> Queue | None:
        """Return the queue of this name, as far as this node folds it. A queue that moves is the one that leaves, until
        it is declared where it goes."""
        queue = self.of(vhost, name).machine.queue(vhost, name)
        if queue is None and (moving := self.placement.moving.get((vhost, name))) is not None:
            return self._partitions[moving.source].machine.queue(vhost, name)
        return queue

    def source(self, vhost: str, name: str) -> Partition | None:
        """Return the partition that a queue leaves which moves; None: it does not."""
        moving = self.placement.moving.get((vhost, name))
        return None if moving is None else self._partitions[moving.source]

    def is_home(self, partition: PartitionReading, vhost: str, name: str) -> bool:
        """Return True if the name leads to this partition. If not, a queue of this name here has left or will leave."""
        return self.of(vhost, name) is partition

    @property
    def has_moves(self) -> bool:
        """Return True if queues have moved or are moving, so that a name may be in two partitions."""
        return bool(self.placement.moving or self.placement.moves)

    def is_listed(self, partition: PartitionReading, vhost: str, name: str) -> bool:
        """Return True if a listing shows the queue of this name in this partition, rather than one in another."""
        home = self.of(vhost, name)
        if home is partition:
            return True
        moving = self.placement.moving.get((vhost, name))
        if moving is None or self._partitions[moving.source] is not partition:
            return False
        if home.current or (counted := home.counted) is None:
            return home.machine.queue(vhost, name) is None
        return (vhost, name) not in counted.queues

    def may_be_counted(self, partition: PartitionReading, vhost: str, name: str) -> bool:
        """Return True if the owner of this partition may have published counters of a queue of this name."""
        return self.placement.count > 0 or self.of(vhost, name) is partition

    def strays(self, vhost: str, name: str) -> Iterator[tuple[Partition, int]]:
        """Yield the partitions that the queue of this name has left, each with the incarnation that may be left."""
        for move in self.placement.moves.get((vhost, name), ()):
            if move.from_id != -1:
                yield self._partitions[move.source], move.from_id

    # -- names that wait ----------------------------------------------------------------------------------------------

    @property
    def names_wait(self) -> bool:
        """Return True if any name may be held."""
        return self.placement.held or bool(self.placement.moving)

    def is_held(self, vhost: str, name: str) -> bool:
        """Return True if the name is held, so that requests which name it wait."""
        placement = self.placement
        if (vhost, name) in placement.moving:
            return True
        return placement.held and placement.goes_elsewhere(vhost, name) and self.locate(vhost, name) is None

    def first_held(self, vhost: str, names: Iterable[str]) -> str | None:
        """Return the first of these names that waits."""
        if not self.names_wait:
            return None
        return next((name for name in names if self.is_held(vhost, name)), None)

    async def wait_until_free(
        self, vhost: str, name: str, gone: Callable[[], bool] = never, session_id: int = 0
    ) -> None:
        """Wait until the name is not held. `gone`: whether the caller waits no more; it is asked when the session with
        this id has ended, and after `placement_changed`."""
        while self.is_held(vhost, name) and not gone():
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._of_name.setdefault((vhost, name), {})[freed] = None
            self._of_session.setdefault(session_id, {})[freed] = None
            try:
                await freed
            finally:  # the caller may have a time limit
                _forget(self._of_name, (vhost, name), freed)
                _forget(self._of_session, session_id, freed)

    def name_freed(self, vhost: str, name: str) -> None:
        """Let those look again that wait for this name."""
        _wake(self._of_name.get((vhost, name), {}))

    def session_ended(self, session_id: int) -> None:
        """Let the requests of a session look again, which has ended."""
        _wake(self._of_session.get(session_id, {}))

    def placement_changed(self) -> None:
        """Let all look again: names have a new placement, or the broker stops."""
        for waiting in self._of_name.values():
            _wake(waiting)


def _wake(waiting: Waiting) -> None:
    for freed in waiting:
        if not freed.done():
            freed.set_result(None)


def _forget(waiting: dict[Key, Waiting], key: Key, freed: asyncio.Future[None]) -> None:
    del waiting[key][freed]
    if not waiting[key]:
        del waiting[key]
