"""Copies of workers' snapshots in files: the newest of each queue partition, for a worker that begins.

    DIR/queues-0/<offset>-<offset of the claim>.state

A copy is a hard link to the worker's snapshot where the disk knows links: workers and copies are on one disk.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rewindmq.engine.log.embedded.directory import queue_partition
from rewindmq.engine.log.shared_contract import StateCopied

SUFFIX = ".state"


class FileStates:
    """`directory`: for all partitions. Implements `shared_contract.StateTopic`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        """Keep a copy of a snapshot's file, and drop those before it. Raises OSError."""
        home = self._directory / queue_partition(number)
        home.mkdir(parents=True, exist_ok=True)
        before = self._copies(number)
        new = home / f"{offset}-{claim}.new.{os.getpid()}"
        link_or_copy(Path(file.name), new)
        os.replace(new, home / f"{offset}-{claim}{SUFFIX}")
        for found, _, path in before:
            if found < offset:
                path.unlink(missing_ok=True)

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        """The newest copy of a state at `least` or later, in a file of its own in `directory`. Raises OSError."""
        for offset, claim, path in sorted(self._copies(number), reverse=True):
            if offset < least:
                return None
            mine = directory / f"{offset}.part"
            try:
                link_or_copy(path, mine)
            except FileNotFoundError:
                continue  # a newer one has taken its place
            return StateCopied(offset, claim, mine)
        return None

    def newest_offset(self, number: int) -> int:
        """The offset of the newest copy; 0: there is none."""
        return max((offset for offset, _, _ in self._copies(number)), default=0)

    def _copies(self, number: int) -> list[tuple[int, int, Path]]:
        home = self._directory / queue_partition(number)
        found = []
        for path in home.glob(f"*{SUFFIX}") if home.is_dir() else ():
            offset, _, claim = path.name.removesuffix(SUFFIX).partition("-")
            if offset.isdecimal() and claim.isdecimal():
                found.append((int(offset), int(claim), path))
        return found


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` have the content of `source`. Raises OSError."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
