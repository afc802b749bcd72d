"""Flow control on a log that is read back: publishers wait while enough of this node is on its way.

    publish, ack, credit -> log ...... under way, in one line ...... read back -> confirm, delivery

All that a node appends goes through that line. A publisher that is faster than the log, or may have many messages
unconfirmed, would fill it, and every ack would have to go through all that is before it: consumers get their prefetch
once a round trip, so they would fall behind though the node had time for them, and the queue would grow.

Rules of this file
- Enough is what the log can carry in its fastest round trip: a longer line makes waiting, and no throughput.
- Whoever publishes waits, and is not read from (frames.py looks at every `LOOK_BYTES` of a read). Who only consumes
  never waits: acks make room. Precedent: RabbitMQ's credit flow, and the 32 unconfirmed messages of S-136.
- First come, first served.
"""

from collections import deque
from collections.abc import Callable

from rewindmq.engine.runtime.partition import Partition

LEAST_EVENTS = 128  # in batches of fewer the log costs more for each
EVENTS_A_SECOND = 20_000  # about what one node carries (docs/cluster.md)


class Flow:
    def __init__(self, partitions: list[Partition]) -> None:
        self._partitions = partitions
        self._waiting: deque[Callable[[], None]] = deque()
        self._fastest_seconds = 0.0  # 0: not known yet

    def learn(self, round_trip_seconds: float) -> None:
        """So long an event was under way."""
        if round_trip_seconds < self._fastest_seconds or not self._fastest_seconds:
            self._fastest_seconds = round_trip_seconds

    @property
    def full(self) -> bool:
        under_way = sum(partition.appended - partition.settled for partition in self._partitions)
        return under_way >= max(LEAST_EVENTS, EVENTS_A_SECOND * self._fastest_seconds)

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called once, when there is room again."""
        self._waiting.append(go_on)

    def landed(self) -> None:
        """More has come back."""
        for _ in range(len(self._waiting)):  # who publishes too much once more waits at the end
            if self.full:
                return
            self._waiting.popleft()()
