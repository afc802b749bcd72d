"""Defines a finding of an audit: a row of the table AUDIT (columns.py), with its severity and a hint."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.spark_replay.audit.checks import hint_of, severity_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of one check.

    `corrupt`: the log itself cannot be read. `ok`: nothing is wrong. Where nothing was compared, `detail` begins with
    NOT_CHECKED and says why."""

    check: str
    ok: bool
    partition: str
    offset: int | None
    queue: str | None
    message_id: int | None
    detail: str
    corrupt: bool = False

    @property
    def severity(self) -> str:
        """The severity as in checks.py; empty for a check that holds."""
        return "" if self.ok else severity_of(self.check, self.offset)

    @property
    def hint(self) -> str:
        """The first step to take; empty for a check that holds."""
        return "" if self.ok else hint_of(self.check)

    @property
    def checked(self) -> bool:
        """Return True if anything was compared."""
        return not self.detail.startswith(NOT_CHECKED)

    def as_json(self) -> dict[str, Any]:
        """The finding in a form that JSON has."""
        return {**asdict(self), "checked": self.checked, "severity": self.severity, "hint": self.hint}

    def row(self) -> tuple[Any, ...]:
        """The finding as a row of the table AUDIT."""
        return (self.check, self.ok, self.partition, self.offset, self.queue, self.message_id, self.detail)


def of_row(row: Any, corrupt: bool = False) -> Finding:
    """The finding in a row of the table AUDIT."""
    return Finding(row.check, row.ok, row.partition, row.offset, row.queue, row.message_id, row.detail, corrupt)


def not_all_ok(findings: Sequence[Finding]) -> bool:
    """Return True if any finding is not ok."""
    return not all(finding.ok for finding in findings)
