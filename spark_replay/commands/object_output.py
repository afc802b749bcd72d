"""Writes a table to object storage: URLs and logins are those of an archive (engine/keeping/archive/objects.py).

    s3://BUCKET/PREFIX/part-00000-000.parquet     the rows of Spark's partition 0: its first file
    s3://BUCKET/PREFIX/_SUCCESS                   all of it is there

- Each task writes its own rows, by pyarrow and obstore. Spark needs no connector for it, and no plan has a login.
- An object is created whole. A task that is tried again finds the objects of its first attempt.
"""

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FILE_BYTES: Final = 64 << 20  # a file that has reached this size is the last but one; a worker holds one in memory
WRITTEN: Final = "object string, rows bigint"
SUCCESS: Final = "_SUCCESS"


def write_parquet(frame: "DataFrame", objects: Objects) -> None:
    """Write all rows, in the frame's order.

    Raises NoAnswer, ArchiveError."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {}
    if "timezone" in signature(to_arrow_schema).parameters:  # Spark 4.2 asks for it
        zone["timezone"] = "UTC"
    schema = to_arrow_schema(frame.schema, **zone)
    write = partial(_write_rows, objects=objects, schema=schema)
    if not frame.mapInArrow(write, WRITTEN).collect():  # Spark has no task for a table that must be empty
        list(write(iter(())))
    create_once(objects, SUCCESS, b"")


def _write_rows(
    batches: "Iterator[pa.RecordBatch]", objects: Objects, schema: "pa.Schema"
) -> "Iterator[pa.RecordBatch]":
    """Write the rows of one task. Yields a row of WRITTEN for each object."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    for number, (file, rows) in enumerate(_files(batches, schema)):
        key = f"part-{task:05d}-{number:03d}.parquet"
        create_once(objects, key, file)
        yield pa.RecordBatch.from_pydict({"object": [key], "rows": [rows]})


def _files(batches: "Iterable[pa.RecordBatch]", schema: "pa.Schema") -> "Iterator[tuple[bytes, int]]":
    """Yield Parquet files of about FILE_BYTES, each with its number of rows; one at least."""
    from pyarrow import parquet

    waiting = iter(batches)
    batch = next(waiting, None)
    written = False
    while batch is not None or not written:
        rows = 0
        with tempfile.TemporaryFile() as file:
            with parquet.ParquetWriter(file, schema) as writer:
                while batch is not None and (rows == 0 or file.tell() < FILE_BYTES):
                    writer.write_batch(batch.cast(schema))
                    rows += batch.num_rows
                    batch = next(waiting, None)
            file.seek(0)
            written = True
            yield file.read(), rows


def create_once(objects: Objects, key: str, data: bytes) -> None:
    """Create an object, unless an earlier attempt of the same task has created it.

    Raises ArchiveError where another object has its name, NoAnswer."""
    if not objects.create(key, data) and objects.get(key) != data:
        raise ArchiveError(f"{objects.place(key)}: another program writes to this place, too")
