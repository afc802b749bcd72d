"""Our fold beside Spark's own Avro reader: `python -m tests.bench.bench_spark_native [EVENTS] [PARTITIONS]`.

The same segment files (as bench_spark_fold.py makes them), the same JVM (C2, as this is about long jobs), in turn:

- decoded:   the native reader with the columns that a fold needs and no bodies, into Spark's `noop` sink: the floor
- in Python: six flat columns of it, as Arrow, walked over in Python without a fold: what the JVM's decoding would save
- state_at:  decoded and folded by us, in Python

The first round warms up. Prints events a second on the wall and for each CPU second of the process tree.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rewindmq.schemas.registry import envelope_schema
from tests.bench.bench_spark_fold import tree_cpu_seconds, write_history
from tests.support.spark.connector import make_connectors_known

ROUNDS = 4
FOLDED = (
    "timestamp",
    "actor.session",
    "event.member0.route",
    "event.member0.properties",
    "event.member0.expiration_ms",
    "event.member0.priority",
    "event.member0.persistent",
    "event.member1.queue",
    "event.member1.consumer",
    "event.member1.messages",
)
FLAT = (
    "timestamp as t",
    "actor.session as s",
    "event.member0.route.queues[0] as q",
    "event.member0.persistent as p",
    "event.member1.consumer as c",
    "event.member1.messages[0].first as m",
)


def without_bodies() -> str:
    """The envelope's schema as a reader has it who leaves bodies alone."""
    schema = json.loads(json.dumps(envelope_schema()))
    published = next(field for field in schema["fields"] if field["name"] == "event")["type"][0]
    published["fields"] = [field for field in published["fields"] if field["name"] != "body"]
    return json.dumps(schema)


def walk(batches: "Iterable[Any]") -> "Iterator[Any]":
    import pyarrow as pa

    rows = 0
    for batch in batches:
        for _row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            rows += 1
    yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["rows"])


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    partitions = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    make_connectors_known()
    from rewindmq.spark_replay.history.state import state_at
    from rewindmq.spark_replay.session import session

    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        write_history(data, events, partitions)
        spark = session(records_in_java=True)
        files = sorted(map(str, data.glob("log/queues-*/*.avro")))
        native = spark.read.format("avro").option("avroSchema", without_bodies()).load(files)
        columns = native.selectExpr(*(f"{path} as c{number}" for number, path in enumerate(FOLDED)))
        flat = native.selectExpr(*FLAT)
        assert native.count() == sum(row["rows"] for row in flat.mapInArrow(walk, "rows long").collect()) >= events
        jobs: dict[str, Callable[[], object]] = {
            "decoded": lambda: columns.write.format("noop").mode("overwrite").save(),
            "in Python": lambda: flat.mapInArrow(walk, "rows long").collect(),
            "state_at": lambda: state_at(spark, str(data), messages=False).rows.collect(),
        }
        for turn in range(ROUNDS):
            for name, job in jobs.items():
                wall, cpu = time.monotonic(), tree_cpu_seconds()
                job()
                wall, cpu = time.monotonic() - wall, tree_cpu_seconds() - cpu
                print(
                    f"{turn} {name:10} {wall:6.2f} s: {events / wall:9,.0f} events/s on the wall,"
                    f" {events / cpu:9,.0f} a CPU second",
                    flush=True,
                )
        spark.stop()


if __name__ == "__main__":
    main()
