"""Writes a small file so that a reader, or a crash, meets all of it or nothing."""

import os
from collections.abc import Callable
from pathlib import Path

from rewindmq.projections import system_calls

OWNER_ALONE = 0o600


def write_whole(path: Path, content: bytes, give_name: Callable[[Path, Path], None], mode: int = 0o666) -> bool:
    """Write a file whole or not at all. Return False if it exists and `give_name` does not replace it.

    `mode`: the permissions, as far as the umask allows."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(new, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            system_calls.sync(file.fileno())
        give_name(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True
