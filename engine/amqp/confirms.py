"""Publisher confirms of one channel: outcomes of publishes in, as few basic.ack and basic.nack frames as possible out.

    next_sequence   every publish below has its outcome
    ahead           publishes beyond it that have theirs: they went to another partition, or nowhere, or need not wait
                    for the disk as those before them do

Refused publishes are nacked one by one, before an ack that covers their number.

Frames are made once per write, so a group commit that confirms a thousand publishes is one basic.ack with `multiple`.
"""

import struct
from typing import Final

from rewindmq.engine.amqp.output import ChannelOutput
from rewindmq.engine.partition.counters import Tally

pack_confirm: Final = struct.Struct(">BHIIQBB").pack
ACK: Final = 60 << 16 | 80
NACK: Final = 60 << 16 | 120
LENGTH: Final = 13
FRAME_END: Final = 0xCE


class Confirmations:
    """The confirms of one channel. Implements `rewindmq.engine.partition.partition.Confirms`."""

    def __init__(self, output: ChannelOutput, gathering: "list[Confirmations]", tally: Tally) -> None:
        self.output = output
        self.tally = tally
        self.gathering = gathering  # those of the connection that have something to send
        self.published = 0  # number of the last publish
        self.next_sequence = 1
        self.unsent = 0  # publishes below next_sequence that the next write acks
        self.unsent_last = 0  # the last of them
        self.ahead: dict[int, bool] = {}  # beyond next_sequence -> acked already (or among `refused`)
        self.unsent_ahead: list[int] = []  # those of them that the next write may have to ack
        self.parts_left: dict[int, int] = {}  # publishes to several partitions: how many of these are missing
        self.refused: list[int] = []  # to be nacked with the next write
        self.refused_in_part: set[int] = set()
        self.waiting = False
        self.closed = False

    def expect(self, sequence: int, partitions: int) -> None:
        """Await one `confirm` from each of the publish's partitions."""
        self.parts_left[sequence] = partitions

    def confirm(self, sequence: int, refused: bool) -> None:
        """Publish number `sequence` is confirmed by a partition, or refused by a queue there."""
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
                self.unsent += 1
                self.unsent_last = sequence
            if self.ahead:
                self.catch_up()
        else:
            self.ahead[sequence] = refused
            if not refused:
                self.unsent_ahead.append(sequence)
        if not self.waiting:
            self._gather()

    def confirm_run(self, first: int, count: int) -> None:
        """Publishes with successive numbers are confirmed by a partition, and no queue refused them."""
        if self.parts_left or first != self.next_sequence:
            for sequence in range(first, first + count):
                self.confirm(sequence, False)
            return
        self.unsent_last = first + count - 1
        self.next_sequence = first + count
        self.unsent += count
        if self.ahead:
            self.catch_up()
        self._gather()

    def _gather(self) -> None:
        """Have what has gathered written at the end of the turn."""
        if not self.waiting:
            self.waiting = True
            self.gathering.append(self)
            connection = self.output.connection
            if not connection.scheduled:
                connection.schedule()

    def catch_up(self) -> None:
        """Move `next_sequence` over what is ahead without a gap."""
        following = self.next_sequence
        while following in self.ahead:
            if not self.ahead.pop(following):
                self.unsent += 1
                self.unsent_last = following
            following += 1
        self.next_sequence = following

    def flush(self) -> None:
        """Write basic.ack and basic.nack for what has gathered."""
        self.waiting = False
        if self.closed:
            return
        parts = self.output.parts
        number = self.output.number
        self.tally.refused += len(self.refused)
        for sequence in self.refused:
            parts.append(pack_confirm(1, number, LENGTH, NACK, sequence, 0, FRAME_END))
        self.refused.clear()
        if self.unsent:
            self.tally.confirmed += self.unsent
            multiple = 1 if self.unsent > 1 else 0
            parts.append(pack_confirm(1, number, LENGTH, ACK, self.unsent_last, multiple, FRAME_END))
            self.unsent = 0
        if self.unsent_ahead:
            for sequence in self.unsent_ahead:
                if sequence in self.ahead:  # else those before it have come, and it was acked with them
                    self.ahead[sequence] = True
                    self.tally.confirmed += 1
                    parts.append(pack_confirm(1, number, LENGTH, ACK, sequence, 0, FRAME_END))
            self.unsent_ahead.clear()
