"""Calls of the operating system that Linux and macOS offer differently: durable writes, disk space, clocks, limits.

    sync, sync_data, sync_directory   when they return, a power failure no longer loses the bytes
    allocate                          blocks that a file has before it needs them
    elapsed_clock, processor_clock    time that goes on while the machine sleeps; a thread's processor time
    take_descriptors, open_descriptors, most_resident_bytes

No other file calls fsync, fdatasync or posix_fallocate (tests/tidy/test_system_calls.py). Functions are chosen when
this module is imported, so on Linux `sync_data` is os.fdatasync itself. Everything for macOS is tested with doubles
only (docs/development/builds.md).
"""

import errno
import fcntl
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

# macOS: <sys/syslimits.h>, which setrlimit(2) wants instead of an infinite limit of open files.
OPEN_MAX = 10_240
ZEROS = bytes(1024 * 1024)
# fcntl(2) of a file system without F_FULLFSYNC, such as a share of SMB. Any other error says that bytes may be lost.
NOT_OFFERED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
DRIVE_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes: getrusage(2) counts kB on Linux


def _sync_drive(descriptor: int) -> None:
    """Write a file through the drive's cache.

    Apple's fsync(2): fsync moves the data to the drive, which may keep it in its cache for a while and write it in
    another order. F_FULLFSYNC makes the drive empty its cache."""
    assert DRIVE_SYNC is not None
    try:
        fcntl.fcntl(descriptor, DRIVE_SYNC)
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
        os.fsync(descriptor)


# Make a file durable, with its size and times. Raises OSError.
sync: Callable[[int], None] = os.fsync if DRIVE_SYNC is None else _sync_drive
# Make a file's bytes and its size durable. Raises OSError.
sync_data: Callable[[int], None] = getattr(os, "fdatasync", sync) if DRIVE_SYNC is None else sync


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_zeros(descriptor: int, offset: int, length: int) -> None:
    """Do as posix_fallocate(3) for a file without holes: write zeros from its end on."""
    at = max(offset, os.fstat(descriptor).st_size)
    while at < offset + length:
        at += os.pwrite(descriptor, memoryview(ZEROS)[: offset + length - at], at)


# Give a file blocks from an offset on, for a length. Its bytes stay as they are. OSError: the disk is full.
allocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", write_zeros)


def elapsed_clock() -> Callable[[], int]:
    """Return a clock in nanoseconds that never goes back or jumps, and goes on while the machine sleeps.

    Linux's CLOCK_MONOTONIC stops then, and CLOCK_BOOTTIME does not (clock_gettime(2)). On macOS that is
    CLOCK_MONOTONIC_RAW, which is not adjusted either (clock_gettime(3)); Python's monotonic clock stops there."""
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None) if sys.platform == "darwin" else None
    clock = getattr(time, "CLOCK_BOOTTIME", raw)
    return time.monotonic_ns if clock is None else partial(time.clock_gettime_ns, clock)


def processor_clock(thread: int) -> Callable[[], float]:
    """Return the clock of the processor time that a thread of this process has used, in seconds.

    Without pthread_getcpuclockid(3), as on macOS, the time of all threads."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


def take_descriptors() -> int:
    """Raise this process's limit of open files as far as the system allows; return the new limit.

    macOS has no hard limit, and refuses an infinite soft one (its setrlimit(2))."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = max(now, OPEN_MAX) if most == resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    return soft


def open_descriptors() -> tuple[int, int]:
    """Return the open file descriptors, 0 if that is unknown, and the most that there may be."""
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = 0
    return used, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_resident_bytes() -> int:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_UNIT
