"""docs/spark/columns.md, made of the tables' columns (spark_replay/columns.py) and of what they mean.

python -m tests.support.columns_page      writes it anew
"""

import pyarrow as pa

from rewindmq.spark_replay.dictionary import TABLES, Table, text_of
from tests.support.running import ROOT

PAGE = ROOT / "docs" / "spark" / "columns.md"
HEAD = """\
# Columns of the tables

    spark.read.format("rewindmq").option("path", DIR).option("view", "history").load().printSchema()

Times are timestamps in UTC, sizes are bytes, and durations end in `_ms`. JSON in a column is canonical: sorted keys, no
spaces. A column is null where the row says nothing about it. [security](security.md) has the columns of its own
table. [outputs](../outputs/README.md) has a JSON schema for the output of each command.

This page is made of the code: `python -m tests.support.columns_page`.
"""
TYPES = {
    "string": "text",
    "int64": "long",
    "int32": "int",
    "double": "double",
    "bool": "boolean",
    "binary": "binary",
    "timestamp[us, tz=UTC]": "timestamp",
}


def type_name(kind: pa.DataType) -> str:
    """The type as Spark's SQL writes it."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {type_name(each.type)}' for each in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    return TYPES[str(kind)]


def section(name: str, table: Table) -> str:
    """A table as a heading and a table."""
    rows = [f"| `{each.name}` | {type_name(each.type)} | {text_of(table, each.name)} |" for each in table.columns]
    lines = [f"## {name}", "", f"A row is {table.row}. Source: {table.source}.", "", "| column | type | meaning |"]
    return "\n".join([*lines, "| --- | --- | --- |", *rows, ""])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(name, table) for name, table in TABLES.items())])


if __name__ == "__main__":
    PAGE.write_text(page())
