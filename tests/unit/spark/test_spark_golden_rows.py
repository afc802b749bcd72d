"""The rows of HISTORY that were made of the golden log once are made of it today, whatever else is asked for."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.projections.history import outcome_rows, outcomes
from rewindmq.projections.history.outcome_rows import OutcomeRow, PlainRows
from rewindmq.projections.history.outcomes import Outcomes, called, wanted_rows
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import log_groups
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from tests.support.spark.golden import GOLDEN_HISTORY, write_golden_log

QUEUES = ("plain", "//solid", "graveyard", "nowhere")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    data = tmp_path_factory.mktemp("golden")
    write_golden_log(data)
    stored = pq.read_table(GOLDEN_HISTORY / "history.parquet")
    why = columns.HISTORY.get_field_index("why")  # a later column: nobody of that log said why
    rows = stored.add_column(why, "why", pa.nulls(stored.num_rows, pa.string())).cast(columns.HISTORY)
    assert rows.num_rows > 600
    return data, rows


def made(data: Path, queue: str | None = None, only: list[str] | None = None, moves: bool = False) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for partition in InDirectory(data).open().queues:
        product = HistoryProduct(partition.name, queue, only, moves)
        groups = log_groups(data, partition.name, 0, partition.next_offset)
        batches += fold_events(product, Machine(partition.name), groups)
    return pa.Table.from_batches(batches, columns.HISTORY if only is None else None)


def test_every_row_is_as_it_was(golden: tuple[Path, pa.Table]) -> None:
    data, rows = golden
    assert made(data).equals(rows)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_where_batches_end_makes_no_difference(
    golden: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data, rows = golden
    for module in (outcome_rows, outcomes):
        monkeypatch.setattr(module, "BATCH_ROWS", size)
    assert made(data).equals(rows)
    for queue in QUEUES:
        assert made(data, queue).to_pylist() == of_queue(rows, queue)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queues_rows_are_those_of_the_whole(golden: tuple[Path, pa.Table], queue: str) -> None:
    data, rows = golden
    assert made(data, queue).to_pylist() == of_queue(rows, queue)


@pytest.mark.parametrize("name", columns.HISTORY.names)
def test_a_column_alone_is_that_of_the_whole(golden: tuple[Path, pa.Table], name: str) -> None:
    data, rows = golden
    names = [name, "ordinal" if name == "offset" else "offset"]
    assert made(data, only=names).equals(rows.select(names))


def test_moves_are_the_rows_by_which_a_message_came_or_left(golden: tuple[Path, pa.Table]) -> None:
    data, rows = golden
    moves = [row for row in rows.to_pylist() if row["final"] or row["outcome"] == "published"]
    assert made(data, moves=True).to_pylist() == moves


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_b29_plain_rows_are_those_of_arrow(
    golden: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data, rows = golden
    for module in (outcome_rows, outcomes):
        monkeypatch.setattr(module, "BATCH_ROWS", size)
    moves = [row for row in rows.to_pylist() if row["final"] or row["outcome"] == "published"]
    assert plain(data, None, False) == without_timestamps(rows.to_pylist())
    assert plain(data, None, True) == without_timestamps(moves)
    for queue in QUEUES:
        assert plain(data, queue, False) == without_timestamps(of_queue(rows, queue))


def plain(data: Path, queue: str | None, moves: bool) -> list[tuple[int | None, dict[str, Any]]]:
    found: list[OutcomeRow] = []
    for partition in InDirectory(data).open().queues:
        product = Outcomes(PlainRows(partition.name, wanted_rows(queue, moves)))
        groups = log_groups(data, partition.name, 0, partition.next_offset)
        for batch in fold_events(product, Machine(partition.name), groups):
            found += batch
    return [(row.time_ms, row.fields()) for row in found]


def without_timestamps(rows: list[dict[str, Any]]) -> list[tuple[int | None, dict[str, Any]]]:
    times = [row.pop("timestamp") for row in rows]
    return [
        (None if time is None else round(time.timestamp() * 1000), row) for time, row in zip(times, rows, strict=True)
    ]


def of_queue(rows: pa.Table, queue: str) -> list[dict[str, object]]:
    return [row for row in rows.to_pylist() if (row["vhost"], row["queue"]) in called(queue)]
