"""The audit of a stretch that is about to be trimmed: sound traffic has no findings, and a machine that lies has."""

from pathlib import Path

import pytest

from rewindmq.engine.keeping import trim_audit
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.machine.data.effects import Effect, Forget, endings
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import CheckpointAsked, Checkpointed, Event, Tick
from rewindmq.schemas.values import BROKER
from tests.support.trimming import reader_of, starts, write_traffic


def findings(data: Path, floor: int) -> list[str]:
    """All but those about quarantined records, which the traffic has."""
    audited = trim_audit.audit(reader_of(data), Snapshots(data / "snapshots"), floor)
    assert audited.machine.digest() == state_at(reader_of(data), None, At(offset=floor)).digest()
    return [finding for finding in audited.findings if "quarantined" not in finding]


@pytest.mark.parametrize("seed", range(6))
def test_sound_traffic_has_no_findings(tmp_path: Path, seed: int) -> None:
    """With every way in which a message leaves a queue, or never comes in."""
    write_traffic(tmp_path, seed, turns=100)
    assert findings(tmp_path, starts(tmp_path)[-1]) == []


def test_claims_of_nodes_stand_behind_what_they_are_about(tmp_path: Path) -> None:
    """Among nodes, events of others come between the question and a claim."""
    write_traffic(tmp_path, turns=10)
    log = EmbeddedLog.open(tmp_path, 1)
    encoder = Encoder()

    def append(event: Event) -> int:
        offset = log.queues[0].append(
            1_900_000_000_000, encoder.encode(encoder.prefix(1_900_000_000_000, BROKER), event)
        )
        log.commit_and_wait()
        return offset

    asked = append(CheckpointAsked())
    append(Tick())
    append(Checkpointed(asked, state_at(reader_of(tmp_path), None, At(offset=asked + 1)).digest(), "one-1@localhost"))
    false = append(Checkpointed(asked, "0" * 64, "one-2@localhost"))
    log.queues[0].roll()
    log.close()
    [found] = findings(tmp_path, starts(tmp_path)[-1])
    assert found.startswith(f"offset {false}: node one-2@localhost claimed 0000")


def test_messages_that_leave_without_an_event_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_traffic(tmp_path)

    def silent(effects: list[Effect]) -> object:
        return endings([effect for effect in effects if not (isinstance(effect, Forget) and effect.reason == "acked")])

    monkeypatch.setattr(trim_audit, "endings", silent)
    assert any("messages are gone without an event" in each for each in findings(tmp_path, starts(tmp_path)[-1]))
