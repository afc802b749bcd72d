"""Events about time itself: differences between clocks, and corrections of the time in the log.

Both are in queue partitions and in the metadata log. Rules as in `events.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The time in the log and the wall clock differ, or differ by another amount than before.

    `node` noticed it. `noticed`: start, running (its own wall clock; in the metadata log), kafka (Kafka's time of a
    record; in the record's partition). `log_ms`: the time in the log when the wall clock was at `wall_ms`. The fold
    ignores the event."""

    node: str
    noticed: str
    wall_ms: int
    log_ms: int


@dataclass(frozen=True, slots=True)
class ClockSet:
    """From here on the clock of the queues is `ahead_ms` ahead of the time in the log.

    So the time in the log may go back (or forward) without an effect on expiries, leases and delays. `before_ms`: the
    time in the log until then. After an operator's repair the event is in every partition of an embedded log, in the
    metadata log first. If a Kafka's clock went back, the owner of a partition writes it there."""

    ahead_ms: int
    before_ms: int


ClockEvent = ClockStepped | ClockSet
