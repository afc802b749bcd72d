"""Folds of a whole log, to compare with what a broker has."""

from pathlib import Path

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.store.quarantine import QuarantineReport


def refolded(data: Path) -> list[str]:
    """Digests of the partitions folded from the log alone."""
    log = EmbeddedLogReader(data)
    machines = [Machine(partition.name) for partition in log.queues]
    for machine, partition in zip(machines, log.queues, strict=True):
        fold(machine, partition)
    return [machine.digest() for machine in machines]


def assert_same_quarantine(one: QuarantineReport, other: QuarantineReport) -> None:
    assert (one.count, one.newest()) == (other.count, other.newest())
