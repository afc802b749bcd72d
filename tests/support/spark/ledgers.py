"""The ledgers that an audit has kept, and its findings."""

from pathlib import Path
from typing import Any

from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.ledger_files import Ledgers


def ledger_offsets(own: Path) -> dict[str, list[int]]:
    """Return the offsets of the ledgers that an audit has kept, by partition."""
    return {name: Ledgers(Snapshots(own), name).offsets() for name in ("queues-0", "queues-1")}


def findings_of_events(findings: list[Finding]) -> set[tuple[Any, ...]]:
    """All but what is about snapshots and ledgers, and the number of publishes, which is that of the part audited."""
    apart = ("snapshots", "ledgers", "publishes")
    return {finding.row() for finding in findings if finding.check not in apart}


def failed_checks(findings: list[Finding]) -> list[tuple[str, str, int | None]]:
    """Return check, partition and offset of each finding that is not good."""
    return [(finding.check, finding.partition, finding.offset) for finding in findings if not finding.ok]
