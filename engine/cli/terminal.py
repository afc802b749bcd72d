"""Listings of our own at a terminal: aligned columns, short times, coloured outcomes, and texts cut to the width.

Written to a file or a pipe the same listings are tables for programs (formatters.py).
"""

import re
from collections.abc import Sequence
from datetime import datetime

from rewindmq.engine.cli.formatters import Rows, one_line, width
from rewindmq.engine.cli.values import Value, table_text

GAP = "  "
TIMES, OUTCOMES = ("timestamp", "published", "before_at", "after_at"), ("outcome", "before", "after")  # columns
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
NUMBER = re.compile(r"[+-]?\d+")
GREEN, YELLOW, RED, BLUE, DIM, PLAIN = (f"\x1b[{code}m" for code in (32, 33, 31, 34, 2, 0))
COLOURS = {
    "published": BLUE,
    "delivered": BLUE,
    "acked": GREEN,
    "requeued": YELLOW,
    "expired": YELLOW,
    "maxlen": YELLOW,
    "dead_lettered": YELLOW,
    "rejected": RED,
    "delivery_limit": RED,
    "purged": RED,
    "deleted": RED,
    "removed": RED,
}
LEAST = 8  # columns of a text that is cut


def aligned(columns: Sequence[str], rows: Rows, columns_wide: int) -> list[str]:
    """Return the lines of a listing.

    A column without a value is left out. Of a column of times, a date that all have stands in the header. Where a line
    would have more than `columns_wide` columns, the widest texts are cut, except times and outcomes."""
    names = [name for name in columns if any(_has(row[name]) for row in rows)]
    shown = [_column(name, [row[name] for row in rows]) for name in names]
    widths = [max(map(width, cells)) for cells in shown]
    cuttable = [number for number, name in enumerate(names) if name not in TIMES and name not in OUTCOMES]
    for least in ([max(width(cells[0]), LEAST) for cells in shown], [LEAST] * len(shown)):  # headers last
        while sum(widths) + len(GAP) * (len(widths) - 1) > columns_wide:
            longer = [number for number in cuttable if widths[number] > least[number]]
            if not longer:
                break
            widths[max(longer, key=widths.__getitem__)] -= 1
    right = [all(NUMBER.fullmatch(cell) or not cell for cell in cells[1:]) for cells in shown]
    lines = []
    for row in zip(*shown, strict=True):
        cells = zip(names, row, widths, right, strict=True)
        lines.append(GAP.join(_padded(name, cut(cell, size), size, end) for name, cell, size, end in cells).rstrip())
    return [f"{DIM}{line}{PLAIN}" if number == 0 else line for number, line in enumerate(lines)]


def _has(value: Value) -> bool:
    return value is not None and value != "" and value != []


def _column(name: str, values: Sequence[Value]) -> list[str]:
    """Return the header and the cells of a column."""
    cells = [one_line(table_text(value)) for value in values]
    if name not in TIMES or not all(ISO_TIME.fullmatch(cell) for cell in cells):
        return [name, *cells]
    times = [datetime.fromisoformat(cell) for cell in cells]
    days = {f"{time:%Y-%m-%d}" for time in times}
    texts = [f"{time:%H:%M:%S}.{time.microsecond // 1000:03}" for time in times]
    if len(days) == 1:
        return [f"{name} {days.pop()}", *texts]
    return [name, *(f"{time:%Y-%m-%d} {text}" for time, text in zip(times, texts, strict=True))]


def cut(text: str, most: int) -> str:
    """Return the text, or as much of it as fits into this many columns of a terminal."""
    if width(text) <= most:
        return text
    while width(text) >= most:
        text = text[:-1]
    return text + "…"


def _padded(name: str, cell: str, size: int, to_the_right: bool) -> str:
    blanks = " " * (size - width(cell))
    coloured = f"{COLOURS[cell]}{cell}{PLAIN}" if name in OUTCOMES and cell in COLOURS else cell
    return blanks + coloured if to_the_right else coloured + blanks
