"""Reads the parts of a record in the one form that our own encoder writes (schemas/codec.py).

Every other form is a Surprise, or an IndexError if the record is cut short. This module may be compiled by mypyc.
"""


class Surprise(Exception):
    """The hand-written reader does not know this form, which `rewindmq.schemas.shapes` judges."""


def varint(record: bytes, pos: int) -> tuple[int, int]:
    """Return the long at `pos`, and the position after it."""
    value = record[pos]
    pos += 1
    if value > 0x7F:  # each byte that is not the last has a bit too many, which is subtracted
        value += (record[pos] << 7) - 0x80
        pos += 1
        if value > 0x3FFF:
            value += (record[pos] << 14) - 0x4000
            pos += 1
            shift = 21
            while value >> shift:
                value += (record[pos] << shift) - (1 << shift)
                pos += 1
                shift += 7
                if shift > 56:
                    raise Surprise  # so large that a place in the record plus it might not be a machine's word
    return (value >> 1 if not value & 1 else ~(value >> 1)), pos


def size_end(record: bytes, pos: int) -> int:
    """Return the position after the string or bytes at `pos`.

    It may be beyond the record's end, which the code that continues reading notices."""
    size = record[pos]
    if size > 0x7F or size & 1:
        size, pos = varint(record, pos)
        if size < 0:
            raise Surprise
        return pos + size
    return pos + 1 + (size >> 1)


def two_texts_end(record: bytes, pos: int) -> int:
    """Return the position after the second of two strings. Short strings (up to 63 bytes) are the fast case."""
    size = record[pos]
    if not size & 0x81:
        second = pos + 1 + (size >> 1)
        size = record[second]
        if not size & 0x81:
            return second + 1 + (size >> 1)
    return size_end(record, size_end(record, pos))


def route_end(record: bytes, pos: int) -> int:
    pos = two_texts_end(record, pos)
    size = record[pos]
    pos = size_end(record, pos) if size & 0x81 else pos + 1 + (size >> 1)
    count = record[pos]
    if count == 2 and not record[pos + 1] & 0x81:  # one queue with a short name
        pos += 2 + (record[pos + 1] >> 1)
    else:
        count, pos = varint(record, pos)
        if count < 0:
            raise Surprise
        empty = count == 0
        while count > 0:
            pos = size_end(record, pos)
            count -= 1
        if empty:
            return deduplication_end(record, pos)
    if record[pos] != 0:
        raise Surprise
    return deduplication_end(record, pos + 1)


def deduplication_end(record: bytes, pos: int) -> int:
    branch = record[pos]
    if branch == 0:
        return pos + 1
    if branch == 4:  # Unrouted: two flags
        flag(record, pos + 1)
        flag(record, pos + 2)
        return pos + 3
    if branch != 2:
        raise Surprise
    pos = long_end(record, size_end(record, pos + 1))
    branch = record[pos]
    if branch == 0:
        return pos + 1
    if branch != 2:
        raise Surprise
    return long_end(record, pos + 1)


def long_end(record: bytes, pos: int) -> int:
    """Return the position after the long at `pos`. Its form is checked where it is read."""
    while record[pos] > 0x7F:
        pos += 1
    return pos + 1


def optional_varint(record: bytes, pos: int) -> tuple[int | None, int]:
    branch = record[pos]
    if branch == 0:
        return None, pos + 1
    if branch != 2:
        raise Surprise
    return varint(record, pos + 1)


def flag(record: bytes, pos: int) -> bool:
    byte = record[pos]
    if byte > 1:
        raise Surprise
    return byte == 1


def message_ranges(record: bytes, pos: int) -> tuple[tuple[tuple[int, int], ...], int]:
    count = record[pos]
    if count == 2:
        start = pos + 1
        first, pos = varint(record, start)
        if record.startswith(record[start:pos], pos):  # a single message, the usual case: the same bytes again
            pos += pos - start
            last = first
        else:
            last, pos = varint(record, pos)
        messages: tuple[tuple[int, int], ...] = ((first, last),)
    else:
        count, pos = varint(record, pos)
        if count == 0:
            return (), pos
        if count < 0:
            raise Surprise
        ranges = []
        while count > 0:
            first, pos = varint(record, pos)
            last, pos = varint(record, pos)
            ranges.append((first, last))
            count -= 1
        messages = tuple(ranges)
    if record[pos] != 0:
        raise Surprise
    return messages, pos + 1
