"""Random histories: the same outcomes as the naive model's, one digest whatever way the state came about."""

from collections import Counter

import pytest

from rewindmq.projections.machine import describe, state
from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from tests.support.events_for_tests import VHOST, explain
from tests.support.letters import message_by_message
from tests.support.naive_model import NaiveMachine
from tests.support.random_history import History, Step


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three messages, and deadlines swept at every turn: what else only long queues come to."""
    monkeypatch.setattr(message_order, "CHUNK", 3)
    monkeypatch.setattr(state, "DEADLINES_A_QUEUE", 0)
    monkeypatch.setattr(state, "DEADLINES_MORE", 0)


@pytest.mark.long(seed=range(4, 12))
@pytest.mark.parametrize("seed", range(12))
def test_as_the_naive_model(seed: int) -> None:
    follow(seed)


@pytest.mark.long(seed=range(16, 24))
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(12, 24))
def test_as_the_naive_model_with_small_chunks(seed: int) -> None:
    follow(seed)


def follow(seed: int) -> None:
    history, model = History(seed), NaiveMachine()
    for offset, now_ms, actor, event in history.steps(600):
        told = model.apply(offset, now_ms, actor, event)
        assert message_by_message(explain(history.effects)) == message_by_message(told), (
            f"seed {seed}, offset {offset}: {describe.event(event)}"
        )
        history.machine.validate()
        for queue in model.queues:
            real = history.machine.by_name[(VHOST, queue.event.queue)]
            assert list(real.ready_ids()) == [m.id for m in queue.ready()]
            assert [v.message_id for v in real.messages() if v.state == "delayed"] == [m.id for m in queue.waiting()]


def test_histories_are_dense() -> None:
    """The histories above would prove little if they never came to the interesting places."""
    told: Counter[str] = Counter()
    for seed in range(20, 40):
        history = History(seed)
        for _ in history.steps(600):
            for outcome in explain(history.effects):
                told[str(outcome[0])] += 1
                told.update(str(part) for part in outcome[2:] if isinstance(part, str))
    expected = (
        "keep",
        "refuse",
        "deliver",
        "get",
        "requeue",
        "dead letter",
        "release",
        "cancel",
        "gone",
        "duplicate",
        "quarantine",
        "expired",
        "rejected",
        "maxlen",
        "delivery_limit",
        "acked",
        "purged",
        "removed",
        "moved",
        "relocated",
        "deleted",
        "transient",
        "session_closed",
        "channel_closed",
        "node_lost",
        "broker_started",
        "auto_delete",
        "exclusive_owner_gone",
        "delay",
        "delayed",
    )
    assert [what for what in expected if not told[what]] == []


@pytest.mark.long(seed=[101, 102, 103])
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [100, 101, 102, 103])
def test_digest_does_not_depend_on_the_way(seed: int) -> None:
    """Folded in one go, through snapshots, through what a projector stores: one digest at every step."""
    steps: list[Step] = list(History(seed).steps(800))
    straight, snapped, projected = Machine("queues-0"), Machine("queues-0"), Machine("queues-0")
    stored: dict[int, tuple[bytes, dict[int, bytes]]] = {}
    for number, step in enumerate(steps):
        for machine in (straight, snapped, projected):
            machine.apply(*step, [])
        if number % 37 == 0:
            pieces = [(meta, chunks) for _, meta, chunks in snapped.pieces()]
            snapped = Machine.load("queues-0", snapped.head(), pieces)
        if number % 23 == 0:
            dirty = projected.take_dirty()
            for queue in dirty.queues:
                chunks = stored.get(queue.queue_id, (b"", {}))[1]
                for vanished in queue.vanished:
                    del chunks[vanished]
                stored[queue.queue_id] = (queue.meta, chunks | queue.chunks)
            for queue_id in dirty.gone:
                stored.pop(queue_id, None)
            projected = Machine.load("queues-0", dirty.head, list(reversed(stored.values())))
        assert straight.digest() == snapped.digest() == projected.digest(), f"offset {step[0]}"


def test_time_may_pass_in_one_step_or_many() -> None:
    """`advance` to T gives the same state by whatever ticks (the deadlines are carried out one by one)."""
    happened = 0
    for seed in range(200, 220):
        history = History(seed)
        for _ in history.steps(150):
            pass
        pieces = [(meta, chunks) for _, meta, chunks in history.machine.pieces()]
        at_once = Machine.load("queues-0", history.machine.head(), pieces)
        slowly = Machine.load("queues-0", history.machine.head(), pieces)
        end_ms = history.now_ms + 200
        told_at_once: list[Effect] = []
        told_slowly: list[Effect] = []
        at_once.advance(end_ms, told_at_once)
        for now_ms in range(history.now_ms, end_ms + 1):
            slowly.advance(now_ms, told_slowly)
            slowly.validate()
        assert explain(told_at_once) == explain(told_slowly)
        assert at_once.digest() == slowly.digest()
        happened += len(told_at_once)
    assert happened > 10
