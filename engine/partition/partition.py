"""A live queue partition: it appends to the log, folds, performs the effects, and confirms durable publishes.

    connection -> append(event) -> log -> machine -> effects gather
    end of a turn                -> carry_out(): deliveries to consumers, dead letters forwarded, RocksDB bookkeeping
    more is durable              -> on_durable(): confirms for all of it

The kinds differ in what comes between log and machine:
    embedded/partition.py   the embedded log: this broker alone appends, and folds an event as soon as it is appended
    cluster/partition.py    Kafka: any node appends, so a node folds the records that come back, in the log's order
    embedded/read_only.py   nothing can be appended

Work is done per socket read and per group of arrivals, not per message (docs/design.md#budgets): code that appends
calls `broker.turns.end()` once, at the end of its batch.

Rules of this file
- The partition performs effects in their order, each once. Then the projector observes them, and only then may it
  prepare a batch. It writes a batch only when the log is durable up to it.
- A delivery to a consumer that is no longer attached is dropped. The end of the consumer's session is (or will be) in
  the log, and gives the message back.
- `fresh` has the messages published in this turn; all others come from the projector. Only a damaged store lacks one:
  the loop then reads it from the log, one by one. If the message cannot be read, the broker closes the consumer's
  connection (`undelivered`).

A partition has three roles, and a caller takes the narrowest that it needs:
    PartitionReading (reading.py)    its fold, messages and time: listings, metrics, readers of the past
    Partition                        appending: requests, dead letters, turns
    Deliveries                       following: the consumers that the effects of the fold reach
"""

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from rewindmq.engine.partition.counters import DEATHS, DISABLED, Served, dead_lettered
from rewindmq.engine.partition.reading import BodyKeys, PartitionReading
from rewindmq.engine.partition.waits import SAMPLED_EACH_MS, Histogram
from rewindmq.projections.machine.data.effects import (
    CancelConsumer,
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Keep,
    Quarantine,
    QueueGone,
    Refuse,
    Requeue,
)
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import ACKED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.deduplication import is_nacked
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.store.store import Batch, Projector
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event, Published, Tick
from rewindmq.schemas.inheritance import mypyc_attr
from rewindmq.schemas.values import BROKER, EPOCH_SHIFT, Actor, Route

# Successive deliveries of one queue: the queue (None: no run), their number, how many of them were final and how many
# redelivered, and the first message that was not, if the turn is sampled (otherwise -1).
Run = tuple[Queue | None, int, int, int, int]
PREPARE_EVENTS = 10_000  # events in a batch for RocksDB; it is earlier if the projector holds much
PREPARE_QUEUES: Final = 300  # queues that came or went, in a batch: 5 ms

logger = logging.getLogger(__name__)


class DeliveryTarget(Protocol):
    """The client's side of a basic.consume (engine/amqp/consumer.py)."""

    def deliver(self, partition: "Partition", effect: Deliver, message_id: int, message: Published | None) -> None:
        """Send a message of `effect` to the client. `message`: None if it has to be read (`Partition.message`)."""

    def cancelled(self) -> None:
        """Tell the client that the queue is gone (basic.cancel), and forget the consumer."""


class FetchTarget(Protocol):
    """The client's side of a basic.get (engine/amqp/consumer.py)."""

    def fetched(self, partition: "Partition", effect: FetchReply, message: Published | None) -> None:
        """Send the answer to the client. `message` is None when the queue is empty."""


class Confirms(Protocol):
    """The receiver of confirms: a channel in confirm mode."""

    def confirm(self, sequence: int, refused: bool) -> None:
        """Confirm publish number `sequence` of the channel.

        `refused`: at least one queue did not take it. Confirms that wait for the disk come in ascending order; confirms
        that do not wait may come before them. The channel gathers frames and writes them at the end of the turn."""


class RunConfirms(Confirms, Protocol):
    """A receiver of confirms for publishes that were logged together."""

    def confirm_run(self, first: int, count: int) -> None:
        """Confirm publishes with successive numbers, from `first` on; no queue refused them."""


class EventTap(Protocol):
    """A watcher of the events of partitions (engine/routing/event_exchange.py)."""

    def folded(
        self,
        partition: "Partition",
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Event,
        effects: Sequence[Effect],
        before: int,
    ) -> None:
        """Take note of an event that was folded, and of its effects: those from `before` on."""


class PartitionListener(BodyKeys, Protocol):
    """The part of the broker that its partitions call."""

    counters: dict[str, int]

    def queue_declared(self) -> None:
        """Take note that any node may have declared a queue."""

    def queue_gone(self, partition: "Partition", queue: Queue, reason: str) -> None:
        """Take note that a queue is gone, and why."""

    def undelivered(self, partition: "Partition", consumer_id: int) -> None:
        """Close the connection of a consumer whose message could not be delivered."""

    def dead_letter(self, partition: "Partition", effect: DeadLetter) -> None:
        """Forward dead letters; the projector has their messages."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a double
class Partition(PartitionReading):
    """One queue partition of the log, for those who append. `effects` were gathered since the last carry_out.

    The defaults are those of a log that only this broker appends to: an append position is the event's offset."""

    encoder: Encoder
    effects: list[Effect]

    def __init__(
        self,
        index: int,
        log: ReadableLog,
        machine: Machine,
        projector: Projector,
        encoder: Encoder,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(index, log, machine, projector, clock)
        self.epoch: int | None = None  # this node's, if other nodes fold the partition, too
        self.tap: EventTap | None = None  # None: no queue is bound to an event of queues
        self.read_only = False  # nothing can be appended (embedded/read_only.py)
        self.encoder = encoder
        self.deliveries = Deliveries(self)
        self.effects = []
        self.fresh: dict[int, Published] = {}  # published in this turn
        self.refused: set[int] = set()  # offsets of publishes that a queue refused, until their confirm
        self._now_ms = machine.log_ms
        self._waiting: deque[tuple[int, Confirms, int, int]] = deque()
        self._refusals: dict[int, tuple[str, ...] | None] = {}  # by append position; None: not known yet
        self._prefix = b""
        self._prefix_ms = -1
        self._prefix_actor = BROKER
        self._batch: Batch | None = None  # prepared, and not yet covered by the log
        self._prepared_offset = machine.next_offset
        self.prepare_soon = False  # much has changed in few events

    def start(self, listener: PartitionListener) -> None:
        """Tell the listener from now on about events.

        The constructor does not take the listener, because the broker is made after its partitions."""
        self.listener = listener
        self._keys = listener

    # -- appending: by the kind of log --------------------------------------------------------------------------------

    def probe_clock(self) -> None:
        """Compare the time of records with this node's, if the log gives records their time."""

    @property
    def append_position(self) -> int:
        """The append position of the next event that this broker appends. Positions ascend."""
        return self.next_offset

    @property
    def known_end(self) -> int:
        """An offset behind all events of this broker that are durable."""
        return self.next_offset

    @property
    def durable_position(self) -> int:
        """Every event that this broker appended below this position is durable and folded."""
        return self.durable_offset

    @property
    def awaits_log(self) -> bool:
        """Return True if a confirm waits until events are durable."""
        return bool(self._waiting)

    @property
    def undone_below(self) -> int:
        """The position that `durable_position` must reach before a crash can no longer undo the fold so far."""
        return self.append_position

    @abstractmethod
    def append(self, actor: Actor, event: Event) -> int:
        """Log an event; return its append position.

        A sole writer folds it at once; a shared log folds it when it is read back."""

    @abstractmethod
    def publish(self, actor: Actor, message: Published) -> int:
        """Log a publish on the hot path, as `append`.

        `fresh` has the message until carry_out has delivered or kept it."""

    @property
    def takes_runs(self) -> bool:
        """Return True if `publish_run` may be called now."""
        return False

    def publish_run(self, actor: Actor, messages: Sequence[Published]) -> int:
        """Log publishes that differ in their bodies alone, as `publish`. Returns the append position of the last one.

        Nothing can be appended to a read-only partition, so it takes no runs."""
        raise NotImplementedError

    def _apply_run(self, offset: int, timestamp_ms: int, actor: Actor, messages: Sequence[Published]) -> None:
        """Fold publishes at successive offsets from `offset` on, which differ in their bodies alone."""
        self.fresh.update(enumerate(messages, offset))
        sizes = [message.body_size for message in messages]
        done, apply, effects = 0, self.machine.apply, self.effects
        while done < len(messages):
            done += apply(offset + done, timestamp_ms, actor, messages[done], effects, sizes[done:])

    def publish_then(self, actor: Actor, message: Published, folded: Callable[[], None]) -> int:
        """Log a publish, and call `folded` when it is folded. With a sole writer that is at once."""
        position = self.publish(actor, message)
        folded()
        return position

    @abstractmethod
    async def ask(self, actor: Actor, event: Event, folded: Callable[[], None] | None = None) -> list[Effect]:
        """Log an event, wait until it is folded, and return its effects.

        `folded` is called at that moment, before any of the effects is performed. A sole writer never waits."""

    async def folded(self) -> None:
        """Wait until every event appended so far is folded. A sole writer never waits."""

    def needs_fold(self, route: Route) -> bool:
        """Say whether a publish on this route has to wait for `enter`: only the fold knows whether a queue refuses
        it."""
        return False

    async def catch_up(self) -> None:
        """Fire the due timers now, so that the next decision sees the state that the next event will meet."""
        deadline = self.machine.deadline_ms()
        if deadline is not None and deadline <= self.now_ms():
            await self.ask(BROKER, Tick())

    def due_ms(self) -> int | None:
        """Return the broker's time (log_clock.py) of the next `tick`; None: this node need not call it."""
        deadline = self.machine.deadline_ms()
        return None if deadline is None or not self.owned else deadline - self.machine.ahead_ms

    def tick(self) -> None:
        """Log a Tick if a timer is due."""
        deadline = self.machine.deadline_ms()
        if deadline is not None and self.owned and deadline <= self.now_ms():
            self.append(BROKER, Tick())

    def forward(self, message: Published) -> int:
        """Publish a forwarded dead letter; `refusals` then tells which queues refused it."""
        before = len(self.effects)
        position = self.publish(BROKER, message)
        self._refusals[position] = tuple(
            effect.queue.name
            for effect in self.effects[before:]
            if isinstance(effect, Refuse) and effect.message_id == position
        )
        return position

    def refusals(self, position: int) -> tuple[str, ...] | None:
        """Return the queues that refused the letter forwarded at this append position; None: not known yet.

        The answer is given once."""
        refusing = self._refusals.get(position)
        if refusing is not None:
            del self._refusals[position]
        return refusing

    def disregard(self, position: int) -> None:
        """Drop the refusals at this append position: no caller will ask for them."""
        self._refusals.pop(position, None)

    def _renew_prefix(self, now: int, actor: Actor) -> None:
        self._prefix = self.encoder.prefix(now, actor)
        self._prefix_ms = now
        self._prefix_actor = actor

    def await_durable(self, position: int, confirms: Confirms, sequence: int) -> None:
        """Call `confirms.confirm(sequence, refused)` once the event at this append position is durable.

        Positions of calls must ascend."""
        self._waiting.append((position, confirms, sequence, 1))

    def await_run_durable(self, last: int, confirms: RunConfirms, first_sequence: int, count: int) -> None:
        """As `await_durable`, for publishes with successive positions and numbers, which are confirmed together.

        `last`: the position of the last one."""
        self._waiting.append((last, confirms, first_sequence, count))

    def await_folded(self, position: int, confirms: Confirms, sequence: int) -> None:
        """Call `confirms.confirm(sequence, refused)` once the event is folded and its effects are performed.

        It is for messages with confirms that need not wait for the disk."""
        self.await_durable(position, confirms, sequence)

    def watch(self, tap: EventTap | None) -> None:
        """Tell a tap from now on what the partition folds; None: nobody."""
        self.tap = tap

    def message(self, queue_id: int, message_id: int) -> Published:
        """Return a message that is in a queue or an outbox: also one that was folded in this turn, and that the
        projector sees when the turn ends."""
        fresh = self.fresh.get(message_id)
        return super().message(queue_id, message_id) if fresh is None else fresh

    # -- effects ------------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Perform the gathered effects, in order.

        The projector sees all of them, whatever error a consumer raises."""
        effects = self.effects
        fresh = self.fresh
        self.effects = []
        self.fresh = {}
        self.times.note(self.machine.next_offset, self.machine.clock_ms)
        try:
            self.deliveries.perform(effects, fresh)
        finally:
            self.projector.observe(effects, fresh)

    # -- durability ---------------------------------------------------------------------------------------------------

    def on_durable(self) -> None:
        """Confirm the publishes that have become durable."""
        self.refused = self._confirm_below(self.durable_position, self.refused)

    def _confirm_below(self, durable: int, refused: set[int]) -> set[int]:
        """Confirm the publishes below this append position, each run as a whole.

        `refused`: the positions of those that a queue refused. Returns the ones whose confirm still waits."""
        waiting = self._waiting
        while waiting and waiting[0][0] < durable:
            position, confirms, sequence, count = waiting.popleft()
            if count == 1:
                confirms.confirm(sequence, position in refused)
            elif refused and not refused.isdisjoint(range(position - count + 1, position + 1)):
                for at in range(count):
                    confirms.confirm(sequence + at, position - count + 1 + at in refused)
            else:
                cast(RunConfirms, confirms).confirm_run(sequence, count)
        if not refused:
            return refused
        least = min(durable, waiting[0][0] - waiting[0][3] + 1) if waiting else durable
        return {position for position in refused if position >= least}

    def project(self) -> None:
        """Write the projector's batch if the log covers it; prepare one when much has changed.

        It raises RocksDB's error, and raises it again at each call until the store is `mended`."""
        if self.projector.failed is not None:
            if self.projector.wants_write:
                self.projector.let_go(self.durable_offset)
            raise self.projector.failed
        if self._batch is None:
            changed = self.machine.next_offset - self._prepared_offset
            queues = self.machine.declared + len(self.machine.gone)
            many = changed >= PREPARE_EVENTS or queues >= PREPARE_QUEUES
            if not self.effects and (many or self.projector.wants_write or self.prepare_soon):
                self._prepare()
        if self._batch is not None and self._batch.offset <= self.durable_offset:
            self._write()

    def _prepare(self) -> None:
        self.prepare_soon = False
        self._batch = self.projector.prepare()
        self._prepared_offset = self._batch.offset

    def _write(self) -> None:
        assert self._batch is not None
        self.projector.write(self._batch)
        self._batch = None

    def mended(self) -> None:
        """Take note that the store was made anew, up to the machine's offset."""
        self._batch = None
        self._prepared_offset = self.machine.next_offset

    @property
    def at_rest(self) -> bool:
        """Return True if no effect waits, and every event is durable."""
        return not self.effects and not self.fresh and self.durable_offset >= self.machine.next_offset

    def write_all(self) -> None:
        """Write all folded state to RocksDB. The log must be durable up to it. Fails as `project`."""
        assert self.at_rest
        if self._batch is not None:
            self._write()
        self._prepare()
        self._write()

    def persist_all(self) -> None:
        """Write all folded state to RocksDB, and flush it."""
        self.write_all()
        self.projector.persist()


class Deliveries:
    """A partition's consumers at this node. It performs the effects of the partition's fold."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self.consumers: dict[int, DeliveryTarget] = {}  # by consumer id
        self.getters: dict[int, FetchTarget] = {}  # by the id of the holder of basic.get
        self.quarantined: dict[str, int] = {}  # by event type
        self.delivery_waits, self.ack_waits = Histogram(), Histogram()
        self._next_sample_ms = 0
        # By consumer or getter: a message that it holds, and the time of its delivery. Its ack is the next sample.
        self.timed: dict[int, tuple[int, int]] = {}

    def attach(self, consumer_id: int, consumer: DeliveryTarget) -> None:
        """Send deliveries for this id to `consumer`."""
        self.consumers[consumer_id] = consumer

    def attach_getter(self, holder_id: int, getter: FetchTarget) -> None:
        """Send answers to basic.get for this id to `getter`."""
        self.getters[holder_id] = getter

    def detach(self, holder_id: int) -> None:
        """Forget the consumer or getter with this id: effects for it are dropped."""
        self.timed.pop(holder_id, None)
        if self.consumers.pop(holder_id, None) is None:
            self.getters.pop(holder_id, None)

    def perform(self, effects: list[Effect], fresh: dict[int, Published]) -> None:
        consumers = self.consumers
        partition = self._partition
        epoch, timed, now_ms = partition.epoch, self.timed, partition.machine.clock_ms
        runs: list[Run] = []  # each of deliveries of one queue
        queue: Queue | None = None
        delivered = final = redelivered = acked = 0
        first, is_sampled = -1, now_ms >= self._next_sample_ms
        for effect in effects:
            if isinstance(effect, Deliver):
                consumer = consumers.get(effect.consumer)
                if consumer is not None:
                    for message_id in effect.message_ids:
                        try:
                            consumer.deliver(partition, effect, message_id, fresh.get(message_id))
                        except Exception:  # a defect of one connection must not cost the others their deliveries
                            logger.exception("%s: message %d was not delivered", partition.name, message_id)
                            self.undelivered(effect.consumer)
                            break
                    if effect.queue is not queue:
                        runs.append((queue, delivered, final, redelivered, first))
                        queue = effect.queue
                        delivered = final = redelivered = 0
                        first = -1
                    count = len(effect.message_ids)
                    delivered += count
                    if effect.final:
                        final += count
                    elif is_sampled and effect.consumer not in timed:
                        timed[effect.consumer] = effect.message_ids[0], now_ms
                    if effect.redelivered:
                        redelivered += count
                    elif is_sampled and first < 0:
                        first = effect.message_ids[0]
                elif epoch is not None and effect.consumer >> EPOCH_SHIFT != epoch:
                    self._note_elsewhere(effect)
            elif isinstance(effect, Keep):
                pass
            elif isinstance(effect, Forget):
                if effect.consumer in timed:
                    self._settled(effect.queue, effect.consumer, effect.message_ids, effect.reason == ACKED)
                if effect.reason == ACKED:
                    if epoch is None or effect.consumer >> EPOCH_SHIFT == epoch:
                        acked += len(effect.message_ids)
                elif effect.reason in DEATHS and partition.owned and not effect.queue.stream:
                    self._note_deaths(effect)
            else:
                self._perform_rare(effect, fresh)
        if queue is not None or acked:
            runs.append((queue, delivered, final, redelivered, first))
            self._count(runs, acked)

    def _count(self, runs: list[Run], acked: int) -> None:
        """Count this node's deliveries, for each queue and for the broker, and the acked messages."""
        all_delivered = all_final = all_redelivered = 0
        for queue, delivered, final, redelivered, first in runs:
            if queue is not None:
                served = self._served(queue)
                if first >= 0:
                    self._next_sample_ms = self._partition.machine.clock_ms + SAMPLED_EACH_MS
                    self._note_delivery(served, first)
                served.deliver += delivered - final
                served.deliver_no_ack += final
                served.redeliver += redelivered
                all_delivered += delivered
                all_final += final
                all_redelivered += redelivered
        counters = self._partition.listener.counters
        counters["global_messages_delivered_total"] += all_delivered
        counters["global_messages_delivered_consume_auto_ack_total"] += all_final
        counters["global_messages_delivered_consume_manual_ack_total"] += all_delivered - all_final
        counters["global_messages_redelivered_total"] += all_redelivered
        counters["global_messages_acknowledged_total"] += acked

    def _note_delivery(self, served: Served, message_id: int) -> None:
        """Count the wait of a first delivery; not of a message that is older than this node's fold."""
        published_ms = self._partition.times.at(message_id)
        if published_ms is not None:
            wait_ms = self._partition.machine.clock_ms - published_ms
            self.delivery_waits.add(wait_ms)
            served.delivery_waits += 1
            served.delivery_wait_ms += wait_ms

    def _settled(self, queue: Queue, consumer: int, message_ids: Sequence[int], acked: bool) -> None:
        """End the timing of a consumer's message if it is among these; count its wait if it was acked."""
        message_id, delivered_ms = self.timed.get(consumer, (-1, 0))
        if message_id not in message_ids:
            return
        del self.timed[consumer]
        if acked:
            wait_ms = self._partition.machine.clock_ms - delivered_ms
            self.ack_waits.add(wait_ms)
            served = self._served(queue)
            served.ack_waits += 1
            served.ack_wait_ms += wait_ms

    def _served(self, queue: Queue) -> Served:
        all_served = self._partition.served
        served = all_served.get(queue)
        if served is None:
            served = Served()
            if not queue.gone:
                all_served[queue] = served
        return served

    def note_read(self, queue: Queue) -> None:
        """Count a delivery of a stream's message."""
        self._served(queue).deliver += 1
        self._partition.listener.counters["global_messages_delivered_total"] += 1
        self._partition.listener.counters["global_messages_delivered_consume_manual_ack_total"] += 1

    def _note_elsewhere(self, effect: Deliver) -> None:
        """Count a delivery that another node makes: a queue's figures must be equal at all nodes."""
        served, count = self._served(effect.queue), len(effect.message_ids)
        if effect.final:
            served.deliver_no_ack += count
        else:
            served.deliver += count
        if effect.redelivered:
            served.redeliver += count

    def _note_deaths(self, effect: Forget) -> None:
        """Count deaths in a queue without a dead-letter exchange. The forwarder counts the dead letters."""
        queue = effect.queue
        if queue.settings.dead_letter_exchange is None:
            counters = self._partition.listener.counters
            name = dead_lettered(effect.reason, queue.type, DISABLED)
            counters[name] = counters.get(name, 0) + len(effect.message_ids)

    def _perform_rare(self, effect: Effect, fresh: dict[int, Published]) -> None:
        partition = self._partition
        if isinstance(effect, Refuse) or (isinstance(effect, Duplicate) and is_nacked(effect)):
            partition.refused.add(effect.message_id)
        elif isinstance(effect, FetchReply):
            try:
                self._answer(effect, fresh)
            except Exception:  # as with a delivery
                logger.exception("%s: message %d was not fetched", partition.name, effect.message_id)
                self.undelivered(effect.consumer)
        elif isinstance(effect, Requeue):
            self._settled(effect.queue, effect.consumer, effect.message_ids, False)
        elif isinstance(effect, Delay):
            self._settled(effect.queue, effect.consumer, (effect.message_id,), False)
        elif isinstance(effect, DeadLetter):
            if partition.owned:
                partition.listener.dead_letter(partition, effect)
        elif isinstance(effect, CancelConsumer):
            consumer = self.consumers.pop(effect.consumer, None)
            self.timed.pop(effect.consumer, None)
            if consumer is not None:
                consumer.cancelled()
        elif isinstance(effect, QueueGone):
            partition.served.pop(effect.queue, None)
            partition.listener.queue_gone(partition, effect.queue, effect.reason)
        elif isinstance(effect, Quarantine):
            self._note_quarantine(effect)

    def _answer(self, effect: FetchReply, fresh: dict[int, Published]) -> None:
        partition = self._partition
        getter = self.getters.get(effect.consumer)
        if getter is None and (partition.epoch is None or effect.consumer >> EPOCH_SHIFT == partition.epoch):
            return  # its session is gone
        served = self._served(effect.queue)
        if effect.message_id < 0:
            served.get_empty += 1
        elif effect.final:
            served.get_no_ack += 1
        else:
            served.get += 1
        served.redeliver += effect.redelivered
        if getter is None:
            return
        counters = partition.listener.counters
        message: Published | None = None
        what = "get_empty"
        if effect.message_id >= 0:
            counters["global_messages_delivered_total"] += 1
            counters["global_messages_redelivered_total"] += effect.redelivered
            what = "delivered_get_auto_ack" if effect.final else "delivered_get_manual_ack"
            if not effect.redelivered:
                self._note_delivery(served, effect.message_id)
            if not effect.final:
                self.timed.setdefault(effect.consumer, (effect.message_id, partition.machine.clock_ms))
            message = fresh.get(effect.message_id)
            if message is None:
                message = partition.message(effect.queue.queue_id, effect.message_id)
        counters[f"global_messages_{what}_total"] += 1
        getter.fetched(partition, effect, message)

    def undelivered(self, consumer_id: int) -> None:
        """Send nothing more to this consumer, and tell the listener.

        The consumer's messages go back to the queue when its connection ends."""
        self.detach(consumer_id)
        self._partition.listener.undelivered(self._partition, consumer_id)

    def _note_quarantine(self, effect: Quarantine) -> None:
        partition = self._partition
        partition.projector.quarantined(effect.offset, effect.event_type, effect.reason)
        if effect.reason.startswith(NODE_LOST):  # a quarantined publish is in no queue, so it must not be confirmed
            partition.refused.add(effect.offset)
        count = self.quarantined.get(effect.event_type, 0)
        if count == 0:
            logger.warning(
                "%s: a %s event was quarantined: %s (the first of its kind; others are only counted)",
                partition.name,
                effect.event_type,
                effect.reason,
            )
        self.quarantined[effect.event_type] = count + 1
