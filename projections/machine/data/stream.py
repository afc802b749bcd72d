"""Streams: queues whose messages stay.

    published   to the end of `arrived`; nobody takes it out
    retention   cuts the head: by max-age (reason expired), by max-length-bytes (reason maxlen)
    consumers   are attached and counted, and get nothing from the fold (engine/rewind/stream_consumers.py)

A message's number in its stream is dense: it counts from 0 what was published, and is what x-stream-offset means. The
first message still there has number `published - messages_ready`, so the numbers need no memory.

When a message was published is kept in whole seconds since the stream was made, in those bits of its `info` that hold
flags and the delivery count of other queues' messages (30 bits: 34 years). So max-age cuts up to a second late, never
early, and a message of a stream costs 16 bytes as any other. The newest message is never cut by max-length-bytes.
"""

from typing import TYPE_CHECKING

from rewindmq.projections.machine.data import message_order as ready
from rewindmq.projections.machine.data.message_order import NONE, PERSISTENT

if TYPE_CHECKING:
    from rewindmq.projections.machine.data.queue import Queue

SECONDS_SHIFT = 33
SECONDS_MAX = (1 << 30) - 1


def info_of(queue: "Queue", size: int, now_ms: int) -> int:
    seconds = min((now_ms - queue.made_ms) // 1000, SECONDS_MAX)
    return size | PERSISTENT | seconds << SECONDS_SHIFT


def cut_at_ms(queue: "Queue", info: int) -> int:
    """When max-age cuts a message; NONE without one. (The second in which it was published has to be over.)"""
    age = queue.settings.max_age_ms
    return NONE if age is None else queue.made_ms + ((info >> SECONDS_SHIFT) + 1) * 1000 + age


def first_number(queue: "Queue") -> int:
    """Of the first message that is still there; of the next one to come, when there is none."""
    return queue.published - queue.messages_ready


def id_of(queue: "Queue", number: int) -> int:
    """The message with this number; it must be there. Nothing is ever put between others, so all chunks but the last
    are full (and CHUNK can't change unless stored states are folded anew)."""
    order = queue.arrived
    chunk, index = divmod(order.start + number - first_number(queue), ready.CHUNK)
    return order.chunks[chunk].ids[index]


def number_from(queue: "Queue", time_ms: int) -> int:
    """Of the first message that may have been published at `time_ms` or later: to the second, rather one too many."""
    seconds = (time_ms - queue.made_ms) // 1000
    order = queue.arrived
    low, high = 0, order.count
    while low < high:
        middle = (low + high) // 2
        chunk, index = divmod(order.start + middle, ready.CHUNK)
        if order.chunks[chunk].infos[index] >> SECONDS_SHIFT < seconds:
            low = middle + 1
        else:
            high = middle
    return first_number(queue) + low
