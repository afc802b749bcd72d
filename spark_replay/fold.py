"""The machine folded in Spark tasks: a stretch of one log partition a task, in order, without a shuffle.

    over the log     spark.range(stretches) -> mapInArrow: each task reads its stretch from the log and folds it
    over a frame     records -> mapInArrow: the rows of a DataFrame (partition, offset, record), from wherever

The same `projections.machine` runs here that runs in the broker. Over the log, no record travels between Python and the
JVM: that journey costs more than the fold. A task begins at the nearest snapshot, so a long partition with snapshots
can be cut into stretches that are folded at the same time. Memory is the machine's state and one group of records.

What a fold makes of each event is a `Product`: it sees the event and its effects while the machine stands right behind
the event. A record that cannot be decoded is skipped, as by every fold (DESIGN section 1), and shown to the product.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from projections.machine.effects import Effect
from projections.machine.machine import Machine
from projections.snapshots import SnapshotError, Snapshots, load
from schemas.codec import Decoder, UndecodableRecord
from schemas.events import Actor, Checkpointed, Event
from spark_replay import columns
from spark_replay.history_log import read_groups
from spark_replay.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Offsets and records, in order
Group = tuple[Sequence[int], Sequence[bytes]]
GROUP_ROWS = 10_000
GROUP_BYTES = 8 * 1024 * 1024


class Product(Protocol):
    """Makes rows of a fold; one instance a stretch."""

    def begin(self, machine: Machine) -> None:
        """Before the first event that it is shown; the machine stands there already."""

    def before(self, offset: int, event: Checkpointed) -> None:
        """The machine is about to apply the broker's claim about the state before it."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """The machine has just applied it."""

    def undecodable(self, offset: int, why: str) -> None: ...

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        """Rows that are ready; called after each group of records, and with `last` at the end."""


def fold_events(
    product: Product, machine: Machine, groups: Iterable[Group], stripped: bool = False
) -> "Iterator[pa.RecordBatch]":
    """Show `product` every event with its effects. `stripped`: the records are without bodies (`strip_body`)."""
    product.begin(machine)
    decode = Decoder().decode
    apply = machine.apply
    show = product.event
    effects: list[Effect] = []
    for offsets, records in groups:
        for offset, record in zip(offsets, records, strict=True):
            try:
                timestamp_ms, actor, event = decode(record, False, stripped)
            except UndecodableRecord as error:
                product.undecodable(offset, str(error))
                continue
            if type(event) is Checkpointed:
                product.before(offset, event)
            apply(offset, timestamp_ms, actor, event, effects)
            show(offset, timestamp_ms, actor, event, effects)
            effects.clear()
        yield from product.take(False)
    yield from product.take(True)


def fold_quietly(machine: Machine, groups: Iterable[Group]) -> None:
    """Only the state at the end matters."""
    decode = Decoder().decode
    apply = machine.apply
    effects: list[Effect] = []
    for offsets, records in groups:
        for offset, record in zip(offsets, records, strict=True):
            try:
                timestamp_ms, actor, event = decode(record, False)
            except UndecodableRecord:
                continue
            apply(offset, timestamp_ms, actor, event, effects)
            if effects:
                effects.clear()


# -- over the log --------------------------------------------------------------------------------------------------


def fold_log(
    spark: "SparkSession", stretches: Sequence[Range], task: "Callable[..., Iterator[pa.RecordBatch]]",
    schema: "pa.Schema", **settings: Any,
) -> "DataFrame":  # fmt: skip
    """What `task(stretch, **settings)` yields for each stretch, in their order."""
    if not stretches:
        return spark.createDataFrame([], columns.spark_schema(schema))
    plan = spark.range(0, len(stretches), 1, len(stretches))
    return plan.mapInArrow(partial(_tasks, list(stretches), task, settings), columns.spark_schema(schema))


def _tasks(stretches: list[Range], task: Any, settings: dict[str, Any], batches: "Iterator[pa.RecordBatch]") -> Any:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from task(stretches[number], **settings)


def log_groups(data: str, partition: str, start: int, end: int) -> Iterator[Group]:
    """A stretch of the log of a data directory. CorruptLog."""
    for first, records in read_groups(data, Range(partition, start, end), GROUP_ROWS, GROUP_BYTES):
        yield range(first, first + len(records)), records


def machine_at(data: str, partition: str, offset: int) -> Machine:
    """The machine behind every event below `offset`, from the nearest sound snapshot. A snapshot saves time and decides
    nothing: a damaged one is passed over."""
    snapshots = Snapshots(Path(data) / "snapshots")
    machine = Machine(partition)
    path = snapshots.nearest(partition, offset)
    while path is not None:
        try:
            machine = load(path)
            break
        except SnapshotError:
            path = snapshots.nearest(partition, int(path.stem) - 1)
    fold_quietly(machine, log_groups(data, partition, machine.next_offset, offset))
    return machine


def cut_at_snapshots(data: str, stretches: Iterable[Range]) -> list[Range]:
    """The same stretches, in as many pieces as can be folded at the same time."""
    snapshots = Snapshots(Path(data) / "snapshots")
    pieces = []
    for stretch in stretches:
        inside = [at for at in sorted(snapshots.offsets(stretch.partition)) if stretch.start < at < stretch.end]
        bounds = [stretch.start, *inside, stretch.end]
        pieces += [Range(stretch.partition, a, b) for a, b in pairwise(bounds)]
    return pieces


# -- over a frame --------------------------------------------------------------------------------------------------


def fold_frame(
    records: "DataFrame", product: Callable[[str], Product], schema: "pa.Schema"
) -> "DataFrame":
    """What `product(partition)` makes of a DataFrame with the columns RECORDS, each Spark partition of which holds one
    log partition from its beginning, in order (as the data source's view `records` gives it)."""
    frame = records.select(*columns.RECORDS.names)
    return frame.mapInArrow(partial(_fold_rows, product), columns.spark_schema(schema))


def _fold_rows(product: Callable[[str], Product], batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    partition = first.column("partition")[0].as_py()
    groups = _frame_groups(partition, first, filled)
    yield from fold_events(product(partition), Machine(partition), groups, stripped=True)


def _frame_groups(partition: str, first: "pa.RecordBatch", rest: "Iterator[pa.RecordBatch]") -> Iterator[Group]:
    """Verified to be one partition and to ascend: mixed rows would make a fold wrong in silence."""
    expected = 0
    batch: pa.RecordBatch | None = first
    while batch is not None:
        offsets: list[int] = batch.column("offset").to_numpy().tolist()
        found = batch.column("partition")[0].as_py()
        if found != partition or offsets[0] < expected:
            raise RuntimeError(f"a fold of {partition} at offset {expected} was given {found} offset {offsets[0]}")
        expected = offsets[-1] + 1
        yield offsets, binary_values(batch.column("record"))
        batch = next(rest, None)


def binary_values(column: Any) -> list[bytes]:
    """A binary column without nulls as `bytes`, cut out of the one buffer it is stored in: a scalar object a row would
    cost more than the fold."""
    import numpy
    import pyarrow as pa

    width = numpy.int64 if pa.types.is_large_binary(column.type) else numpy.int32
    _, bounds, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = numpy.frombuffer(bounds, dtype=width)[column.offset : column.offset + len(column) + 1].tolist()
    base = ends[0]
    whole = data.slice(base, ends[-1] - base).to_pybytes()
    return [whole[start - base : end - base] for start, end in pairwise(ends)]
