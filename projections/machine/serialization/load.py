"""Loads the machine's state from the bytes that pack.py made.

Indexes, counts and settings are derived, and counts are compared with the packed ones.
"""

import json
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from rewindmq.projections.machine.data.declaration import NO_EPOCH, Declaration
from rewindmq.projections.machine.data.id_windows import ID_SIZE, KEY_SIZE, OWN, IdWindow, is_chunk_of_ids
from rewindmq.projections.machine.data.message_order import BIG_ENDIAN, Chunk, Order, space_of
from rewindmq.projections.machine.data.message_word import size_of
from rewindmq.projections.machine.data.queue import Consumer, Limiter, Queue
from rewindmq.projections.machine.events.delivery import attach
from rewindmq.projections.machine.rules.expiry import arm_lease
from rewindmq.projections.machine.rules.policy_keys import QUEUE_TYPES
from rewindmq.projections.machine.rules.settings import resolve
from rewindmq.projections.machine.rules.single_active import wait
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.machine.serialization.pack import CHUNK_HEADER, COUNTERS, LENGTH
from rewindmq.projections.machine.state import NewerHistory, State
from rewindmq.schemas.values import Argument, Policy


def load(state: State, head: bytes, pieces: Iterable[tuple[bytes, dict[int, bytes]]]) -> None:
    """Fill an empty state from its pieces.

    Raises ValueError when they are not those of one state, NewerHistory when a newer version wrote them."""
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
            state.limiters[(session, channel)].blocked[waiting.key] = waiting


def _load_queue(state: State, meta: bytes, chunks: dict[int, bytes]) -> Queue:
    (length,) = LENGTH.unpack_from(meta)
    fields = json.loads(meta[4 : 4 + length])
    if fields["type"] not in QUEUE_TYPES:
        raise ValueError(f"queue {fields['name']!r} is of the unknown type {fields['type']!r}")
    queue = Queue(
        Declaration(
            fields["vhost"],
            fields["name"],
            fields["queue_id"],
            fields["type"],
            fields["durable"],
            fields["exclusive"],
            fields["auto_delete"],
            fields["owner"],
            fields.get("epoch", NO_EPOCH),
            fields.get("version", 1),
            tuple(_load_argument(a) for a in fields["arguments"]),
            fields["semantics"],
            fields.get("made_ms", 0),
        )
    )
    queue.policy = _load_policy(fields["policy"])
    queue.operator_policy = _load_policy(fields["operator_policy"])
    policies = (queue.policy, queue.operator_policy)
    queue.apply_settings(resolve(queue.type, queue.arguments, *policies, queue.profile, queue.version))
    queue.gone = fields["gone"]
    queue.crash_offset = fields.get("crash_offset", 0)
    for name, value in zip(COUNTERS, fields["counters"], strict=True):
        setattr(queue, name, value)
    queue.blocked = fields["blocked"]
    queue.last_used_ms = fields["last_used_ms"]
    queue.next_sequence = fields["next_sequence"]
    numbers = load_numbers(meta[4 + length :])
    _load_letters(queue, fields, numbers)
    _load_holders(state, queue, fields["holders"], numbers[4 * fields.get("letters", (0,))[0] :])
    for consumer, lookahead in fields.get("lookaheads", ()):
        holder = queue.holders[consumer]
        holder.lookahead = lookahead
        holder.limit += lookahead
        queue.ahead = holder
    for holder in queue.consuming.values():
        if not holder.windowed and len(holder.held) > holder.prefetch:  # at most one
            queue.ahead = holder
    if queue.single_active:
        queue.active = queue.holders.get(fields.get("active", 0))
        for holder in queue.holders.values():
            giving_way = holder is queue.active and "giving_way" in fields
            if giving_way or (holder.attached and holder is not queue.active):
                wait(queue, holder)
    for priority, consumers in fields["service"]:
        for level in queue.all_levels:
            if level.priority == priority:
                level.service = OrderedDict((consumer, queue.holders[consumer]) for consumer in consumers)
                for served in level.service.values():
                    served.serviced = True
    queue.removed, queue.moved = fields.get("removed", (0, 0))
    queue.relocated = fields.get("relocated", 0)
    queue.paused = "paused" in fields
    queue.update_serving()
    for exchange, space in fields.get("remembered", ()):
        queue.remembered[exchange] = IdWindow(space)
        state.remembers_messages = state.remembers_messages or exchange == OWN
    _load_ids(queue, {number: packed for number, packed in chunks.items() if is_chunk_of_ids(number)})
    _load_ready(queue, {number: packed for number, packed in chunks.items() if not is_chunk_of_ids(number)}, fields)
    if [queue.messages_ready, queue.message_bytes_ready] != fields["ready"]:
        expected = fields["ready"][0]
        raise ValueError(f"queue {queue.name!r}: {queue.messages_ready} messages in its chunks, {expected} expected")
    return queue


def _load_letters(queue: Queue, fields: Any, numbers: "array[int]") -> None:
    """Load the letters that the queue sends, and its knowledge of those that it has accepted."""
    outbox = queue.outbox
    if "letters" in fields:
        outbox.load(fields["letters"], numbers)
    held = outbox.held()
    queue.messages_dlx = len(held)
    queue.message_bytes_dlx = sum([outbox.sizes[at] for at in held])
    for restore, vhost, name, queue_id, ranges in fields.get("restored", ()):
        queue.restored[(restore, vhost, name, queue_id)] = ranges
    for vhost, name, queue_id, partition, relocated, sequence in fields["seen"]:
        queue.letters_seen[(vhost, name, queue_id, partition, relocated)] = sequence


def _load_policy(fields: Any) -> Policy | None:
    return None if fields is None else Policy(fields[0], fields[1], fields[2])


def _load_argument(fields: Any) -> Argument:
    value = fields[2]
    return Argument(fields[0], fields[1], bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value)


def load_numbers(packed: bytes) -> "array[int]":
    """Return the inverse of `number_bytes`."""
    numbers: array[int] = array("q")
    numbers.frombytes(packed)
    if BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def _load_holders(state: State, queue: Queue, holders: Any, numbers: "array[int]") -> None:
    at = 0
    for fields in holders:
        holder, count = _load_holder(state, queue, fields)
        queue.holders[holder.consumer] = holder
        for message_id, word in zip(numbers[at : at + count], numbers[at + count : at + 2 * count], strict=True):
            holder.held[message_id] = word
            queue.message_bytes_unacked += size_of(word)
        at += 2 * count
        queue.messages_unacked += count
        if holder.limiter is not None:
            holder.limiter.outstanding += count
    rest = (len(numbers) - at) // 2
    queue.held_expiries = dict(zip(numbers[at : at + rest], numbers[at + rest :], strict=True))


def _load_holder(state: State, queue: Queue, fields: Any) -> tuple[Consumer, int]:
    """Return a holder, and the number of messages that it holds."""
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
        count,
    ) = fields
    holder = Consumer(queue, consumer, session, channel, user)
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
    if attached:
        attach(queue, holder)
    return holder, count


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
    numbers = load_numbers(packed[CHUNK_HEADER.size :])
    chunk = Chunk(number)
    chunk.ids, chunk.words = numbers[:count], numbers[count : 2 * count]
    chunk.expiries = numbers[2 * count :] if with_expiries else None
    chunk.stored = True
    return chunk


def _load_ids(queue: Queue, chunks: dict[int, bytes]) -> None:
    by_space = {ids.space: ids for ids in queue.remembered.values()}
    for number in sorted(chunks):
        packed = chunks[number]
        ids = by_space.get(space_of(number))
        count = CHUNK_HEADER.unpack_from(packed)[0] if len(packed) >= CHUNK_HEADER.size else 0
        if ids is None or count == 0 or len(packed) != CHUNK_HEADER.size + count * ID_SIZE:
            raise ValueError(f"chunk {number} is said to hold {count} ids, but has {len(packed)} bytes")
        keys = CHUNK_HEADER.size + 16 * count
        numbers = load_numbers(packed[CHUNK_HEADER.size : keys])
        for index in range(count):
            start = keys + KEY_SIZE * index
            ids.add(numbers[index], packed[start : start + KEY_SIZE], numbers[count + index])
        ids.stored[number - ids.stored_number(0)] = None
        ids.dirty = {}
