"""The heap: how much freed memory glibc keeps for the next large body, and when it goes back to the system.

A body of 50 MB is copied some eight times on its way through the broker, most of it in the loop. By default glibc maps
a block of that size anew each time, and the kernel clears every page of it: a copy takes 24 ms then, and 3 ms into
memory that the process has already. So the broker keeps what it frees, where its limit leaves room for that, and gives
it back when its memory has stood still for a while.

By default glibc also gives each thread its own heap, which keeps what is freed in it. A broker on an
embedded log has one heap for all threads: memory that one of them has freed serves the others.
"""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
KEPT_BYTES = 268_435_456  # blocks up to this size are kept, and as much at the end of the heap
LEAST_LIMIT_BYTES = 4 << 30  # with less memory nothing is kept: it would bring the memory alarm near
LENT_BYTES = 1_048_576  # inside `returned_when_freed`, blocks from this size on are not kept
GROWN_BYTES = 33_554_432  # so much more than after the last time may be worth giving back
STILL_BYTES = 4_194_304  # a change up to this size counts as none
STILL_LOOKS = 10
# A full collection looks at every queue (20,000: 0.3 s, in which nothing else happens), and a long listing made enough
# objects for one. So it takes 2,000,000 new objects, and not 7,000 with a quarter of those that are there.
GC_THRESHOLDS = (1_000, 10, 200)

_lock = threading.Lock()  # of the two below
_keeps = False
_lent = 0  # threads inside `returned_when_freed`


def share_one_heap() -> None:
    """Let all threads that begin after this call allocate from one heap."""
    _set(M_ARENA_MAX, 1)


def keep_freed_memory(limit_bytes: int) -> None:
    """Let glibc keep the memory of large blocks, in a process that may use `limit_bytes`."""
    global _keeps
    if limit_bytes >= LEAST_LIMIT_BYTES:
        _keeps = True
        _set(M_MMAP_THRESHOLD, KEPT_BYTES)
        _set(M_TRIM_THRESHOLD, KEPT_BYTES)


def collect_seldom() -> None:
    """Let Python's collector leave alone what recovery made, which stays, and look at the rest more seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def returned_when_freed() -> Iterator[None]:
    """Inside, the process maps each block of LENT_BYTES or more anew, and returns it to the system when it is freed.
    That holds for all threads, so it is for short and rare work. Any thread may use it."""
    global _lent
    with _lock:
        _lent += 1
        if _keeps and _lent == 1:
            _set(M_MMAP_THRESHOLD, LENT_BYTES)
    try:
        yield
    finally:
        with _lock:
            _lent -= 1
            if _keeps and _lent == 0:
                _set(M_MMAP_THRESHOLD, KEPT_BYTES)


def _set(parameter: int, value: int) -> None:
    """Set a parameter of glibc's malloc. Other C libraries have no such call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


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
