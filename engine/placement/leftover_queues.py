"""Looks after the partition that a queue left: messages that come back from consumers follow the queue.

    came back (nacked, its connection closed)      QueueDrained: it follows, as the others did
    nothing is held any more, nothing under way    QueueDeleted, STAY_SECONDS later. The queue lives in its new place

The owner of the partition looks every second, and all the time while something is to follow. It looks at the queues
whose move has ended: until then the mover drains them.

A node that was declared lost while it moved may have publishes on their way to the old partition, and may have
confirmed them. They find the queue there, and follow it. So an empty one stays for a while."""

import asyncio
from collections.abc import Callable, Sequence

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.topology.placement import Move, Placement
from rewindmq.schemas.events import Event, QueueDeleted, QueueDrained
from rewindmq.schemas.placement_events import QueueMoveEnded
from rewindmq.schemas.values import BROKER

PORTION = 500  # messages
MOST_LETTERS = 2_000  # of one queue that are on their way
STAY_SECONDS = 120.0  # far more than a lost node's records take to come, or to fail


class LeftoverQueues:
    """Looks after the partitions that this node owns."""

    def __init__(self, placement: Placement, partitions: Sequence[Partition], end_turn: Callable[[], None]) -> None:
        self._placement = placement
        self._partitions = partitions
        self._end_turn = end_turn
        self._left: list[set[int]] | None = None  # by partition: the incarnations that may be there still
        self._asked: dict[tuple[str, int], int] = {}  # append position of the last event for one of them
        self._empty_since: dict[tuple[str, int], float] = {}  # seconds of the loop's clock
        self.followed = False  # something has, since the caller reset it

    def changed(self, event: Event) -> None:
        """Take note that a queue has moved."""
        if self._left is not None and isinstance(event, QueueMoveEnded):
            _note(self._left, self._placement.moves.get((event.vhost, event.queue), [])[-1:])

    async def look(self, work: Work) -> bool:
        """Let what came back follow, a portion of each queue, and remove what is empty. Returns whether there is more
        to be done at once."""
        asked = more = False
        if self._left is None:
            self._left = [set() for _ in self._partitions]
            for moves in self._placement.moves.values():
                _note(self._left, moves)
        for partition, left in zip(self._partitions, self._left, strict=True):
            async for queue_id in work.over(list(left)):
                if not (partition.owned and partition.current):
                    break
                queue = partition.machine.by_id.get(queue_id)
                if queue is None or queue.gone:
                    left.discard(queue_id)
                else:
                    more |= is_to_follow(queue)
                    asked |= self._follow(partition, queue)
        if asked:
            self._end_turn()
        return more

    def left(self) -> int:
        """Return the number of queues with something left in a partition that they have left."""
        return sum(
            1
            for index, _, queue_id in self._placement.strays()
            if (queue := self._partitions[index].machine.by_id.get(queue_id)) is not None
            and not queue.gone
            and not is_empty(queue)
        )

    def _follow(self, partition: Partition, queue: Queue) -> bool:
        key = (partition.name, queue.queue_id)
        if self._asked.get(key, -1) >= partition.durable_position:
            return False  # the last event is on its way still
        if not is_empty(queue):
            self._empty_since.pop(key, None)
        if is_to_follow(queue):
            if letters_of(queue) + PORTION > MOST_LETTERS:
                return False
            event: QueueDrained | QueueDeleted = QueueDrained(queue.vhost, queue.name, queue.queue_id, PORTION)
            self.followed = True
        elif not is_empty(queue):
            self._asked.pop(key, None)
            return False
        else:
            now = asyncio.get_running_loop().time()
            if now - self._empty_since.setdefault(key, now) < STAY_SECONDS:
                return False
            del self._empty_since[key]
            # A message that came meanwhile saves it. The event names no incarnation, so it hits nothing that is in use.
            event = QueueDeleted(queue.vhost, queue.name, if_unused=True, if_empty=True)
        self._asked[key] = partition.append(BROKER, event)
        return True


def _note(left: list[set[int]], moves: Sequence[Move]) -> None:
    """Note what queues may have left where they were."""
    for move in moves:
        if move.from_id != -1:
            left[move.source].add(move.from_id)


def is_to_follow(queue: Queue) -> bool:
    """Return True if messages of the queue wait to go to its new partition."""
    return queue.messages_ready + queue.messages_delayed > 0


def letters_of(queue: Queue) -> int:
    """Return the number of a queue's messages that are on their way to its new partition.

    Dead letters do not count: no target may ever take them."""
    return len(queue.outbox.carried)


def is_empty(queue: Queue) -> bool:
    """Return True if nothing of the queue is left here: no message, no consumer, nothing on its way."""
    held = queue.messages_unacked or queue.consumer_count() or queue.outbox
    return not (held or queue.messages_ready or queue.messages_delayed)
