"""Groups publishes of a log that differ in their bodies alone. It compares bytes, and knows no rule of the machine.

    | header, time, actor, event's index, route, properties, flags | size of the body | body |
    |<------------------------- head ----------------------------->|

So the messages of a run have the same time, publisher, route and properties. The machine says how many of them it
treats alike (`Machine.apply`).
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.evolution import is_unchanged
from rewindmq.schemas.own_form import Surprise, varint
from rewindmq.schemas.shapes import long_bytes
from rewindmq.schemas.single_object import HEADER

_FIRST_PART: Final = 8  # records that are compared at once; then twice as many, as long as all of them are in the run


def run_sizes(
    event: Event,
    offsets: Sequence[int],
    records: Sequence[bytes],
    times: Sequence[int] | None,
    index: int,
    end: int,
) -> list[int]:
    """Return the sizes of the bodies of a run that begins with `event`, the record at `index`; none: it is alone.

    `end`: the index behind the last record that may be in it. `times`: the records' times, where the log gives them."""
    if index + 1 == end or not isinstance(event, Published) or event.encryption is not None or event.origin is not None:
        return []
    record, ahead = records[index], offsets[index] - index
    length, size = len(record), event.body_size
    head = record[: length - size - (1 if size < 64 else len(long_bytes(size)))]
    if not records[index + 1].startswith(head) or not (record.startswith(HEADER) or is_unchanged(record)):
        return []
    if head[-1] != 0:  # the size is written in more bytes than it takes, which no encoder of ours does
        return []
    if offsets[end - 1] - end + 1 != ahead:  # offsets with gaps
        end = bisect_right(range(end), ahead, index, end, key=lambda at: offsets[at] - at)
    time_ms = 0 if times is None else times[index]
    before = record[: length - size]  # the bytes before the body, in each record of this length
    following, width = index + 1, _FIRST_PART
    while following < end:
        part = records[following : min(following + width, end)]
        if list(map(len, part)).count(length) != len(part):
            break
        if not (min(part).startswith(before) and max(part).startswith(before)):  # else all between them begin so, too
            break
        if times is not None and times[following : following + len(part)].count(time_ms) != len(part):
            break
        following += len(part)
        width *= 2
    sizes = [size] * (following - index)
    with suppress(IndexError, Surprise):  # no such publish is alike
        for number in range(following, end):
            record = records[number]
            if times is not None and times[number] != time_ms:
                break
            if len(record) == length and record.startswith(before):
                sizes.append(size)
                continue
            if not record.startswith(head):
                break
            other, begin = varint(record, len(head))
            if other < 0 or begin + other != len(record) or (record[begin - 1] == 0 and begin - len(head) > 1):
                break
            sizes.append(other)
    return sizes if len(sizes) > 1 else []


def run_of(
    event: Event, offsets: Sequence[int], records: Sequence[bytes], times: Sequence[int], index: int, end: int
) -> Sequence[Published]:
    """Return the publishes of a run that begins with `event`, the record at `index`; none: it is alone.

    `end`: as for `run_sizes`."""
    sizes = run_sizes(event, offsets, records, times, index, end)
    if not sizes or not isinstance(event, Published):
        return ()
    return [
        Published(
            event.route,
            event.properties,
            expiration_ms=event.expiration_ms,
            priority=event.priority,
            persistent=event.persistent,
            body=record[len(record) - size :],
            body_size=size,
        )
        for record, size in zip(records[index : index + len(sizes)], sizes, strict=True)
    ]


def behind_moment(offsets: Sequence[int], times: Sequence[int], index: int) -> int:
    """Return the index behind the records that follow the one at `index` at successive offsets and the same time."""
    offset, time_ms, behind = offsets[index], times[index], len(times)
    end = bisect_right(times, time_ms, index)  # right if the log's time did not go back
    if end > index and offsets[end - 1] - offset == end - 1 - index and times[index:end].count(time_ms) == end - index:
        return end
    end = index + 1
    while end < behind and times[end] == time_ms and offsets[end] - offset == end - index:
        end += 1
    return end
