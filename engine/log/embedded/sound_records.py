"""Proves that bare records are envelopes of today's schema, in most cases without decoding them.

    sound = SoundRecords()
    sound.first_unsound(bare)     # None, or the index of a record and its fault

    | timestamp: 2 bytes | rest of it, actor, event's index, route, properties, flags | size | body |
    | timestamp: 2 bytes | rest of it, actor, event's index, vhost, queue, consumer   | ranges of ids |
                         |<-------------------------- head ------------------------->|

A publish is sound if it has the head of the last sound one, and its size is that of the remaining bytes. Its body may
be any bytes. An ack is sound if it has the head of the last sound one, followed by up to eight ranges. The first two
bytes of a timestamp change with every millisecond, and must mean that it continues after them. Every other record is
judged by decoding it.
"""

import re
from collections.abc import Iterable

from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Acked, Published
from rewindmq.schemas.shapes import UndecodableRecord, long_bytes
from rewindmq.schemas.single_object import HEADER

_TIME_SIZE = 2
_NEVER = b"\xff" * 11  # no record has this where a timestamp continues
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
    """The last decoded publish and ack, for comparison with the next records."""

    def __init__(self) -> None:
        self._decode = Decoder().decode
        self._encode = Encoder().encode
        self._head = self._ack_head = _NEVER
        self._end = self._ack_end = 0  # the positions after the heads

    def first_unsound(self, bare: Iterable[bytes]) -> tuple[int, str] | None:
        """Return index and fault of the first bare record that is not an envelope of today's schema."""
        head, end = self._head, self._end
        latest: bytes | None = None  # the head of the previous record, with its time
        for at, record in enumerate(bare):
            alike = latest is not None and record.startswith(latest)
            if not alike and record.startswith(head, _TIME_SIZE) and _goes_on(record):
                alike, latest = True, record[:end]
            if alike:
                left = len(record) - end  # the body, and its size in one byte or in two
                if left <= 64:
                    if left > 0 and record[end] == 2 * left - 2:
                        continue
                elif left < 1 << 13 and record[end] == 2 * left - 4 & 0x7F | 0x80 and record[end + 1] == left - 2 >> 6:
                    continue
            elif (
                record.startswith(self._ack_head, _TIME_SIZE)
                and _goes_on(record)
                and _RANGES.fullmatch(record, self._ack_end) is not None
            ):
                continue
            try:
                self._judge(record)
            except UndecodableRecord as error:
                return at, str(error)
            head, end, latest = self._head, self._end, None
        return None

    def _judge(self, record: bytes) -> None:
        """Decode a bare record, and compare the next ones with it. Raises UndecodableRecord."""
        _, _, event = self._decode(HEADER + record, False)
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
        if record.startswith(size, end):  # the size may have been written in more bytes
            self._head, self._end = record[_TIME_SIZE:end], end


def _goes_on(record: bytes) -> bool:
    """Return True if the timestamp is a positive number of more than two bytes."""
    return record[0] & 0x81 == 0x80 and record[1] > 0x7F
