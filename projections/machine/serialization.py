"""Turns the machine's state into bytes and back: pieces for the projector and snapshots, their inverse, and digests.

    head    JSON: clock, next offset, version, shared limits; where they are set: how far the clock is ahead of the
            timestamps, epochs of lost nodes
    meta    4 bytes length of the JSON (little-endian) | JSON of the queue's small state | the messages that its holders
            hold, as arrays of 64-bit numbers: ids and words holder by holder, then ids and expiries of held messages
            that have an expiry
    chunk   8 bytes (number of messages; 1 if expiries follow) | ids | words | expiries, 64-bit little-endian

A digest covers the same fields without the layout: chunk boundaries do not count, nor how far a chunk is consumed.
Fields that were added later (lost epochs, the epochs of transient queues, `crash_offset`, a queue's `version`) are part
of a state and its digest only where they are set. So older states load, and older claims still hold.
"""

import hashlib
import json
import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from rewindmq.projections.machine.data.consumer import Consumer, Limiter
from rewindmq.projections.machine.data.delayed_order import give_delays
from rewindmq.projections.machine.data.message_order import BIG_ENDIAN, NONE, Chunk, Order
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.priority_order import give_priorities
from rewindmq.projections.machine.data.queue import NO_EPOCH, OutboxEntry, Queue
from rewindmq.projections.machine.events.delivery import join_level
from rewindmq.projections.machine.rules.expiry import arm_lease
from rewindmq.projections.machine.rules.profile import profile_of
from rewindmq.projections.machine.rules.settings import QUEUE_TYPES, resolve
from rewindmq.projections.machine.rules.single_active import is_single_active
from rewindmq.projections.machine.state import MACHINE_VERSION, NewerHistory, State
from rewindmq.schemas.events import Argument, Policy

CHUNK_HEADER = struct.Struct("<II")
LENGTH = struct.Struct("<I")
COUNTERS = (
    "published",
    "acked",
    "delivered",
    "expired",
    "maxlen",
    "rejected",
    "delivery_limited",
    "purged",
    "lost",
    "refused",
    "dead_lettered",
    "duplicates",
)


class DirtyQueue:
    """The changes of one queue: write `meta`, write (replace) `chunks`, delete the chunks numbered in `vanished`."""

    def __init__(self, queue_id: int, meta: bytes, chunks: dict[int, bytes], vanished: list[int]) -> None:
        self.queue_id = queue_id
        self.meta = meta
        self.chunks = chunks
        self.vanished = vanished


class Dirty:
    """The changes since the last `take_dirty`: write `head` and each of `queues`, delete the queues `gone`.

    `gone`: queue ids; meta and chunks of each are deleted."""

    def __init__(self, head: bytes, queues: list[DirtyQueue], gone: list[int]) -> None:
        self.head = head
        self.queues = queues
        self.gone = gone


# -- packing -----------------------------------------------------------------------------------------------------------


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _numbers(values: "array[int]") -> bytes:
    """The numbers as little-endian bytes, on any machine."""
    if BIG_ENDIAN:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _limiters(state: State) -> list[object]:
    return [
        [limiter.session, limiter.channel, limiter.limit, [[c.queue.queue_id, c.consumer] for c in limiter.blocked]]
        for _, limiter in sorted(state.limiters.items())
    ]


def pack_head(state: State) -> bytes:
    fields: dict[str, object] = {
        "next_offset": state.next_offset,
        "clock_ms": state.clock_ms,
        "machine_version": state.machine_version,
        "limiters": _limiters(state),
    }
    if state.ahead_ms:
        fields["ahead_ms"] = state.ahead_ms
    if state.lost_epochs:
        fields["lost_epochs"] = list(state.lost_epochs)
    return _json(fields)


def _policy(policy: Policy | None) -> object:
    return None if policy is None else [policy.name, policy.definition, policy.version]


def _argument(argument: Argument) -> object:
    value: object = argument.value
    if isinstance(value, bytes):
        value = {"bytes": value.hex()}
    return [argument.name, argument.type, value]


def _holder(holder: Consumer) -> object:
    return [
        holder.consumer,
        holder.session,
        holder.channel,
        holder.user,
        holder.attached,
        holder.tag,
        holder.no_ack,
        holder.exclusive,
        holder.prefetch,
        holder.priority,
        [_argument(a) for a in holder.arguments],
        holder.credit,
        holder.limiter is not None,
        len(holder.held),
    ]


def _fields(queue: Queue) -> dict[str, object]:
    """The queue's small state, canonical."""
    fields: dict[str, object] = {
        "vhost": queue.vhost,
        "name": queue.name,
        "queue_id": queue.queue_id,
        "type": queue.type,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "owner": queue.owner,
        "arguments": [_argument(a) for a in queue.arguments],
        "semantics": queue.semantics,
        "policy": _policy(queue.policy),
        "operator_policy": _policy(queue.operator_policy),
        "gone": queue.gone,
        "counters": [getattr(queue, name) for name in COUNTERS],
        "ready": [queue.messages_ready, queue.message_bytes_ready],
        "returned": queue.returned.count if queue.quorum else 0,
        "blocked": queue.blocked,
        "last_used_ms": queue.last_used_ms,
        "holders": [_holder(h) for h in queue.holders.values()],
        "service": [[level.priority, [c.consumer for c in level.service]] for level in queue.levels],
        "next_sequence": queue.next_sequence,
        "outbox": [
            [e.sequence, e.message_id, e.size, e.reason, e.exchange, e.routing_key, e.at_least_once, e.refused]
            for e in queue.outbox.values()
        ],
        "seen": [[*source, sequence] for source, sequence in sorted(queue.seen.items())],
    }
    if queue.crash_offset:
        fields["crash_offset"] = queue.crash_offset
    if queue.restored:
        fields["restored"] = [[*source, ranges] for source, ranges in sorted(queue.restored.items())]
    if queue.stream:
        fields["made_ms"] = queue.made_ms
    if queue.delayed is not None:
        fields["delayed"] = [queue.messages_delayed, queue.message_bytes_delayed, queue.forwarded]
    if queue.version > 1:
        fields["version"] = queue.version
    if queue.active is not None:
        fields["active"] = queue.active.consumer
        if queue.active.waiting:
            fields["giving_way"] = True
    return fields


def _held(queue: Queue) -> bytes:
    numbers: array[int] = array("q")
    for holder in queue.holders.values():
        numbers.extend(holder.held.keys())
        numbers.extend(holder.held.values())
    expiring = sorted(queue.held_expiries.items())
    numbers.extend([message_id for message_id, _ in expiring])
    numbers.extend([expiry for _, expiry in expiring])
    return _numbers(numbers)


def pack_meta(queue: Queue) -> bytes:
    fields = _fields(queue)
    if queue.epoch != NO_EPOCH:
        fields["epoch"] = queue.epoch
    fields["starts"] = [queue.arrived.start, queue.returned.start]
    if queue.prioritized is not None:
        fields["level_starts"] = [[o.space, o.returned, o.start] for o in queue.prioritized.orders() if o.start > 0]
    if queue.delayed is not None:
        fields["delayed_start"] = queue.delayed.start
    packed = _json(fields)
    return LENGTH.pack(len(packed)) + packed + _held(queue)


def _pack_chunk(chunk: Chunk) -> bytes:
    expiries = b"" if chunk.expiries is None else _numbers(chunk.expiries)
    header = CHUNK_HEADER.pack(len(chunk.ids), 1 if expiries else 0)
    return header + _numbers(chunk.ids) + _numbers(chunk.words) + expiries


def pack_chunks(queue: Queue) -> dict[int, bytes]:
    return {c.number: _pack_chunk(c) for o in queue.orders() for c in o.chunks if len(c.ids) > 0}


def pieces(state: State) -> Iterator[tuple[int, bytes, dict[int, bytes]]]:
    for queue_id in sorted(state.by_id):
        queue = state.by_id[queue_id]
        yield queue_id, pack_meta(queue), pack_chunks(queue)


def take_dirty(state: State) -> Dirty:
    queues: list[DirtyQueue] = []
    for queue in state.dirty_queues:
        queue.dirty = False
        if queue.gone and not queue.outbox:
            continue
        chunks: dict[int, bytes] = {}
        vanished: list[int] = []
        for order in queue.orders():
            _take_dirty_chunks(order, chunks, vanished)
        vanished = [number for number in vanished if number not in chunks]
        queues.append(DirtyQueue(queue.queue_id, pack_meta(queue), chunks, vanished))
    gone = state.gone
    state.dirty_queues = []
    state.gone = []
    return Dirty(pack_head(state), queues, gone)


def _take_dirty_chunks(order: Order, chunks: dict[int, bytes], vanished: list[int]) -> None:
    vanished.extend(order.vanished)
    for chunk in order.changed:
        if not chunk.dirty:
            continue
        chunk.dirty = False
        if len(chunk.ids) > 0:
            chunks[chunk.number] = _pack_chunk(chunk)
            chunk.stored = True
        elif chunk.stored:
            vanished.append(chunk.number)
            chunk.stored = False
    order.vanished = []
    order.changed = []


# -- digests -----------------------------------------------------------------------------------------------------------


def queue_digest(queue: Queue) -> str:
    """SHA-256 (hex) of the queue's canonical state.

    It covers the small state, and ids, words and expiries in ready order, whatever their chunks are."""
    ids, words, expiries = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for order in queue.orders():
        start = order.start
        for chunk in order.chunks:
            ids.update(_numbers(chunk.ids[start:]))
            words.update(_numbers(chunk.words[start:]))
            rest = len(chunk.ids) - start
            expiries.update(_numbers(array("q", [NONE]) * rest if chunk.expiries is None else chunk.expiries[start:]))
            start = 0
    whole = hashlib.sha256(_json(_fields(queue)))
    whole.update(_held(queue))
    for part in (ids, words, expiries):
        whole.update(part.digest())
    return whole.hexdigest()


def digest(state: State) -> str:
    fields: dict[str, object] = {"machine_version": state.machine_version, "limiters": _limiters(state)}
    if state.lost_epochs:
        fields["lost_epochs"] = list(state.lost_epochs)
        fields["epochs"] = [[q.queue_id, q.epoch] for _, q in sorted(state.by_id.items()) if q.epoch != NO_EPOCH]
    whole = hashlib.sha256(_json(fields))
    for queue in sorted(state.by_id.values(), key=lambda q: (q.vhost, q.name, q.queue_id)):
        whole.update(queue_digest(queue).encode())
    return whole.hexdigest()


# -- loading -----------------------------------------------------------------------------------------------------------


def load(state: State, head: bytes, pieces: Iterable[tuple[bytes, dict[int, bytes]]]) -> None:
    fields = json.loads(head)
    state.next_offset = fields["next_offset"]
    state.clock_ms = fields["clock_ms"]
    state.ahead_ms = fields.get("ahead_ms", 0)
    state.machine_version = fields["machine_version"]
    if state.machine_version > MACHINE_VERSION:
        raise NewerHistory(state.partition, state.next_offset, state.machine_version)
    state.lost_epochs = dict.fromkeys(fields.get("lost_epochs", ()))
    for session, channel, limit, _ in fields["limiters"]:
        state.limiters[(session, channel)] = Limiter(session, channel, limit)
    loaded = [_load_queue(state, meta, chunks) for meta, chunks in pieces]
    for queue in sorted(loaded, key=lambda q: q.queue_id):
        state.add_queue(queue)
        for holder in queue.holders.values():
            state.index_holder(holder)
        state.arm_messages(queue)
        if not queue.gone:
            arm_lease(state, queue)
    for session, channel, _, blocked in fields["limiters"]:
        for queue_id, consumer in blocked:
            waiting = state.by_id[queue_id].holders[consumer]
            waiting.blocked = True
            state.limiters[(session, channel)].blocked.append(waiting)


def _load_queue(state: State, meta: bytes, chunks: dict[int, bytes]) -> Queue:
    (length,) = LENGTH.unpack_from(meta)
    fields = json.loads(meta[4 : 4 + length])
    if fields["type"] not in QUEUE_TYPES:
        raise ValueError(f"queue {fields['name']!r} is of the unknown type {fields['type']!r}")
    queue = Queue(fields["vhost"], fields["name"], fields["queue_id"], fields["type"])
    queue.durable = fields["durable"]
    queue.exclusive = fields["exclusive"]
    queue.auto_delete = fields["auto_delete"]
    queue.owner = fields["owner"]
    queue.version = fields.get("version", 1)
    queue.arguments = tuple(_load_argument(a) for a in fields["arguments"])
    queue.semantics = fields["semantics"]
    queue.single_active = is_single_active(queue)
    queue.policy = _load_policy(fields["policy"])
    queue.operator_policy = _load_policy(fields["operator_policy"])
    queue.profile = profile_of(queue.semantics, queue.version)
    queue.apply_settings(resolve(queue.type, queue.arguments, queue.policy, queue.operator_policy, queue.profile))
    queue.gone = fields["gone"]
    queue.epoch = fields.get("epoch", NO_EPOCH)
    queue.crash_offset = fields.get("crash_offset", 0)
    queue.made_ms = fields.get("made_ms", 0)
    for name, value in zip(COUNTERS, fields["counters"], strict=True):
        setattr(queue, name, value)
    queue.blocked = fields["blocked"]
    queue.last_used_ms = fields["last_used_ms"]
    queue.next_sequence = fields["next_sequence"]
    for entry in fields["outbox"]:
        dead = OutboxEntry(*entry)
        queue.outbox[dead.sequence] = dead
        if dead.at_least_once:
            queue.messages_dlx += 1
            queue.message_bytes_dlx += dead.size
    for restore, vhost, name, queue_id, ranges in fields.get("restored", ()):
        queue.restored[(restore, vhost, name, queue_id)] = ranges
    for vhost, name, queue_id, sequence in fields["seen"]:
        queue.seen[(vhost, name, queue_id)] = sequence
    _load_holders(state, queue, fields["holders"], meta[4 + length :])
    if queue.single_active:
        queue.active = queue.holders.get(fields.get("active", 0))
        for holder in queue.holders.values():
            giving_way = holder is queue.active and "giving_way" in fields
            holder.waiting = giving_way or (holder.attached and holder is not queue.active)
    for priority, consumers in fields["service"]:
        for level in queue.levels:
            if level.priority == priority:
                level.service = [queue.holders[consumer] for consumer in consumers]
                for consumer in level.service:
                    consumer.serviced = True
    give_priorities(queue)
    give_delays(queue)
    _load_ready(queue, chunks, fields)
    if [queue.messages_ready, queue.message_bytes_ready] != fields["ready"]:
        expected = fields["ready"][0]
        raise ValueError(f"queue {queue.name!r}: {queue.messages_ready} messages in its chunks, {expected} expected")
    return queue


def _load_policy(fields: Any) -> Policy | None:
    return None if fields is None else Policy(fields[0], fields[1], fields[2])


def _load_argument(fields: Any) -> Argument:
    value = fields[2]
    return Argument(fields[0], fields[1], bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value)


def _load_numbers(packed: bytes) -> "array[int]":
    numbers: array[int] = array("q")
    numbers.frombytes(packed)
    if BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def _load_holders(state: State, queue: Queue, holders: Any, packed: bytes) -> None:
    numbers = _load_numbers(packed)
    at = 0
    for fields in holders:
        holder = _load_holder(state, queue, fields)
        queue.holders[holder.consumer] = holder
        count: int = fields[13]
        for message_id, word in zip(numbers[at : at + count], numbers[at + count : at + 2 * count], strict=True):
            holder.held[message_id] = word
            queue.message_bytes_unacked += word & SIZE_MASK
        at += 2 * count
        queue.messages_unacked += count
        if holder.limiter is not None:
            holder.limiter.outstanding += count
    rest = (len(numbers) - at) // 2
    queue.held_expiries = dict(zip(numbers[at : at + rest], numbers[at + rest :], strict=True))


def _load_holder(state: State, queue: Queue, fields: Any) -> Consumer:
    (
        consumer,
        session,
        channel,
        user,
        attached,
        tag,
        no_ack,
        exclusive,
        prefetch,
        priority,
        arguments,
        credit,
        limited,
        _,
    ) = fields
    holder = Consumer(queue, consumer, session, channel, user)
    holder.attached = attached
    holder.tag = tag
    holder.no_ack = no_ack
    holder.exclusive = exclusive
    holder.prefetch = prefetch
    holder.priority = priority
    holder.arguments = tuple(_load_argument(a) for a in arguments)
    holder.credit = credit
    holder.windowed = holder.no_ack or prefetch == 0
    if not holder.windowed:
        holder.limit = prefetch
    if limited:
        holder.limiter = state.limiters[(session, channel)]
        holder.limiter.members += 1
    if holder.attached:
        queue.attached += 1
        join_level(queue, holder)
    return holder


def _load_ready(queue: Queue, chunks: dict[int, bytes], fields: Any) -> None:
    runs: dict[Order, list[Chunk]] = {}
    for number in sorted(chunks, key=abs):
        runs.setdefault(queue.order_at(number), []).append(_load_chunk(number, chunks[number]))
    for order, run in runs.items():
        order.chunks = run
        order.head, order.tail = run[0], run[-1]
    if queue.delayed is not None:
        queue.delayed.start = fields["delayed_start"]
        queue.message_bytes_delayed = queue.delayed.loaded()
        queue.messages_delayed, queue.forwarded = queue.delayed.count, fields["delayed"][2]
        if [queue.messages_delayed, queue.message_bytes_delayed] != fields["delayed"][:2]:
            expected = fields["delayed"][0]
            raise ValueError(f"queue {queue.name!r}: {queue.messages_delayed} messages wait, {expected} expected")
    queue.arrived.start, queue.returned.start = fields["starts"]
    if queue.prioritized is not None:
        for space, returned, start in fields["level_starts"]:
            queue.prioritized.at(space, returned).start = start
    for order in (queue.arrived, queue.returned):
        queue.message_bytes_ready += order.recount()
        queue.messages_ready += order.count


def _load_chunk(number: int, packed: bytes) -> Chunk:
    count, with_expiries = CHUNK_HEADER.unpack_from(packed) if len(packed) >= CHUNK_HEADER.size else (0, 0)
    if count == 0 or len(packed) != CHUNK_HEADER.size + count * (24 if with_expiries else 16):
        raise ValueError(f"chunk {number} is said to hold {count} messages, but has {len(packed)} bytes")
    numbers = _load_numbers(packed[CHUNK_HEADER.size :])
    chunk = Chunk(number)
    chunk.ids, chunk.words = numbers[:count], numbers[count : 2 * count]
    chunk.expiries = numbers[2 * count :] if with_expiries else None
    chunk.stored = True
    return chunk
