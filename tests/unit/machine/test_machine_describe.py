"""One rendering of events, effects and queues: complete, one line, the same in every process, and without secrets."""

from typing import get_args

import pytest

from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.schemas import events as e
from rewindmq.schemas import metadata_events as m
from rewindmq.schemas.events import EVENT_TYPES
from rewindmq.schemas.values import Actor, Argument, Policy, Route
from tests.support.described_effects import EFFECTS, Q
from tests.support.events_for_tests import Bench, policy
from tests.support.samples import SAMPLES


@pytest.mark.parametrize(("effect", "line"), EFFECTS, ids=lambda each: type(each).__name__)
def test_an_effect_is_a_line(effect: Effect, line: str) -> None:
    assert describe.effect(effect) == line
    assert describe.effect_fields(effect)["effect"] == type(effect).__name__


def test_every_effect_has_words() -> None:
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(Effect))


@pytest.mark.parametrize("name", SAMPLES)
def test_an_event_is_one_printable_line_of_its_fields(name: str) -> None:
    _, who, event = SAMPLES[name]
    line = describe.event(event)
    assert line.split(" ")[0] == type(event).__name__
    assert line.isprintable()
    assert describe.actor(who).isprintable()
    assert "argon2" not in line + str(describe.event_fields(event)), "password hashes are nobody's to read"
    assert {type(event) for _, _, event in SAMPLES.values()} == set(EVENT_TYPES)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.Acked("/", "q", 100, ((3, 7), (9, 9))), "Acked queue=q consumer=100 messages=3-7,9"),
        (e.Purged("prod", "my queue"), "Purged vhost=prod queue='my queue'"),
        (
            SAMPLES["Published"][2],
            "Published exchange=flights routing_key=dep.JFK.AA queues=[jfk carrier-aa]"
            " properties=20 bytes persistent body=11 bytes",
        ),
        (e.Tick(), "Tick"),
        (
            e.QueueDeclared(
                "/",
                "q",
                type="classic",
                durable=True,
                exclusive=False,
                auto_delete=False,
                owner=0,
                arguments=(Argument("x-max-length", "long", 7),),
                semantics="rabbitmq-3.13",
                policy=Policy("lim", '{"a":1}', 4),
                operator_policy=None,
            ),
            "QueueDeclared queue=q type=classic durable owner=0 arguments=[x-max-length=7] semantics=rabbitmq-3.13"
            " policy={name=lim definition='{\"a\":1}' version=4}",
        ),
        (
            m.MarkSet("release", (("queues-0", 3), ("queues-1", 4))),
            "MarkSet name=release positions=[[queues-0 3] [queues-1 4]]",
        ),
    ],
)
def test_events_in_words(event: e.Event, line: str) -> None:
    assert describe.event(event) == line


def test_an_event_names_its_queues() -> None:
    published = e.Published(
        Route("v", "x", "k", ("a", "b")),
        b"",
        expiration_ms=None,
        priority=None,
        persistent=True,
        origin=None,
        encryption=None,
        body=b"",
        body_size=1,
    )
    assert describe.queues_of(published) == (("v", "a"), ("v", "b"))
    assert describe.queues_of(e.Purged("/", "q")) == (("/", "q"),)
    assert describe.queues_of(m.Bound("/", "x", "queue", "q", "k")) == (("/", "q"),)
    assert describe.queues_of(m.Bound("/", "x", "exchange", "y", "k")) == ()
    assert describe.queues_of(e.SessionClosed(7, 0)) == ()


def test_who_did_it() -> None:
    assert describe.actor(Actor("", 0)) == "-"
    assert describe.actor(Actor("guest", 7)) == "guest/7"
    assert describe.actor(Actor("a b", 7)) == "'a b'/7"
    assert describe.actor(Actor("eve", 0)) == "eve"


def test_many_messages_are_counted() -> None:
    ids = range(0, 200, 2)
    assert describe.IDS.messages(ids).endswith(" 36 38 and 80 more")
    assert describe.IDS.messages(range(1_000_000)) == "0-999999"


def test_a_queue_is_a_line() -> None:
    bench = Bench()
    bench.declare(
        policy=policy("retry", delayed_retry_type="all", delayed_retry_min=1_000),
        type="quorum",
        semantics="rabbitmq-4.3",
    )
    first, *_ = (bench.publish() for _ in range(4))
    consumer = bench.attach(prefetch=2)
    assert describe.queue_line(bench.queue()) == (
        f"ready: {first + 2}-{first + 3}   unacked: {first}@{consumer} {first + 1}@{consumer}"
    )
    assert describe.queue_line(None) == "no such queue"
    assert describe.queue_line(Q) == "ready: -   unacked: -"
