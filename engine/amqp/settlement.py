"""The unacked deliveries of a channel, and their settlement: delivery tags in, ranges of message ids out.

    unacked    delivery tag -> (holder, message id), in the order of the tags
    pending    holders of messages that this read settled; `flush` at its end logs one Acked or Nacked event per
               holder

Acks of one channel commute, so they gather over a whole socket read. Requeues and discards do not (the queue takes
messages back in the order in which they come), so they gather only while message ids ascend. Those of one `multiple` go
together, and the queue knows their order. Anything else that happens on the channel flushes first. Delivery tags are
the channel's and are never logged.
"""

import itertools
from typing import TYPE_CHECKING

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import Acked, Nacked
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.rewind.reader import Reader


class DeliveryHolder:
    """A holder of unacked deliveries: a consumer, or a basic.get."""

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.queue: Queue | None = None
        self.consumer_id = 0
        self.pending: list[int] = []  # message ids settled in this read
        self.reader: Reader | None = None  # see `reads_by`

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        """The partition knows the holder by this id."""
        self.partition = partition
        self.queue = queue
        self.consumer_id = consumer_id

    def moved(self, partition: Partition, queue: Queue) -> None:
        """Its queue is in this partition now, where the holder has the same id."""
        self.partition, self.queue = partition, queue

    def reads_by(self, reader: "Reader") -> None:
        """The deliveries come from this reader. It takes nothing from a queue: a settlement only lets it read on."""
        self.reader = reader

    def settled(self, count: int) -> None:
        """So many deliveries were settled, and the event is appended."""


# How deliveries are settled: the event's method, and whether they are requeued. None: an ack.
Verdict = tuple[str, bool] | None


class Settlement:
    """The delivery tags of one channel."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.unacked: dict[int, tuple[DeliveryHolder, int]] = {}
        self.closed = False  # with its channel
        self.last_tag = 0  # the number of deliveries so far
        self.delivered_no_ack = 0  # of these, to consumers with no_ack
        self.redelivered = 0
        self.fetched = 0  # by basic.get
        self.fetched_no_ack = 0
        self.fetched_empty = 0
        self.acked = 0
        self.settled_below = 1  # no tag below this one is unacked, so `multiple` begins to look here
        self.returned: set[int] = set()  # tags that the broker took back: their settlement changes nothing
        self.verdict: Verdict = None
        self.pending: list[DeliveryHolder] = []

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """Settle a delivery; with `multiple` all up to it, and tag 0 means all. PreconditionFailed (406) for a tag that
        is not outstanding (S-099)."""
        if self.pending and verdict != self.verdict:
            self.flush()
        self.verdict = verdict
        if not multiple:
            held = self.unacked.pop(tag, None)
            if held is None:
                self.require_returned(tag)
            else:
                self.gather(held)
            return
        if tag == 0:
            tag = self.last_tag
        elif tag not in self.unacked:
            self.require_returned(tag)
        if verdict is not None:
            self.flush()
        unacked = self.unacked
        for each in range(self.settled_below, tag + 1):
            held = unacked.pop(each, None)
            if held is not None:
                self.gather(held, True)
        self.settled_below = max(self.settled_below, tag + 1)
        if verdict is not None:
            self.flush()

    def ack_each(self, tags: list[int]) -> None:
        """Ack one delivery after the other, as `settle` does it (hot). Raises as `settle`."""
        if self.pending and self.verdict is not None:
            self.flush()
        self.verdict = None
        unacked = self.unacked
        last: DeliveryHolder | None = None
        ids: list[int] = []
        for tag in tags:
            held = unacked.pop(tag, None)
            if held is None:
                self.require_returned(tag)
                continue
            holder, message_id = held
            if holder is not last:
                last, ids = holder, holder.pending
                if not ids:
                    self.pending.append(holder)
            ids.append(message_id)

    def require_returned(self, tag: int) -> None:
        """Forget a tag that the broker took back. PreconditionFailed (406) if it did not."""
        if tag not in self.returned:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self.returned.discard(tag)

    # -- in a transaction: taken when the client settles, logged at commit --------------------------------------------

    def take(self, tag: int, multiple: bool) -> list[tuple[int, DeliveryHolder, int]]:
        """Take out what `settle` would settle: (tag, holder, message id) of each. Raises as `settle`."""
        if tag not in self.unacked and not (tag == 0 and multiple):
            self.require_returned(tag)
            if not multiple:
                return []
        tags = [tag]
        if multiple:
            tags = list(itertools.takewhile(lambda each: tag == 0 or each <= tag, self.unacked))
        return [(each, *self.unacked.pop(each)) for each in tags]

    def settle_taken(self, taken: list[tuple[int, DeliveryHolder, int]], verdict: Verdict) -> None:
        """Settle what `take` took out."""
        self.flush()
        self.verdict = verdict
        for _, holder, message_id in taken:
            self.gather((holder, message_id))
        self.flush()

    def put_back(self, taken: list[tuple[int, DeliveryHolder, int]]) -> None:
        """Make what `take` took out outstanding again, in the order of the tags."""
        entries = [*self.unacked.items(), *((tag, (holder, message_id)) for tag, holder, message_id in taken)]
        self.unacked.clear()
        self.unacked.update(sorted(entries, key=lambda entry: entry[0]))
        self.settled_below = min((tag for tag, _, _ in taken), default=self.settled_below)

    def gather(self, held: tuple[DeliveryHolder, int], together: bool = False) -> None:
        """Add a settled delivery to its holder's. `together`: it is one of a `multiple`."""
        holder, message_id = held
        pending = holder.pending
        if not pending:
            self.pending.append(holder)
        elif self.verdict is not None and not together and message_id < pending[-1]:
            self.flush()
            self.pending.append(holder)
        holder.pending.append(message_id)

    def flush(self) -> None:
        """Log what was settled since the last call."""
        holders = self.pending
        if not holders:
            return
        self.pending = []
        verdict = self.verdict
        for holder in holders:
            ids = holder.pending
            holder.pending = []
            if holder.reader is not None:
                holder.reader.credited(len(ids))
                continue
            partition, queue = holder.partition, holder.queue
            assert partition is not None
            assert queue is not None
            if partition.machine.queue(queue.vhost, queue.name) is not queue:
                continue  # the queue is gone, and with it the messages: nothing to settle
            messages = ranges(ids)
            if verdict is None:
                self.acked += len(ids)
                partition.append(self.actor, Acked(queue.vhost, queue.name, holder.consumer_id, messages))
            else:
                method, requeue = verdict
                event = Nacked(queue.vhost, queue.name, holder.consumer_id, messages, requeue, method)
                partition.append(self.actor, event)
            holder.settled(len(ids))


def ranges(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Message ids, none of them twice, as ascending inclusive ranges. Sorts the list."""
    ids.sort()
    if ids[-1] - ids[0] == len(ids) - 1:
        return ((ids[0], ids[-1]),)
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
