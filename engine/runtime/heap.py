"""The heap: how much freed memory glibc keeps for the next large body, and when it goes back to the system.

A body of 50 MB is copied some eight times on its way through the broker, most of it in the loop. By default glibc maps
a block of that size anew each time, and the kernel clears every page of it: a copy takes 24 ms then, and 3 ms into
memory that the process has already. So the broker keeps what it frees, where its limit leaves room for that, and gives
it back when its memory has stood still for a while.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 268_435_456  # blocks up to this size are kept, and as much at the end of the heap
LEAST_LIMIT_BYTES = 4 << 30  # with less memory nothing is kept: it would bring the memory alarm near
GROWN_BYTES = 67_108_864  # so much more than after the last time may be worth giving back
STILL_BYTES = 4_194_304  # a change up to this size counts as none
STILL_LOOKS = 10


def keep_freed_memory(limit_bytes: int) -> None:
    """Let glibc keep the memory of large blocks, in a process that may use `limit_bytes`. Other C libraries have no
    such call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and limit_bytes >= LEAST_LIMIT_BYTES:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_memory_back() -> None:
    """Ask glibc to return freed memory to the system. Other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Stillness:
    """Says when freed memory is to be given back: the process has grown, and its size has stood still for STILL_LOOKS
    looks. `look` is called at equal distances."""

    def __init__(self) -> None:
        self._least = 0  # the size after the last time, or less; 0: not known
        self._last = 0
        self._still = 0  # looks

    def look(self, resident_bytes: int) -> bool:
        """Take a measurement. Returns whether freed memory is to be given back now."""
        self._least = min(self._least or resident_bytes, resident_bytes)
        self._still = self._still + 1 if abs(resident_bytes - self._last) <= STILL_BYTES else 0
        self._last = resident_bytes
        if self._still < STILL_LOOKS or resident_bytes < self._least + GROWN_BYTES:
            return False
        self._least = 0  # what the process has at the next look is in use
        self._still = 0
        return True
