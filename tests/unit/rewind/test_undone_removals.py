"""A removal of more messages than one event may name is undone as a whole (B-38)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.rewind.restore_plan import NoPlan, Plan, RestoreRequest
from rewindmq.projections.machine.events.removal import MOST_REMOVED
from tests.support.broker_harness import Harness

NUMBER = 1_200


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=1) as harness:
        yield harness


def filled(h: Harness, number: int = NUMBER) -> tuple[Session, list[int]]:
    session = h.session()
    h.declare(session, "q")
    for count in range(number):
        h.publish(session, "", "q", b"%d" % count)
    h.settle()
    return session, list(h.queue("q").ready_ids())


def remove(h: Harness, session: Session, ids: list[int], reason: str = "") -> None:
    """In portions, as the command does."""
    for begin in range(0, len(ids), MOST_REMOVED):
        h.broker.removals.remove(session, "q", ids[begin : begin + MOST_REMOVED], None, reason)
        h.pass_time(500)
    h.settle()


def undone(h: Harness) -> list[int]:
    """The messages that would come back."""
    fates = ("removed",)
    plan = RestoreRequest(
        InDirectory(h.config.data), "/", "q", at=None, undo="remove", fates=fates, ids=frozenset()
    ).answer()
    assert isinstance(plan, Plan)
    return [each.message_id for each in plan.messages]


def test_b38_all_portions_of_a_removal_are_undone(h: Harness) -> None:
    session, ids = filled(h)
    remove(h, session, ids)
    assert h.queue("q").messages_ready == 0
    assert undone(h) == ids


def test_b38_only_the_last_removal_is_undone(h: Harness) -> None:
    session, ids = filled(h, 12)
    apart: list[tuple[list[int], str, int, str]] = [
        (ids[:2], "poison", 0, "guest"),
        (ids[2:4], "", 0, "guest"),  # for another reason
        (ids[4:6], "", 11_000, "guest"),  # much later
        (ids[6:8], "", 0, "other"),  # by another session
        (ids[10:], "", 0, "guest"),
        (ids[8:10], "", 0, "guest"),  # ids that do not ascend
    ]
    h.broker.access.users.set(session.actor, "other", "secret", ())
    h.broker.access.users.set_permissions(session.actor, "/", "other", ".*", ".*", ".*")
    sessions = {"guest": session, "other": h.session("other")}
    for some, reason, later_ms, user in apart:
        h.pass_time(later_ms)
        remove(h, sessions[user], some, reason)
        assert undone(h) == some
    assert h.queue("q").messages_ready == 0


def test_b38_without_a_removal_nothing_is_undone(h: Harness) -> None:
    filled(h, 2)
    plan = RestoreRequest(
        InDirectory(h.config.data), "/", "q", at=None, undo="remove", fates=("removed",), ids=frozenset()
    ).answer()
    assert isinstance(plan, NoPlan)
    assert plan.reason == "nobody has asked to remove messages of queue 'q' in vhost '/'"
