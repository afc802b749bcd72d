"""The past of a long archived history: `python -m tests.bench.bench_archived_past [EVENTS] [--moments 5] [--keep DIR]`.

A generated history (generated_history.py) of 10,000,000 events in one partition, with a snapshot every 1,000,000, as
brokers take them, in an archive in a directory. For each random moment, in a process of its own: CPU seconds until the
state is there, and the bytes that were fetched, by kind of object. Then the same for ten records at a random offset.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from unittest.mock import patch

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import PartitionLog, decoder_for, drive
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Acked
from rewindmq.schemas.values import BROKER
from rewindmq.spark_replay.fold import from_snapshot, groups_up_to
from tests.bench.generated_history import START_MS, write_history

EVERY = 1_000_000  # events from snapshot to snapshot


class Counted(Objects):
    """The objects of an archive, and what was fetched of them."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(objects.url, objects._store, objects._directory)
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def get(self, key: str) -> bytes:
        return self._counted(key, super().get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._counted(key, super().get_range(key, start, end))

    def _counted(self, key: str, data: bytes) -> bytes:
        kind = key.split("/")[1] if key.endswith(".json") and "/" in key else key.rpartition(".")[2]
        self.requests[kind] += 1
        self.bytes[kind] += len(data)
        return data


def make(directory: Path, events: int) -> None:
    """Make the history, its snapshots and the archive."""
    data = directory / "data"
    with patch("os.fdatasync", lambda descriptor: None), patch("os.fsync", lambda descriptor: None):
        write_history(data, events)
        log = EmbeddedLog.open(data, None)
        encoder = Encoder()
        log.metadata.append(START_MS, encoder.encode(encoder.prefix(START_MS, BROKER), Acked("/", "q", 1, ((0, 1),))))
        log.close()
        close_segments(data)
        partition = EmbeddedLogReader(data).queues[0]
        machine = Machine(partition.name)
        for end in range(EVERY, events + 1, EVERY):
            drive_to(machine, partition, end)
            Snapshots(data / "snapshots").take(machine)
        Archiver(open_objects(str(directory / "archive"), make=True), data).run()


def drive_to(machine: Machine, partition: PartitionLog, end: int) -> None:
    """Fold the records up to `end`, as tasks of Spark do."""
    decoder = decoder_for(partition)
    groups = groups_up_to(partition, machine.next_offset, end)
    deque(drive(machine, groups, decoder), 0)
    assert machine.next_offset == end


def ask(url: str, moment: float, whole_state: bool) -> None:
    """Print what a state, or ten records, cost. `moment`: from 0, the beginning, to 1, the end."""
    counted: list[Counted] = []

    def opened(url: str, make: bool = False) -> Objects:
        counted.append(Counted(open_objects(url, make)))
        return counted[-1]

    begin, began = time.process_time(), time.monotonic()
    with (
        patch("rewindmq.engine.keeping.archive.reader.open_objects", opened),
    ):
        partition = ArchivedLog(url).queues[0]
        if whole_state:
            first, last = partition.segments[0].first_ms, partition.segments[-1].max_timestamp_ms
            offset = partition.offset_at(int(first + moment * (last - first)))
            machine = from_snapshot(ArchivedSnapshots(url), partition, offset)
            folded = offset - machine.next_offset
            drive_to(machine, partition, offset)
        else:
            offset = int(moment * (partition.next_offset - 10))
            folded = sum(len(block.records) for block in partition.read(offset, offset + 10))
    cpu, seconds = time.process_time() - begin, time.monotonic() - began
    fetched, requests = Counter[str](), Counter[str]()
    for each in counted:
        fetched += each.bytes
        requests += each.requests
    print(
        json.dumps(
            {
                "state" if whole_state else "records": offset,
                "folded": folded,
                "cpu_s": round(cpu, 2),
                "s": round(seconds, 2),
                "requests": sum(requests.values()),
                "bytes": sum(fetched.values()),
                "by_kind": fetched,
            }
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="Make the archive here, or use the one that is here.")
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask(options.ask[0], float(options.ask[1]), options.ask[2] == "state")
        return
    with tempfile.TemporaryDirectory() as folder:
        directory = options.keep or Path(folder)
        if not (directory / "archive").exists():
            begin = time.process_time()
            make(directory, options.events)
            print(f"made in {time.process_time() - begin:.0f} s of CPU", flush=True)
        for path in sorted((directory / "archive" / "queues-0" / "segments").iterdir()):
            print(f"{path.name} {path.stat().st_size:,}")
        chance = random.Random(14)
        for _ in range(options.moments):
            moment = str(chance.random())
            for what in ("state", "records"):
                command = [sys.executable, "-m", "tests.bench.bench_archived_past"]
                subprocess.run([*command, "--ask", str(directory / "archive"), moment, what], check=True)


if __name__ == "__main__":
    main()
