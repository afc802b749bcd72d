"""Are these bytes the properties of an AMQP message, as they stand in a content header (AMQP 0-9-1, 4.2.6.1)?

    flags, 2 bytes | the values whose flag is set, the highest first; the two lowest flags must not be set

Who publishes by AMQP is asked at the door. Records that services append to the log come through no door, and a consumer
that is sent something else loses its connection, again and again, as the message goes back to its queue each time.
"""

# What a consumer with the usual frame size (131,072) can be sent: one header frame, without its own 8 and 12 bytes.
MAX_PROPERTIES_BYTES = 131_052
MAX_DEPTH = 32  # of tables and arrays within headers

_SHORT, _TABLE, _OCTET, _TIMESTAMP = range(4)
# content_type .. cluster_id, in the order of their flags
_KINDS = (_SHORT, _SHORT, _TABLE, _OCTET, _OCTET, _SHORT, _SHORT, _SHORT, _SHORT, _TIMESTAMP, _SHORT, _SHORT, _SHORT,
          _SHORT)  # fmt: skip
_SIZES = {ord(kind): size for size, kinds in ((0, "V"), (1, "tbB"), (2, "su"), (4, "Iif"), (5, "D"), (8, "lLdT"))
          for kind in kinds}  # fmt: skip
_STRING, _BINARY, _NESTED, _ARRAY = b"SxFA"


def flaw(raw: bytes) -> str:
    """What is wrong with them, for people; empty: nothing."""
    size = len(raw)
    if size < 2 or size > MAX_PROPERTIES_BYTES:
        return f"{size} bytes of properties; they are 2 to {MAX_PROPERTIES_BYTES}"
    flags = raw[0] << 8 | raw[1]
    if flags & 3:
        return "properties with unknown flags"
    pos = 2
    for place, kind in enumerate(_KINDS):
        if not flags & 0x8000 >> place:
            continue
        if kind == _TABLE:
            start = pos + 4
            pos = start + int.from_bytes(raw[pos:start], "big")
            if pos <= size and not _is_table(raw, start, pos, 0):
                return "headers that are no table"
        elif kind == _SHORT:
            pos += 1 + raw[pos] if pos < size else 1
        else:
            pos += 1 if kind == _OCTET else 8
        if pos > size:
            return "properties cut short"
    return "" if pos == size else f"properties with {size - pos} bytes left over"


def _is_table(raw: bytes, pos: int, end: int, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
    while pos < end:
        stop = pos + 1 + raw[pos]
        if stop >= end:
            return False
        try:
            raw[pos + 1 : stop].decode()
        except UnicodeDecodeError:
            return False
        pos = _value_end(raw, stop, end, depth)
        if pos < 0:
            return False
    return True


def _value_end(raw: bytes, pos: int, end: int, depth: int) -> int:
    """Behind the value whose type stands at `pos`; -1: there is none that ends before `end`."""
    kind = raw[pos]
    pos += 1
    size = _SIZES.get(kind, -1)
    if size < 0:
        if kind not in (_STRING, _BINARY, _NESTED, _ARRAY):
            return -1
        start = pos + 4
        stop = start + int.from_bytes(raw[pos:start], "big")
        if start > end or stop > end:
            return -1
        if kind == _NESTED and not _is_table(raw, start, stop, depth + 1):
            return -1
        if kind == _ARRAY and not _is_array(raw, start, stop, depth + 1):
            return -1
        return stop
    return pos + size if pos + size <= end else -1


def _is_array(raw: bytes, pos: int, end: int, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
    while 0 <= pos < end:
        pos = _value_end(raw, pos, end, depth)
    return pos == end
