"""Events of history about the time itself: what clocks said, and what the time in the log was set to.

Both stand in queue partitions and in the metadata log. Rules as in `events.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The time in the log and the wall clock differ, or differ by another amount than before. `node` saw it. `noticed`:
    start, running (its own wall clock; in the metadata log), kafka (the time that Kafka gave to a record; in the
    record's partition). `log_ms`: the time in the log at the moment when the wall clock said `wall_ms`. The fold
    ignores it."""

    node: str
    noticed: str
    wall_ms: int
    log_ms: int


@dataclass(frozen=True, slots=True)
class ClockSet:
    """From here on the clock of the queues is `ahead_ms` ahead of the time in the log. So the time in the log may go
    back (or forward), and expiries, leases and delays run on as if it had not. `before_ms`: the time in the log until
    then. In every partition of an embedded log after an operator's repair, the metadata log first; in one partition of
    a Kafka whose clock went back, by the partition's owner."""

    ahead_ms: int
    before_ms: int


ClockEvent = ClockStepped | ClockSet
