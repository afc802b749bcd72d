"""Measure the cost of an audit, and compare it with verify and state_at.

    python -m tests.bench.bench_spark_audit [EVENTS] [--chunks N] [--segments N]

The history is generated, in one partition; one Spark session runs on two cores. Each line has the seconds on the wall,
the CPU of the driver, the JVM and the Python workers for each event, and the ratio to state_at from the beginning and
to verify in runs and event by event, in the same run. The audit folds event by event.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.log_bytes import prove
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.session import session
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify, verify_snapshots
from tests.bench.bench_spark_fold import tree_cpu_seconds
from tests.bench.generated_history import write_history

EVENT_BYTES = 86  # of one in the log, on average


def held(findings: list[Any]) -> None:
    assert all(finding.ok for finding in findings), [finding for finding in findings if not finding.ok]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", nargs="?", type=float, default=1e6)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--segments", type=int, default=8, help="about so many")
    asked = parser.parse_args()
    spark = session(cores="2")
    with tempfile.TemporaryDirectory() as directory:
        warm, data, own = (Path(directory) / name for name in ("warm", "data", "own"))
        write_history(warm, 20_000)
        held(audit(spark, str(warm)))
        write_history(data, int(asked.events), segment_bytes=int(asked.events) * EVENT_BYTES // asked.segments)
        place, events = str(data), EmbeddedLogReader(data).queues[0].next_offset
        jobs: dict[str, Callable[[], Any]] = {
            "state_at, from the beginning": lambda: state_at(spark, place, messages=False).rows.collect(),
            "the hash chain, by segments": lambda: held(prove(spark, data, ["queues-0"], None, False)),
            "audit": lambda: held(audit(spark, place)),
            "cut": lambda: cut(spark, place, events // asked.chunks, own),
            "verify, in chunks": lambda: held(verify(spark, place, own)),
            "verify, event by event": lambda: held(verify_snapshots(spark, InDirectory(data), set(), own)),
            "audit, the first with ledgers": lambda: held(audit(spark, place, own)),
            "audit, in chunks": lambda: held(audit(spark, place, own)),
            "audit, --since-last": lambda: held(audit(spark, place, own, since_last=True)),
        }
        spent: dict[str, float] = {}
        for name, job in jobs.items():
            wall, before = time.perf_counter(), tree_cpu_seconds()
            job()
            wall, spent[name] = time.perf_counter() - wall, tree_cpu_seconds() - before
            print(f"{name:32} {wall:7.1f} s {spent[name] / events * 1e6:7.2f} us an event", flush=True)
    for name, cpu in spent.items():
        beside = {"state_at": "state_at, from the beginning", "verify": "verify, in chunks"}
        beside["verify event by event"] = "verify, event by event"
        print(f"{name:32}" + "".join(f" {cpu / spent[job]:6.2f} times {short}" for short, job in beside.items()))
    spark.stop()


if __name__ == "__main__":
    main()
