"""An audit of what a real broker logged: honest histories have no finding, whatever was restored, killed or marked; a
lie about a restored message has one. Thousands of stories: audit_stories.py."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.rewind.restorations import Restoration, RestoreResult
from rewindmq.engine.rewind.restore_plan import Plan, RestoreRequest, name_of
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Published
from rewindmq.spark_replay.audit.checks import Finding
from tests.support.audit_stories import Past, audited_story
from tests.support.auditing import findings_of
from tests.support.broker_harness import Client, Harness, args
from tests.support.examples import rounds

QUORUM = args(x_queue_type="quorum")


def bad(data: Path) -> list[Finding]:
    return [finding for finding in findings_of(data) if not finding.ok]


def undo_purge(h: Harness, source: str, target: str) -> int:
    """Restore to `target` the messages that a purge removed from `source`, and return their number."""
    h.settle()
    plan = RestoreRequest(
        InDirectory(h.config.data), "/", source, at=None, undo="purge", fates=("purged",), ids=frozenset()
    ).answer()
    assert isinstance(plan, Plan)
    done: RestoreResult = h.loop.run_until_complete(
        h.broker._broker.history.restorations.restore(
            h.session(),
            Past(),
            InDirectory(h.config.data),
            Restoration("guest", plan, target, name_of(plan)),
        )
    )
    return done.restored


def take_and_ack(h: Harness, queue: str) -> None:
    session, client = h.session(), Client()
    consumer = h.consume(session, queue, client)
    h.settle()
    h.ack(session, consumer, *[message_id for _, message_id, *_ in client.deliveries])
    assert [redelivered for _, _, _, redelivered, _ in client.deliveries] == [True]
    assert [count for *_, count in client.deliveries] == [0]
    h.settle()


def flagged_by_a_crash(tmp_path: Path) -> Harness:
    """A quorum queue whose message is flagged, and counts no delivery, because the broker was killed; then restored."""
    with Harness(tmp_path / "killed") as h:
        h.declare(h.session(), "q", QUORUM)
        h.publish(h.session(), "", "q", b"one")
        h.settle()
        after = h.killed_copy(tmp_path / "data")
    after.broker.queues.purge(after.session(), "q")
    assert undo_purge(after, "q", "q") == 1
    return after


def test_a_message_flagged_by_a_crash_is_purged_and_restored(tmp_path: Path) -> None:
    with flagged_by_a_crash(tmp_path) as h:
        take_and_ack(h, "q")
    assert bad(tmp_path / "data") == []


def test_a_requeued_classic_message_is_restored_into_a_quorum_queue(tmp_path: Path) -> None:
    with Harness(tmp_path / "data") as h:
        session, client = h.session(), Client()
        h.declare(session, "classic")
        h.declare(session, "quorum", QUORUM)
        h.publish(session, "", "classic", b"one")
        h.consume(session, "classic", client)
        h.settle()
        h.broker.sessions.close(session)  # the message goes back
        h.broker.queues.purge(h.session(), "classic")
        assert undo_purge(h, "classic", "quorum") == 1
        take_and_ack(h, "quorum")
    assert bad(tmp_path / "data") == []


def test_a_restored_message_that_is_delivered_as_new_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with flagged_by_a_crash(tmp_path) as h:
        take_and_ack(h, "q")
    honest = Machine.apply

    def forgets_the_flag(machine: Machine, offset: int, at_ms: int, actor: Any, event: Any, effects: list[Any]) -> None:
        honest(machine, offset, at_ms, actor, event, effects)
        for effect in effects:
            if hasattr(effect, "redelivered"):
                effect.redelivered = False

    monkeypatch.setattr(Machine, "apply", forgets_the_flag)
    assert {finding.check for finding in bad(tmp_path / "data")} == {"deliveries"}


def test_a_machine_that_forgets_what_a_restored_message_was_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flagged_by_a_crash(tmp_path) as h:
        take_and_ack(h, "q")
    honest = Machine.apply

    def takes_it_as_new(machine: Machine, offset: int, at_ms: int, actor: Any, event: Any, effects: list[Any]) -> None:
        if isinstance(event, Published) and event.origin is not None:
            event = dataclasses.replace(event, origin=dataclasses.replace(event.origin, redelivered=False))
        honest(machine, offset, at_ms, actor, event, effects)

    monkeypatch.setattr(Machine, "apply", takes_it_as_new)
    assert "deliveries" in {finding.check for finding in bad(tmp_path / "data")}


@pytest.mark.long
def test_stories_with_restores_crashes_and_marks_have_no_findings(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for seed in range(rounds(10, quick=4)):
        findings, counts = audited_story(seed, tmp_path / str(seed))
        assert findings == [], seed
        met += counts
    wanted = ("restored", "repeated", "declared", "restored from classic to quorum", "crashes", "marks", "checks")
    assert [what for what in wanted if not met[what]] == []
