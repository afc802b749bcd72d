"""A wall clock that a test sets, beside time that passes."""

from rewindmq.engine.partition.log_clock import NS

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Clocks:
    """A wall clock that can be set, and time that passes whatever it says."""

    def __init__(self) -> None:
        self.wall = START_MS
        self.passed_ms = 5_000_000  # since the machine was switched on

    def wall_ms(self) -> int:
        return self.wall

    def elapsed_ns(self) -> int:
        return self.passed_ms * NS

    def run(self, milliseconds: int, wall: float = 1.0) -> None:
        self.passed_ms += milliseconds
        self.wall += round(milliseconds * wall)
