"""Only the broker's own user and group may read the broker's files. Nearly every file has bodies of messages.

restrict_new_files()      new directories get mode 0750 and new files 0640, or tighter
close_to_others(DIR)      tightens files that have wider modes, as those of a backup may
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
    """Set this process's umask. A tighter umask stays."""
    os.umask(os.umask(0o777) | OPEN_TO_OTHERS)


def close_to_others(data: Path) -> None:
    """Give RewindMQ's files in this data directory the modes of `restrict_new_files`.

    The directory itself may serve other programs, too. If other users can list it, this function only logs a
    warning."""
    closed = sum([_close(path) for path in _ours(data)])
    if closed:
        logger.warning(
            "%s: other users of this machine could read %d files and directories; now they cannot",
            data,
            closed,
        )
    if (mode := stat.S_IMODE(data.stat().st_mode)) & OPEN_TO_OTHERS:
        logger.warning("%s: other users of this machine may list it (mode %04o): chmod 0750 is safer", data, mode)


def _close(path: Path) -> bool:
    """Close a path to other users; return whether it was open and no longer is."""
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & OPEN_TO_OTHERS:
            return False
        path.chmod(mode & ~OPEN_TO_OTHERS)
    except FileNotFoundError:  # a running broker has removed it
        return False
    except OSError as error:
        logger.warning(
            "%s: other users of this machine can read it, and its mode cannot be changed: %s", path, error.strerror
        )
        return False
    return True


def _ours(data: Path) -> Iterator[Path]:
    """Yield RewindMQ's files and directories, without symbolic links: an operator made those."""
    for name in OURS:
        top = data / name
        if top.is_symlink() or not top.exists():
            continue
        yield top
        for directory, directories, files in os.walk(top):
            yield from (each for name in (*directories, *files) if not (each := Path(directory, name)).is_symlink())
