"""Restored messages: a `Published` whose origin names a restoration.

A restored message enters the queue like any other publish (limits and TTL apply), with its former delivery count and
redelivered flag, and its remaining time to live (`expiration_ms`). A restoration may be repeated, after a crash or by
mistake, but each message enters once under its name. The queue remembers the ids as ranges, because most are in runs.
"""

from bisect import bisect_right

from rewindmq.projections.machine.data.message_word import (
    ACQUIRED_MAX_4_3,
    ACQUIRED_SHIFT_4_3,
    REDELIVERED,
    delivered_before,
)
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import Origin


def is_restored(queue: Queue, origin: Origin) -> bool:
    """Return True if the queue has already accepted the restored message that `origin` names."""
    ranges = queue.restored.get(_source(origin), [])
    at = bisect_right(ranges, origin.message_id, key=_first)
    return at > 0 and ranges[at - 1][1] >= origin.message_id


def note_restored(queue: Queue, origin: Origin) -> None:
    """Remember that the message entered under the restoration's name."""
    ranges = queue.restored.setdefault(_source(origin), [])
    message_id = origin.message_id
    at = bisect_right(ranges, message_id, key=_first)
    if at > 0 and ranges[at - 1][1] == message_id - 1:
        ranges[at - 1][1] = message_id
        at -= 1
    else:
        ranges.insert(at, [message_id, message_id])
    if at + 1 < len(ranges) and ranges[at + 1][0] == message_id + 1:
        ranges[at][1] = ranges.pop(at + 1)[1]


def as_it_was(queue: Queue, word: int, origin: Origin) -> int:
    """Return the message's `word` (message_word.py) with its former delivery count and redelivered flag."""
    if origin.redelivered:
        word |= REDELIVERED
    if queue.quorum:  # classic queues count no deliveries
        word = delivered_before(word, max(0, origin.delivery_count), queue.profile.failures_count)
        if queue.profile.failures_count:
            word |= min(max(0, origin.acquired_count), ACQUIRED_MAX_4_3) << ACQUIRED_SHIFT_4_3
    return word


def _source(origin: Origin) -> tuple[str, str, str, int]:
    return origin.restore, origin.vhost, origin.queue, origin.queue_id


def _first(span: list[int]) -> int:
    return span[0]
