"""Flow control on a log that is read back: publishers wait while enough of this node is on its way.

    publish, ack, credit -> log ...... under way, in one line ...... read back -> confirm, delivery

All that a node appends goes through that line. A publisher that is faster than the log, or may have many messages
unconfirmed, would fill it, and every ack would have to go through all that is before it: consumers get their prefetch
once a round trip, so they would fall behind though the node had time for them, and the queue would grow.

Rules of this file
- Enough is what the log can carry in its fastest round trip: a longer line makes waiting, and no throughput.
- Precedent for a limit of unconfirmed messages: the 32 of S-136.
"""

from rewindmq.engine.runtime.flow_control import Flow
from rewindmq.engine.runtime.partition import Partition

LEAST_EVENTS = 128  # in batches of fewer the log costs more for each
EVENTS_A_SECOND = 20_000  # about what one node carries (docs/cluster.md)


class RoundTripFlow(Flow):
    def __init__(self, partitions: list[Partition]) -> None:
        super().__init__()
        self._partitions = partitions
        self._fastest_seconds = 0.0  # 0: not known yet

    def learn(self, round_trip_seconds: float) -> None:
        """So long an event was under way."""
        if round_trip_seconds < self._fastest_seconds or not self._fastest_seconds:
            self._fastest_seconds = round_trip_seconds

    @property
    def full(self) -> bool:
        under_way = sum(partition.append_position - partition.durable_position for partition in self._partitions)
        return under_way >= max(LEAST_EVENTS, EVENTS_A_SECOND * self._fastest_seconds)
