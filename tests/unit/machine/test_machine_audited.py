"""The audit's own ledger (spark_replay/audit/ledger.py) agrees with the machine on random histories, which have
priorities, delayed retry, delayed exchanges and both profiles; and it notices a machine that says something else."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from rewindmq.projections.machine.data.effects import Delay, Deliver, Effect, FetchReply, Forget, Requeue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import ConsumerCancelled, Event, Nacked
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay.audit.checks import CHECKS
from rewindmq.spark_replay.audit.comparison import compare_in_full
from rewindmq.spark_replay.audit.fold import AuditProduct
from tests.support.events_for_tests import START_MS, VHOST, Bench
from tests.support.one_by_one import delivered_id, one_by_one
from tests.support.random_history import History, Step

Lie = Callable[[list[Effect]], bool]


def audited(steps: list[Step], lie: Lie | None = None) -> dict[str, int] | None:
    """Findings by check; `lie` changes the effects of an event, once. None: there was nothing to lie about."""
    machine, product, lied = Machine("queues-0"), AuditProduct("queues-0"), False
    product.begin(machine)
    now_ms = START_MS
    for offset, now_ms, actor, event in steps:
        effects: list[Effect] = []
        machine.apply(offset, now_ms, actor, event, effects)
        lied = lied or (lie is not None and lie(effects))
        product.event(offset, now_ms, actor, event, effects)
    for account in product.accounts.values():
        compare_in_full(account, now_ms)
    assert product.rows == [] or lie, product.rows[:5]
    return product.failures if lied or lie is None else None


@pytest.mark.parametrize("seed", range(400, 420))
def test_sound_histories_have_no_findings(seed: int) -> None:
    steps = list(History(seed).steps(500))
    assert audited(steps) == dict.fromkeys(CHECKS, 0)


def changed(kind: type, change: Callable[[object], None], fits: Callable[[object], bool] = lambda e: True) -> Lie:
    def lie(effects: list[Effect]) -> bool:
        for effect in effects:
            if isinstance(effect, kind) and fits(effect):
                change(effect)
                return True
        return False

    return lie


def later_by_one(effect: object) -> None:
    assert isinstance(effect, Delay)
    effect.due_ms += 1


def acquired_once_more(effect: object) -> None:
    assert isinstance(effect, Deliver | FetchReply)
    effect.acquired_count += 1


def failed_once_more(effect: object) -> None:
    assert isinstance(effect, Deliver)
    effect.delivery_count += 1


def is_a_message(effect: object) -> bool:
    return isinstance(effect, FetchReply) and effect.message_id >= 0


def hides_a_delay(effects: list[Effect]) -> bool:
    found = next((effect for effect in effects if isinstance(effect, Delay)), None)
    if found is not None:
        effects.remove(found)
    return found is not None


def hides_that_it_left(effects: list[Effect]) -> bool:
    found = next((effect for effect in effects if isinstance(effect, Forget) and effect.reason == "delayed"), None)
    if found is not None:
        effects.remove(found)
    return found is not None


def comes_at_once(effects: list[Effect]) -> bool:
    """A message that should wait is said to be ready."""
    for number, effect in enumerate(effects):
        if isinstance(effect, Delay):
            effects[number] = Requeue(effect.queue, [effect.message_id], effect.consumer, effect.reason)
            return True
    return False


def served_out_of_turn(effects: list[Effect]) -> bool:
    """Two deliveries of messages of different priority change places."""
    effects[:] = one_by_one(effects)
    found = [effect for effect in effects if isinstance(effect, Deliver) and effect.queue.prioritized is not None]
    fresh = [effect for effect in found if not effect.redelivered and effect.queue is found[0].queue]
    for one, other in pairwise(fresh):
        if delivered_id(one) > delivered_id(other) and one.final == other.final:  # the higher priority came later
            one.message_ids, other.message_ids = other.message_ids, one.message_ids
            return True
    return False


@pytest.mark.parametrize(
    ("lie", "check"),
    [
        (changed(Delay, later_by_one), "ttl"),
        (changed(Deliver, acquired_once_more), "deliveries"),
        (changed(FetchReply, acquired_once_more, is_a_message), "deliveries"),
        (changed(Deliver, failed_once_more), "deliveries"),
        (hides_a_delay, "conservation"),
        (comes_at_once, "deliveries"),
        (served_out_of_turn, "order"),
        (hides_that_it_left, "conservation"),
    ],
)
def test_lies_are_found(lie: Lie, check: str) -> None:
    for seed in range(420, 470):
        failures = audited(list(History(seed).steps(300)), lie)
        if failures is not None:
            assert failures[check] > 0, failures
            return
    raise AssertionError("no history had anything to lie about")


class Watched(Bench):
    """A machine with an audit beside it."""

    def __init__(self) -> None:
        self.product = AuditProduct("queues-0")
        super().__init__()

    def do(self, event: Event, session: int = 1) -> list[tuple[object, ...]]:
        if self.offset == 0:
            self.product.begin(self.machine)
        told = super().do(event, session)
        self.product.event(self.offset - 1, self.now_ms, Actor("guest", session), event, self.effects)
        return told


def test_counts_that_have_come_to_their_largest_number_are_no_finding() -> None:
    """Profile 4.3 counts to 4,095 failures and 2,047 returns, and no further
    (projections/machine/data/message_word.py)."""
    bench = Watched()
    bench.declare("q", "quorum", semantics="rabbitmq-4.3", delivery_limit=-1)
    message = bench.publish()
    consumer = bench.attach(prefetch=1)
    for _ in range(4_200):
        bench.do(Nacked(VHOST, "q", consumer, ((message, message),), True, "reject"))
    [delivered] = [effect for effect in bench.effects if isinstance(effect, Deliver)]
    assert (delivered.delivery_count, delivered.acquired_count) == (4_095, 2_047)
    assert bench.product.rows == []


def test_an_active_consumer_gives_way_to_one_that_leaves_empty_handed() -> None:
    """The next one is of no higher priority than the one before, and is rightly the active one."""
    bench = Watched()
    bench.declare("q", "quorum", semantics="rabbitmq-4.3", single_active_consumer=True)
    first = bench.attach(prefetch=1)
    bench.ack(first, bench.publish())
    next_one = bench.attach(prefetch=5)
    higher = bench.attach(prefetch=1, priority=7)
    bench.do(ConsumerCancelled(VHOST, "q", higher))
    bench.publish()
    [delivered] = [effect for effect in bench.effects if isinstance(effect, Deliver)]
    assert delivered.consumer == next_one
    assert bench.product.rows == []
