"""Publisher confirms of one channel: settled publishes in, as few basic.ack and basic.nack frames as possible out.

    next_sequence   everything below is settled
    ahead           settled beyond it: publishes that went to another partition, or nowhere, or that need not wait for
                    the disk as those before them do

Refused publishes are nacked one by one, and before an ack that covers their number.

Frames are made once per write, so a group commit that settles a thousand publishes is one basic.ack with `multiple`.
"""

import struct

from rewindmq.engine.amqp.output import ChannelOutput
from rewindmq.engine.runtime.counters import Tally

pack_settle = struct.Struct(">BHIIQBB").pack
ACK = 60 << 16 | 80
NACK = 60 << 16 | 120
LENGTH = 13
FRAME_END = 0xCE


class Confirmations:
    """Implements `rewindmq.engine.runtime.partition.Confirms`."""

    def __init__(self, output: ChannelOutput, gathering: "list[Confirmations]", tally: Tally) -> None:
        self.output = output
        self.tally = tally
        self.gathering = gathering  # the connection's channels that have something to confirm
        self.published = 0  # number of the last publish
        self.next_sequence = 1
        self.untold = 0  # how many below next_sequence are to be acked with the next write, and the last of them
        self.untold_last = 0
        self.ahead: dict[int, bool] = {}  # settled beyond next_sequence -> told already (or among `refused`)
        self.untold_ahead: list[int] = []  # of these, what may have to be told with the next write
        self.parts_left: dict[int, int] = {}  # publishes to several partitions: how many are not durable yet
        self.refused: list[int] = []  # to be nacked with the next write
        self.refused_in_part: set[int] = set()
        self.waiting = False
        self.closed = False

    def expect(self, sequence: int, partitions: int) -> None:
        """The publish goes to several partitions: `confirm` will be called for each."""
        self.parts_left[sequence] = partitions

    def confirm(self, sequence: int, refused: bool) -> None:
        if self.parts_left:
            left = self.parts_left.get(sequence, 0) - 1
            if left > 0:
                self.parts_left[sequence] = left
                if refused:
                    self.refused_in_part.add(sequence)
                return
            if left == 0:
                del self.parts_left[sequence]
                if sequence in self.refused_in_part:
                    self.refused_in_part.remove(sequence)
                    refused = True
        if refused:
            self.refused.append(sequence)
        if sequence == self.next_sequence:
            self.next_sequence = sequence + 1
            if not refused:
                self.untold += 1
                self.untold_last = sequence
            if self.ahead:
                self.catch_up()
        else:
            self.ahead[sequence] = refused
            if not refused:
                self.untold_ahead.append(sequence)
        if not self.waiting:
            self.waiting = True
            self.gathering.append(self)
            connection = self.output.connection
            if not connection.scheduled:
                connection.schedule()

    def catch_up(self) -> None:
        following = self.next_sequence
        while following in self.ahead:
            if not self.ahead.pop(following):
                self.untold += 1
                self.untold_last = following
            following += 1
        self.next_sequence = following

    def flush(self) -> None:
        """Write the frames for what gathered."""
        self.waiting = False
        if self.closed:
            return
        parts = self.output.parts
        number = self.output.number
        self.tally.refused += len(self.refused)
        for sequence in self.refused:
            parts.append(pack_settle(1, number, LENGTH, NACK, sequence, 0, FRAME_END))
        self.refused.clear()
        if self.untold:
            self.tally.confirmed += self.untold
            multiple = 1 if self.untold > 1 else 0
            parts.append(pack_settle(1, number, LENGTH, ACK, self.untold_last, multiple, FRAME_END))
            self.untold = 0
        if self.untold_ahead:
            for sequence in self.untold_ahead:
                if sequence in self.ahead:  # else those before it have come, and it was told with them
                    self.ahead[sequence] = True
                    self.tally.confirmed += 1
                    parts.append(pack_settle(1, number, LENGTH, ACK, sequence, 0, FRAME_END))
            self.untold_ahead.clear()
