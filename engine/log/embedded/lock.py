"""The lock of a data directory, which keeps a second broker from writing. Readers, including Spark, need none.

    DIR/lock                     held (flock) by the broker that writes; holds its process id

It is beside `DIR/log`, not in it, because a backup copies that directory, and other tools read it.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.segments import write_at


class LogInUse(LogError):
    """Another process writes this log."""


def lock(data_dir: Path) -> int:
    """Become the only writer of this log. Returns a descriptor to close at the end.

    Raises LogInUse, which names the process that holds the lock."""
    (data_dir / "log").mkdir(parents=True, exist_ok=True)
    file = data_dir / "lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise LogInUse(f"{data_dir}: in use by another broker (process {holder}, lock {file})") from None
    with contextlib.suppress(OSError):  # the number is for a broker that is locked out; a full disk prevents no start
        os.ftruncate(descriptor, 0)
        write_at(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
