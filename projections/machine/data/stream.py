"""Streams: queues whose messages stay.

    published   to the end of `arrived`; no consumer takes a message out
    retention   cuts the head: by max-age (reason expired), by max-length-bytes (reason maxlen)
    consumers   are attached and counted, and get nothing from the fold (engine/rewind/stream_consumers.py)

A message's number in its stream, which x-stream-offset uses, is dense: published messages are counted from 0. The first
remaining message has number `published - messages_ready`, so the numbers need no memory.

The time of a publish is kept in whole seconds since the stream's declaration, in the message's word (message_word.py).
So max-age cuts up to a second late, never early, and a message of a stream costs 16 bytes like any other.
max-length-bytes never cuts the newest message.
"""

from bisect import bisect_right

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.message_word import seconds_of, stream_word
from rewindmq.projections.machine.data.queue import Queue


def word_of(queue: Queue, size: int, now_ms: int) -> int:
    """Return the packed word of a message that is published now."""
    return stream_word(size, (now_ms - queue.created_ms) // 1000)


def old_messages(queue: Queue, now_ms: int) -> int:
    """Return how many messages at the head max-age cuts now: those published at that time or earlier."""
    count, start = 0, queue.arrived.start
    for chunk in queue.arrived.chunks:
        old = bisect_right(chunk.words, now_ms, start, key=queue.cut_at_ms)
        count += old - start
        if old < len(chunk.words):
            break
        start = 0
    return count


def first_number(queue: Queue) -> int:
    """Return the number of the first remaining message; if there is none, of the next publish."""
    return queue.published - queue.messages_ready


def id_of(queue: Queue, number: int) -> int:
    """Return the id of the message with this number; the message must be there.

    No message is ever put between others, so all chunks but the last are full (and CHUNK can't change unless stored
    states are folded anew)."""
    order = queue.arrived
    chunk, index = divmod(order.start + number - first_number(queue), message_order.CHUNK)
    return order.chunks[chunk].ids[index]


def number_from(queue: Queue, time_ms: int) -> int:
    """Return the number of the first message that may have been published at `time_ms` or later.

    Exact to the second; it may be too low by one message, never too high."""
    seconds = (time_ms - queue.created_ms) // 1000
    order = queue.arrived
    low, high = 0, order.count
    while low < high:
        middle = (low + high) // 2
        chunk, index = divmod(order.start + middle, message_order.CHUNK)
        if seconds_of(order.chunks[chunk].words[index]) < seconds:
            low = middle + 1
        else:
            high = middle
    return first_number(queue) + low
