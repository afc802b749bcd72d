"""A finding of an audit: a row of the table AUDIT (columns.py), with what makes it bad."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """`corrupt`: the log itself cannot be read."""

    check: str
    ok: bool
    partition: str
    offset: int | None
    queue: str | None
    message_id: int | None
    detail: str
    corrupt: bool = False

    def row(self) -> tuple[Any, ...]:
        return (self.check, self.ok, self.partition, self.offset, self.queue, self.message_id, self.detail)


def of_row(row: Any, corrupt: bool = False) -> Finding:
    return Finding(row.check, row.ok, row.partition, row.offset, row.queue, row.message_id, row.detail, corrupt)
