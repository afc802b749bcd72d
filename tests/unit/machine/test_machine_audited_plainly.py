"""The audit's few steps for plain traffic (spark_replay/audit/plain_traffic.py) book and find the same as its ledgers,
of machines that tell the truth and of machines that lie at any event."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.projections.machine.data.effects import Deliver, Effect, Forget, Keep
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord
from rewindmq.schemas.events import Acked, Event, Published
from rewindmq.schemas.values import BROKER, Actor, Argument, Route
from rewindmq.spark_replay.audit.file_format import PRODUCT
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.ledger import Account
from rewindmq.spark_replay.audit.plain_traffic import PlainTraffic
from tests.support.events_for_tests import attached
from tests.support.random_history import History
from tests.support.repetition import Repetition
from tests.support.spark.audit_samples import arrays
from tests.support.traffic import ANN, START_MS, published, queue_declared


class NothingIsPlain(PlainTraffic):
    def published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> bool:
        return False

    def acked(self, offset: int, event: Acked, effects: list[Effect]) -> bool:
        return False

    def delivered(self, account: Account, effects: Sequence[Effect], at: int) -> int:
        return 0


class Counted(PlainTraffic):
    """Counts what was plain."""

    count = 0

    def published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> bool:
        return self._counted(super().published(offset, actor, event, effects))

    def acked(self, offset: int, event: Acked, effects: list[Effect]) -> bool:
        return self._counted(super().acked(offset, event, effects))

    def _counted(self, plain: bool) -> bool:
        self.count += plain
        return plain


Step = tuple[int, int, Actor, Event]
Planted = tuple[int, Callable[[Machine, list[Any]], None]]


def lies(dice: random.Random, effects: list[Effect]) -> None:
    """Change, drop or repeat one of the effects."""
    effect = dice.choice(effects)
    how = dice.randrange(8)
    if how == 0:
        effects.remove(effect)
    elif how == 1:
        effects.insert(dice.randrange(len(effects) + 1), effect)
    elif how == 2:
        dice.shuffle(effects)
    elif isinstance(effect, Deliver):
        name, value = dice.choice(
            (
                ("message_ids", [effect.message_ids[0] - dice.randrange(-1, 9), *effect.message_ids[1:]]),
                ("consumer", effect.consumer + dice.randrange(-2, 3)),
                ("redelivered", not effect.redelivered),
                ("final", not effect.final),
                ("delivery_count", 1),
                ("acquired_count", 1),
            )
        )
        setattr(effect, name, value)
    elif isinstance(effect, Forget):
        if how == 3:
            effect.consumer += 1
        elif how == 4:
            effect.message_ids = [*effect.message_ids, effect.message_ids[0]]
        elif how == 5:
            effect.message_ids = effect.message_ids[1:]
        else:
            effect.message_ids = [each - dice.randrange(9) for each in effect.message_ids]
    elif isinstance(effect, Keep):
        effects.append(Deliver(effect.queue, effect.message_ids, dice.randrange(1, 9), False, 0, how < 5))


def audited(
    steps: list[Step], plain: type[PlainTraffic], seed: int | None, planted: Planted | None = None
) -> AuditProduct:
    """The audit of a history. `seed`: of the lies, about one in forty events. `planted`: an offset, and a lie there."""
    machine, product, dice = Machine("queues-0"), AuditProduct("queues-0"), random.Random(seed)
    product.plain = plain(product)
    product.begin(machine)
    for offset, now_ms, actor, event in steps:
        effects: list[Effect] = []
        machine.apply(offset, now_ms, actor, event, effects)
        if seed is not None and effects and dice.random() < 0.025:
            lies(dice, effects)
        if planted is not None and planted[0] == offset:
            planted[1](machine, effects)
        product.event(offset, now_ms, actor, event, effects)
    return product


def decoded(steps: list[Step]) -> list[Step]:
    """The same steps with equal routes as one object, as a decoder gives them."""
    encoder, decoder = Encoder(), Decoder()
    found = []
    for offset, now_ms, actor, event in steps:
        _, again, told = decoder.decode(encoder.encode(encoder.prefix(now_ms, actor), event))
        found.append((offset, now_ms, again, told))
    return found


def repetition(seed: int) -> list[Step]:
    """A history of traffic mostly, without its records that cannot be decoded."""
    made, decoder, steps = Repetition(seed).log(600), Decoder(), list[Step]()
    for offset, record in zip(made.offsets, made.records, strict=True):
        with suppress(UndecodableRecord):
            steps.append((offset, *decoder.decode(record)))
    return steps


def told(product: AuditProduct) -> tuple[object, ...]:
    return arrays(PRODUCT, product), product.rows


@pytest.mark.long(seed=range(10, 40))
@pytest.mark.parametrize("seed", range(40))
def test_plain_traffic_is_booked_as_the_ledgers_book_it(seed: int) -> None:
    steps = repetition(seed) if seed % 2 else decoded(list(History(seed).steps(600)))
    for lied in (None, *range(5)):
        quickly, slowly = audited(steps, Counted, lied), audited(steps, NothingIsPlain, lied)
        assert told(quickly) == told(slowly)
        assert (lied is None) <= (quickly.rows == [])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), st.booleans(), st.none() | st.integers(0, 1 << 32))
def test_any_history_is_booked_plainly_as_the_ledgers_book_it(seed: int, traffic: bool, lied: int | None) -> None:
    steps = repetition(seed)[:250] if traffic else decoded(list(History(seed).steps(250)))
    quickly, slowly = audited(steps, Counted, lied), audited(steps, NothingIsPlain, lied)
    assert told(quickly) == told(slowly)
    assert (lied is None) <= (quickly.rows == [])


def test_most_of_what_the_tests_above_do_is_plain() -> None:
    count = 0
    for seed in range(1, 40, 2):
        plain = audited(repetition(seed), Counted, None).plain
        assert isinstance(plain, Counted)
        count += plain.count
    assert count > 1_500, count  # in a pause little is, and the seeds differ much


@pytest.mark.parametrize("type", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("name", "value"), [("x-max-length", 3), ("x-max-length-bytes", 9), ("x-message-ttl", 5), ("x-message-ttl", 0)]
)
@pytest.mark.parametrize("lied", [None, *range(6)])
def test_a_queue_with_a_limit_or_a_ttl_is_plain(type: str, name: str, value: int, lied: int | None) -> None:
    """Messages come faster than they are taken, so that the queue drops some, and they expire."""
    events: list[Event] = [queue_declared("q", (Argument(name, "signedint", value),), type)]
    events += [published(Route("/", "", "q", ("q",)), b"xyz"[: turn % 4]) for turn in range(40)]
    events.insert(20, attached("/", "q", 20, channel=1, tag="ctag1", prefetch=2))
    steps = decoded([(offset, START_MS + offset // 4, ANN, event) for offset, event in enumerate(events)])
    plain = audited(steps, Counted, lied)
    assert told(plain) == told(audited(steps, NothingIsPlain, lied))
    assert isinstance(plain.plain, Counted)
    assert value == 0 or plain.plain.count > 20


@pytest.mark.parametrize("prefetch", [9, 3], ids=["a consumer with room", "a full consumer"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_ids", (6,)),
        ("consumer", 3),
        ("consumer", 99),
        ("redelivered", True),
        ("final", True),
        ("delivery_count", 1),
        ("acquired_count", 1),
        ("consumer", 2),
        ("queue", None),
        ("the queue that keeps it", None),
        ("no effect", None),
        ("an effect twice", None),
        ("nothing is kept", None),
        ("a gauge", None),
    ],
)
def test_a_lie_about_a_message_of_a_burst_is_found_as_the_ledgers_find_it(
    name: str, value: object, prefetch: int
) -> None:
    """A full consumer is said to get the message all the same."""
    events: list[Event] = [
        queue_declared("q"),
        queue_declared("other"),
        attached("/", "other", 3, channel=1, tag="ctag", prefetch=9),
        attached("/", "q", 2, channel=1, tag="ctag", prefetch=prefetch),
        *[published(Route("/", "", "q", ("q",)), b"xy")] * 6,
    ]
    at = len(events) - 2

    def lie(machine: Machine, effects: list[Any]) -> None:
        queue = effects[0].queue
        if prefetch == 3:
            effects.append(Deliver(queue, (at,), 2, False, 0, False))
        if name == "queue":
            effects[1].queue = machine.queue("/", "other")
        elif name == "the queue that keeps it":
            effects[0].queue = machine.queue("/", "other")
        elif name == "no effect":
            effects.clear()
        elif name == "an effect twice":
            effects.append(effects[1])
        elif name == "nothing is kept":
            del effects[0]
        elif name == "a gauge":
            queue.message_bytes_unacked += 1
        else:
            setattr(effects[1], name, value)

    steps = decoded([(offset, START_MS, ANN, event) for offset, event in enumerate(events)])
    quickly, slowly = (audited(steps, plain, None, (at, lie)) for plain in (Counted, NothingIsPlain))
    assert told(quickly) == told(slowly)
    if name in ("message_ids", "redelivered", "final", "delivery_count", "acquired_count", "queue", "a gauge"):
        assert quickly.rows != []
    assert isinstance(quickly.plain, Counted)
    assert quickly.plain.count > 1


PLAIN = published(Route("/", "", "q", ("q",)), b"x")


@pytest.mark.parametrize(
    ("actor", "event"),
    [
        (ANN, replace(PLAIN, body_size=-1)),
        (BROKER, replace(PLAIN, properties=b"\xff")),  # of no session, so that no broker has checked it
        (BROKER, PLAIN),
        (ANN, PLAIN),
    ],
    ids=["no size", "no properties", "of no session", "known already"],
)
def test_a_machine_that_takes_what_is_not_plain_is_judged_by_the_ledgers(actor: Actor, event: Published) -> None:
    def lie(product: AuditProduct, effects: list[Effect]) -> None:
        account = product.accounts["/", "q"]
        effects[:] = [Keep(account.queue, (3,))]
        if event is PLAIN and actor is ANN:
            account.sizes[3] = 1

    equally_judged([queue_declared("q"), PLAIN, PLAIN], actor, event, lie)


@pytest.mark.parametrize("name", ["waiting", "counted", "flagged", "returned", "out", "expires", "crashed"])
def test_a_message_with_a_past_is_not_delivered_plainly(name: str) -> None:
    def lie(product: AuditProduct, effects: list[Effect]) -> None:
        account = product.accounts["/", "q"]
        if name == "crashed":
            account.crashed = 2
        else:
            getattr(account, name)[1] = 1

    attach = attached("/", "q", 1, channel=1, tag="ctag1", prefetch=5)
    assert equally_judged([queue_declared("q"), PLAIN], ANN, attach, lie)


def equally_judged(
    before: list[Event], actor: Actor, event: Event, lie: Callable[[AuditProduct, list[Effect]], None]
) -> list[object]:
    """The findings about an event whose effects, or the books before it, are a lie."""
    found = []
    for plain in (PlainTraffic, NothingIsPlain):
        machine, product = Machine("queues-0"), AuditProduct("queues-0")
        product.plain = plain(product)
        product.begin(machine)
        for offset, (who, what) in enumerate([*((ANN, each) for each in before), (actor, event)]):
            effects: list[Effect] = []
            machine.apply(offset, START_MS, who, what, effects)
            if offset == len(before):
                lie(product, effects)
            product.event(offset, START_MS, who, what, effects)
        found.append(product)
    assert told(found[0]) == told(found[1])
    return [*found[0].rows]
