"""Packs the machine's state into bytes, for the projector and for snapshots; load.py is the inverse.

    head    JSON: clock, next offset, version, shared limits; if they are set: the clock's lead over the timestamps,
            epochs of lost nodes
    meta    4 bytes length of the JSON (little-endian) | JSON of the queue's small state | arrays of 64-bit numbers: the
            letters of its outbox (outbox.py); the messages that its holders hold, ids and words holder by holder; then
            ids and expiries of held messages that have an expiry
    chunk   8 bytes (number of messages; 1 if expiries follow) | ids | words | expiries, 64-bit little-endian
            of remembered ids: 8 bytes (number of messages; 0) | ids | expiries, 64-bit little-endian | keys

Fields that few queues need (lost epochs, the epochs of transient queues, `crash_offset`, a queue's `version`, an
operator's changes to a queue, its moves) are part of a state and its digest only if they are set. A field that a later
machine version adds must follow this rule, so that earlier states and claims stay valid.
"""

import json
import struct
from array import array
from collections.abc import Iterator
from typing import Final

from rewindmq.projections.machine.data.declaration import NO_EPOCH
from rewindmq.projections.machine.data.message_order import BIG_ENDIAN, Chunk
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Consumer, Queue
from rewindmq.projections.machine.state import State
from rewindmq.schemas.values import Argument, Policy

CHUNK_HEADER: Final = struct.Struct("<II")
LENGTH: Final = struct.Struct("<I")
COUNTERS: Final = (
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


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=True, check_circular=False)  # `dumps` makes one each time


def json_bytes(value: object) -> bytes:
    """Return canonical JSON: no spaces, ASCII only, keys in the order of the fields."""
    return _encoder.encode(value).encode()


def number_bytes(values: "array[int]") -> bytes:
    """Return the numbers as little-endian bytes, on any machine."""
    if BIG_ENDIAN:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def limiter_fields(state: State) -> list[object]:
    """Return the shared limits, canonical."""
    return [
        [
            limiter.session,
            limiter.channel,
            limiter.limit,
            [[c.queue.queue_id, c.consumer] for c in limiter.blocked.values()],
        ]
        for _, limiter in sorted(state.limiters.items())
    ]


def pack_head(state: State) -> bytes:
    """Return the state that belongs to no queue."""
    fields: dict[str, object] = {
        "next_offset": state.next_offset,
        "clock_ms": state.clock_ms,
        "machine_version": state.machine_version,
        "limiters": limiter_fields(state),
    }
    if state.ahead_ms:
        fields["ahead_ms"] = state.ahead_ms
    if state.lost_epochs:
        fields["lost_epochs"] = list(state.lost_epochs)
    return json_bytes(fields)


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


def _carried(carried: Carried) -> list[object]:
    return [carried.delivery_count, carried.acquired_count, carried.redelivered, carried.expiry]


def letter_fields(queue: Queue) -> list[list[object]]:
    """Return the letters in the queue's outbox, canonical."""
    outbox = queue.outbox
    return [
        [sequence, *rest, *(_carried(outbox.carried[sequence]) if sequence in outbox.carried else ())]
        for sequence, *rest in outbox.rows()
    ]


def queue_fields(queue: Queue) -> dict[str, object]:
    """Return the queue's small state, canonical, without the letters in its outbox."""
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
        "service": [[level.priority, list(level.service)] for level in queue.all_levels],
        "next_sequence": queue.next_sequence,
        "seen": [[*source, sequence] for source, sequence in sorted(queue.letters_seen.items())],
    }
    lookaheads = [[holder.consumer, holder.lookahead] for holder in queue.holders.values() if holder.lookahead]
    if lookaheads:
        fields["lookaheads"] = lookaheads
    if queue.crash_offset:
        fields["crash_offset"] = queue.crash_offset
    if queue.restored:
        fields["restored"] = [[*source, ranges] for source, ranges in sorted(queue.restored.items())]
    if queue.stream:
        fields["made_ms"] = queue.created_ms
    if queue.delayed is not None:
        fields["delayed"] = [queue.messages_delayed, queue.message_bytes_delayed, queue.forwarded]
    if queue.removed or queue.moved:
        fields["removed"] = [queue.removed, queue.moved]
    if queue.relocated:
        fields["relocated"] = queue.relocated
    if queue.paused:
        fields["paused"] = True
    if queue.version > 1:
        fields["version"] = queue.version
    if queue.active is not None:
        fields["active"] = queue.active.consumer
        if queue.active.waiting:
            fields["giving_way"] = True
    return fields


def held_bytes(queue: Queue) -> bytes:
    """Return the messages that holders hold, and the expiries of held and delayed messages, as numbers."""
    numbers: array[int] = array("q")
    for holder in queue.holders.values():
        numbers.extend(holder.held.keys())
        numbers.extend(holder.held.values())
    expiring = sorted(queue.held_expiries.items())
    numbers.extend([message_id for message_id, _ in expiring])
    numbers.extend([expiry for _, expiry in expiring])
    return number_bytes(numbers)


def pack_meta(queue: Queue) -> bytes:
    """Return a queue's small state, with the letters of its outbox and the messages that its holders hold."""
    fields = queue_fields(queue)
    letters, numbers = queue.outbox.packed()
    if numbers:
        fields["letters"] = letters
    if queue.epoch != NO_EPOCH:
        fields["epoch"] = queue.epoch
    fields["starts"] = [queue.arrived.start, queue.returned.start]
    if queue.prioritized is not None:
        fields["level_starts"] = [[o.space, o.returned, o.start] for o in queue.prioritized.orders() if o.start > 0]
    if queue.delayed is not None:
        fields["delayed_start"] = queue.delayed.start
    spaces = [[exchange, ids.space] for exchange, ids in sorted(queue.remembered.items()) if ids.messages]
    if spaces:
        fields["remembered"] = spaces
    packed = json_bytes(fields)
    return LENGTH.pack(len(packed)) + packed + number_bytes(numbers) + held_bytes(queue)


def pack_chunk(chunk: Chunk) -> bytes:
    """Return a chunk of ready or delayed messages."""
    expiries = b"" if chunk.expiries is None else number_bytes(chunk.expiries)
    header = CHUNK_HEADER.pack(len(chunk.ids), 1 if expiries else 0)
    return header + number_bytes(chunk.ids) + number_bytes(chunk.words) + expiries


def pack_ids(messages: list[tuple[int, bytes, int]]) -> bytes:
    """Pack remembered messages: (message, key, expiry) of each."""
    numbers = array("q", [message_id for message_id, _, _ in messages])
    numbers.extend([expiry for _, _, expiry in messages])
    return CHUNK_HEADER.pack(len(messages), 0) + number_bytes(numbers) + b"".join([key for _, key, _ in messages])


def pack_chunks(queue: Queue) -> dict[int, bytes]:
    """Return all chunks of a queue that hold messages, by number."""
    chunks = {c.number: pack_chunk(c) for o in queue.orders() for c in o.chunks if len(c.ids) > 0}
    for ids in queue.remembered.values():
        chunks.update((ids.stored_number(number), pack_ids(ids.of_chunk(number))) for number in ids.numbers())
    return chunks


def pieces(state: State) -> Iterator[tuple[int, bytes, dict[int, bytes]]]:
    """Yield (queue id, meta, chunks) of every queue."""
    for queue_id in sorted(state.by_id):
        queue = state.by_id[queue_id]
        yield queue_id, pack_meta(queue), pack_chunks(queue)
