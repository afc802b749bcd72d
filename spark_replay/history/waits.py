"""Measures how long messages waited and stayed, while a range is folded: the rows behind the table SLO.

Messages of one range are counted here, so that no row of a message goes through the JVM:

    event + effects  ->  sums by queue, consumer and span of time, and how many messages waited, or stayed, how long

A range begins at a snapshot, which does not say when its messages were published. What the range cannot know becomes
a step of one message, and slo.py joins the steps of all ranges:

    0  it was published here, and is still in its queue at the end      1  its first delivery here      2  its end

A message that moves to another partition along with its queue does not end, and is not published again. It waits and
stays anew there.

A task's memory has one number for each message in a queue, and the sums, which are passed on when they are many.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewindmq.projections.history.outcomes import called, takers
from rewindmq.projections.machine.data.effects import (
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    QueueGone,
    Refuse,
    Requeue,
)
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import RELOCATED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import Run
from rewindmq.schemas.events import Checkpointed, Event, Published
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.history.outcomes import batch_of

if TYPE_CHECKING:
    import pyarrow as pa

STILL_THERE, FIRST_DELIVERY, ENDED = 0, 1, 2
_MOST_ROWS = 50_000  # sums and steps that a task keeps before it passes them on
_NONE: dict[int, int] = {}  # for a queue without a message that was published in the range
_Key = tuple[str, str, int | None, int | None]  # vhost, queue, consumer, beginning of the span of time


@dataclass(frozen=True, slots=True)
class SloOptions:
    """The options of `slo`: from which time on, the one queue (None: all), by consumer or not, the length of a span."""

    start_ms: int | None
    queue: str | None
    by_consumer: bool
    every_ms: int | None


class Sums:
    """The sums of one queue, or of one consumer of it, in one span of time."""

    __slots__ = ("delivered", "ended", "published", "redelivered", "stays", "waits")

    def __init__(self) -> None:
        self.published = self.delivered = self.redelivered = self.ended = 0
        self.waits: dict[int, int] = {}  # milliseconds -> messages
        self.stays: dict[int, int] = {}


class WaitsProduct:
    """A `Product`: the table WAITS of one range. `goes_on`: another range of the partition follows."""

    def __init__(self, partition: str, options: SloOptions, goes_on: bool) -> None:
        self.partition = partition
        self.options = options
        self.goes_on = goes_on
        self.wanted = None if options.queue is None else called(options.queue)
        self.sums: dict[_Key, Sums] = {}
        self.of_span: dict[tuple[Queue, int | None], Sums | None] = {}  # of the span of time at hand; None: not wanted
        self.steps: list[tuple[Any, ...]] = []
        # queue_id -> message -> the time of its publish, or ~ of it once the message was delivered. A message that
        # was published before the range is in `delivered_here` once it was delivered
        self.began: dict[int, dict[int, int]] = {}
        self.delivered_here: set[tuple[int, int]] = set()
        self.names: dict[int, Queue] = {}
        self.offset = 0
        self.now_ms = -1
        self.since_ms: int | None = None
        self.counts = True  # whether events of this time are in the range that was asked for

    def begin(self, machine: Machine) -> None:
        """Remember the machine (`Product`)."""
        self.machine = machine

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """Do nothing: a claim is not an outcome (`Product`)."""

    def undecodable(self, offset: int, why: str) -> None:
        """Do nothing: no message is concerned (`Product`)."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Count the outcomes of an event (`Product`)."""
        if timestamp_ms != self.now_ms:
            self._at(timestamp_ms)
        self.offset = offset
        if isinstance(event, Published):
            before = self.machine.time_passed_at(offset)
            for queue in takers(self.machine, offset, actor, event, effects[before:] if before else effects):
                self._published(queue, event.origin is None or event.origin.reason != RELOCATED)
        self._follows(effects)

    @property
    def run(self) -> Run | None:
        """This product takes publishes that were applied together (`Product`)."""
        return self._run

    def _run(
        self,
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Published,
        sizes: Sequence[int],
        records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        """Count the outcomes of publishes that were applied together."""
        if len(sizes) == 1:
            self.event(offset, timestamp_ms, actor, event, effects)
            return
        if timestamp_ms != self.now_ms:
            self._at(timestamp_ms)
        for message_id in range(offset, offset + len(sizes)):
            self.offset = message_id
            for queue in self.machine.routes[event.route]:
                self._published(queue)
        self._follows(effects)

    def _follows(self, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Deliver:
                for message_id in effect.message_ids:  # type: ignore[union-attr]
                    self._delivered(effect.queue, message_id, effect.consumer, effect.final)  # type: ignore[union-attr]
            elif kind in _ROWS:
                _ROWS[kind](self, effect)

    def _at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        options = self.options
        counts = options.start_ms is None or now_ms >= options.start_ms
        since_ms = None if options.every_ms is None else now_ms - now_ms % options.every_ms
        if (counts, since_ms) != (self.counts, self.since_ms):
            self.counts, self.since_ms = counts, since_ms
            self.of_span = {}

    # -- one outcome ------------------------------------------------------------------------------------------------

    def _sums(self, queue: Queue, consumer: int | None) -> Sums | None:
        """Return the sums that an outcome belongs to; None: it does not count."""
        try:
            return self.of_span[queue, consumer]
        except KeyError:
            found = None
            if self.counts and self._is_wanted(queue) and not (self.options.by_consumer and consumer is None):
                by = consumer if self.options.by_consumer else None
                found = self.sums.setdefault((queue.vhost, queue.name, by, self.since_ms), Sums())
            self.of_span[queue, consumer] = found
            return found

    def _is_wanted(self, queue: Queue) -> bool:
        return self.wanted is None or (queue.vhost, queue.name) in self.wanted

    def _published(self, queue: Queue, counts: bool = True) -> None:
        began = self.began.get(queue.queue_id)
        if began is None:
            began = self.began[queue.queue_id] = {}
            self.names[queue.queue_id] = queue
        began[self.offset] = self.now_ms
        sums = self._sums(queue, None)
        if sums is not None:
            sums.published += counts

    def _delivered(self, queue: Queue, message_id: int, consumer: int, final: bool) -> None:
        began = self.began.get(queue.queue_id, _NONE)
        since_ms = began.get(message_id)
        sums = self._sums(queue, consumer)
        if sums is not None:
            sums.delivered += 1
        if since_ms is None:
            self._delivered_from_before(sums, queue, message_id, consumer)
        elif since_ms >= 0:
            began[message_id] = ~since_ms
            if sums is not None:
                waited = self.now_ms - since_ms
                sums.waits[waited] = sums.waits.get(waited, 0) + 1
        elif sums is not None:
            sums.redelivered += 1
        if final:
            self._ended(queue, (message_id,), consumer)

    def _delivered_from_before(self, sums: Sums | None, queue: Queue, message_id: int, consumer: int) -> None:
        """Note the delivery of a message that was published before the range."""
        key = queue.queue_id, message_id
        if key not in self.delivered_here:
            self.delivered_here.add(key)
            self._step(FIRST_DELIVERY, sums is not None, queue, message_id, consumer)
        elif sums is not None:
            sums.redelivered += 1

    def _ended(self, queue: Queue, message_ids: Any, consumer: int | None) -> None:
        if not message_ids:
            return
        sums = self._sums(queue, consumer)
        began = self.began.get(queue.queue_id, _NONE)
        if sums is not None:
            sums.ended += len(message_ids)
        for message_id in message_ids:
            since_ms = began.pop(message_id, None)
            if since_ms is None:
                self.delivered_here.discard((queue.queue_id, message_id))
                if sums is not None:
                    self._step(ENDED, True, queue, message_id, consumer)
            elif sums is not None:
                stayed = self.now_ms - (since_ms if since_ms >= 0 else ~since_ms)
                sums.stays[stayed] = sums.stays.get(stayed, 0) + 1

    def _moved_on(self, queue: Queue, message_ids: Sequence[int]) -> None:
        """Forget messages that go on in another partition, along with their queue. They did not end."""
        began = self.began.get(queue.queue_id, _NONE)
        for message_id in message_ids:
            if began.pop(message_id, None) is None:
                self.delivered_here.discard((queue.queue_id, message_id))

    def _step(self, step: int, counts: bool, queue: Queue, message_id: int, consumer: int | None) -> None:
        if not self._is_wanted(queue):
            return
        key: tuple[Any, ...] = (None, None, None, None)
        if counts:
            by = consumer if self.options.by_consumer else None
            key = (queue.vhost, queue.name, by, self.since_ms)
        self.steps.append((key, step, queue.queue_id, message_id, self.offset, self.now_ms, None))

    # -- rows -------------------------------------------------------------------------------------------------------

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        """Yield rows of WAITS (`Product`)."""
        if last and self.goes_on:
            self._still_there()
        if len(self.of_span) > _MOST_ROWS:  # of queues and consumers that are gone, most of them
            self.of_span = {}
        many = len(self.steps) + sum(1 + len(each.waits) + len(each.stays) for each in self.sums.values())
        if many and (last or many > _MOST_ROWS):
            yield batch_of(list(self._rows()), columns.WAITS)
            self.sums, self.of_span, self.steps = {}, {}, []

    def _still_there(self) -> None:
        for queue_id, began in self.began.items():
            if not self._is_wanted(self.names[queue_id]):
                continue
            for message_id, since_ms in began.items():
                at_ms = since_ms if since_ms >= 0 else ~since_ms
                self.steps.append(((None,) * 4, STILL_THERE, queue_id, message_id, message_id, at_ms, since_ms < 0))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        of_step = (None,) * 6
        for key, sums in self.sums.items():
            named = self._named(key)
            counts = (sums.published, sums.delivered, sums.redelivered, sums.ended)
            yield (*named, *counts, None, None, 1, *of_step)
            for waited, messages in sums.waits.items():
                yield (*named, 0, 0, 0, 0, waited, None, messages, *of_step)
            for stayed, messages in sums.stays.items():
                yield (*named, 0, 0, 0, 0, None, stayed, messages, *of_step)
        for key, *step in self.steps:
            yield (*self._named(key), 0, 0, 0, 0, None, None, 1, *step)

    def _named(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        vhost, queue, consumer, since_ms = key
        return self.partition, vhost, queue, consumer, None if since_ms is None else since_ms * 1000


def _fetched(product: WaitsProduct, effect: FetchReply) -> None:
    if effect.message_id >= 0:
        product._delivered(effect.queue, effect.message_id, effect.consumer, effect.final)


def _left(product: WaitsProduct, effect: Forget) -> None:
    if effect.reason == RELOCATED:
        product._moved_on(effect.queue, effect.message_ids)
    else:
        product._ended(effect.queue, effect.message_ids, effect.consumer or None)


def _came_back(product: WaitsProduct, effect: Requeue | Delay) -> None:
    if isinstance(effect, Delay) or effect.message_ids:
        product._sums(effect.queue, effect.consumer)


def _without_consumer(product: WaitsProduct, effect: Refuse | DeadLetter | Duplicate) -> None:
    product._sums(effect.queue, None)


def _gone(product: WaitsProduct, effect: QueueGone) -> None:
    product.began.pop(effect.queue.queue_id, None)
    product.names.pop(effect.queue.queue_id, None)


# Besides Deliver. An outcome that is no more than a row of the history makes the sums of its queue, even if they are 0
_ROWS: dict[type, Any] = {
    FetchReply: _fetched,
    Forget: _left,
    Requeue: _came_back,
    Delay: _came_back,
    Refuse: _without_consumer,
    DeadLetter: _without_consumer,
    Duplicate: _without_consumer,
    QueueGone: _gone,
}
