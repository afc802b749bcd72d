"""The waits of messages in a partition, by the log's times: from publish to delivery, and from delivery to ack.

They are samples, so that no message costs anything of its own:

    publish to delivery   the first message of each run of deliveries that a turn hands out, every 10 ms at most
    delivery to ack       one message of each consumer at a time, of such a turn, as TCP measures its round trip

A message's id is the offset of its publish, so `LogTimes` says when that was."""

from bisect import bisect_left, bisect_right
from typing import Final

from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.replay import decoder_for

SAMPLED_EACH_MS: Final = 10  # so that a busy partition spends nothing on most messages
BOUNDS_MS: Final = (1, 5, 25, 100, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
PRECISION: Final = 16  # the time of an old record is right to this part of its age
MOST_TIMES: Final = 2_048  # until old ones are thinned out


class Histogram:
    """Waits by their length. `counts`: up to each bound and above the previous one; the last one: above all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, wait_ms: int) -> None:
        """Count a message that waited for so long."""
        self.counts[bisect_left(BOUNDS_MS, wait_ms)] += 1
        self.sum_ms += wait_ms


class LogTimes:
    """The times of turns on the queues' clock: records below `offsets[i]` are of `times[i]` or earlier."""

    def __init__(self, offset: int, time_ms: int) -> None:
        self.offsets, self.times = [offset, offset], [time_ms, time_ms]

    def note(self, offset: int, time_ms: int) -> None:
        """Take note of the end of a turn: the next offset and the time."""
        offsets, times = self.offsets, self.times
        if time_ms <= times[-1]:
            offsets[-1] = offset
            return
        offsets.append(offset)
        times.append(time_ms)
        if len(times) >= MOST_TIMES:  # drop each one if the gap between its neighbours is short for their age
            for index in range(len(times) - 2, 0, -1):
                if (times[index + 1] - times[index - 1]) * PRECISION <= time_ms - times[index + 1]:
                    del offsets[index], times[index]

    def at(self, offset: int) -> int | None:
        """Return the time of the record at `offset`; None if it is older than all times."""
        index = bisect_right(self.offsets, offset)
        return self.times[min(index, len(self.times) - 1)] if index else None


def time_of(log: ReadableLog, offset: int) -> int | None:
    """Return the log's time of the event at this offset, or of the first one that is left above it; None at the end."""
    for block in log.read(offset, offset + 1):
        index = max(0, offset - block.first_offset)
        if block.timestamps_ms is not None:
            return block.timestamps_ms[index]
        return decoder_for(log).timestamp_ms(block.records[index])
    return None
