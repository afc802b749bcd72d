"""Groups publishes of a log that differ in their bodies alone. It compares bytes, and knows no rule of the machine.

    | header, time, actor, event's index, route, properties, flags | size of the body | body |
    |<------------------------- head ----------------------------->|

So the messages of a run have the same time, publisher, route and properties. The machine says how many of them it
treats alike (`Machine.apply`).
"""

from array import array
from collections.abc import Sequence

from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.evolution import is_unchanged
from rewindmq.schemas.shapes import long_bytes
from rewindmq.schemas.single_object import HEADER


def run_sizes(
    event: Event,
    offsets: Sequence[int],
    records: Sequence[bytes],
    times: Sequence[int] | None,
    index: int,
    end: int,
) -> "array[int]":
    """Return the sizes of the bodies of a run that begins with `event`, the record at `index`; none: it is alone.

    `end`: the index behind the last record that may be in it. `times`: the records' times, where the log gives them."""
    sizes: array[int] = array("q")
    if index + 1 == end or not isinstance(event, Published) or event.encryption is not None or event.origin is not None:
        return sizes
    record, size = records[index], event.body_size
    at = len(record) - size - len(long_bytes(size))
    head = record[:at]
    if not records[index + 1].startswith(head) or not (record.startswith(HEADER) or is_unchanged(record)):
        return sizes
    sizes.append(size)
    offset, time_ms = offsets[index] - index, 0 if times is None else times[index]
    for number in range(index + 1, end):
        record = records[number]
        rest = len(record) - at
        if rest < 1 or not record.startswith(head) or offsets[number] - number != offset:
            break
        if times is not None and times[number] != time_ms:
            break
        low = record[at]
        if low < 0x80:
            size = rest - 1
            if low != 2 * size:
                break
        elif rest > 1 and 0 < record[at + 1] < 0x80:
            size = rest - 2
            if low & 0x7F | record[at + 1] << 7 != 2 * size:
                break
        else:
            break
        sizes.append(size)
    if len(sizes) == 1:
        sizes.pop()
    return sizes
