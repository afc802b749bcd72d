"""Flow control on a log that is read back: publishers wait while enough of this node's events are in flight.

    publish, ack, credit -> log ...... in flight, in one line ...... read back -> confirm, delivery

All events that a node appends pass through that line. A publisher that is faster than the log, or that has many
unconfirmed messages, would fill it. Every ack would then wait behind the whole line. Consumers get their prefetch once
a round trip, so they would fall behind although the node had time for them, and the queue would grow.

Rules of this file
- The limit is the number that the log carries in its fastest round trip: a longer line adds waiting, not throughput.
- Precedent for a limit of unconfirmed messages: the 32 of S-136.
"""

from rewindmq.engine.partition.flow_control import Flow
from rewindmq.engine.partition.partition import Partition

LEAST_EVENTS = 128  # in smaller batches each event costs the log more
EVENTS_A_SECOND = 20_000  # about as many as one node carries (docs/cluster/sizing.md)


class RoundTripFlow(Flow):
    """A flow that holds publishers back while many of this node's events are in flight."""

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
