"""The audit that goes on (B-18), without Spark: put down and taken up again, it finds what one in one go finds."""

from pathlib import Path

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.spark_replay.audit.watch import AuditStates
from rewindmq.spark_replay.fold import log_groups
from tests.support.spark.liars import LIES, Liar, Lie, Row, audit_in_one

pytestmark = pytest.mark.of_pure  # compiled code takes no machine that lies


def audit_in_pieces(
    data: Path, number: int, directory: Path, size: int, lie: Lie | None = None
) -> tuple[list[Row], str]:
    """The findings of an audit that is put down after each `size` events, and the digest at its end."""
    partition = EmbeddedLogReader(data).queues[number]
    states = AuditStates(directory, partition.name)
    rows: list[Row] = []
    batch, lied_at = 0, -1
    for start in range(0, partition.next_offset, size):
        product = states.before(batch)
        machine = product.machine
        if lie is not None:
            machine = Liar.over(machine, lie, lied_at)
        groups = log_groups(data, partition.name, start, min(start + size, partition.next_offset))
        for found in fold_events(product, machine, groups):
            rows += [row for row in found.to_pylist() if not row["ok"]]
        if isinstance(machine, Liar):
            lied_at = machine.lied_at
        states.save(batch, product)
        batch += 1
    return rows, states.before(batch).machine.digest()


def test_an_audit_in_pieces_ends_where_one_in_one_go_does(busy: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        machine = Machine(f"queues-{number}")
        assert audit_in_one(busy, number, machine) == []
        assert audit_in_pieces(busy, number, tmp_path, 97) == ([], machine.digest())


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_an_audit_in_pieces_finds_a_lie_where_it_is_told(busy: Path, tmp_path: Path, lie: Lie) -> None:
    found = []
    for number in (0, 1):
        whole = audit_in_one(busy, number, Liar(f"queues-{number}", lie))
        pieces, _ = audit_in_pieces(busy, number, tmp_path, 97, lie)
        assert pieces[:1] == whole[:1]
        found += pieces
    assert found


def test_a_damaged_state_is_refused(busy: Path, tmp_path: Path) -> None:
    audit_in_pieces(busy, 0, tmp_path, 1_000)
    [path] = (tmp_path / "queues-0").iterdir()
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(LogError, match="damaged"):
        AuditStates(tmp_path, "queues-0").before(1)
