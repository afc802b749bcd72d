"""The time of a broker's life: where the log was at its start, and one second a second from there.

    wall clock  ---- drawn toward it, 0.5 ms a second ---->  log time = start + monotonic time
                ---- a step: told, not obeyed ----------->  (engine/broker/clock_watch.py)

Rules of this file
- Expiries, leases and delays are durations between timestamps of the log. So log time takes its pace from the monotonic
  clock, and the wall clock only says where it began. Sleep of the machine counts as time (CLOCK_BOOTTIME).
- At a start log time is the wall clock's; but if that is behind the end of the log, log time goes on from the end: if
  it waited for the wall clock, no timer would fire until then.
- At a start the wall clock may also be far ahead of the log. That is nearly always true: no broker ran, and what
  expired meanwhile has to go (RabbitMQ does the same). A wrong date looks just like it, so it is told, and it can be
  mended.
- Log time is drawn toward the wall clock by 500 ppm, the rate at which NTP slews a clock. That is more than quartzes
  drift, and makes a TTL of a minute 30 ms longer or shorter at most.
"""

import time
from collections.abc import Callable
from functools import partial

NS = 1_000_000  # a millisecond
SLEW = 2_000  # a two-thousandth of the time that passed
STEP_MS = 1_000  # a difference that is worth telling; quartz and NTP stay far below
TELL_EVERY_NS = 60_000 * NS

WallClock = Callable[[], int]  # milliseconds since 1970
ElapsedClock = Callable[[], int]  # nanoseconds since any moment; never goes back or jumps


def wall_clock_ms() -> int:
    return time.time_ns() // NS


def elapsed_clock() -> ElapsedClock:
    """The system's, which goes on while the machine sleeps where there is one that does."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    return time.monotonic_ns


class LogClock:
    """`now_ms` may repeat a millisecond or go back one while log time is drawn back: partitions see to it that theirs
    does not. `difference_ms`: log time less wall clock, at the last look."""

    def __init__(self, wall_ms: WallClock = wall_clock_ms, elapsed_ns: ElapsedClock | None = None) -> None:
        self.wall_ms = wall_ms
        self.elapsed_ns = elapsed_ns or elapsed_clock()
        self.difference_ms = 0
        self._base_ns = 0  # log time less elapsed time
        self._looked_ns = 0
        self.set(wall_ms())

    @classmethod
    def made_of(cls, wall_ms: WallClock | None, elapsed_ns: ElapsedClock | None) -> "LogClock":
        """Of the system's clocks where none is given. A wall clock alone, as in a simulation, is taken for both."""
        if wall_ms is None:
            return cls(elapsed_ns=elapsed_ns)
        return cls(wall_ms, elapsed_ns or (lambda: wall_ms() * NS))

    def now_ms(self) -> int:
        return (self._base_ns + self.elapsed_ns()) // NS

    def begin(self, log_ms: int) -> int:
        """A life begins; the log ended at `log_ms` (0: it is empty). By how much the wall clock is ahead of that, in
        ms; negative: behind, and log time goes on from where it was."""
        wall_ms = self.wall_ms()
        self.set(max(wall_ms, log_ms))
        return wall_ms - log_ms if log_ms else 0

    def set(self, now_ms: int) -> None:
        """Log time is this from here on."""
        self._looked_ns = self.elapsed_ns()
        self._base_ns = now_ms * NS - self._looked_ns
        self.difference_ms = now_ms - self.wall_ms()

    def look(self) -> int:
        """Compare with the wall clock, and draw log time toward it, as much as may be since the last look."""
        elapsed_ns = self.elapsed_ns()
        most = (elapsed_ns - self._looked_ns) // SLEW
        self._looked_ns = elapsed_ns
        behind_ns = self.wall_ms() * NS - self._base_ns - elapsed_ns
        if abs(behind_ns) >= NS:  # the wall clock is read in whole milliseconds
            self._base_ns += max(-most, min(most, behind_ns))
        self.difference_ms = self.now_ms() - self.wall_ms()
        return self.difference_ms


class Telling:
    """When a difference of clocks is worth telling: it jumped, or is far from what was told last; once a minute."""

    def __init__(self) -> None:
        self.told_ms = 0
        self._before_ms = 0
        self._jumped = False
        self._quiet_until_ns: int | None = None

    def is_due(self, difference_ms: int, elapsed_ns: int) -> bool:
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
        """It is told."""
        self.told_ms = self._before_ms = difference_ms
        self._jumped = False
        self._quiet_until_ns = elapsed_ns + TELL_EVERY_NS
