"""The size of the history on the disk, its growth, and the time when the disk is full at this pace.

    once a minute, in a thread     names and sizes of the files in DIR/log, DIR/snapshots, DIR/bases; when seals were
                                   written there
    every five minutes             a sample is kept, for six hours

- Measurements take at most 1 % of the time: after a slow one the next one waits longer.
- The pace is the growth between the oldest sample and now, which must be ten minutes apart. A history that does not
  grow fills no disk. If old segments are cut from a history, its pace is that of the remainder.
- The disk is full where --disk-free-limit holds publishers back.
- On Kafka the archiver reports the sizes of the partitions that the node owns (archive_status.py). No node knows how
  much room Kafka's disks have.
"""

import asyncio
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 60.0
SHARE: Final = 100  # a look may take this part of the time
SAMPLE_SECONDS: Final = 300.0
WINDOW_SECONDS: Final = 6 * 3_600.0
LEAST_SECONDS: Final = 600.0  # of growth, for a pace
DAY_SECONDS: Final = 86_400.0
LOCAL, KAFKA = "local", "kafka"
LOG: Final = "log"
FOLDERS: Final = (LOG, "snapshots", "bases")
SEALS: Final = "_*.seal"  # engine/keeping/seals/in_files.py, which a broker does not import: with it comes cryptography
Look = tuple[dict[str, int], dict[str, float]]

logger = logging.getLogger(__name__)


class HistorySize:
    """The sizes of one data directory, or of partitions in Kafka.

    `limit_bytes`: of free disk space, below which publishers are held back."""

    def __init__(
        self,
        data_dir: Path,
        limit_bytes: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        in_kafka: bool = False,
    ) -> None:
        self.tier = KAFKA if in_kafka else LOCAL
        self.by_partition: dict[str, int] = {}  # bytes; empty: not measured yet
        self.sealed: dict[str, float] = {}  # by partition that has seals: when the newest was written, since 1970
        self._data_dir = data_dir
        self._limit_bytes = limit_bytes
        self._monotonic = monotonic
        self._samples: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def total_bytes(self) -> int:
        """Size of the history in the data directory, or in Kafka."""
        return sum(self.by_partition.values())

    def start(self) -> None:
        """Measure once a minute from now on."""
        loop = asyncio.get_running_loop()
        began = self._monotonic()
        measuring = loop.run_in_executor(None, look, self._data_dir)
        measuring.add_done_callback(partial(self._measured, began))

    def stop(self) -> None:
        """Measure no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def take(self, by_partition: dict[str, int]) -> None:
        """Take a measurement."""
        if by_partition.keys() != self.by_partition.keys():  # a node owns other partitions now: that is no growth
            self._samples.clear()
        self.by_partition = by_partition
        now = self._monotonic()
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, self.total_bytes))
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def growth_per_day(self) -> float | None:
        """Bytes a day, by the growth of the last hours; None: too little is known."""
        if not self._samples:
            return None
        since, before = self._samples[0]
        seconds = self._monotonic() - since
        return None if seconds < LEAST_SECONDS else (self.total_bytes - before) / seconds * DAY_SECONDS

    @property
    def full_in_days(self) -> float | None:
        """In how many days the disk is full at this pace; None: not known, or the history does not grow."""
        growth = self.growth_per_day
        if self.tier == KAFKA or growth is None or growth <= 0:
            return None
        try:
            free = shutil.disk_usage(self._data_dir).free
        except OSError:
            return None
        return max(0, free - self._limit_bytes()) / growth

    def _measured(self, began: float, measuring: "asyncio.Future[Look]") -> None:
        if self._stopped or measuring.cancelled():
            return
        error = measuring.exception()
        if error is None:
            by_partition, self.sealed = measuring.result()
            self.take(by_partition)
        else:
            logger.warning("the size of the history is not known: %s", error)
        pause = max(LOOK_SECONDS, (self._monotonic() - began) * SHARE)
        self._timer = asyncio.get_running_loop().call_later(pause, self.start)


def look(data_dir: Path) -> Look:
    """The sizes of partitions, and the times of their newest seals. Raises OSError."""
    return measure(data_dir), newest_seals(data_dir)


def newest_seals(data_dir: Path) -> dict[str, float]:
    """When the newest seal of each partition was written, in seconds since 1970. Raises OSError."""
    found = {}
    for partition in _directories(data_dir / LOG):
        times = []
        for seal in Path(partition.path).glob(SEALS):
            with suppress(FileNotFoundError):  # a trim removed it meanwhile
                times.append(seal.stat().st_mtime)
        if times:
            found[partition.name] = max(times)
    return found


def measure(data_dir: Path) -> dict[str, int]:
    """The size of each partition's files in bytes: segments, their sidecars, seals, snapshots, bases.

    Raises OSError."""
    found: dict[str, int] = {}
    for folder in FOLDERS:
        for partition in _directories(data_dir / folder):
            found[partition.name] = found.get(partition.name, 0) + _size(Path(partition.path))
    return found


def _directories(directory: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(directory) as entries:
            yield from (each for each in entries if each.is_dir())
    except FileNotFoundError:
        return


def _size(directory: Path) -> int:
    """The bytes of the files in a directory. A file that is removed meanwhile does not count."""
    total = 0
    with os.scandir(directory) as entries:
        for each in entries:
            try:
                total += each.stat().st_size
            except FileNotFoundError:
                continue
    return total
