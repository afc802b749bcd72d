"""Measure the scaling of the fold of one partition.

    python -m tests.bench.bench_spark_scale [EVENTS ...]      (10^5, 10^6 and 10^7)

For each size, a history is generated in one partition (generated_history.py says how) and cut into 2 to 16 chunks, of
50,000 events at least, because each Spark task costs a worker another 0.05 s or so:

- cut:      the pass that makes the snapshots, one task
- verify:   all chunks, on one core and on two (each in its own Spark session, and so in its own process)
- CPU:      of the Python workers for each event, while they verify on two cores (the JVM only starts tasks)
- RSS:      the peak of a Python worker, including its interpreter with pyarrow (some 160 MB)

For the largest size, the benchmark also measures `state_at` by the distance to the snapshot before, and a queue of 10^7
ready messages (--backlog N; 0 for none). --data DIR keeps the histories there, and uses those that it already has.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.generated_history import write_backlog, write_history

CHUNKS = 16
LEAST = 50_000
ROUNDS = 3


def workers() -> list[int]:
    """Processes of Python workers below this one."""
    found, waiting = [], [os.getpid()]
    while waiting:
        process = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                waiting += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
            if b"pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def peak_rss_mb() -> float:
    """Of the largest worker, over its whole life."""
    status = [Path(f"/proc/{worker}/status").read_text() for worker in workers()]
    return max(int(text.partition("VmHWM:")[2].split()[0]) for text in status) / 1024


def cpu_seconds() -> float:
    """Of the workers, those that ended included."""
    fields = [Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split() for worker in workers()]
    return sum(sum(map(int, each[11:15])) for each in fields) / os.sysconf("SC_CLK_TCK")


def timed(job: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of the workers."""
    begun, spent = time.perf_counter(), cpu_seconds()
    job()
    return time.perf_counter() - begun, cpu_seconds() - spent


def measure(data: Path, own: Path, every: int, cores: int) -> dict[str, Any]:
    """In a process of its own: on so many cores."""
    from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
    from rewindmq.spark_replay.history.state import state_at
    from rewindmq.spark_replay.session import session
    from rewindmq.spark_replay.snapshots.build import cut
    from rewindmq.spark_replay.snapshots.verify import verify

    spark = session(cores=str(cores))
    with tempfile.TemporaryDirectory() as directory:  # workers and JVM are warm
        write_history(Path(directory) / "data", 20_000)
        cut(spark, directory + "/data", 2_000, Path(directory) / "own")
        verify(spark, directory + "/data", Path(directory) / "own")
    found: dict[str, Any] = {}
    if not own.exists():
        found["cut"] = timed(lambda: cut(spark, str(data), every, own))

    def verified() -> None:
        findings = verify(spark, str(data), own)
        assert all(finding.ok for finding in findings), [finding for finding in findings if not finding.ok]

    found["verify"] = timed(verified)
    found["rss"] = peak_rss_mb()
    if cores == 1:
        return found
    base = EmbeddedLogReader(data).queues[0].next_offset // every // 2 * every

    def state(at: int) -> list[Any]:
        return state_at(spark, str(data), offsets=str(at), messages=False, snapshots=own).rows.collect()

    found["state_at"] = {
        distance: min(timed(partial(state, base + distance))[0] for _ in range(ROUNDS))
        for distance in (0, every // 64, every // 16, every // 4, every - 1)
    }
    return found


def of_size(data: Path, own: Path, every: int) -> list[dict[str, Any]]:
    """On one core and on two."""
    found = []
    for cores in (1, 2):
        this = [sys.executable, "-m", "tests.bench.bench_spark_scale"]
        command = [*this, "--measure", str(data), str(own), str(every), str(cores)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found.append(json.loads(printed.splitlines()[-1]))
    return found


def show(name: int, events: int, one: dict[str, Any], two: dict[str, Any]) -> None:
    cut = f"cut {one['cut'][0]:.1f} s, {one['cut'][1] / events * 1e6:.2f} us CPU an event; " if "cut" in one else ""
    speed = one["verify"][0] / two["verify"][0]
    print(
        f"{name:>12,}: {cut}verify {one['verify'][0]:.1f} s on 1 core, {two['verify'][0]:.1f} s on 2"
        f" ({speed:.2f} times as fast), {two['verify'][1] / events * 1e6:.2f} us CPU an event; a worker's RSS at most"
        f" {max(one['rss'], two['rss']):.0f} MB",
        flush=True,
    )


def run(sizes: list[int], backlog: int, kept: Path | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = kept or Path(directory)
        two: dict[str, Any] = {}
        for events in sizes:
            data = root / f"{events}"
            if not data.exists():
                write_history(data, events)
            one, two = of_size(data, Path(directory) / f"own-{events}", max(events // CHUNKS, min(LEAST, events // 2)))
            show(events, events, one, two)
        for distance, seconds in two.get("state_at", {}).items():
            print(f"state_at {int(distance):>12,} events behind a snapshot: {seconds * 1000:.0f} ms")
        if backlog:
            data = root / f"backlog-{backlog}"
            if not data.exists():
                write_backlog(data, backlog)
            one, two = of_size(data, Path(directory) / "own-backlog", backlog // 4)
            print("a queue of as many ready messages, 4 chunks:")
            show(backlog, backlog, one, two)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        data, own, every, cores = sys.argv[2:]
        print(json.dumps(measure(Path(data), Path(own), int(every), int(cores))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=lambda text: int(float(text)), nargs="*", default=[10**5, 10**6, 10**7])
    parser.add_argument("--backlog", type=lambda text: int(float(text)), default=10**7)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    run(arguments.events, arguments.backlog, arguments.data)


if __name__ == "__main__":
    main()
