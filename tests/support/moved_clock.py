"""A broker whose clocks are ahead by what a file says, and else as `python -m rewindmq.engine` starts it.

The file `moved` in the directory beside the data has two numbers: milliseconds by which the wall clock is ahead, and by
which the monotonic clock is. The broker looks for days that expire five times a second.
"""

import sys
import time
from functools import partial
from pathlib import Path

from rewindmq.engine import process
from rewindmq.engine.cli.main import main
from rewindmq.engine.erasure import day_expiry
from tests.support.running import RunningBroker

DAY_MS = 86_400_000


class Moved:
    """The clocks of the system, and what the file adds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.wall_more = self.elapsed_more = 0
        self.looked = 0.0

    def look(self) -> None:
        if time.monotonic() - self.looked > 0.05:
            self.looked = time.monotonic()
            self.wall_more, self.elapsed_more = map(int, self.file.read_text().split())

    def wall_ms(self) -> int:
        self.look()
        return time.time_ns() // 1_000_000 + self.wall_more

    def elapsed_ns(self) -> int:
        self.look()
        return time.monotonic_ns() + self.elapsed_more * 1_000_000


class MovedBroker(RunningBroker):
    """A broker in a process of its own, whose clocks the test moves."""

    program = ("-m", "tests.support.moved_clock")

    def __init__(self, data: Path, *options: str) -> None:
        self.file = data.parent / "moved"
        if not self.file.exists():
            self.file.write_text("0 0")
        super().__init__(data, *options)

    def move(self, wall_ms: int, elapsed_ms: int) -> None:
        """Move both clocks ahead."""
        before = map(int, self.file.read_text().split())
        wall, elapsed = (old + more for old, more in zip(before, (wall_ms, elapsed_ms), strict=True))
        beside = self.file.with_name("moving")
        beside.write_text(f"{wall} {elapsed}")
        beside.rename(self.file)

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.move(milliseconds, milliseconds)


if __name__ == "__main__":
    given = sys.argv[sys.argv.index("--data") + 1]
    moved = Moved(Path(given).parent / "moved")
    process.open_broker = partial(process.open_broker, wall_ms=moved.wall_ms, elapsed_ns=moved.elapsed_ns)
    process.open_node = partial(process.open_node, wall_ms=moved.wall_ms, elapsed_ns=moved.elapsed_ns)
    day_expiry.LOOK_SECONDS = 0.2
    main(["start", *sys.argv[1:]])
