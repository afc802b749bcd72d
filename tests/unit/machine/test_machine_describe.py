"""One rendering of events, effects and queues: complete, one line, the same in every process, and without secrets."""

from typing import get_args

import pytest

from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data import effects as fx
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas import events as e
from rewindmq.schemas import metadata_events as m
from rewindmq.schemas.events import EVENT_TYPES
from rewindmq.schemas.values import Actor, Argument, Policy, Route
from tests.support.events_for_tests import Bench, policy
from tests.support.samples import SAMPLES

Q = Queue(Declaration("/", "orders", 0, "classic"))
ABROAD = Queue(Declaration("prod", "a b\n", 3, "quorum"))
EFFECTS: tuple[tuple[Effect, str], ...] = (
    (fx.Keep(Q, 12), "[orders] keep 12"),
    (
        fx.Forget(Q, (12, 13, 14, 20), "expired", 0, "argument x-message-ttl"),
        "[orders] expired: 12-14 20 (argument x-message-ttl)",
    ),
    (fx.Forget(Q, (1,), "acked", 100, ""), "[orders] acked by 100: 1"),
    (fx.Refuse(Q, 5, "policy lim.max-length"), "[orders] refuse 5 (policy lim.max-length)"),
    (fx.Deliver(Q, 5, 100, False, 0, False), "[orders] deliver 5 to 100"),
    (fx.Deliver(Q, 5, 100, True, 2, True, 3), "[orders] deliver 5 to 100, redelivered, count 2, acquired 3, final"),
    (fx.FetchReply(Q, 5, 100, False, 0, False, 7), "[orders] give 5 to 100, 7 left"),
    (fx.FetchReply(Q, -1, 100, False, 0, False, 0), "[orders] give nothing to 100"),
    (fx.Requeue(Q, (5, 6), 100, "nack"), "[orders] back from 100, nack: 5-6"),
    (fx.Requeue(Q, (5,), 0, "delayed"), "[orders] back, delayed: 5"),
    (fx.Delay(Q, 5, 100, "nack", 9_000), "[orders] back from 100, nack: 5, ready again at 9000 ms"),
    (
        fx.DeadLetter(Q, (5,), "expired", 1, "dlx", None, False, False),
        "[orders] dead letter 1: 5, expired, to 'dlx', at most once",
    ),
    (
        fx.DeadLetter(Q, (5, 6, 9), "maxlen", 2, "", "dead", True, True),
        "[orders] dead letter 2-4: 5-6 9, maxlen, to '' key dead, at least once, refused",
    ),
    (fx.Release(Q, (5,)), "[orders] release 5"),
    (fx.CancelConsumer(Q, 100), "[orders] cancel 100"),
    (fx.QueueGone(ABROAD, "expired", 4), "[prod 'a b\\n'] gone: expired, with 4 ready"),
    (fx.Duplicate(Q, 5), "[orders] duplicate 5"),
    (fx.Quarantine(5, "Acked", "no queue 'q'"), "quarantined: no queue 'q'"),
)


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
                "classic",
                True,
                False,
                False,
                0,
                (Argument("x-max-length", "long", 7),),
                "rabbitmq-3.13",
                Policy("lim", '{"a":1}', 4),
                None,
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
    published = e.Published(Route("v", "x", "k", ("a", "b")), b"", None, None, True, None, None, b"", 1)
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
