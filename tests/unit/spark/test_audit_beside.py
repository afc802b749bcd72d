"""The audit compares RocksDB while it folds, at the offset of RocksDB: it finds what a fold of its own finds."""

from dataclasses import replace
from pathlib import Path

import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.replay import beginning, catch_up, decoder_for
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import verify_partition
from rewindmq.schemas.events import Tick
from rewindmq.schemas.single_object import HEADER
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.second_fold import BesideFold
from rewindmq.spark_replay.fold import FoldInput, fold_range
from rewindmq.spark_replay.location.ranges import OffsetRange
from tests.support.spark.histories import ANN, Recorder, random_history

EVENTS = 1_500


def history(data: Path, seed: int) -> None:
    made = Recorder(data, partitions=1)
    random_history(made, seed, EVENTS)
    made.log.queues[0].append(made.now_ms, HEADER + b"\xff no record")
    made.append(0, ANN, Tick())
    made.close()


def stored(data: Path, end: int) -> None:
    """Let RocksDB stand at an offset."""
    log, store = EmbeddedLogReader(data).queues[0], StateStore.open(data / "state")
    _, projector = store.open_partition(log.name)
    catch_up(log, projector, end)
    projector.write(projector.prepare())
    projector.persist()
    store.close()


def found_beside(data: Path, end: int) -> list[Finding]:
    """Return the audit's findings about RocksDB from the events before `end`."""
    log = EmbeddedLogReader(data).queues[0]
    product = AuditProduct(log.name)
    whole = FoldInput(OffsetRange(log.name, 0, end), beginning(log), iter(()), decoder_for(log))
    beside = BesideFold(InDirectory(data), whole, product, None, ())
    list(fold_range(product, replace(whole, groups=beside.groups())))
    assert product.machine.next_offset == end
    return [Finding(*row) for row in beside.rows()]


def found_by_itself(data: Path) -> list[tuple[str | None, int | None, str]]:
    """Return the findings of a separate fold: queue, message, words."""
    store = StateStore.open(data / "state", read_only=True)
    report = verify_partition(EmbeddedLogReader(data).queues[0], store, event_by_event=True)
    store.close()
    if report.equal:
        words = f"{report.queues} queues, {report.messages} bodies, {report.result} at offset {report.offset}"
        return [(None, None, words if report.stored else report.result)]
    return [(each.queue or None, each.message_id, f"{each.key} {each.what}") for each in report.differences]


def told(findings: list[Finding]) -> list[tuple[str | None, int | None, str]]:
    return [(each.queue, each.message_id, each.detail) for each in findings]


@pytest.mark.parametrize("at", [0, 700, 10**9], ids=["0", "700", "the end"])
def test_the_store_is_compared_wherever_it_stands(tmp_path: Path, at: int) -> None:
    """In the range of the audit, at its ends, and behind it, as a broker writes on."""
    history(tmp_path, 3)
    last = EmbeddedLogReader(tmp_path).queues[0].next_offset
    stored(tmp_path, min(at, last))
    for end in (0, 700, last):
        findings = found_beside(tmp_path, end)
        assert told(findings) == found_by_itself(tmp_path)
        assert [each.ok for each in findings] == [True]


@pytest.mark.parametrize("seed", range(2))
def test_a_store_of_another_history_differs_in_the_same_keys(tmp_path: Path, seed: int) -> None:
    history(tmp_path / "one", seed)
    history(tmp_path / "other", seed + 50)
    for name in ("one", "other"):
        stored(tmp_path / name, 1_200)
    (tmp_path / "one" / "state").rename(tmp_path / "aside")
    (tmp_path / "other" / "state").rename(tmp_path / "one" / "state")
    for end in (600, 1_200, 1_400):
        findings = found_beside(tmp_path / "one", end)
        assert told(findings) == found_by_itself(tmp_path / "one")
        assert len(findings) > 10
        assert not any(each.ok for each in findings)


def test_a_store_ahead_of_the_log_and_none_at_all_are_said(tmp_path: Path) -> None:
    history(tmp_path / "long", 3)
    made = Recorder(tmp_path / "short", partitions=1)
    made.close()
    assert [each.detail for each in found_beside(tmp_path / "short", 1)] == [
        "not checked: there is no state directory; a broker that starts rebuilds it"
    ]
    stored(tmp_path / "long", 10**9)
    (tmp_path / "long" / "state").rename(tmp_path / "short" / "state")
    [ahead] = found_beside(tmp_path / "short", 1)
    assert not ahead.ok
    assert "but its log ends at 1" in ahead.detail
