"""Measure the CPU cost of a commit of the embedded log, without a broker: writing a block, and reading it again.

    python -m tests.bench.bench_commit [DIR]       DIR: a directory on the disk to be measured (default: here)

The first figures are the disk's: for a block alone, for a block that contains the bytes of its check, and for two ways
to keep a checksum elsewhere. Whole blocks of the log follow: without fdatasync (in memory), with it, and reading. Each
is the smallest of five rounds.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections import system_calls
from tests.support.records import START_MS, record

ROUNDS = 5
SHAPES = ((1, 100), (20, 100), (200, 100), (1_000, 100), (40, 4_000), (4, 1_000_000))  # records of so many bytes
COMMITS = 1_000


def timed(commit: Callable[[int], None], count: int) -> tuple[float, float]:
    """Median on the wall and mean of CPU, in microseconds."""
    walls = []
    cpu = time.process_time()
    for number in range(count):
        begun = time.perf_counter()
        commit(number)
        walls.append(time.perf_counter() - begun)
    return sorted(walls)[count // 2] * 1e6, (time.process_time() - cpu) / count * 1e6


def disk(directory: Path) -> None:
    """Where a checksum may stand, and what that costs a commit of 8 KiB."""
    file = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
    beside = os.open(directory / "beside", os.O_RDWR | os.O_CREAT)
    os.pwrite(beside, bytes(1 << 20), 0)
    os.fsync(beside)
    block, check, end = os.urandom(8_192), os.urandom(32), 1 << 20

    def write(data: bytes) -> None:
        nonlocal end
        os.pwrite(file, data, end)
        end += len(data)

    def alone(number: int) -> None:
        write(block)
        os.fdatasync(file)

    def within(number: int) -> None:
        write(block + bytes(120))
        os.fdatasync(file)

    def sidecar(number: int) -> None:
        write(block)
        os.pwrite(beside, check, number * 32)
        os.fdatasync(beside)
        os.fdatasync(file)

    def head(number: int) -> None:
        write(block)
        os.pwrite(file, check, number * 32)
        os.fdatasync(file)

    ways = {
        "a block": alone,
        "check in the block": within,
        "check in a second file, which is synced": sidecar,
        "check in the head of the file": head,
    }
    for name, way in ways.items():
        wall, cpu = min(timed(way, COMMITS) for _ in range(ROUNDS))
        print(f"{name:42} {wall:7.0f} us on the wall, {cpu:6.1f} us CPU", flush=True)


def writing(writer: PartitionWriter, records: list[bytes]) -> Callable[[int], None]:
    return lambda _: writer.write(records, START_MS)


def blocks(directory: Path, records: list[bytes], count: int) -> tuple[float, float]:
    """Microseconds of CPU to write a block, and to read one."""
    writes, reads = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=directory) as made:
            partition = Path(made) / "queues-0"
            partition.mkdir()
            writer = PartitionWriter(partition, 1 << 40, begin=True)
            writes.append(timed(writing(writer, records), count)[1])
            writer.close()
            begun = time.process_time()
            found = sum(len(block.records) for block in PartitionReader(partition).read())
            reads.append((time.process_time() - begun) / count * 1e6)
            assert found == count * len(records)
    return min(writes), min(reads)


def main() -> None:
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    with tempfile.TemporaryDirectory(dir=where) as made:
        disk(Path(made))
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else where
    for number, size in SHAPES:
        records = [record(n, body_bytes=size) for n in range(number)]
        count = max(20, min(3_000, 3_000_000 // (number * size)))
        with patch.object(system_calls, "sync_data", lambda descriptor: None):
            write, read = blocks(memory, records, count)
        synced, _ = blocks(where, records, min(count, 300))
        times = f"write {write:8.1f} us, with fdatasync {synced:8.1f} us, read {read:8.1f} us"
        print(f"{number:5,} x {size:9,} bytes: {times}", flush=True)


if __name__ == "__main__":
    main()
