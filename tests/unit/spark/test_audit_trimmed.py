"""The audit of a history whose older part was trimmed: nothing false is found, and what is false is (B-18)."""

from pathlib import Path

import pytest

from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import At, state_at
from rewindmq.spark_replay.audit.checks import Finding
from tests.support.auditing import findings_of
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.histories import START_MS, Recorder, random_history
from tests.support.trimmed_broker import DAYS, live, trimmed


def wrong(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


@pytest.mark.long(seed=range(2, 8))
@pytest.mark.parametrize("seed", range(8))
def test_b18_a_trimmed_history_of_everything_is_sound_from_every_floor(tmp_path: Path, seed: int) -> None:
    data = tmp_path / "data"
    history = Recorder(data, segment_bytes=SCHEMA_BYTES + 3_400)
    random_history(history, seed, 1_500)
    history.close()
    assert not wrong(findings_of(data))
    floors = 0
    for before_ms in range(START_MS, history.now_ms, max(1, (history.now_ms - START_MS) // 12)):
        reports = trim_directory(data, TrimRequest(before_ms=before_ms, accept_findings=True), wall_ms=history.now_ms)
        assert not [finding for report in reports for finding in report.findings if "quarantined" not in finding]
        if any(report.offset > report.start for report in reports):
            floors += 1
            assert not wrong(findings_of(data))
            for partition, machine in zip(EmbeddedLogReader(data).queues, history.machines, strict=True):
                assert state_at(partition, None, At(offset=partition.next_offset)).digest() == machine.digest()
    assert floors >= 3


def test_b18_a_trimmed_history_of_a_broker_is_sound_from_every_floor(tmp_path: Path) -> None:
    story = live(tmp_path / "data")
    assert not wrong(findings_of(tmp_path / "data"))
    for day in range(1, DAYS):
        trimmed(tmp_path / "data", story, day)
        assert not wrong(findings_of(tmp_path / "data"))
