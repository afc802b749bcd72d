"""The log's reserve of disk space, with which acks that arrive while the disk is full become durable.

    DIR/log/_reserve     RESERVE_BYTES of allocated empty blocks; smaller while the log uses them

    the disk is full -> `release` frees as much as the next block needs, and the block is written
    there is room    -> `refill` takes it back; until then publishing is held back

Rules
- It is released in small steps, because another process may take any free space.
- The last START_BYTES are only for `commit_and_wait`, with which a broker starts and stops, so that a broker that died
  on a full disk can start again, and consumers make room.
- On a file system that compresses or copies on write, allocated blocks may guarantee nothing; the log then works as if
  it had no reserve.
"""

import errno
import os
import threading
from pathlib import Path

from rewindmq.projections import system_calls

RESERVE_BYTES = 16 * 1024 * 1024
START_BYTES = 1024 * 1024
STEP_BYTES = 32 * 1024  # in addition, for the sidecars and the file system's own blocks
# This much must be free besides the reserve before publishing resumes, so that it does not stop again at once.
MARGIN_BYTES = 16 * 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserve; the loop and the commit thread use it."""

    def __init__(self, directory: Path) -> None:
        """Open or make the reserve. `directory` is DIR/log.

        Raises OSError when not even an empty file can be made."""
        self.path = directory / "_reserve"
        self.keep_bytes = 0  # `release` leaves this many bytes
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._changing = threading.Lock()
        self.held_bytes = min(os.fstat(self._descriptor).st_size, RESERVE_BYTES)
        if self.held_bytes == 0:
            self._allocate()

    @property
    def whole(self) -> bool:
        return self.held_bytes == RESERVE_BYTES

    def release(self, error: OSError, needed_bytes: int) -> bool:
        """Free room after a failed write of `needed_bytes`. Return True if a retry makes sense."""
        with self._changing:
            if error.errno not in FULL or self.held_bytes <= self.keep_bytes:
                return False
            self.held_bytes = max(self.keep_bytes, self.held_bytes - needed_bytes - STEP_BYTES)
            try:
                os.ftruncate(self._descriptor, self.held_bytes)
            except OSError:
                return False
            return True

    def refill(self) -> bool:
        """Try to make the reserve whole, and return True if it is."""
        with self._changing:
            if not self.whole and self.has_room_beside(RESERVE_BYTES - self.held_bytes):
                self._allocate()
            return self.whole

    def has_room_beside(self, needed_bytes: int) -> bool:
        """Return True if the disk has room for this many bytes and a margin, besides the reserve."""
        space = os.fstatvfs(self._descriptor)
        return space.f_bavail * space.f_frsize >= needed_bytes + MARGIN_BYTES

    def _allocate(self) -> None:
        try:
            system_calls.allocate(self._descriptor, 0, RESERVE_BYTES)
        except OSError:  # some blocks may be allocated: give them back
            os.ftruncate(self._descriptor, self.held_bytes)
            return
        self.held_bytes = RESERVE_BYTES

    def close(self) -> None:
        """Close the file. Its blocks stay allocated."""
        os.close(self._descriptor)
