"""The fast path of a fold, which applies a record that repeats the last plain publish or ack by bytes, without objects.

    repeats = Repeats(machine)
    index = repeats.run(offsets, records, times, index, end)              # the first record that is not a repeat
    machine.apply(...)                                                    # the normal way
    repeats.learn(offset, record, timestamp_ms, actor, event)

This file repeats the rules of events/publish.py and events/settlement.py for the simplest case alone.
tests/unit/machine/test_machine_repeats.py checks it against them: equal states and digests after random histories, and
for each condition a story that fails without it. `drive` (projections/replay.py) uses it only if its caller passes a
`Repeats`. The audit passes none, because it folds event by event.

Records that are repeats

    | header | time: 2 bytes | rest of it, actor, event's index, route                  | properties, flags | body |
    | header | time: 2 bytes | rest of it, actor, event's index, vhost, queue, consumer | ranges of ids |
                             |<---------------------- head ---------------------------->|

`learn` sees each event that was applied in the normal way. It encodes the head of a publish or ack anew, and learns it
if the record has these bytes. A repeat has the head that was learned last, and so the same actor, and the same route or
holder. The bytes before and after the head are read here, in the one form that our encoder writes. `flags` must mean:
no expiration, no priority, no origin, no encryption. A record of any other form is applied in the normal way.

Conditions for a repeat, and why the result is equal

    publish    it goes to one queue, which exists              the route has this one queue
               of a session                                    otherwise its properties are checked
               of an epoch that is not over (also of the ack)  otherwise it is quarantined
               the queue has no length limit                   nothing is refused, blocked or dropped
               no message TTL                                  the message never expires: it has no expiration
               no priorities                                   the message has no level
               no deduplication (also of the ack)              the message has an id, which is remembered
               a publish in the usual way                      streams and queues of type delayed have their own
    ack        the holder is attached                          a detached one is forgotten when it holds nothing
               without a channel's limit                       otherwise other consumers may be served
               its queue has no single active consumer         otherwise that one may give way

Messages that arrive and leave (TRAFFIC) change none of this, so `learn` checks it. After any other event, and after an
event at which a deadline passed, everything learned is forgotten, so that the next publish and the next ack are applied
in the normal way. projections/clean_stops.py also needs that.

`run` checks each time what traffic changes:

    both       no deadline is due                              no time passes before the event
    publish    the first consumer in the round robin has room, it gets the message, as `next_consumer` and `hand_over`
               and its channel has no limit                    do it; a new message has no flag but PERSISTENT
               or the robin is empty, or others wait           the message is ready, at the tail
    ack        the holder holds each id, none is repeated      nothing is quarantined
               no unacked message of the queue has an expiry   no expiry is forgotten
               the consequences of an ack (the holder is served again, ready messages are delivered) are the normal
               way's own functions

A repeat makes no effects (Keep, Deliver, Forget). RocksDB needs the bodies: see RepeatedBodies. A history needs the
outcomes: see RepeatedOutcomes. This module may be compiled by mypyc.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.message_word import PERSISTENT, SIZE_MASK
from rewindmq.projections.machine.data.queue import Consumer, Queue
from rewindmq.projections.machine.events.delivery import run_after_taking, serve_again
from rewindmq.projections.machine.state import State, epoch_of
from rewindmq.schemas.codec import CONTINUED_MS, Encoder
from rewindmq.schemas.events import Acked, Credited, Event, Fetched, Nacked, Published
from rewindmq.schemas.evolution import is_unchanged
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE
from rewindmq.schemas.values import BROKER, Actor, Route

# Messages arrive and leave by these events, which change nothing else of a queue, a consumer or a channel.
TRAFFIC: Final = (Published, Acked, Nacked, Credited, Fetched)
# expiration_ms, priority, persistent, origin, encryption (schemas/codec.py)
PLAIN_PERSISTENT: Final = b"\x00\x00\x01\x00\x00"
PLAIN_TRANSIENT: Final = b"\x00\x00\x00\x00\x00"
PLAIN_SIZE: Final = 5
# After the header and the two bytes of the timestamp that change with every millisecond; the others change every eight
# seconds.
HEAD_AT: Final = HEADER_SIZE + 2
EMPTY_PUBLISH: Final = b"\x00" + PLAIN_TRANSIENT + b"\x00"  # after the route: no properties and no body
NO_RANGES: Final = b"\x00"
_LEARNED: Final = 1_000  # remembered routes, and consumers; beyond that it starts anew
_NEVER: Final = b"\xff" * 11  # no record has this where a timestamp continues


class RepeatedBodies:
    """The bodies that repeats add and remove, for a projector (projections/replay.py `_keep_up`).

    `kept`: by queue id and message id, in the form in which RocksDB has them. `gone`: by queue id, the ids of messages
    that left the queue and are not in `kept`. `effects`: receives the consequences of acks. `count`: the number of
    bodies and ids since `clear`."""

    def __init__(self, stamp: bytes, effects: list[Effect]) -> None:
        self.stamp = stamp  # the prefix of envelopes in RocksDB under today's schema
        self.effects = effects
        self.kept: dict[int, dict[int, bytes]] = {}
        self.gone: dict[int, list[int]] = {}
        self.count = 0

    def keep(self, queue_id: int, message_id: int, fields: bytes) -> None:
        """Keep the body of a message. `fields`: its record from the event's index on."""
        bodies = self.kept.get(queue_id)
        if bodies is None:
            bodies = self.kept[queue_id] = {}
        bodies[message_id] = self.stamp + fields
        self.count += 1

    def release(self, queue_id: int, message_ids: Iterable[int]) -> None:
        """Release the bodies of messages that left the queue."""
        bodies = self.kept.get(queue_id)
        for message_id in message_ids:
            if bodies is not None and bodies.pop(message_id, None) is not None:
                self.count -= 1
            else:
                self.gone.setdefault(queue_id, []).append(message_id)
                self.count += 1

    def clear(self) -> None:
        """Begin anew: the projector has taken everything."""
        self.kept.clear()
        self.gone.clear()
        self.count = 0


class RepeatedOutcomes(Protocol):
    """A receiver of each repeat once it is applied, in the order of the log.

    It receives the outcomes that the effects of the same event would have in the normal way."""

    def published(
        self, publish: "PlainPublish", message_id: int, timestamp_ms: int, size: int, consumer: Consumer | None
    ) -> None:
        """See a message that went to the queue of `publish`, and then at once to `consumer`, or stayed there (None)."""

    def acked(self, ack: "PlainAck", offset: int, timestamp_ms: int, ids: Sequence[int], effects: list[Effect]) -> None:
        """See that the holder acked its messages `ids`, which ascend. `effects` followed; the list is not kept."""


class PlainPublish:
    """The part that all repeats of a publish share.

    `end`: the position after the head. `fields`: the position of the event's index. `start_ms`: the timestamp without
    the part in its first two bytes, and less CONTINUED_MS. `tail`: the properties and flags of the learned publish,
    which most of its repeats share; `tail_end`: the position after them; `word`: the flags in the message's word."""

    def __init__(
        self,
        record: bytes,
        end: int,
        fields: int,
        start_ms: int,
        queue: Queue,
        actor: Actor,
        route: Route,
    ) -> None:
        self.actor = actor
        self.route = route
        self.head = record[HEAD_AT:end]
        self.end = end
        self.fields = fields
        self.start_ms = start_ms
        self.queue = queue
        self.word, self.tail_end = _flags(record, end, queue.quorum)
        self.tail = record[end : self.tail_end] if self.word >= 0 else _NEVER


class PlainAck:
    """The part that all repeats of an ack share, as in PlainPublish."""

    def __init__(self, head: bytes, end: int, start_ms: int, holder: Consumer, actor: Actor) -> None:
        self.actor = actor
        self.head = head
        self.end = end
        self.start_ms = start_ms
        self.holder = holder


class Repeats:
    """The fast path of one fold: see the head of this file. `count`: the number of events that it applied."""

    def __init__(
        self,
        machine: State,
        bodies: RepeatedBodies | None = None,
        outcomes: RepeatedOutcomes | None = None,
    ) -> None:
        self.machine = machine
        self.count = 0
        assert bodies is None or outcomes is None, "effects are gathered for bodies, and not kept for outcomes"
        self._bodies = bodies
        self._outcomes = outcomes
        self._header = HEADER  # of all learned records
        self._encoder = Encoder()
        nothing = Queue(Declaration("", "", 0, "classic"))
        self._no_publish = self._publish = PlainPublish(
            bytes(HEAD_AT) + _NEVER + EMPTY_PUBLISH, HEAD_AT + len(_NEVER), 0, 0, nothing, BROKER, Route("", "", "", ())
        )
        self._no_ack = self._ack = PlainAck(_NEVER, 0, 0, Consumer(nothing, 0, 0, 0, ""), BROKER)
        # Heads that were learned earlier, because publishers and consumers take turns.
        self._publishes: dict[Route, PlainPublish] = {}
        self._acks: dict[int, PlainAck] = {}

    def forget(self) -> None:
        """Forget everything learned, so that the next event is applied in the normal way."""
        self._publish = self._no_publish
        self._ack = self._no_ack
        self._publishes.clear()
        self._acks.clear()

    def run(
        self, offsets: Sequence[int], records: Sequence[bytes], times: Sequence[int] | None, index: int, end: int
    ) -> int:
        """Apply the repeats from `index` on, and return the index of the first other record; `end`: all are repeats.

        `times`: the records' times, where the log gives them (None: the envelopes' own hold)."""
        machine, publish, ack, header = self.machine, self._publish, self._ack, self._header
        publish_head, ack_head = publish.head, ack.head
        first, latest, start_ms, clock_ms = index, _NEVER, 0, 0
        ids: Sequence[int] = ()
        while index < end:
            record = records[index]
            try:
                if record.startswith(publish_head, HEAD_AT):
                    begin_ms = publish.start_ms
                    word, pos = publish.word, publish.tail_end
                    if not record.startswith(publish.tail, publish.end):
                        word, pos = _flags(record, publish.end, publish.queue.quorum)
                        if word < 0:
                            break
                    size = record[pos]
                    pos += 1
                    if size > 0x7F:
                        size, pos = _longer(record, size, pos)
                    if size & 1 or pos + (size >> 1) != len(record):
                        break
                    word |= size >> 1
                elif record.startswith(ack_head, HEAD_AT):
                    begin_ms = ack.start_ms
                    word = -1
                    ids = _ids(record, ack.end, ack.holder)
                    if not ids:
                        break
                else:
                    break
            except IndexError:
                break  # the record is cut short
            if not record.startswith(latest) or begin_ms != start_ms or times is not None:
                latest, start_ms = record[:HEAD_AT], begin_ms
                low, high = record[HEADER_SIZE], record[HEADER_SIZE + 1]
                if low & 0x81 != 0x80 or high < 0x80:
                    break
                if not record.startswith(header):
                    break
                clock_ms = machine.ahead_ms + (start_ms + (low >> 1) + (high << 6) if times is None else times[index])
            if clock_ms >= machine.next_deadline_ms:
                break
            if word < 0:
                self._apply_ack(ack, offsets[index], clock_ms, ids)
            elif not self._apply_publish(publish, offsets[index], clock_ms, word, record):
                break
            index += 1
        if index > first:
            machine.next_offset = offsets[index - 1] + 1
            self.count += index - first
        return index

    def _apply_publish(self, publish: PlainPublish, message_id: int, clock_ms: int, word: int, record: bytes) -> bool:
        """Apply a plain publish. Returns False, and changes nothing, if the normal way has to decide who gets it."""
        machine, queue = self.machine, publish.queue
        size = word & SIZE_MASK
        consumer: Consumer | None = None
        if queue.messages_ready == 0:
            for level in queue.levels:
                if level.service:
                    consumer = next(iter(level.service.values()))
                    room = consumer.credit if consumer.windowed else consumer.limit - len(consumer.held)
                    if room <= 0 or consumer.limiter is not None:
                        return False
                    break
        if clock_ms > machine.clock_ms:
            machine.clock_ms = clock_ms
        if not queue.dirty:
            machine.touch(queue)
        queue.published += 1
        if consumer is None:
            queue.arrived.append(message_id, word, NONE)
            queue.messages_ready += 1
            queue.message_bytes_ready += size
        else:
            if consumer.windowed:
                consumer.credit -= 1
            if consumer.no_ack:
                queue.delivered += 1
            else:
                consumer.held[message_id] = word
                queue.messages_unacked += 1
                queue.message_bytes_unacked += size
            if room == 1 and queue.quorum:
                del level.service[consumer.consumer]
                consumer.serviced = False
            elif len(level.service) > 1:
                level.service.move_to_end(consumer.consumer)
        if self._bodies is not None and (consumer is None or not consumer.no_ack):
            self._bodies.keep(queue.queue_id, message_id, record[publish.fields :])
        if self._outcomes is not None:
            self._outcomes.published(publish, message_id, clock_ms - machine.ahead_ms, size, consumer)
        return True

    def _apply_ack(self, ack: PlainAck, offset: int, clock_ms: int, ids: Sequence[int]) -> None:
        """Apply an ack of messages that the holder holds."""
        machine, holder = self.machine, ack.holder
        queue, held = holder.queue, holder.held
        if clock_ms > machine.clock_ms:
            machine.clock_ms = clock_ms
        if not queue.dirty:
            machine.touch(queue)
        for message_id in ids:
            queue.message_bytes_unacked -= held.pop(message_id) & SIZE_MASK
        queue.acked += len(ids)
        queue.messages_unacked -= len(ids)
        bodies = self._bodies
        if bodies is not None:
            bodies.release(queue.queue_id, ids)
        if not holder.serviced:
            serve_again(holder)
        effects: list[Effect] = [] if bodies is None else bodies.effects
        if queue.messages_ready > 0:
            run_after_taking(machine, queue, effects)
        if self._outcomes is not None:
            self._outcomes.acked(ack, offset, clock_ms - machine.ahead_ms, ids, effects)

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, offset: int, record: bytes, timestamp_ms: int, actor: Actor, event: Event) -> None:
        """Learn from the event that was just applied in the normal way.

        `timestamp_ms`: the envelope's own, also where the log gives another time."""
        if self.machine.due_effects[0] == offset or type(event) not in TRAFFIC:
            self.forget()
            return
        if not record.startswith(self._header):
            self.forget()
            self._header = record[:HEADER_SIZE]
        if isinstance(event, Published):
            publish = self._publishes.get(event.route)
            if publish is None or not record.startswith(publish.head, HEAD_AT):
                publish = self._learned_publish(record, timestamp_ms, actor, event)
            if publish is not None:
                self._publish = publish
        elif isinstance(event, Acked):
            ack = self._acks.get(event.consumer)
            if ack is None or not record.startswith(ack.head, HEAD_AT):
                ack = self._learned_ack(record, timestamp_ms, actor, event)
            if ack is not None:
                self._ack = ack

    def _learned_publish(self, record: bytes, timestamp_ms: int, actor: Actor, event: Published) -> PlainPublish | None:
        """Return the part that repeats of the publish share; None if it is not plain, or not in the form we write."""
        queues = self.machine.routes.get(event.route)
        if queues is None or len(queues) != 1:
            return None
        queue = queues[0]
        if queue.limited or queue.has_own_publish or queue.settings.message_ttl_ms is not None:
            return None
        if queue.deduplicates or event.route.deduplication is not None:
            return None
        if queue.prioritized is not None or actor.session == 0 or epoch_of(actor) in self.machine.lost_epochs:
            return None
        prefix = self._encoder.prefix(timestamp_ms, actor)
        example = Published(event.route, b"", body=b"", body_size=0)
        encoded = self._encoder.encode(prefix, example)[: -len(EMPTY_PUBLISH)]
        if not _begins_so(record, encoded[HEAD_AT:]):
            return None
        base_ms = (timestamp_ms & ~0x1FFF) - CONTINUED_MS
        publish = PlainPublish(record, len(encoded), len(prefix), base_ms, queue, actor, event.route)
        if len(self._publishes) >= _LEARNED:
            self._publishes.clear()
        self._publishes[event.route] = publish
        return publish

    def _learned_ack(self, record: bytes, timestamp_ms: int, actor: Actor, event: Acked) -> PlainAck | None:
        """Return the part that repeats of the ack share; None if it is not plain, or not in the form we write."""
        queue = self.machine.by_name.get((event.vhost, event.queue))
        holder = None if queue is None else queue.holders.get(event.consumer)
        if queue is None or holder is None or not holder.attached or holder.limiter is not None:
            return None
        if queue.deduplicates or queue.single_active or epoch_of(actor) in self.machine.lost_epochs:
            return None
        prefix = self._encoder.prefix(timestamp_ms, actor)
        encoded = self._encoder.encode(prefix, Acked(event.vhost, event.queue, event.consumer, ()))[: -len(NO_RANGES)]
        head = encoded[HEAD_AT:]
        if not _begins_so(record, head):
            return None
        ack = PlainAck(head, len(encoded), (timestamp_ms & ~0x1FFF) - CONTINUED_MS, holder, actor)
        if len(self._acks) >= _LEARNED:
            self._acks.clear()
        self._acks[event.consumer] = ack
        return ack


def _begins_so(record: bytes, head: bytes) -> bool:
    """Return True if the record has the head after two bytes of a timestamp that continues in the head.

    Its schema lays the event out as today's does."""
    low, high = record[HEADER_SIZE], record[HEADER_SIZE + 1]
    usual = low & 0x81 == 0x80 and high > 0x7F and record.startswith(head, HEAD_AT)
    return usual and (record.startswith(HEADER) or is_unchanged(record))


def _flags(record: bytes, pos: int, quorum: bool) -> tuple[int, int]:
    """Return the flags, for its word, of a plain message with properties at `pos`, and the position of its body.

    The flags are -1 if the message is not plain, or not in the form we write."""
    size = record[pos]
    pos += 1
    if size > 0x7F:
        size, pos = _longer(record, size, pos)
    if size & 1:
        return -1, pos
    pos += size >> 1
    if record.startswith(PLAIN_PERSISTENT, pos):
        return PERSISTENT, pos + PLAIN_SIZE
    if record.startswith(PLAIN_TRANSIENT, pos):
        return PERSISTENT if quorum else 0, pos + PLAIN_SIZE
    return -1, pos


def _longer(record: bytes, low: int, pos: int) -> tuple[int, int]:
    """Return the encoded long of two bytes whose second is at `pos`; 1, which is never a size, for any other form."""
    high = record[pos]
    return (low & 0x7F | high << 7, pos + 1) if 0 < high < 0x80 else (1, pos)


def _id(record: bytes, pos: int) -> tuple[int, int]:
    """Return the message id at `pos`, and the position after it; -1 for an id of more than five bytes, or negative."""
    value = record[pos]
    if value > 0x7F:
        byte = record[pos + 1]
        value += (byte - 1) << 7
        if byte > 0x7F:
            byte = record[pos + 2]
            value += (byte - 1) << 14
            if byte > 0x7F:
                byte = record[pos + 3]
                value += (byte - 1) << 21
                if byte > 0x7F:
                    byte = record[pos + 4]
                    value += (byte - 1) << 28
                    if byte > 0x7F:
                        return -1, pos
                    pos += 1
                pos += 1
            pos += 1
        pos += 1
    return (-1 if value & 1 else value >> 1), pos + 1


def _ids(record: bytes, pos: int, holder: Consumer) -> Sequence[int]:
    """Return the ids of the ranges at `pos`; none if the normal way has to decide.

    They ascend, the holder holds them, and no unacked message of the queue has an expiry."""
    held = holder.held
    if holder.queue.held_expiries:
        return ()
    count = record[pos]
    pos += 1
    if count == 2:
        first, end = _id(record, pos)
        if first in held and end + end - pos + 1 == len(record) and record.startswith(record[pos:end], end):
            return (first,) if record[-1] == 0 else ()
    if count & 0x81:
        return ()
    ids: list[int] = []
    behind = 0
    for _ in range(count >> 1):
        start = pos
        first, pos = _id(record, pos)
        same = record[start:pos]
        if record.startswith(same, pos):
            if first < behind or first not in held:
                return ()
            pos += len(same)
            ids.append(first)
            behind = first + 1
        else:
            last, pos = _id(record, pos)
            if not behind <= first <= last < first + len(held):
                return ()
            for message_id in range(first, last + 1):
                if message_id not in held:
                    return ()
                ids.append(message_id)
            behind = last + 1
    return ids if record[pos] == 0 and pos + 1 == len(record) else ()
