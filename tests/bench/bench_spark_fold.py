"""Measure the speed at which Spark folds a history.

    python -m tests.bench.bench_spark_fold [EVENTS] [PARTITIONS]      (1,000,000 and 2)

The plain history is that of a busy queue: publishes of 100 bytes, delivered to a consumer with prefetch and acked. The
mixed one is that of generated_history.py, with four queues. For this process, the benchmark prints the events a CPU
second of the fold alone, event by event and in runs (`Machine.apply`), and of a recovery into an
empty store. For both histories, it then prints the events a second of jobs through Spark, on the wall and for each CPU
second of the whole process tree (JVM and workers included). For `history` and `slo`, it also prints the rows of the
history for each CPU second, and the time of the driver, the JVM and the workers for a row. The first line names the
build that runs.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rewindmq import builds
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive, recover
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Acked, Event, Published
from rewindmq.schemas.values import Actor, Route
from rewindmq.spark_replay.fold import log_groups
from rewindmq.spark_replay.location.log import partition_of as open_partition
from rewindmq.spark_replay.session import session
from tests.bench import generated_history
from tests.support.events_for_tests import attached, declared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_763_694_000_000
GROUP = 500  # events in a block
WINDOW = 200


def write_history(data: Path, events: int, partitions: int) -> None:
    log = EmbeddedLog.open(data, partitions=partitions)
    for index in range(partitions):
        name = next(f"q{n}" for n in range(1000) if partition_of("/", f"q{n}", partitions) == index)
        _write_partition(log, index, name, events // partitions)
    log.commit_and_wait()
    log.close()


def _write_partition(log: EmbeddedLog, index: int, queue: str, events: int) -> None:
    partition, encoder = log.queues[index], Encoder()
    actor = Actor("guest", 1 << 24)
    route = Route("/", "amq.topic", "flights.jfk.aa", (queue,))
    properties = bytes.fromhex("9000") + bytes([16]) + b"application/json" + b"\x02"
    now_ms = START_MS

    def append(event: Event) -> int:
        return partition.append(now_ms, encoder.encode(encoder.prefix(now_ms, actor), event))

    append(declared("/", queue, durable=True, semantics="rabbitmq-3.13"))
    append(attached("/", queue, 1, channel=1, tag="ctag1", prefetch=WINDOW))
    out: list[int] = []
    while partition.next_offset < events:
        out.append(append(Published(route, properties, persistent=True, body=b"x" * 100, body_size=100)))
        if len(out) >= 3:
            append(Acked("/", queue, 1, ((out[0], out[0]),)))
            del out[0]
        if partition.next_offset % GROUP == 0:
            now_ms += 5
            log.commit_and_wait()


def fold_cost(data: Path, partition: str, in_runs: bool) -> tuple[int, float]:
    """Events of a partition, and the CPU seconds of its fold in this process."""
    events = open_partition(InDirectory(data), partition).next_offset
    groups = list(log_groups(data, partition, 0, events))
    machine, decoder = Machine(partition), Decoder()
    begun = time.process_time()
    drive(machine, groups, decoder, one_by_one=not in_runs)
    return events, time.process_time() - begun


def without_spark(name: str, data: Path, partition: str) -> None:
    """Print what a fold and a recovery of a partition take, in this process."""
    for way in ("event by event", "in runs"):
        events, spent = fold_cost(data, partition, way == "in runs")
        print(f"{name + ', ' + way:24} {spent:6.2f} s: {events / spent:9,.0f} events a CPU second")
    log = open_partition(InDirectory(data), partition)
    with tempfile.TemporaryDirectory() as state:
        store = StateStore.open(Path(state))
        begun = time.process_time()
        recover(log, store)
        spent = time.process_time() - begun
        store.close()
    print(f"{name + ', recovery':24} {spent:6.2f} s: {events / spent:9,.0f} events a CPU second")


def tree_cpu_seconds() -> float:
    """CPU of this process and all below it."""
    return sum(cpu_by_role().values())


def cpu_by_role() -> dict[str, float]:
    """CPU seconds of the driver (this process), of the JVM and of all Python workers, those that ended included."""
    children: dict[int, list[int]] = {}
    spent: dict[int, tuple[str, float]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                named, _, rest = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            children.setdefault(int(fields[1]), []).append(int(entry))
            seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            spent[int(entry)] = "JVM" if named.endswith("(java") else "workers", seconds
    found, waiting = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}, [os.getpid()]
    while waiting:
        process = waiting.pop()
        role, seconds = spent.get(process, ("workers", 0.0))
        found["driver" if process == os.getpid() else role] += seconds
        waiting += children.get(process, [])
    return found


class JobCost(NamedTuple):
    """Seconds on the wall, and CPU seconds by role (cpu_by_role)."""

    wall: float
    cpu: dict[str, float]


def job_costs(spark: "SparkSession", data: Path, names: Sequence[str] = ()) -> tuple[int, int, dict[str, JobCost]]:
    """Events of `data`, rows of their history, and what jobs over all of it cost. `names`: of jobs; empty: all."""
    from rewindmq.spark_replay.history.history import history, history_of
    from rewindmq.spark_replay.history.slo import slo
    from rewindmq.spark_replay.history.state import state_at

    events = sum(each.next_offset for each in InDirectory(data).open().queues)
    records = spark.read.format("rewindmq").option("path", str(data)).option("view", "records").load()
    jobs: dict[str, Callable[[], object]] = {
        "state_at": lambda: state_at(spark, str(data), messages=False).rows.collect(),
        "history": lambda: history(spark, str(data)).groupBy("outcome").count().collect(),
        "history, 1 column": lambda: history(spark, str(data), only=["outcome"]).groupBy("outcome").count().collect(),
        "history, all rows": lambda: history(spark, str(data)).write.format("noop").mode("overwrite").save(),
        "slo": lambda: slo(spark, str(data)).collect(),
        "history_of": lambda: history_of(records).groupBy("outcome").count().collect(),
        "records": lambda: records.groupBy("partition").count().collect(),
    }
    rows = history(spark, str(data), only=["offset"]).count()
    costs = {}
    for name in names or jobs:
        wall, before = time.monotonic(), cpu_by_role()
        jobs[name]()
        wall = time.monotonic() - wall
        costs[name] = JobCost(wall, {role: cpu - before[role] for role, cpu in cpu_by_role().items()})
    return events, rows, costs


def through_spark(spark: "SparkSession", kind: str, data: Path) -> None:
    """Print what jobs over a history cost."""
    events, rows, costs = job_costs(spark, data)
    for name, (wall, spent) in costs.items():
        cpu = sum(spent.values())
        said = f"{events / wall:9,.0f} events/s on the wall, {events / cpu:9,.0f} a CPU second"
        if name.startswith(("history", "slo")):
            each = ", ".join(f"{role} {seconds / rows * 1e6:.2f} us" for role, seconds in spent.items())
            said += f"; {rows / cpu:9,.0f} rows a CPU second ({each} a row)"
        print(f"{kind + ', ' + name:24} {wall:6.2f} s: {said}", flush=True)


def write_histories(data: Path, events: int, partitions: int = 2) -> None:
    """The plain history and the mixed one, in `data`/plain and `data`/mixed."""
    write_history(data / "plain", events, partitions)
    generated_history.write_history(data / "mixed", events // partitions)


def warm_session() -> "SparkSession":
    """A session whose workers have run."""
    spark = session()
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def figures(data: Path) -> dict[str, float]:
    """The figures of `make bench` for the build that this process runs, of histories by `write_histories`."""
    found = {}
    for name in ("plain", "mixed"):
        for way in ("event by event", "in runs"):
            count, spent = fold_cost(data / name, "queues-0", way == "in runs")
            found[f"fold alone, {name} history, {way}, events a CPU second"] = count / spent
    spark = warm_session()
    events, rows, costs = job_costs(spark, data / "plain", ("state_at", "history"))
    spark.stop()
    state_at, history = costs["state_at"], costs["history"]
    return found | {
        "state_at, events a second": events / state_at.wall,
        "state_at, events a CPU second": events / sum(state_at.cpu.values()),
        "history, rows a second": rows / history.wall,
        "history, rows a CPU second": rows / sum(history.cpu.values()),
    }


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    partitions = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as directory:
        print(f"{builds.running().kind} build")
        data = Path(directory)
        write_histories(data, events, partitions)
        for name in ("plain", "mixed"):
            without_spark(name, data / name, "queues-0")
        spark = warm_session()
        for name in ("plain", "mixed"):
            through_spark(spark, name, data / name)
        spark.stop()


if __name__ == "__main__":
    main()
