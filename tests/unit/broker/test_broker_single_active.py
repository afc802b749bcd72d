"""Queues with a single active consumer, through the broker without sockets, and as they are listed (S-109, S-110)."""

import asyncio
from dataclasses import replace

import pytest

from rewindmq.engine.errors import AccessRefused, PreconditionFailed, ResourceLocked
from rewindmq.engine.http.shapes.clients import ListedConsumerView
from rewindmq.engine.http.shapes.queues import QueueView
from rewindmq.projections.machine.rules.policy_keys import BY_ARGUMENT
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.schemas.values import Actor, Argument
from tests.support.broker_harness import Client, Harness, args, refusal

Q = "queue 'q' in vhost '/'"
TYPES = ("classic", "quorum")


def sac(type: str) -> tuple[Argument, ...]:
    return args(x_queue_type=type, x_single_active_consumer=True)


@pytest.mark.parametrize("type", TYPES)
def test_s109_the_next_takes_over(h: Harness, type: str) -> None:
    session = h.session()
    h.declare(session, "q", sac(type))
    first, second = Client(), Client()
    active = h.consume(session, "q", first, prefetch=1)
    h.consume(session, "q", second, prefetch=1, channel=2)
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    h.settle()
    assert (first.bodies, second.bodies) == ([b"1"], [])
    h.broker.consumers.cancel(session, *active)
    h.settle()
    assert (first.bodies, second.bodies) == ([b"1"], [b"2"])


@pytest.mark.parametrize("type", TYPES)
def test_s109_it_survives_a_restart(h: Harness, type: str) -> None:
    session = h.session()
    h.declare(session, "q", sac(type))
    h.restart()
    session, first, second = h.session(), Client(), Client()
    h.consume(session, "q", first, prefetch=1)
    h.consume(session, "q", second, prefetch=1)
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    h.settle()
    assert (first.bodies, second.bodies) == ([b"1"], [])


def test_s110_exclusive_consumers_are_refused_by_classic_queues(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", sac("classic"))
    with refusal(AccessRefused, f"{Q} in exclusive use"):
        h.consume(session, "q", Client(), exclusive=True)


def test_a_quorum_queue_pays_no_heed_to_exclusive_consumers(h: Harness) -> None:
    """As measured on 3.10.8 and 4.3: of the single active ones, and of others."""
    session = h.session()
    for name, arguments in (("q", sac("quorum")), ("other", args(x_queue_type="quorum"))):
        h.declare(session, name, arguments)
        for _ in range(2):
            h.consume(session, name, Client(), exclusive=True)


def test_s110_basic_get(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", sac("classic"))
    assert h.fetch(session, "q") is None
    h.broker.queues.delete(session, "q", False, False)
    h.declare(session, "q", sac("quorum"))
    text = (
        f"cannot obtain access to locked {Q}. basic.get operations are not supported by quorum queues with single"
        " active consumer"
    )
    with refusal(ResourceLocked, text):
        h.fetch(session, "q")


def test_s110_as_an_argument_and_not_by_policy(h: Harness) -> None:
    session = h.session()
    text = f"invalid arg 'x-single-active-consumer' for {Q}: {{unacceptable_type,signedint}}"
    with refusal(PreconditionFailed, text):
        h.declare(session, "q", args(x_single_active_consumer=1))
    with pytest.raises(PreconditionFailed):
        h.broker.policies.set(Actor("guest", 0), "/", "p", "", {"single-active-consumer": True}, 0, "queues")
    h.declare(session, "q", args(x_single_active_consumer=False))
    text = f"inequivalent arg 'x-single-active-consumer' for {Q}: received 'true' but current is 'false'"
    with refusal(PreconditionFailed, text):
        h.declare(session, "q", args(x_single_active_consumer=True))


def test_b73_an_argument_of_a_later_version_is_refused(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    key = replace(BY_ARGUMENT["x-single-active-consumer"], since=MACHINE_VERSION + 1)
    monkeypatch.setitem(BY_ARGUMENT, key.argument, key)
    text = (
        f"x-single-active-consumer needs machine version {MACHINE_VERSION + 1}, and the history follows"
        f" {MACHINE_VERSION}: it can be used after `rewindmq finalize_upgrade`"
    )
    with refusal(PreconditionFailed, text):
        h.declare(h.session(), "q", sac("classic"))
    h.declare(h.session(), "q", args(x_single_active_consumer=False))


def test_listings_say_who_is_active(h: Harness) -> None:
    session = h.session()
    queue = h.declare(session, "q", sac("quorum"))
    partition = h.broker.queues.partition_for("/", "q")

    async def tag() -> object:  # a listing keeps rates, which takes a loop
        return QueueView.shown(h.broker, partition, queue, head=False).single_active_consumer_tag

    assert asyncio.run(tag()) is None
    for channel in (1, 2):
        h.consume(session, "q", Client(), prefetch=1, channel=channel, arguments=args(x_priority=channel))
    found = [ListedConsumerView.of(consumer, queue, h.broker) for consumer in queue.consumers()]
    assert [(each.active, each.activity_status, each.arguments) for each in found] == [
        (True, "single_active", {"x-priority": 1}),
        (False, "waiting", {"x-priority": 2}),
    ]
    assert asyncio.run(tag()) == "tag"
