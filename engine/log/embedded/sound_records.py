"""Proves that records are envelopes of today's schema, most of them without decoding them.

    sound = SoundRecords()
    sound.require(record)            # UndecodableRecord

    | timestamp: 2 bytes | rest of it, actor, event's index, route, properties, flags | size | body |
    | timestamp: 2 bytes | rest of it, actor, event's index, vhost, queue, consumer   | ranges of ids |
                         |<-------------------------- head ------------------------->|

A publish is sound if it has the head of the last sound one, and its size is that of what follows. Its body may be any
bytes. An ack is sound if it has the head of the last sound one, and up to eight ranges follow. The first two bytes of a
timestamp change with every millisecond, and have to say that it goes on behind them. Every other record is decoded,
which is the judge.
"""

import re

from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Acked, Published
from rewindmq.schemas.shapes import long_bytes

_TIME_SIZE = 2
_NEVER = b"\xff" * 11  # no record has this where a timestamp goes on
# One block of ranges, whose longs have at most 63 bits, and the end of the blocks
_RANGES = re.compile(
    rb"(?:\x02(?:[\x80-\xff]{0,8}[\x00-\x7f]){2}"
    rb"|\x04(?:[\x80-\xff]{0,8}[\x00-\x7f]){4}"
    rb"|\x06(?:[\x80-\xff]{0,8}[\x00-\x7f]){6}"
    rb"|\x08(?:[\x80-\xff]{0,8}[\x00-\x7f]){8}"
    rb"|\x0a(?:[\x80-\xff]{0,8}[\x00-\x7f]){10}"
    rb"|\x0c(?:[\x80-\xff]{0,8}[\x00-\x7f]){12}"
    rb"|\x0e(?:[\x80-\xff]{0,8}[\x00-\x7f]){14}"
    rb"|\x10(?:[\x80-\xff]{0,8}[\x00-\x7f]){16}"
    rb")\x00"
)
_EMPTY_HOLDER = 4  # bytes of an ack before its ranges: index, no vhost, no queue, consumer 0


class SoundRecords:
    """What is known of the records so far: the last publish and the last ack that were decoded."""

    def __init__(self) -> None:
        self._decode = Decoder().decode
        self._encode = Encoder().encode
        self._head = self._ack_head = _NEVER
        self._end = self._ack_end = 0  # the positions behind the heads

    def require(self, record: bytes) -> None:
        """Raise UndecodableRecord if this is no envelope of today's schema."""
        if record.startswith(self._head, _TIME_SIZE) and len(record) > self._end + 1:
            end = self._end
            low = record[end]
            if low > 0x7F:
                size, end = low & 0x7F | record[end + 1] << 7, end + 1
                low = record[end]
            else:
                size = low
            # low: the last byte of the size, which goes on in no third byte
            goes_on = record[0] & 0x81 == 0x80 and record[1] > 0x7F
            if goes_on and low < 0x80 and not size & 1 and end + 1 + (size >> 1) == len(record):
                return
        elif (
            record.startswith(self._ack_head, _TIME_SIZE)
            and _goes_on(record)
            and _RANGES.fullmatch(record, self._ack_end) is not None
        ):
            return
        _, _, event = self._decode(record, False)
        if not _goes_on(record):
            return
        if type(event) is Published:
            if event.encryption is None:
                self._learn(record, event.body_size)
        elif type(event) is Acked:
            ranges = self._encode(b"", Acked("", "", 0, event.messages))[_EMPTY_HOLDER:]
            if record.endswith(ranges):
                self._ack_end = len(record) - len(ranges)
                self._ack_head = record[_TIME_SIZE : self._ack_end]

    def _learn(self, record: bytes, body_size: int) -> None:
        size = long_bytes(body_size)
        end = len(record) - body_size - len(size)
        if record.startswith(size, end):  # it may have been written in more bytes
            self._head, self._end = record[_TIME_SIZE:end], end


def _goes_on(record: bytes) -> bool:
    """Whether the timestamp is a positive number that goes on behind its first two bytes."""
    return record[0] & 0x81 == 0x80 and record[1] > 0x7F
