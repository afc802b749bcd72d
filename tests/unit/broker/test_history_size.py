"""The broker measures its history on the disk, and predicts when the disk is full (engine/broker/history_size.py)."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from rewindmq.engine.broker.history_size import (
    DAY_SECONDS,
    LEAST_SECONDS,
    WINDOW_SECONDS,
    HistorySize,
    measure,
    newest_seals,
)

FREE = 1_000_000_000
LIMIT = 50_000_000


class Disk:
    free = FREE


class Measured:
    """Sizes by a clock of the test's own."""

    def __init__(self, data: Path) -> None:
        self.now = 0.0
        self.size = HistorySize(data, lambda: LIMIT, lambda: self.now)

    def take(self, seconds: float, size: int) -> None:
        self.now += seconds
        self.size.take({"queues-0": size})


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk)
    return Measured(tmp_path)


def test_files_count_by_partition(tmp_path: Path) -> None:
    sizes = {"log/queues-0/0.avro": 100, "log/queues-0/_0.index": 10, "log/metadata-0/0.avro": 7, "log/layout.json": 9}
    sizes |= {"snapshots/queues-0/5.snapshot": 30, "bases/queues-0/5.base": 3, "state/1.sst": 1_000}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert measure(tmp_path) == {"queues-0": 143, "metadata-0": 7}
    assert measure(tmp_path / "none") == {}


def test_the_newest_seal_of_a_partition_counts(tmp_path: Path) -> None:
    for name, written in (("log/queues-0/_0.seal", 50), ("log/queues-0/_7.seal", 90), ("log/metadata-0/0.avro", 99)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (written, written))
    assert newest_seals(tmp_path) == {"queues-0": 90.0}
    assert newest_seals(tmp_path / "none") == {}


def test_full_in_days(measured: Measured) -> None:
    measured.take(0, 10_000)
    assert measured.size.full_in_days is None, "nothing is known yet"
    measured.take(LEAST_SECONDS - 1, 20_000)
    assert measured.size.full_in_days is None, "too little is known"
    measured.take(3_600 - LEAST_SECONDS + 1, 10_000 + 1_000_000)
    assert measured.size.growth_per_day == pytest.approx(24_000_000)
    assert measured.size.full_in_days == pytest.approx((FREE - LIMIT) / 24_000_000)


def test_the_last_hours_count(measured: Measured) -> None:
    measured.take(0, 0)
    total = 0
    for _ in range(10):  # an hour each
        for _ in range(12):
            total += 1_000_000
            measured.take(300, total)
    for _ in range(int(WINDOW_SECONDS / 300)):  # then it grows a tenth as fast
        total += 100_000
        measured.take(300, total)
    assert measured.size.growth_per_day == pytest.approx(100_000 * DAY_SECONDS / 300, rel=0.02)


def test_a_history_that_shrinks_fills_no_disk(measured: Measured) -> None:
    measured.take(0, 5_000_000)
    measured.take(3_600, 4_000_000)
    assert measured.size.full_in_days is None


def test_in_kafka_the_growth_is_told_and_no_day_on_which_disks_are_full(measured: Measured, tmp_path: Path) -> None:
    size = HistorySize(tmp_path, lambda: LIMIT, lambda: measured.now, in_kafka=True)
    size.take({"queues-0": 1_000})
    measured.now += 3_600
    size.take({"queues-0": 2_000})
    assert size.growth_per_day == pytest.approx(24_000)
    assert size.full_in_days is None
    size.take({"queues-0": 2_000, "queues-1": 9_000})
    assert size.total_bytes == 11_000
    assert size.growth_per_day is None, "the node owns one more: that is no growth"


def test_it_is_measured_while_the_broker_runs(tmp_path: Path) -> None:
    (tmp_path / "log" / "queues-0").mkdir(parents=True)
    (tmp_path / "log" / "queues-0" / "0.avro").write_bytes(bytes(42))

    async def run() -> int:
        size = HistorySize(tmp_path, lambda: LIMIT)
        size.start()
        while not size.by_partition:
            await asyncio.sleep(0.001)
        size.stop()
        return size.total_bytes

    assert asyncio.run(run()) == 42
