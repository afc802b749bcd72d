"""Writes tables to stdout or to files: JSON as an array of objects, CSV and aligned text for people, Parquet by Spark.

Times are ISO 8601 in UTC with milliseconds. Bodies that are UTF-8 are text; other bodies are base64, and
`body_encoding` says so. Properties are decoded, under AMQP's names; properties that cannot be decoded are base64.
"""

import base64
import csv
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rewindmq.projections.history.properties import json_form, properties_object
from rewindmq.schemas.json_values import json_text
from rewindmq.spark_replay.commands.failures import NoSpark
from rewindmq.spark_replay.commands.object_output import create_once, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

    from rewindmq.spark_replay.commands.options import Out
    from rewindmq.spark_replay.history.state import StateTables

# Formats that are directories, written by Spark; the second needs a connector
TABLES = ("parquet", "delta")
DELTA = (
    "--packages io.delta:delta-spark_4.2_2.13:4.4.0 "
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
# No such format; a class of it is missing; not set up for it
_NO_DELTA = ("DATA_SOURCE_NOT_FOUND", "ClassNotFoundException", "CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
_JSON_COLUMNS = ("arguments", "effective_policy_definition")


class Printed:
    """A stream of text that counts its characters. All else is that of the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.characters = 0
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, and count it."""
        self.characters += len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def nothing_at(out: "Out") -> bool:
    """Return True if there is nothing at a place for results."""
    return not out.exists() if isinstance(out, Path) else next(out.list(""), None) is None


def discard_output() -> None:
    """Discard further output: the reader of stdout has closed it (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_states(
    states: "Sequence[tuple[str | None, StateTables]]", messages: bool, form: str, only: str | None = None
) -> None:
    """Print states as `state-at` does: one object a queue, ordered by vhost and name within a moment.

    `states`: each with its moment (None: there is only one). `only`: the queue that they are of."""
    queues: list[dict[str, Any]] = []
    for moment, state in states:
        found: list[dict[str, Any]] = []
        for row in state.rows.toLocalIterator():
            if row.queue is not None:
                said = {} if moment is None else {"moment": moment}
                found.append(said | queue_object(row.queue.asDict(recursive=True), messages))
            else:
                found[-1]["messages_list"].append(message_object(row.message.asDict(recursive=True)))
        queues += sorted(found, key=lambda queue: (queue["vhost"], queue["queue"]))
    tell_unknown(only, len(queues))
    if form == "table":
        _print_queue_tables(queues, messages)
        return
    for queue in queues:
        if messages:
            queue["messages"] = queue.pop("messages_list")
    print_json(queues, sys.stdout)


def queue_object(row: dict[str, Any], messages: bool) -> dict[str, Any]:
    """Return a row of QUEUES as JSON. `name` repeats the queue, as rabbitmqctl calls it."""
    found = {name: json_form(value) for name, value in row.items()}
    for name in _JSON_COLUMNS:
        found[name] = json.loads(found[name])
    found["counters"] = dict(sorted(found["counters"].items()))
    found["name"] = found["queue"]
    if messages:
        found["messages_total"] = found["messages"]
        found["messages_list"] = []
    return found


def message_object(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of MESSAGES as JSON, with its properties decoded."""
    found = {name: json_form(value) for name, value in row.items() if name not in ("properties", "body")}
    found["properties"] = properties_object(bytes(row["properties"] or b""))
    try:
        found["body"] = bytes(row["body"] or b"").decode()
        found["body_encoding"] = "utf-8"
    except UnicodeDecodeError:
        found["body"] = base64.b64encode(row["body"]).decode()
        found["body_encoding"] = "base64"
    return found


def write_frame(frame: "DataFrame", form: str, out: "Out | None", queue: str | None = None) -> None:
    """Write all rows, in the frame's order, to stdout or to files below `out`.

    `queue`: the only one that they are about; if there are none, a line on stderr says so.

    Raises NoAnswer, ArchiveError for object storage; NoSpark."""
    if form in TABLES:
        assert out is not None, "the command asked for it"
        if isinstance(out, Path):
            save(frame.write, form, out)
        else:
            write_parquet(frame, out)
        return
    if out is None:
        tell_unknown(queue, _write_rows(frame, form, sys.stdout))
        return
    name = f"part-0.{'txt' if form == 'table' else form}"
    if isinstance(out, Path):
        out.mkdir(parents=True)
        with (out / name).open("w") as target:
            tell_unknown(queue, _write_rows(frame, form, target))
        return
    with tempfile.TemporaryFile("w+") as target:
        tell_unknown(queue, _write_rows(frame, form, target))
        target.seek(0)
        create_once(out, name, target.read().encode())


def save(writer: "DataFrameWriter", form: str, out: Path) -> None:
    """Write a frame in one of the formats TABLES.

    Raises NoSpark when Spark has no such format, or is not set up for it."""
    try:
        writer.format(form).save(str(out))
    except Exception as error:  # Delta has several, and none that pyspark knows
        if form == "delta" and any(name in str(error) for name in _NO_DELTA):
            raise NoSpark(f"Spark has no Delta format: PYSPARK_SUBMIT_ARGS='{DELTA} pyspark-shell'") from error
        raise


def tell_unknown(queue: str | None, found: int) -> None:
    """Say on stderr that nothing was found of the queue that was asked for: its name may be misspelled."""
    if queue is not None and not found:
        name = printable(queue)
        sys.stderr.write(
            f"spark_replay: nothing is about queue '{name}': is it vhost/name, or a name in the vhost /?\n"
        )


def _write_rows(frame: "DataFrame", form: str, target: TextIO) -> int:
    """Write all rows. Returns how many."""
    names, count = frame.columns, itertools.count()
    rows = (row.asDict(recursive=True) for row, _ in zip(frame.toLocalIterator(), count, strict=False))
    if form == "json":
        print_json(({name: json_form(value) for name, value in row.items()} for row in rows), target)
    elif form == "csv":
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
    else:
        print_table(names, ([_rounded(value) for value in row.values()] for row in rows), target)
    return next(count)


def print_json(objects: Iterable[Any], target: TextIO) -> None:
    """Write a JSON array, one object a line, as the objects come. Nothing is written before the first object."""
    separator = "[\n"
    for item in objects:
        target.write(separator + json_text(item, ensure_ascii=False))
        separator = ",\n"
    target.write("[]\n" if separator == "[\n" else "\n]\n")


def print_table(names: list[str], rows: Iterable[list[str]], target: TextIO, page: int = 10_000) -> None:
    """Write aligned columns, without the empty ones.

    Each page has its own widths, so a table of any length can be printed. A table without rows has all names, so that
    it does not look as if nothing was done."""
    pages = _pages(([printable(cell) for cell in row] for row in rows), page)
    first = next(pages, None)
    if first is None:
        target.write("  ".join(names) + "\n")
        return
    for lines in chain((first,), pages):
        used = [i for i in range(len(names)) if any(line[i] for line in lines)]
        widths = {i: max(len(names[i]), *(len(line[i]) for line in lines)) for i in used}
        for line in [names, *lines]:
            target.write("  ".join(line[i].ljust(widths[i]) for i in used).rstrip() + "\n")


def printable(text: str) -> str:
    """The text without control characters: texts of clients must not control a terminal or look like our lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _pages(rows: Iterable[list[str]], page: int) -> Iterator[list[list[str]]]:
    lines: list[list[str]] = []
    for row in rows:
        lines.append(row)
        if len(lines) == page:
            yield lines
            lines = []
    if lines:
        yield lines


_QUEUE_TABLE = (
    "vhost",
    "queue",
    "type",
    "policy",
    "messages_ready",
    "messages_unacknowledged",
    "message_bytes_ready",
    "consumers",
)
_MESSAGE_TABLE = (
    "queue",
    "message_id",
    "state",
    "position",
    "size",
    "redelivered",
    "delivery_count",
    "expires",
    "routing_key",
    "body",
)


def _print_queue_tables(queues: list[dict[str, Any]], messages: bool) -> None:
    of_queue, of_message = ["moment", *_QUEUE_TABLE], ["moment", *_MESSAGE_TABLE]  # an empty column is not shown
    print_table(of_queue, [[_cell(queue.get(name)) for name in of_queue] for queue in queues], sys.stdout)
    if messages:
        found = [{"moment": queue.get("moment"), **each} for queue in queues for each in queue["messages_list"]]
        sys.stdout.write("\n")
        print_table(of_message, [[_cell(m[name])[:60] for name in of_message] for m in found], sys.stdout)


def _rounded(value: Any) -> str:
    """Return the cell of a table for people."""
    return _cell(round(value, 3) if isinstance(value, float) else value)


def _cell(value: Any) -> str:
    value = json_form(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value, ensure_ascii=False)
