"""What a channel has delivered and not seen settled, and the settling: delivery tags to message ids, in ranges.

    unacked    delivery tag -> (holder, message id), in the order of the tags
    pending    settled in this read, per holder; one Acked or Nacked event per holder when it ends (`flush`)

Order: acks of one channel commute, so they gather over a whole socket read. Requeues and discards do not (the queue
takes messages back in the order in which they come), so they gather only while message ids ascend. Whatever else
happens on the channel flushes first. Delivery tags are the channel's and are never logged.
"""

from collections import deque

from engine.errors import PreconditionFailed
from engine.partition import Partition
from projections.machine.queue import Queue
from schemas.events import Acked, Actor, Nacked


class Holder:
    """Who holds deliveries: a consumer, or a basic.get."""

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.queue: Queue | None = None
        self.consumer_id = 0
        self.pending: list[int] = []  # message ids settled in this read

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        self.partition = partition
        self.queue = queue
        self.consumer_id = consumer_id


# How deliveries are settled: the event's method, and whether they are requeued. None: an ack.
Verdict = tuple[str, bool] | None


class Settlement:
    """Delivery tags of one channel."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.unacked: dict[int, tuple[Holder, int]] = {}
        self.last_tag = 0  # of the latest delivery
        self.settled_below = 1  # no tag below this one is unacked: where `multiple` begins to look
        self.verdict: Verdict = None
        self.pending: list[Holder] = []
        self.marks: deque[tuple[float, int]] = deque()  # when each look was, and the last tag by then
        self.overdue = 0  # deliveries up to this tag are older than the limit of the last look

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """PreconditionFailed (406) for a tag that is not outstanding (S-099); tag 0 with `multiple` means all."""
        if self.pending and verdict != self.verdict:
            self.flush()
        self.verdict = verdict
        if not multiple:
            held = self.unacked.pop(tag, None)
            if held is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            self.gather(held)
            return
        if tag == 0:
            tag = self.last_tag
        elif tag not in self.unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        unacked = self.unacked
        for each in range(self.settled_below, tag + 1):
            held = unacked.pop(each, None)
            if held is not None:
                self.gather(held)
        self.settled_below = max(self.settled_below, tag + 1)

    def overdue_delivery(self, now: float, limit: float) -> bool:
        """Look whether a delivery has been unacked for more than `limit` seconds (counted from the first look after
        it, so that deliveries need no clock)."""
        marks = self.marks
        while marks and marks[0][0] <= now - limit:
            self.overdue = marks.popleft()[1]
        if not marks or marks[-1][1] != self.last_tag:
            marks.append((now, self.last_tag))
        return next(iter(self.unacked), self.overdue + 1) <= self.overdue

    def gather(self, held: tuple[Holder, int]) -> None:
        holder, message_id = held
        pending = holder.pending
        if not pending:
            self.pending.append(holder)
        elif self.verdict is not None and message_id < pending[-1]:
            self.flush()
            self.pending.append(holder)
        holder.pending.append(message_id)

    def flush(self) -> None:
        """Append the events for what gathered."""
        holders = self.pending
        if not holders:
            return
        self.pending = []
        verdict = self.verdict
        for holder in holders:
            ids = holder.pending
            holder.pending = []
            partition, queue = holder.partition, holder.queue
            assert partition is not None
            assert queue is not None
            if partition.machine.queue(queue.vhost, queue.name) is not queue:
                continue  # the queue is gone, and with it the messages: nothing to settle
            messages = ranges(ids)
            if verdict is None:
                partition.append(self.actor, Acked(queue.vhost, queue.name, holder.consumer_id, messages))
            else:
                method, requeue = verdict
                event = Nacked(queue.vhost, queue.name, holder.consumer_id, messages, requeue, method)
                partition.append(self.actor, event)


def ranges(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Message ids as ascending inclusive ranges; sorts the list."""
    if len(ids) == 1:
        return ((ids[0], ids[0]),)
    ids.sort()
    found: list[tuple[int, int]] = []
    first = last = ids[0]
    for message_id in ids[1:]:
        if message_id == last + 1:
            last = message_id
        else:
            found.append((first, last))
            first = last = message_id
    found.append((first, last))
    return tuple(found)
