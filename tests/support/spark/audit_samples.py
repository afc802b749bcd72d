"""A sample of an audit's stored form (spark_replay/audit/file_format.py), and the golden file made of it.

    tests/golden_audit/stored.txt       a line for each column: its path, its Avro type, the values; then the bytes

The sample is made from the tables, so that it has every field. The golden file changes only with FORMAT:

    python -m tests.support.spark.audit_samples
"""

from collections.abc import Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import fastavro

from rewindmq.spark_replay.audit.file_format import STORED, Column, Many, Plain, StoredAudit, TupleColumn, packed

GOLDEN = Path(__file__).parents[2] / "golden_audit" / "stored.txt"
_WIDTH = 60  # bytes in a line


def columns(column: Column, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and the Avro type of each array, in the order in which they are stored."""
    if isinstance(column, TupleColumn):
        for name, each in column.fields.items():
            yield from columns(each, f"{path}.{name}" if path else name)
    elif isinstance(column, Many):
        yield f"{path}#", "long"
        yield from columns(column.items, f"{path}[]")
    else:
        assert isinstance(column, Plain)
        yield path, column.items


def arrays(column: Column, value: Any) -> dict[str, list[Any]]:
    """The arrays of one value, by their paths."""
    file = BytesIO()
    column.write(file, [value])
    file.seek(0)
    return {path: _array(file, type) for path, type in columns(column)}


def _array(file: BytesIO, type: Any) -> list[Any]:
    values: list[Any] = fastavro.schemaless_reader(file, {"type": "array", "items": type}, None)  # type: ignore[assignment]
    return values


def sample() -> StoredAudit:
    """A value in which every collection has two values, and every number and every text is another one."""
    file, numbers = BytesIO(), count(1)
    _write(STORED, file, 1, numbers)
    file.seek(0)
    [stored] = STORED.read(file)
    assert isinstance(stored, StoredAudit)
    return stored


def _write(column: Column, file: BytesIO, size: int, numbers: Iterator[int], most: int = 2) -> None:
    if isinstance(column, TupleColumn):
        for name, each in column.fields.items():
            _write(each, file, size, numbers, 1 if name in ("identities", "policy", "operator_policy") else 2)
    elif isinstance(column, Many):
        Plain("long").write(file, [most] * size)
        _write(column.items, file, most * size, numbers)
    else:
        types = column.items
        column.write(file, [_plain(types if isinstance(types, str) else types[-1], next(numbers)) for _ in range(size)])


def _plain(type: str, number: int) -> Any:
    if type == "boolean":
        return number % 2 == 0
    if type == "long":
        return number if number % 5 else -number << 40
    return str(number) if type == "string" else b"%d" % number


def golden() -> str:
    """The content of the golden file."""
    said, content = arrays(STORED, sample()), packed(sample()).hex()
    lines = [f"{path}  {type}  {said[path]}" for path, type in columns(STORED)]
    return "\n".join([*lines, "", *(content[at : at + 2 * _WIDTH] for at in range(0, len(content), 2 * _WIDTH)), ""])


def bytes_in(text: str) -> bytes:
    """The bytes in a golden file."""
    return bytes.fromhex(text.partition("\n\n")[2])


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(golden())
