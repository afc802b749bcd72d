"""Compares the clocks once a second, and reports a difference: in the log file, `status`, a metric and an event.

    embedded log   log time against this machine's wall clock     ClockStepped in the metadata log
    Kafka          the time that Kafka gave to records against it   ClockStepped in the partition, by its owner

Only `repair`, which an administrator calls, changes the time in the log: it sets it to the wall clock. The queues'
clock goes on as it was, so a message expires neither earlier nor later.
"""

import asyncio
import logging
from collections.abc import Sequence

from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.errors import NotImplementedByBroker
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.log_clock import STEP_MS, LogClock, Telling
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.values import BROKER, Actor

LOOK_SECONDS = 1.0
# How far the wall clock may be ahead of the log at a start before it is told: the least by which time zones differ, so
# that a hardware clock in local time shows.
DOWNTIME_TOLD_MS = 1_800_000
logger = logging.getLogger(__name__)


class ClockWatch:
    """`node`: this node's name."""

    def __init__(
        self,
        node: str,
        clock: LogClock,
        metadata: Metadata,
        partitions: Sequence[Partition],
        keeper: Keeper,
        turns: Turns,
    ) -> None:
        self.clock = clock
        self._node = node
        self._metadata = metadata
        self._keeper = keeper
        self._turns = turns
        self._own = Telling()
        self._of_kafka = {partition: Telling() for partition in (partitions if not keeper.gives_time else ())}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, gap_ms: int = 0) -> None:
        """Begin to look. `gap_ms`: how far the wall clock was ahead of the end of the log (negative: behind)."""
        wall_ms = self.clock.wall_ms()
        if gap_ms >= DOWNTIME_TOLD_MS:
            logger.warning(
                "the wall clock (%s) is %s ahead of the end of the log: this is taken for time in which no broker ran,"
                " and what is due by now expires; if the date is wrong, set it and see `rewindmq repair_clock`",
                format_time(wall_ms),
                length(gap_ms),
            )
            self._log("start", wall_ms, wall_ms - gap_ms)
        elif gap_ms <= -STEP_MS:
            logger.warning(
                "the wall clock (%s) is %s behind the end of the log: log time goes on from there, one second a second,"
                " and timers fire; if the date is right now, see `rewindmq repair_clock`",
                format_time(wall_ms),
                length(gap_ms),
            )
            self._log("start", wall_ms, wall_ms - gap_ms)
            self._own.note(self.clock.difference_ms, self.clock.elapsed_ns())
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def difference_ms(self, partition: PartitionReading) -> int:
        """The time in the partition less this machine's wall clock, as last seen."""
        return partition.log_difference_ms + self.clock.difference_ms

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        self._again()
        difference_ms, elapsed_ns = self.clock.look(), self.clock.elapsed_ns()
        if self._own.is_due(difference_ms, elapsed_ns):
            self._tell_of_own(difference_ms)
        for partition, telling in self._of_kafka.items():
            partition.probe_clock()
            if telling.is_due(self.difference_ms(partition), elapsed_ns):
                self._tell_of_kafka(partition, self.difference_ms(partition))
        self._turns.end()

    def _tell_of_own(self, difference_ms: int) -> None:
        wall_ms = self.clock.wall_ms()
        if abs(difference_ms) < STEP_MS:
            logger.info("the wall clock (%s) and the broker's time agree again", format_time(wall_ms))
        else:
            side = "behind" if difference_ms > 0 else "ahead of"
            logger.warning(
                "the wall clock (%s) is %s %s the broker's time, which goes on at one second a second and is drawn"
                " toward it by 0.5 ms a second%s",
                format_time(wall_ms),
                length(difference_ms),
                side,
                "; `rewindmq repair_clock` sets the log's time to it" if self._keeper.gives_time else "",
            )
        self._log("running", wall_ms, wall_ms + difference_ms)

    def _log(self, noticed: str, wall_ms: int, log_ms: int) -> None:
        """On Kafka this machine's clock is no part of history."""
        if self._keeper.gives_time:
            self._metadata.append(BROKER, ClockStepped(self._node, noticed, wall_ms, log_ms))

    def _tell_of_kafka(self, partition: Partition, difference_ms: int) -> None:
        wall_ms = self.clock.wall_ms()
        if abs(difference_ms) < STEP_MS:
            logger.info("%s: Kafka's time and this machine's wall clock agree again", partition.name)
        else:
            logger.warning(
                "%s: the time that Kafka gives to records is %s %s this machine's wall clock (%s): one of the two is"
                " wrong",
                partition.name,
                length(difference_ms),
                "ahead of" if difference_ms > 0 else "behind",
                format_time(wall_ms),
            )
        if partition.owned:
            stepped = ClockStepped(self._node, "kafka", wall_ms, wall_ms + difference_ms)
            partition.append(BROKER, stepped)

    def repair(self, actor: Actor) -> tuple[int, int]:
        """Set the time in the log to the wall clock: log time before and after. The queues' clock goes on.
        NotImplementedByBroker on Kafka. LogError: the disk does not take it, and nothing is changed."""
        clock = self.clock
        if not self._keeper.gives_time:
            raise NotImplementedByBroker(
                "the time in the log is Kafka's: set the clocks of the Kafka brokers right, the nodes go on from there"
            )
        before_ms, wall_ms = clock.now_ms(), clock.wall_ms()
        event = ClockSet(self._metadata.topology.ahead_ms + before_ms - wall_ms, before_ms)
        self._keeper.set_clock(min(before_ms, wall_ms), actor, event)
        clock.set(wall_ms)
        self._turns.clock_was_set(wall_ms - before_ms)
        self._own.note(0, clock.elapsed_ns())
        logger.warning(
            "user %r set the time in the log from %s to %s; queues' timers go on as they were",
            actor.user,
            format_time(before_ms),
            format_time(wall_ms),
        )
        self._turns.end()
        return before_ms, wall_ms


def length(milliseconds: int) -> str:
    """A difference in words, to the two largest units: 2 d 3 h."""
    left = abs(milliseconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)):
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts) or "0 ms"
