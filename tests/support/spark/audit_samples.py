"""Samples of what the files of an audit hold (spark_replay/audit/stored_form.py), and the golden files made of them.

    tests/golden_audit/StoredLedger.txt     a line for each column: its path, the type of its values, two values
                                            or more; then the bytes of the file

A sample is made from the tables, so that it has every field. Golden files change only with FORMAT:

    python -m tests.support.spark.audit_samples
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from rewindmq.spark_replay.audit.stored_form import FILES, Column, Many, Map, Plain, Record, packed

GOLDEN = Path(__file__).parents[2] / "golden_audit"
_WIDTH = 60  # bytes in a line


def sample(kind: type) -> Any:
    """A value in which every number and every text is another one."""
    [value] = FILES[kind].read(_column(FILES[kind], 1, count(1)))
    return value


def _column(column: Column, size: int, numbers: Iterator[int]) -> Any:
    """A column of so many values."""
    if isinstance(column, Record):
        return {name: _column(each, size, numbers) for name, each in column.fields.items()}
    if isinstance(column, Many):
        counts = [1] * size
        return {"counts": counts, "items": _column(column.items, size, numbers)}
    if isinstance(column, Map):
        counts = [2] * size
        return {
            "counts": counts,
            "keys": _column(column.keys, 2 * size, numbers),
            "values": _column(column.values, 2 * size, numbers),
        }
    assert isinstance(column, Plain)
    last = column.items if isinstance(column.items, str) else column.items[-1]
    return [_plain(last, next(numbers)) for _ in range(size)]


def _plain(type: str, number: int) -> Any:
    if type == "boolean":
        return number % 2 == 0
    if type == "long":
        return number if number % 5 else -number << 40
    return str(number) if type == "string" else b"%d" % number


def golden(kind: type) -> str:
    """The content of a golden file."""
    value = sample(kind)
    bytes_ = packed(value).hex()
    lines = [*_lines(FILES[kind], FILES[kind].write([value]), ""), ""]
    return "\n".join([*lines, *(bytes_[at : at + 2 * _WIDTH] for at in range(0, len(bytes_), 2 * _WIDTH)), ""])


def bytes_in(text: str) -> bytes:
    """The bytes in a golden file."""
    return bytes.fromhex(text.partition("\n\n")[2])


def _lines(column: Column, written: Any, path: str) -> Iterator[str]:
    if isinstance(column, Plain):
        yield f"{path.removeprefix('.')}  {column.items}  {written}"
        return
    if isinstance(column, Record):
        parts = column.fields
    elif isinstance(column, Many):
        parts = {"items": column.items}
    else:
        assert isinstance(column, Map)
        parts = {"keys": column.keys, "values": column.values}
    for name, each in parts.items():
        yield from _lines(each, written[name], f"{path}.{name}")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for kind in FILES:
        (GOLDEN / f"{kind.__name__}.txt").write_text(golden(kind))
