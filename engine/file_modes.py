"""Who may read what RewindMQ writes: its own user, and its group. Bodies of messages are in nearly every file.

restrict_new_files()      from here on directories are made 0750 and files 0640, or tighter
close_to_others(DIR)      what an older version made wider is closed
"""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IRWXO
OURS = ("lock", "log", "state", "snapshots", "copying", "keys", "kafka")

logger = logging.getLogger(__name__)


def restrict_new_files() -> None:
    """Set this process's umask; a tighter one stays."""
    os.umask(os.umask(0o777) | OPEN_TO_OTHERS)


def close_to_others(data: Path) -> None:
    """Take from all that RewindMQ has made in this data directory what `restrict_new_files` does not give. The
    directory itself may be somebody else's, too: if it is open, the log says so."""
    closed = sum([_close(path) for path in _ours(data)])
    if closed:
        logger.warning(
            "%s: %d files and directories were open to other users of this machine, and were closed to them",
            data,
            closed,
        )
    if (mode := stat.S_IMODE(data.stat().st_mode)) & OPEN_TO_OTHERS:
        logger.warning("%s: other users of this machine may list it (mode %04o): chmod 0750 is safer", data, mode)


def _close(path: Path) -> bool:
    """Whether it was open, and is not any more."""
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & OPEN_TO_OTHERS:
            return False
        path.chmod(mode & ~OPEN_TO_OTHERS)
    except FileNotFoundError:  # a broker that still runs here has removed it
        return False
    except OSError as error:
        logger.warning("%s: open to other users of this machine, and cannot be closed: %s", path, error.strerror)
        return False
    return True


def _ours(data: Path) -> Iterator[Path]:
    """Without symbolic links: what they point at is an operator's own."""
    for name in OURS:
        top = data / name
        if top.is_symlink() or not top.exists():
            continue
        yield top
        for directory, directories, files in os.walk(top):
            yield from (each for name in (*directories, *files) if not (each := Path(directory, name)).is_symlink())
