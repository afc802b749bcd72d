"""Proves that records are envelopes of today's schema, most of them without decoding them.

    sound = SoundRecords()
    sound.require(record)            # UndecodableRecord

    | timestamp: 2 bytes | rest of it, actor, event's index, route, properties, flags | size | body |
                         |<-------------------------- head ------------------------->|

A publish is sound if it has the head of the last sound one, and its size is that of what follows. Its body may be any
bytes. The first two bytes of a timestamp change with every millisecond, and have to say that it goes on behind them.
Every other record is decoded, which is the judge.
"""

from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.shapes import long_bytes

_TIME_SIZE = 2
_NEVER = b"\xff" * 11  # no record has this where a timestamp goes on


class SoundRecords:
    """What is known of the records so far: the last publish that was decoded."""

    def __init__(self) -> None:
        self._decode = Decoder().decode
        self._head = _NEVER
        self._end = 0  # the position behind the head

    def require(self, record: bytes) -> None:
        """Raise UndecodableRecord if this is no envelope of today's schema."""
        end, length = self._end, len(record)
        if record.startswith(self._head, _TIME_SIZE) and length > end + 1 and _goes_on(record):
            low, high = record[end], record[end + 1]
            if low < 0x80:
                size, start = low, end + 1
            else:
                size, start = low & 0x7F | high << 7, end + 2
            if not size & 1 and start + (size >> 1) == length and not (low > 0x7F and high > 0x7F):
                return
        _, _, event = self._decode(record, False)
        if type(event) is Published and event.encryption is None and _goes_on(record):
            self._learn(record, event.body_size)

    def _learn(self, record: bytes, body_size: int) -> None:
        size = long_bytes(body_size)
        end = len(record) - body_size - len(size)
        if record.startswith(size, end):  # it may have been written in more bytes
            self._head, self._end = record[_TIME_SIZE:end], end


def _goes_on(record: bytes) -> bool:
    """Whether the timestamp is a positive number that goes on behind its first two bytes."""
    return record[0] & 0x81 == 0x80 and record[1] > 0x7F
