"""The log time of a broker: it begins at the end of the log or at the wall clock, and runs with the monotonic clock.

    wall clock  ---- drawn toward it, 0.5 ms a second ---->  log time = start + monotonic time
                ---- a step: logged, not obeyed --------->  (engine/broker/clock_watch.py)

Rules of this file
- Expiries, leases and delays are durations between timestamps of the log. So log time takes its pace from the monotonic
  clock, and the wall clock only says where it begins. Sleep of the machine counts as time (CLOCK_BOOTTIME).
- At a start log time is the wall clock's. But if the wall clock is behind the end of the log, log time goes on from the
  end: if it waited for the wall clock, no timer would fire until then.
- At a start the wall clock may also be far ahead of the log. That is nearly always right: no broker ran, and the
  messages that expired meanwhile have to go (RabbitMQ does the same). A wrong date looks the same, so the broker logs
  it, and an operator can correct it.
- Log time moves toward the wall clock by 500 ppm, the rate at which NTP slews a clock. That is more than the drift of
  quartzes, and it changes a TTL of a minute by at most 30 ms.
"""

import time
from collections.abc import Callable
from typing import Final

from rewindmq.projections import system_calls

NS: Final = 1_000_000  # a millisecond
SLEW: Final = 2_000  # log time moves by at most a two-thousandth of the elapsed time
STEP_MS: Final = 1_000  # the broker logs a difference from here on; quartz and NTP stay far below
TELL_EVERY_NS: Final = 60_000 * NS

WallClock = Callable[[], int]  # milliseconds since 1970
ElapsedClock = Callable[[], int]  # nanoseconds since any moment; never goes back or jumps


def wall_clock_ms() -> int:
    """Return the system's wall clock, in milliseconds since 1970."""
    return time.time_ns() // NS


class LogClock:
    """The log time of one broker.

    `now_ms` may repeat a millisecond or go back by one while log time moves back. Partitions keep their own time from
    going back. `difference_ms`: log time minus wall clock, at the last look."""

    def __init__(self, wall_ms: WallClock = wall_clock_ms, elapsed_ns: ElapsedClock | None = None) -> None:
        self.wall_ms = wall_ms
        self.elapsed_ns = elapsed_ns or system_calls.elapsed_clock()
        self.difference_ms = 0
        self._base_ns = 0  # log time minus elapsed time
        self._looked_ns = 0
        self.set(wall_ms())

    @classmethod
    def made_of(cls, wall_ms: WallClock | None, elapsed_ns: ElapsedClock | None) -> "LogClock":
        """Make a clock from these clocks, or from the system's where one is None.

        A wall clock alone, as in a simulation, serves as both."""
        if wall_ms is None:
            return cls(elapsed_ns=elapsed_ns)
        return cls(wall_ms, elapsed_ns or (lambda: wall_ms() * NS))

    def now_ms(self) -> int:
        """Return the log time."""
        return (self._base_ns + self.elapsed_ns()) // NS

    def begin(self, log_ms: int) -> int:
        """Begin a life after a log that ended at `log_ms` (0: it is empty).

        Return how far the wall clock is ahead of `log_ms`, in ms. If negative, log time goes on from `log_ms`."""
        wall_ms = self.wall_ms()
        self.set(max(wall_ms, log_ms))
        return wall_ms - log_ms if log_ms else 0

    def set(self, now_ms: int) -> None:
        """Set log time to `now_ms`."""
        self._looked_ns = self.elapsed_ns()
        self._base_ns = now_ms * NS - self._looked_ns
        self.difference_ms = now_ms - self.wall_ms()

    def look(self) -> int:
        """Move log time toward the wall clock, by as much as the time since the last look allows; return the
        difference."""
        elapsed_ns = self.elapsed_ns()
        most = (elapsed_ns - self._looked_ns) // SLEW
        self._looked_ns = elapsed_ns
        behind_ns = self.wall_ms() * NS - self._base_ns - elapsed_ns
        if abs(behind_ns) >= NS:  # the wall clock is read in whole milliseconds
            self._base_ns += max(-most, min(most, behind_ns))
        self.difference_ms = self.now_ms() - self.wall_ms()
        return self.difference_ms


class Telling:
    """Decides when to log a difference of the clocks.

    That is when it jumped, or is far from the last logged one; at most once a minute."""

    def __init__(self) -> None:
        self.told_ms = 0
        self._before_ms = 0
        self._jumped = False
        self._quiet_until_ns: int | None = None

    def is_due(self, difference_ms: int, elapsed_ns: int) -> bool:
        """Say whether to log this difference now."""
        self._jumped = self._jumped or abs(difference_ms - self._before_ms) >= STEP_MS
        self._before_ms = difference_ms
        news = abs(difference_ms - self.told_ms)
        if self._quiet_until_ns is not None and elapsed_ns < self._quiet_until_ns:
            return False
        if news < STEP_MS or not (self._jumped or 2 * news >= abs(self.told_ms)):
            self._jumped = False
            return False
        self.note(difference_ms, elapsed_ns)
        return True

    def note(self, difference_ms: int, elapsed_ns: int) -> None:
        """Note that the difference is logged."""
        self.told_ms = self._before_ms = difference_ms
        self._jumped = False
        self._quiet_until_ns = elapsed_ns + TELL_EVERY_NS
