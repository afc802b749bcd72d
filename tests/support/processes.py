"""Linux's view of other processes: their children and CPU time. A process that ends meanwhile is not an error."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """The processes that a process, by any of its threads, has started, and that run."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def tree_of(pid: int) -> list[int]:
    """A process, those below it, and those below these."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children_of(found[-1])
    return found


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds that a process has used, as user and in the kernel; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0
