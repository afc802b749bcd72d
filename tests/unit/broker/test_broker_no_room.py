"""The broker asks the disk for room for its own copies, as it does for publishes: dead letters and delayed messages
wait, copies for the firehose are dropped, and a restoration ends with an error (engine/partition/flow_control.py)."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from rewindmq.engine.amqp.basic_publish import message
from rewindmq.engine.errors import ResourceError
from rewindmq.engine.http.metrics.node import churn
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.partition.flow_control import LARGE_BYTES, Flow
from rewindmq.engine.rewind.restorations import Restoration, RestoreResult
from rewindmq.engine.rewind.restore_plan import Plan, RestoreRequest, name_of
from rewindmq.engine.routing.content import Content
from rewindmq.schemas.amqp.properties import parse
from tests.support.broker_harness import Client, Harness, args

LARGE = bytes(LARGE_BYTES)


class ScriptedFlow(Flow):
    """`crowded`: the log has little room left. `has`: whether it takes a large message."""

    full = False
    crowded = False

    def __init__(self) -> None:
        super().__init__()
        self.has = True

    def has_room(self, size: int) -> bool:
        return size < LARGE_BYTES or self.has


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=2) as harness:
        yield harness


@pytest.fixture
def flow(h: Harness) -> ScriptedFlow:
    found = h.broker.keeper.flow = ScriptedFlow()
    return found


def room(h: Harness, flow: ScriptedFlow) -> None:
    """The disk has room again, and a second passes."""
    flow.crowded, flow.has = False, True
    h.in_loop(flow.landed)
    h.pass_time(1_000)


STRATEGIES: dict[str, dict[str, Any]] = {
    "at most once": {},
    "at least once": {
        "x_queue_type": "quorum",
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
    },
}


@pytest.mark.parametrize("short", ["crowded", "large"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_letters_wait_for_room_in_their_order(h: Harness, flow: ScriptedFlow, strategy: str, short: str) -> None:
    session = h.session()
    h.declare(session, "target")
    dying = args(x_dead_letter_exchange="", x_dead_letter_routing_key="target", **STRATEGIES[strategy])
    h.declare(session, "dying", dying)
    bodies = [LARGE if short == "large" else b"0", b"1"]
    flow.crowded, flow.has = short == "crowded", False
    client = Client()
    attached = h.consume(session, "dying", client)
    for body in bodies:
        h.publish(session, "", "dying", body)
    h.settle()
    h.nack(session, attached, *(message_id for _, message_id, *_ in client.deliveries))
    h.settle()
    h.pass_time(5_000)
    assert (h.ready("target"), len(h.queue("dying").outbox)) == ([], 2)
    room(h, flow)
    assert (h.ready("target"), len(h.queue("dying").outbox)) == (bodies, 0)


def test_a_broker_that_dies_while_letters_wait_has_them(h: Harness, flow: ScriptedFlow, tmp_path: Path) -> None:
    session = h.session()
    h.declare(session, "target")
    h.declare(session, "dying", args(x_dead_letter_exchange="", x_dead_letter_routing_key="target", x_message_ttl=0))
    flow.crowded = True
    h.publish(session, "", "dying", b"m")
    h.settle()
    assert h.ready("target") == []
    with h.killed_copy(tmp_path / "copy") as copy:
        copy.settle()
        assert copy.ready("target") == [b"m"]
    h.restart()
    h.settle()
    assert h.ready("target") == [b"m"]


def test_a_delayed_message_that_is_due_waits_for_room(h: Harness, flow: ScriptedFlow) -> None:
    session = h.session()
    h.declare(session, "q")
    h.exchange(session, "later", "x-delayed-message", arguments=args(x_delayed_type="fanout"))
    h.bind(session, "later", "q")
    raw = commands.Basic.Properties(delivery_mode=2, headers={"x-delay": 1_000}).marshal()
    (to,) = h.broker.exchanges.route(session, "later", "", Content(raw))
    to.partition.publish(session.actor, message(to, parse(raw), b"later"))
    h.settle()
    flow.crowded = True
    h.pass_time(2_000)
    assert h.ready("q") == []
    room(h, flow)
    assert h.ready("q") == [b"later"]


def dropped(h: Harness) -> float:
    (found,) = [each for each in churn(h.broker) if each.name == "rewindmq_firehose_copies_dropped_total"]
    return found.samples[0][2]


@pytest.mark.parametrize("short", ["crowded", "large"])
def test_copies_for_the_firehose_are_dropped_counted_and_told(
    h: Harness, flow: ScriptedFlow, short: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = h.session()
    h.declare(session, "trace")
    h.bind(session, "amq.rabbitmq.trace", "trace", "publish.#")
    h.in_loop(partial(h.broker.firehose.switch, "/", True))

    def copied(body: bytes) -> int:
        h.in_loop(partial(h.broker.firehose.published, session, 1, "", "q", b"\0\0", body, None, []))
        h.settle()
        return len(h.ready("trace"))

    assert copied(LARGE) == 1
    flow.crowded, flow.has = short == "crowded", False
    with caplog.at_level(logging.WARNING):
        assert [copied(LARGE), copied(LARGE)] == [1, 1]
    assert caplog.text.count("copies for the firehose are dropped") == 1
    assert dropped(h) == 2
    room(h, flow)
    with caplog.at_level(logging.WARNING):
        assert copied(LARGE) == 2
    assert "2 copies for the firehose were dropped" in caplog.text


# -- restorations -----------------------------------------------------------------------------------------------------


class Past:
    """Folds in this process."""

    async def ask(self, question: Any, user: str) -> Any:
        return question.answer()


def purged(h: Harness, count: int) -> Plan:
    session = h.session()
    h.declare(session, "q")
    for number in range(count):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    h.broker.queues.purge(session, "q")
    h.settle()
    found = RestoreRequest(
        InDirectory(h.config.data), "/", "q", at=None, undo="purge", fates=("purged",), ids=frozenset()
    ).answer()
    assert isinstance(found, Plan)
    return found


def restored(h: Harness, plan: Plan) -> RestoreResult:
    past: Any = Past()
    done: RestoreResult = h.loop.run_until_complete(
        h.broker._broker.history.restorations.restore(
            h.session(), past, InDirectory(h.config.data), Restoration("guest", plan, "q", name_of(plan))
        )
    )
    return done


def test_a_restoration_without_room_is_refused_as_a_whole(
    h: Harness, flow: ScriptedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = purged(h, 3)
    monkeypatch.setattr(flow, "has_room", lambda size: False)
    with pytest.raises(ResourceError, match="publishing is blocked: the disk has no room for 3 bytes"):
        restored(h, plan)
    assert h.ready("q") == []
    monkeypatch.setattr(flow, "has_room", lambda size: True)
    assert restored(h, plan).restored == 3


def test_a_restoration_that_meets_a_full_disk_is_finished_later(
    h: Harness, flow: ScriptedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewindmq.engine.rewind.restorations.PAGE_MESSAGES", 2)
    plan = purged(h, 5)
    asked: list[int] = []

    def twice(size: int) -> bool:
        asked.append(size)
        return len(asked) <= 2

    monkeypatch.setattr(flow, "has_room", twice)
    with pytest.raises(ResourceError, match="2 of 5 messages are back; ask again when there is room"):
        restored(h, plan)
    assert h.ready("q") == [b"0", b"1"]
    assert asked == [5, 2, 2]
    monkeypatch.setattr(flow, "has_room", lambda size: True)
    done = restored(h, plan)
    assert (done.restored, done.duplicates) == (3, 2)
    assert h.ready("q") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_restoration_stops_when_publishing_is_held_back(h: Harness, flow: ScriptedFlow) -> None:
    plan = purged(h, 3)
    h.in_loop(partial(h.broker.turns.problem, "disk", "the disk is full"))
    with pytest.raises(ResourceError, match="publishing is blocked: the disk is full"):
        restored(h, plan)
    h.in_loop(partial(h.broker.turns.problem, "disk", None))
    assert restored(h, plan).restored == 3


def test_a_restoration_waits_while_others_crowd_the_log(h: Harness, flow: ScriptedFlow) -> None:
    plan = purged(h, 3)
    flow.crowded = True
    looks = 0

    class Once(ScriptedFlow):
        @property
        def crowded(self) -> bool:  # type: ignore[override]
            nonlocal looks
            looks += 1
            return looks < 3

    h.broker.keeper.flow = Once()
    assert restored(h, plan).restored == 3
    assert looks >= 3
