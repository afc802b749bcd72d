"""Flow control on a log that is read back: publishers wait while enough of this node's events are on their way.

    publish, ack, credit -> log ...... under way, in one line ...... read back -> confirm, delivery

All events that a node appends go through that line. A publisher that is faster than the log, or that has many
unconfirmed messages, would fill it. Every ack would then wait behind the whole line. Consumers get their prefetch once
a round trip, so they would fall behind although the node had time for them, and the queue would grow.

Rules of this file
- The limit is what the log carries in its fastest round trip: a longer line adds waiting, but no throughput.
- Precedent for a limit of unconfirmed messages: the 32 of S-136.
"""

import shutil

from rewindmq.engine.log.served.client import ServedLog
from rewindmq.engine.log.shared_contract import SharedLog
from rewindmq.engine.runtime.flow_control import LARGE_BYTES, Flow
from rewindmq.engine.runtime.partition import Partition

LEAST_EVENTS = 128  # in smaller batches each event costs the log more
# On the log of this machine, whose heartbeats do not wait for the disk: they say nothing of an event's round trip.
SERVED_EVENTS = 1_024
SERVED_BYTES = 8_388_608  # also of large publishes that may be on their way together; or a single larger one
EVENTS_A_SECOND = 20_000  # about as many as one node carries (docs/cluster.md)


class RoundTripFlow(Flow):
    """Holds publishers back while many of this node's events are on their way."""

    def __init__(self, partitions: list[Partition]) -> None:
        super().__init__()
        self._partitions = partitions
        self._fastest_seconds = 0.0  # 0: not known yet

    def learn(self, round_trip_seconds: float) -> None:
        """Note the round trip of an event, in seconds."""
        if round_trip_seconds < self._fastest_seconds or not self._fastest_seconds:
            self._fastest_seconds = round_trip_seconds

    @property
    def full(self) -> bool:
        return self._under_way >= max(LEAST_EVENTS, EVENTS_A_SECOND * self._fastest_seconds)

    @property
    def _under_way(self) -> int:
        return sum(partition.append_position - partition.durable_position for partition in self._partitions)


class ServedFlow(RoundTripFlow):
    """The same of a worker. What is on its way is in this process until the log's process has read it."""

    def __init__(self, partitions: list[Partition], log: ServedLog) -> None:
        super().__init__(partitions)
        self._log = log

    @property
    def full(self) -> bool:
        return self._under_way >= SERVED_EVENTS or self._log.bytes_under_way >= SERVED_BYTES

    def has_room(self, size: int) -> bool:
        return size < LARGE_BYTES or shutil.disk_usage(self._log.data).free > size + self._log.bytes_under_way

    def has_turn(self, size: int) -> bool:
        under_way = self._log.bytes_under_way
        return not under_way or under_way + size <= SERVED_BYTES


def flow_for(partitions: list[Partition], log: SharedLog) -> RoundTripFlow:
    """The flow control that this log needs."""
    return ServedFlow(partitions, log) if isinstance(log, ServedLog) else RoundTripFlow(partitions)
