"""However many consumers a queue has, one more of them costs the same: counted in steps."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from rewindmq.engine.broker.declarations import check_exclusive_use
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import (
    ConsumerCancelled,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Published,
    SessionClosed,
)
from rewindmq.schemas.values import Actor, Argument
from tests.support.events_for_tests import VHOST, attached, declared, route
from tests.support.steps import steps_of

FEW, MANY = 50, 600
SINGLE_ACTIVE = (Argument("x-single-active-consumer", "bool", True),)
KINDS = [
    ("classic", (), "rabbitmq-3.13"),
    ("quorum", (), "rabbitmq-3.13"),
    ("classic", SINGLE_ACTIVE, "rabbitmq-3.13"),
    ("quorum", SINGLE_ACTIVE, "rabbitmq-3.13"),
    ("quorum", SINGLE_ACTIVE, "rabbitmq-4.3"),
]


class Crowd:
    """A queue with consumers. Each has its channel and its priority."""

    def __init__(self, kind: str, arguments: tuple[Argument, ...], semantics: str, consumers: int) -> None:
        self.machine = Machine("queues-0")
        self.offsets, self.ids = count(), count(1)
        self.do(declared(VHOST, "q", type=kind, durable=True, arguments=arguments, semantics=semantics))
        for _ in range(consumers):
            self.attach()

    @property
    def queue(self) -> Queue:
        found = self.machine.queue(VHOST, "q")
        assert found is not None
        return found

    def do(self, event: Event) -> None:
        self.machine.apply(next(self.offsets), 1_763_694_000_000, Actor("guest", 1), event, [])

    def attach(self, shared: int = 0) -> int:
        number = next(self.ids)
        priority = number % 400
        self.do(
            attached(
                VHOST,
                "q",
                number,
                channel=number,
                tag=str(number),
                prefetch=1,
                global_prefetch=shared,
                priority=priority,
            )
        )
        return number

    def cancel(self, number: int) -> None:
        self.do(ConsumerCancelled(VHOST, "q", number))


def attach(crowd: Crowd) -> None:
    check_exclusive_use(crowd.queue, False)
    crowd.attach()
    crowd.queue.in_lookahead()


def cancel_the_last(crowd: Crowd) -> None:
    crowd.cancel(next(reversed(crowd.queue.holders)))


def cancel_the_first(crowd: Crowd) -> None:
    crowd.cancel(next(iter(crowd.queue.holders)))


def close_a_channel(crowd: Crowd) -> None:
    crowd.do(SessionClosed(1, next(reversed(crowd.queue.holders))))


def limit_a_channel(crowd: Crowd) -> None:
    crowd.do(GlobalPrefetchSet(1, next(reversed(crowd.queue.holders)), 7))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{len(kind[1])}-{kind[2]}")
@pytest.mark.parametrize("work", [attach, cancel_the_last, cancel_the_first, close_a_channel, limit_a_channel])
def test_one_consumer_costs_the_same_among_many(
    work: Callable[[Crowd], None], kind: tuple[str, tuple[Argument, ...], str]
) -> None:
    crowds = Crowd(*kind, FEW), Crowd(*kind, MANY)
    few, many = (min(steps_of(partial(work, crowd)) for _ in range(3)) for crowd in crowds)
    assert many <= 1.5 * few + 200  # a bisection is a few steps longer


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{len(kind[1])}-{kind[2]}")
def test_the_end_of_a_session_costs_so_much_for_each_of_its_consumers(
    kind: tuple[str, tuple[Argument, ...], str],
) -> None:
    few, many = (steps_of(partial(Crowd(*kind, size).do, SessionClosed(1, 0))) / size for size in (FEW, MANY))
    assert many <= 1.5 * few


def test_a_consumer_costs_the_same_among_many_cancelled_ones() -> None:
    def steps(holders: int) -> int:
        crowd = Crowd("classic", (), "rabbitmq-3.13", 0)
        for number in range(holders):
            crowd.do(Published(route("q"), b"", persistent=True, body=b"", body_size=1))
            crowd.do(Fetched(VHOST, "q", 100_000 + number, 1, False))
        crowd.attach()
        found = steps_of(lambda: attach(crowd))
        crowd.machine.validate()
        return found

    assert steps(MANY) <= 1.5 * steps(FEW)


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: f"{kind[0]}-{kind[2]}")
def test_consumers_that_wait_in_vain_leave_nothing_behind(kind: tuple[str, tuple[Argument, ...], str]) -> None:
    crowd = Crowd(*kind, 3)
    for _ in range(MANY):
        crowd.cancel(crowd.attach())
    assert len(crowd.queue.waiting) <= 2 * 3 + 17
    crowd.machine.validate()
