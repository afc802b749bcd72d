"""Tells a process that works from one that hangs: a stopped one, or one that waits for a disk that does not answer.

    silence = Silence(process.pid)
    every second:  silence.look() >= SILENT_LOOKS     it has used no processor time at all for so many looks

A process that answers a long question uses some, however slow it is, and so does one that waits with a timeout. Looks
are counted, and not seconds: nothing is held against a process for the time in which the broker itself was stopped.
"""

import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final

LOOK_SECONDS: Final = 1.0
SILENT_LOOKS = 20


class Silence:
    """Counts the looks in which a process used no processor time. The end of its pipe shows that it has ended."""

    def __init__(self, pid: int | None) -> None:
        self._clock = None if pid is None else ~pid << 3 | 2  # as clock_getcpuclockid(3) makes it
        self._used = self._spent()
        self._looks = 0

    def look(self) -> int:
        """Return the number of looks, this one included, since it last used some."""
        used = self._spent()
        self._looks = self._looks + 1 if used == self._used >= 0 else 0
        self._used = used
        return self._looks

    def _spent(self) -> int:
        with suppress(OSError):  # it has ended, or this kernel does not say
            if self._clock is not None:
                return time.clock_gettime_ns(self._clock)
        return -1


class Hung(Exception):
    """A process shows no life. The text says for how long, and what was done."""


def received(connection: Connection, process: SpawnProcess, most_looks: int = SILENT_LOOKS) -> Any:
    """Return what a process sends next. A thread waits here. It must use some processor time now and then.

    Raises Hung: it showed no life, and was killed; EOFError, OSError: it ended."""
    silence = Silence(process.pid)
    while not connection.poll(LOOK_SECONDS):
        if silence.look() >= most_looks:
            process.kill()
            seconds = most_looks * LOOK_SECONDS
            raise Hung(f"its process (pid {process.pid}) showed no life for {seconds:.0f} s, and was killed")
    return connection.recv()
