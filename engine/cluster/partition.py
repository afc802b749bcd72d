"""A queue partition of a log that many nodes share, where a node folds only the records that it reads back.

    append(event) -> log ......... Kafka decides the order ........ read_back(arrived) -> machine -> effects
                     OwnRecords (own_records.py) has the records in flight

Rules of this file
- A record that was read back is durable, so a confirm follows the fold, and no crash undoes a delivery.
- A node recognizes its own records by their bytes, and so never decodes them.
- Time is the log's, stated by each record. Between records the node estimates it from its own clock and the difference
  in its last own records. The estimate may run behind the log's clock, never ahead of it, because a Tick sent too early
  must be sent again.
- The queues' clock never goes back, so it would stand still when Kafka's goes back (a Kafka broker's clock was wrong).
  The owner sees this by an own record, and appends a ClockSet: the queues' clock continues from where it is. Messages
  published in the meantime have their expiry from there, and must not lose the time for which the partition was idle.
  If there were none (the owner's Tick was first), the clock continues from the owner's estimate.
- A tap hears of a record at one node: the one that appended it, or the owner if a service itself did.
- Duties (ticks, dead letters, expiry) are the owner's. Two nodes may both act as owner for a moment, because all events
  that owners append are harmless when repeated.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rewindmq.engine.cluster.own_records import NO_RUN, Folded, OwnRecords
from rewindmq.engine.log.shared_contract import Arrived, SharedPartition
from rewindmq.engine.partition.partition import EventTap, Partition
from rewindmq.engine.partition.queue_counters import CounterTable
from rewindmq.engine.partition.waits import LogTimes
from rewindmq.projections.machine.data.effects import Effect, Refuse
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.publish_runs import behind_moment, run_of
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.store import Projector
from rewindmq.projections.topology.topology import INTERNAL
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import (
    CheckpointAsked,
    Checkpointed,
    Event,
    MachineUpgraded,
    NodeLost,
    Published,
    QueueDeclared,
    Tick,
)
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import BROKER, Actor, Route

logger = logging.getLogger(__name__)

WENT_BACK_MS: Final = 1_000  # clocks of one Kafka's brokers differ by less, so a moved partition is not a step
RECORD_SECONDS: Final = 2.0  # the loop's wait for a record that the state store has lost
KEPT_MOST: Final = 67_108_864  # bytes; a longer backlog is folded at once
NO_ROUTE: Final = Route("", "", "", ())
RARE: Final = (CheckpointAsked, MachineUpgraded, NodeLost, QueueDeclared)


class SharedPartitionHistory(PartitionLog, Protocol):
    """The readable records of a partition: those of the log, or of the log and its archive."""

    def record(self, offset: int, seconds: float) -> bytes | None:
        """Return a record, as `SharedPartition.record` does."""


class NodeListener(Protocol):
    """The part of the node that its partitions call during a fold."""

    def checkpoint_asked(self, partition: "ReadBackPartition") -> None:
        """Claim the digest and take a snapshot, as the log asks every node to do."""

    def checkpoint_claimed(self, partition: "ReadBackPartition", offset: int, claim: int) -> None:
        """Leave the snapshot at `offset` to other nodes. The claim of its digest is in the log, at offset `claim`."""

    def node_lost(self, epoch: int) -> None:
        """Note that an epoch is over."""

    def queue_declared(self, partition: "ReadBackPartition", offset: int, event: QueueDeclared) -> None:
        """Note a queue that may be new."""

    @property
    def machine_version(self) -> int:
        """Return the history's machine version."""

    async def enter(self, partition: "ReadBackPartition") -> None:
        """Fold the partition from now on, and return when this node has caught up with it."""

    def decides(self, partition: "ReadBackPartition", route: Route) -> bool:
        """Return True if the fold may refuse a message on this route, as far as this node knows without a fold."""

    def is_declared(self, vhost: str, queue: str) -> bool:
        """Return True if the queue exists, as far as this node knows without a fold."""

    def age_ms(self, time_ms: int) -> int:
        """Return the age, in ms, of a time of the log."""

    def is_outdated(self, time_ms: int) -> bool:
        """Return True if no owner publishes counters any longer, given the time of the last ones."""


class ReadBackPartition(Partition):
    """A queue partition that many nodes append to.

    `node` is this node's name, `listener` the node itself. `history`: the log, or the log and its archive.

    current    this node folds the partition, and compares its own records with those it reads back
    paused     nothing is read back. The machine stays as it is. The log reports own records once it has them
    between    records are read back, but own records are still reported. It is current once the reports caught up"""

    def __init__(
        self,
        index: int,
        log: SharedPartition,
        machine: Machine,
        projector: Projector,
        clock: Callable[[], int],
        node: str,
        listener: NodeListener,
        history: SharedPartitionHistory | None = None,
    ) -> None:
        self._schema = schema_of(machine.machine_version)
        super().__init__(index, history or log, machine, projector, encoder_under(self._schema), clock)
        self.log = log
        self.own_records = OwnRecords(log)
        self._past = history or log
        self.node = node
        self.owned = False
        self.owned_from = 0  # the append position at which the node took the duties
        self.folds = True  # records are read back; it is current, or becomes so
        self.used_at = (
            0.0  # seconds of the loop's clock: when a client last needed the fold (cluster/partition_pausing.py)
        )
        self.counter_table: CounterTable | None = None  # None: no partition is ever paused
        self._node = listener
        self.lost_appended: dict[int, None] = {}  # epochs whose end this node has appended here
        self._decode = SharedDecoder().decode
        self._reported_below = 0  # no record below this offset must be read back
        self._offsets: deque[int] = deque()  # of own events folded since the last `on_durable`
        self._refused: set[int] = set()  # append positions of publishes that a queue refused, until their confirm
        self._ticking = False
        # Own records from this append position on were sent at this time or later.
        self._probe: tuple[int, int] | None = None
        self._setting_clock = False
        self._in_time_below = machine.next_offset  # below this offset Kafka's time has not gone back
        self._skew_ms = 0  # the queues' clock minus this node's
        self._skew_known = False  # an own record has shown it
        self._kept: list[Arrived] = []  # arrivals while in doubt
        self._kept_bytes = 0
        self._kept_until = b""  # the record that ends the doubt
        self._key_route = NO_ROUTE
        self._key = b""

    # -- appending ----------------------------------------------------------------------------------------------------

    @property
    def append_position(self) -> int:
        return self.own_records.append_position

    @property
    def durable_position(self) -> int:
        return self.own_records.durable_position

    @property
    def known_end(self) -> int:
        return max(self.machine.next_offset, self._reported_below)

    @property
    def undone_below(self) -> int:
        return self.own_records.durable_position

    def now_ms(self) -> int:
        return max(self.machine.clock_ms, self._clock() + self._skew_ms)

    def _renew_prefix(self, now: int, actor: Actor) -> None:
        if self._schema != (schema := schema_of(self.machine.machine_version)):  # the partition was upgraded
            self._schema = schema
            self.encoder = encoder_under(schema)
        super()._renew_prefix(now, actor)

    def append(self, actor: Actor, event: Event) -> int:
        return self._send(actor, event, None)

    def publish(self, actor: Actor, message: Published) -> int:
        now = self._clock()
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        value = self.encoder.encode(self._prefix, message)
        if message.route is not self._key_route:
            self._key_route = message.route
            self._key = event_key(message)
        return self.own_records.send(self._key, value, actor, message)

    @property
    def takes_runs(self) -> bool:
        return True

    def publish_run(self, actor: Actor, messages: Sequence[Published]) -> int:
        now = self._clock()
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        values = self.encoder.encode_run(self._prefix, messages)
        return self.own_records.send_run(event_key(messages[0]), values, actor, messages)

    def publish_then(self, actor: Actor, message: Published, folded: Callable[[], None]) -> int:
        self.used_at = asyncio.get_running_loop().time()
        return self._send(actor, message, lambda _position, _offset, _effects: folded())

    def _send(self, actor: Actor, event: Event, folded: Folded | None) -> int:
        now = self._clock()
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        value = self.encoder.encode(self._prefix, event)
        return self.own_records.send(event_key(event), value, actor, event, folded)

    async def enter(self) -> None:
        self.used_at = asyncio.get_running_loop().time()
        if not self.current:
            await self._node.enter(self)

    async def end_in_log(self) -> int:
        if self.current:
            return self.machine.next_offset
        return await asyncio.to_thread(lambda: self.log.next_offset)

    @property
    def counted(self) -> CounterTable | None:
        table = self.counter_table
        return None if self.current or table is None or not table.ready else table

    @property
    def must_enter(self) -> bool:
        if self.current:
            return False
        table = self.counted
        return table is None or table.round_ms is None or self._node.is_outdated(table.round_ms)

    @property
    def counters_age_ms(self) -> int | None:
        table = self.counted
        return None if table is None or table.round_ms is None else self._node.age_ms(table.round_ms)

    async def catch_up(self) -> None:
        await self.enter()
        await super().catch_up()

    async def ask(self, actor: Actor, event: Event, folded: Callable[[], None] | None = None) -> list[Effect]:
        await self.enter()
        answer: asyncio.Future[list[Effect]] = asyncio.get_running_loop().create_future()

        def answered(_position: int, _offset: int, effects: list[Effect]) -> None:
            if folded is not None:
                folded()
            if not answer.done():  # the caller may be gone
                answer.set_result(effects)

        self._send(actor, event, answered)
        return await answer

    async def folded(self) -> None:
        await self.own_records.folded()

    def needs_fold(self, route: Route) -> bool:
        return not self.current and self._node.decides(self, route)

    def may_have(self, vhost: str, queue: str) -> bool:
        return super().may_have(vhost, queue) if self.current else self._node.is_declared(vhost, queue)

    def forward(self, message: Published) -> int:
        assert self.current
        position = self._send(BROKER, message, self._note_refusals)
        self._refusals[position] = None
        return position

    def _note_refusals(self, position: int, offset: int, effects: list[Effect]) -> None:
        if position in self._refusals:  # otherwise no caller needs them any longer
            self._refusals[position] = tuple(effect.queue.name for effect in effects if isinstance(effect, Refuse))

    def _record(self, offset: int) -> bytes | None:
        return self._past.record(offset, RECORD_SECONDS)

    # -- time ---------------------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        deadline = self.machine.deadline_ms()
        return None if deadline is None or not self.owned or self._ticking else deadline - self._skew_ms

    def own(self) -> None:
        """Take the duties of the partition.

        A tap hears of services' records from the next own record on, because those that the previous owner has heard of
        are below it."""
        self.owned = True
        self.owned_from = self.own_records.append_position
        self.watch(self.tap)

    def watch(self, tap: EventTap | None) -> None:
        super().watch(tap)
        if tap is not None and self.owned and self.own_records.append_position == self.owned_from:
            self.append(BROKER, Tick())

    @property
    def _tells_of_services(self) -> bool:
        return self.owned and self.own_records.durable_position > self.owned_from

    def tick(self) -> None:
        deadline = self.machine.deadline_ms()
        if deadline is not None and self.owned and not self._ticking and deadline <= self.now_ms():
            self._ticking = True
            self._send(BROKER, Tick(), self._on_ticked)

    def _on_ticked(self, position: int, offset: int, effects: list[Effect]) -> None:
        self._ticking = False
        deadline = self.machine.deadline_ms()
        if (
            deadline is not None and deadline <= self.now_ms()
        ):  # it was too early: learn the clock again, so that the next one is not
            self._skew_known = False

    def _learn_skew(self, timestamp_ms: int, own: bool) -> None:
        """Learn from a record that the log's clock was at `timestamp_ms` earlier, or just now for an `own` record."""
        sample = timestamp_ms + self.machine.ahead_ms - self._clock()
        if sample > self._skew_ms or (own and not self._skew_known):
            self._skew_ms = sample
        elif own:
            self._skew_ms += (sample - self._skew_ms) // 16
        self._skew_known = self._skew_known or own

    def probe_clock(self) -> None:
        """Measure the difference between the clocks with the next own record.

        The node sends it after this call, and Kafka has it before it is read back."""
        if self._probe is None or self.own_records.durable_position == self.own_records.append_position:
            self._probe = (self.own_records.append_position, self._clock())

    def _compare_clocks(self, newest_ms: int, own_ms: int, only_time_passed: bool) -> None:
        now_ms = self._clock()
        if self._probe is not None and own_ms and self.own_records.durable_position > self._probe[0]:
            self.log_difference_ms = min(0, own_ms - self._probe[1]) or max(0, own_ms - now_ms)
            self._probe = None
        elif newest_ms - now_ms > self.log_difference_ms:
            self.log_difference_ms = newest_ms - now_ms
        if own_ms and self.owned and not self._setting_clock and self._went_back(own_ms):
            self._setting_clock = True
            clock_ms = self.now_ms() if only_time_passed else self.machine.clock_ms
            self._send(BROKER, ClockSet(clock_ms - own_ms, clock_ms - self.machine.ahead_ms), self._clock_was_set)

    def _went_back(self, own_ms: int) -> bool:
        machine = self.machine
        return own_ms + machine.ahead_ms + WENT_BACK_MS <= machine.clock_ms

    def _clock_was_set(self, position: int, offset: int, effects: list[Effect]) -> None:
        self._setting_clock = False

    # -- reading back -------------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Keep arrivals until a record that this node now sends is among them, then fold them all together.

        Other nodes may have declared this node lost in the meantime. Folding everything together avoids deliveries here
        that other nodes' consumers also get. A partition that is not current has no consumers here."""
        if self.current and not self._kept_until:
            self.append(BROKER, Tick())
            self._kept_until = self.own_records.newest

    @property
    def in_doubt(self) -> bool:
        """Return True while this partition keeps arriving records to fold after its own record (`doubt`)."""
        return bool(self._kept_until)

    def read_back(self, arrived: Arrived) -> None:
        """Fold records that were read back, own and foreign. `carry_out` performs their effects."""
        if not self.folds:  # it arrived while the log was being paused
            return
        if not self._kept_until and (self.own_records.by_report or not self.own_records.unreported):
            self._fold(arrived)
            return
        self._kept.append(arrived)
        self._kept_bytes += sum(map(len, arrived.values))
        if self._kept_until in arrived.values or self._kept_bytes > KEPT_MOST:
            self._kept_until = b""
            self._fold_kept()

    def _fold_kept(self) -> None:
        if self._kept_until or self.own_records.unreported:
            return
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for each in kept:
            self._fold(each)

    # -- paused -------------------------------------------------------------------------------------------------------

    @property
    def can_pause(self) -> bool:
        """Return True if nothing is in flight, and the partition follows the history's machine version, because a node
        that does not fold would not notice an upgrade."""
        under_way = self.own_records.under_way or self._kept_until or self.effects
        is_upgraded = self.machine.machine_version >= self._node.machine_version
        return self.current and is_upgraded and not under_way and self.log.all_reported

    def pause(self) -> None:
        """Stop folding. From now on the log reports own records."""
        assert self.can_pause
        self.current = self.folds = False
        self.own_records.by_report = True
        self.log.report(True)

    def begin_again(self, machine: Machine, projector: Projector) -> None:
        """Continue this paused partition from another state, which the history folds to at a later offset."""
        assert not self.folds
        assert self.at_rest
        self.machine, self.projector = machine, projector
        self.times = LogTimes(machine.next_offset, machine.clock_ms)
        self.mended()
        self._in_time_below = machine.next_offset
        self._skew_known = False  # the clock may have been set in the meantime
        by_id = machine.by_id
        served = self.served
        self.served = {by_id[each.queue_id]: served[each] for each in served if each.queue_id in by_id}

    def resume(self) -> None:
        """Resume folding records that are read back. Own records are still reported."""
        assert not self.folds
        self.folds = True

    def read_back_again(self) -> None:
        """Expect own records to be read back from now on. Records before the last report are kept until then."""
        assert self.folds
        assert self.own_records.by_report
        self.own_records.by_report = False
        self.current = True
        self._end_reports()

    @property
    def awaits_reports(self) -> bool:
        """Return True while own records that will be reported are in flight. Reports of other records are useless and
        must not be kept, because a later record would be mistaken for one of them."""
        return self.own_records.unreported > 0

    def delivered(self, offsets: list[int]) -> None:
        """Note that own records, the first of those that will be reported, are in the log at these offsets."""
        reported = offsets[: self.own_records.unreported]  # the others must be read back
        if reported:
            self._offsets.extend(reported)
            self._reported_below = max(self._reported_below, max(reported) + 1)
            self.own_records.reported(len(reported))
        self._end_reports()
        self.own_records.tell_waiters()

    def _end_reports(self) -> None:
        if not self.own_records.by_report and not self.own_records.unreported:
            self.log.report(False)
            self._fold_kept()

    def _fold(self, arrived: Arrived) -> None:
        machine, own_records, fresh = self.machine, self.own_records, self.fresh
        effects, decode, tap = self.effects, self._decode, self.tap
        values, offsets, times = arrived.values, arrived.offsets, arrived.timestamps_ms
        own_ms, event = 0, None
        reported_below = self._reported_below
        index, behind, together = 0, len(values), 0
        while index < behind:
            if index >= together:
                together = behind_moment(offsets, times, index)
            offset, timestamp_ms = offsets[index], times[index]
            most = together - index if tap is None else 1
            folded: Folded | None = None
            own = own_records.take(values, index, most) if offset >= reported_below else None
            if own is not None:
                actor, event, folded, messages = own
                own_ms = timestamp_ms
            else:
                try:
                    _, actor, event = decode(values[index])
                except UndecodableRecord as error:
                    machine.skip(offset)
                    self.projector.quarantined(offset, "", str(error))
                    index += 1
                    continue
                messages = NO_RUN if most == 1 else run_of(event, offsets, values, times, index, index + most)
                if messages:
                    messages = messages[: own_records.next_among(values, index, index + len(messages)) - index]
            count = len(messages) or 1
            if own is not None:
                self._offsets.extend(range(offset, offset + count))
            before = len(effects)
            if count > 1:
                self._apply_run(offset, timestamp_ms, actor, messages)
            else:
                if type(event) is Published:
                    fresh[offset] = event
                machine.apply(offset, timestamp_ms, actor, event, effects)
                if type(event) in RARE:
                    self._handle_rare(offset, event)
            if folded is not None:
                folded(own_records.durable_position - 1, offset, effects[before:])
            if tap is not None and (own is not None or (self._tells_of_services and is_of_service(actor, event))):
                tap.folded(self, offset, timestamp_ms, actor, event, effects, before)
            index += count
        if times[-1] + machine.ahead_ms >= machine.clock_ms:
            self._in_time_below = machine.next_offset
        only_time_passed = type(event) is Tick and machine.next_offset <= self._in_time_below + 1
        self._compare_clocks(times[-1], own_ms, only_time_passed)
        if not self._setting_clock:  # otherwise it would learn from a clock that is being corrected
            self._learn_skew(own_ms or times[-1], own_ms > 0)
        own_records.tell_waiters()

    def _handle_rare(self, offset: int, event: Event) -> None:
        if isinstance(event, CheckpointAsked):
            self._claim(offset)
            self._node.checkpoint_asked(self)
        elif isinstance(event, NodeLost):
            self._node.node_lost(event.epoch)
        elif isinstance(event, MachineUpgraded):
            self._prefix_ms = -1  # the next record is under the schema of this version, even in the same millisecond
        elif isinstance(event, QueueDeclared):
            self._node.queue_declared(self, offset, event)
            self.listener.queue_declared()  # routes may lead to the new queue

    def _claim(self, offset: int) -> None:
        """Claim the digest of the state in which the event at `offset` is the last one."""

        def claimed(_position: int, at: int, _effects: list[Effect]) -> None:
            self._node.checkpoint_claimed(self, offset + 1, at)

        self._send(BROKER, Checkpointed(offset, self.machine.digest(), self.node), claimed if self.owned else None)

    def on_durable(self) -> None:
        durable = self.own_records.durable_position
        if self.refused:  # offsets, also those of other nodes' publishes
            first = durable - len(self._offsets)
            self._refused.update(at for at, offset in enumerate(self._offsets, first) if offset in self.refused)
            self.refused.clear()
        self._offsets.clear()
        self._refused = self._confirm_below(durable, self._refused)


def key_of(vhost: str, queue: str) -> bytes:
    """Return the key of a queue's records."""
    return f"{vhost}/{queue}".encode()


def is_of_service(actor: Actor, event: Event) -> bool:
    """Return True if a service itself appended the record; then only the owner reports it to its tap."""
    return (
        type(event) is Published
        and actor.session == 0
        and event.origin is None
        and event.route.exchange not in INTERNAL
    )


def event_key(event: Event) -> bytes:
    """Return the key of an event's record; empty if it concerns the whole partition."""
    if isinstance(event, Published):
        route = event.route
        return key_of(route.vhost, route.queues[0] if route.queues else route.routing_key)
    vhost, queue = getattr(event, "vhost", None), getattr(event, "queue", None)
    return b"" if vhost is None or queue is None else key_of(vhost, queue)
