"""Tables as rabbitmqctl prints them: `table` (tab separated), `pretty_table` (boxes), `json`, `json_stream`, `csv`,
`erlang`.

A table is its columns and its rows; a row maps each column to a value (see values.py). json and csv are for programs:
no banner is printed before them.
"""

import unicodedata
from collections.abc import Callable, Sequence

from rewindmq.engine.cli.values import Value, erlang_term, json_line, pretty, table_text

Rows = Sequence[dict[str, Value]]
MACHINE_READABLE = ("json", "json_stream", "csv")
TERMINAL = 80  # columns
BODY_SHOWN = 64  # characters


def table(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """The header stands above the first row, so an empty listing has none."""
    lines = ["\t".join(columns)] if headers and rows else []
    return lines + ["\t".join(table_text(row[column]) for column in columns) for row in rows]


def pretty_table(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """Return a box, always with its header, even under `--silent` (S-164). Nothing for no rows."""
    if not rows:
        return []
    cells = [list(columns), *([one_line(pretty(row[column])) for column in columns] for row in rows)]
    widths = [max(width(row[number]) for row in cells) for number in range(len(columns))]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (each + 2) for each in widths) + right

    def line(row: list[str]) -> str:
        padded = [f" {cell}{' ' * (size - width(cell))} " for cell, size in zip(row, widths, strict=True)]
        return "│" + "│".join(padded) + "│"

    lines = [rule("┌", "┬", "┐"), line(cells[0])]
    for row in cells[1:]:
        lines += [rule("├", "┼", "┤"), line(row)]
    return [*lines, rule("└", "┴", "┘")]


def one_line(text: str) -> str:
    """Return the text with escapes for what cannot be printed on one line."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def beginning(body: str) -> str:
    """Return the first characters of a body, for people: --formatter json shows all that the API gives."""
    return one_line(body[:BODY_SHOWN] + ("..." if len(body) > BODY_SHOWN else ""))


def width(text: str) -> int:
    """Columns on a terminal: wide and full-width characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def as_json(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """Return a JSON list, one row a line."""
    lines = [json_line({column: row[column] for column in columns}) for row in rows]
    return ["[", *((("," if number else "") + line) for number, line in enumerate(lines)), "]"]


def csv(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """Comma-separated values, all in quotes. Nothing for no rows."""

    def line(cells: Sequence[str]) -> str:
        return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)

    return [line(columns), *(line([table_text(row[column]) for column in columns]) for row in rows)] if rows else []


def json_stream(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """Return a JSON object for each row, and an empty line, as rabbitmqctl has it."""
    return [line for row in rows for line in (json_line({column: row[column] for column in columns}), "")]


def erlang(columns: Sequence[str], rows: Rows, headers: bool) -> list[str]:
    """Return a list of property lists. A row that does not fit into a line has one for each column."""
    lines: list[str] = []
    for number, row in enumerate(rows):
        cells = [f"{{{column},{erlang_term(row[column])}}}" for column in columns]
        start = "[[" if number == 0 else " ["
        end = "]]" if number == len(rows) - 1 else "],"
        whole = start + ",".join(cells) + end
        lines += [whole] if len(whole) <= TERMINAL else (start + ",\n  ".join(cells) + end).split("\n")
    return lines or ["[]"]


FORMATTERS: dict[str, Callable[[Sequence[str], Rows, bool], list[str]]] = {
    "table": table,
    "pretty_table": pretty_table,
    "json": as_json,
    "json_stream": json_stream,
    "csv": csv,
    "erlang": erlang,
}
