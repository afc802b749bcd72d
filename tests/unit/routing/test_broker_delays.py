"""Delayed messages: x-delayed-message exchanges and the hidden queues behind them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from rewindmq.engine.amqp.basic_publish import BasicPublish, message, route_by_content
from rewindmq.engine.errors import AccessRefused, PreconditionFailed
from rewindmq.engine.routing.content import Content, readable
from rewindmq.engine.routing.delayed_exchanges import deletion, due
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import ExchangeDeleted
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.support.broker_harness import Client, Harness, args, refusal

HIDDEN = "amq.delayed.later"


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path, partitions=2) as harness:
        yield harness


def later(h: Harness, kind: str = "direct", name: str = "later", **flags: Any) -> None:
    h.exchange(h.session(), name, "x-delayed-message", arguments=args(x_delayed_type=kind), **flags)


def bound(h: Harness, queue: str, key: str = "k", exchange: str = "later", **arguments: Any) -> None:
    session = h.session()
    h.declare(session, queue, args(**arguments))
    h.bind(session, exchange, queue, key)


def send(
    h: Harness,
    body: bytes,
    delay: Any = None,
    key: str = "k",
    exchange: str = "later",
    headers: dict[str, Any] | None = None,
    client: Client | None = None,
    **properties: Any,
) -> list[str]:
    """Publish as a channel does; the queues that it went to."""
    session = h.session()
    table = dict(headers or {})
    if delay is not None:
        table["x-delay"] = delay
    raw = commands.Basic.Properties(delivery_mode=2, headers=table, **properties).marshal()
    parsed = parse(raw)
    publishing = BasicPublish(exchange, key, mandatory=True)
    publishing.needs_content = h.broker.router.needs_content("/", exchange)
    destinations = route_by_content(publishing, parsed, h.broker, session)
    for destination in destinations:
        mark = destination.partition.publish(session.actor, message(destination, parsed, body))
        if client is not None:
            destination.partition.await_durable(mark, client, 1)
    h.settle()
    return sorted(name for destination in destinations for name in destination.route.queues)


def taken(h: Harness, queue: str) -> Published:
    found = h.fetch(h.session(), queue)
    assert found is not None
    return found


# -- when a message comes, and as what --------------------------------------------------------------------------------


def test_messages_come_when_they_are_due_not_in_the_order_of_publishing(h: Harness) -> None:
    later(h)
    bound(h, "q")
    client = Client()
    assert send(h, b"third", 3_000, client=client) == [HIDDEN]
    assert client.confirms == [(1, False)]  # confirmed when it is kept
    send(h, b"first", 1_000)
    send(h, b"second", 1_000)
    assert send(h, b"at once") == ["q"]
    assert h.ready("q") == [b"at once"]
    assert h.queue(HIDDEN).messages_delayed == 3
    h.pass_time(999)
    assert h.ready("q") == [b"at once"]
    h.pass_time(1)
    assert h.ready("q") == [b"at once", b"first", b"second"]
    h.pass_time(2_000)
    assert h.ready("q") == [b"at once", b"first", b"second", b"third"]
    assert h.queue(HIDDEN).messages_delayed == 0
    assert not h.queue(HIDDEN).outbox


def test_a_delayed_message_keeps_all_but_the_sign_of_its_delay(h: Harness) -> None:
    later(h, "topic")
    bound(h, "q", "a.*")
    send(h, b"m", 500, "a.b", headers={"mine": 1, "CC": ["other"], "BCC": ["secret"]}, expiration="2000", priority=3)
    h.pass_time(500)
    came = taken(h, "q")
    assert (came.route.exchange, came.route.routing_key, came.body) == ("later", "a.b", b"m")
    assert (came.priority, came.persistent, came.expiration_ms) == (3, True, 2_000)
    assert readable(came.properties).headers == {
        "mine": 1,
        "CC": ["other"],
        "BCC": ["secret"],
        "x-delay": -500,
    }
    send(h, b"m", 500, "a.b", expiration="2000")
    h.pass_time(500)
    h.pass_time(1_999)
    assert h.ready("q") == [b"m"]
    h.pass_time(1)
    assert h.ready("q") == []


def test_bindings_are_those_of_the_moment_when_it_is_due(h: Harness) -> None:
    later(h)
    send(h, b"m", 500)
    bound(h, "q")
    bound(h, "copy", "cc")
    send(h, b"copied", 500, headers={"BCC": ["cc"]})
    h.pass_time(500)
    assert h.ready("q") == [b"m", b"copied"]
    assert h.ready("copy") == [b"copied"]
    send(h, b"lost", 500)
    for name in ("q", "copy"):
        h.broker.queues.delete(h.session(), name, False, False)
    h.pass_time(500)
    assert not h.queue(HIDDEN).outbox


@pytest.mark.parametrize(
    ("delay", "delayed"),
    [
        (1, True),
        ("250", True),
        (2.9, True),
        (4_294_967_295, True),
        ("+7", True),
        (0, False),
        (-5, False),
        ("soon", False),
        ("", False),
        (4_294_967_296, False),
        (True, False),
        (None, False),
        ([5], False),
        ("99999999999999999999", False),
    ],
)
def test_what_is_a_delay(h: Harness, delay: Any, delayed: bool) -> None:
    later(h)
    bound(h, "q")
    assert send(h, b"m", delay) == [HIDDEN if delayed else "q"]


def test_any_exchange_type_may_be_behind_it(h: Harness) -> None:
    later(h, "x-consistent-hash", "hash")
    bound(h, "q", "3", "hash")
    later(h, "headers", "headers")
    bound(
        h,
        "r",
        "",
        "headers",
    )
    for exchange, queue in (("hash", "q"), ("headers", "r")):
        send(h, b"m", 100, exchange=exchange)
        h.pass_time(100)
        assert h.ready(queue) == [b"m"], exchange


def test_behind_another_exchange_it_delays_its_own_share_only(h: Harness) -> None:
    later(h)
    bound(h, "q")
    bound(h, "now", "k", "amq.direct")
    h.broker.exchanges.bind(h.session(), "amq.direct", "exchange", "later", "k", ())
    later(h, name="again")
    h.broker.exchanges.bind(h.session(), "later", "exchange", "again", "k", ())
    bound(h, "twice", "k", "again")
    assert send(h, b"m", 100, exchange="amq.direct") == [HIDDEN, "now"]
    assert h.ready("now") == [b"m"]
    h.pass_time(100)  # and no other exchange delays it again
    assert h.ready("q") == h.ready("twice") == [b"m"]
    assert taken(h, "q").route.exchange == "amq.direct"


def test_a_dead_letter_may_be_delayed(h: Harness) -> None:
    later(h, "fanout")
    bound(h, "dead", "")
    h.declare(h.session(), "source", args(x_dead_letter_exchange="later", x_message_ttl=10))
    send(h, b"m", 1_000, "source", exchange="")
    h.pass_time(10)
    assert h.ready("dead") == []
    h.pass_time(1_000)
    assert h.ready("dead") == [b"m"]
    headers = readable(taken(h, "dead").properties).headers
    assert headers["x-first-death-reason"] == "expired"
    assert isinstance(headers["x-death"], list)
    assert len(headers["x-death"]) == 1


def test_what_cannot_be_routed_when_due_goes_to_the_alternate_exchange(h: Harness) -> None:
    h.exchange(
        h.session(),
        "later",
        "x-delayed-message",
        arguments=args(x_delayed_type="direct", alternate_exchange="amq.fanout"),
    )
    bound(h, "spare", "", "amq.fanout")
    assert send(h, b"m", 50) == [HIDDEN]
    h.pass_time(50)
    assert h.ready("spare") == [b"m"]


def test_properties_that_a_service_made_up_do_not_cost_the_message() -> None:
    route = Route("/", "later", "k", (HIDDEN,))
    for raw in (b"", b"\xff\xff", b"\x20\x00\0\0\0\x05xxxxx"):
        with pytest.raises(ValueError, match=r"propert|table"):
            due(Published(route, raw, expiration_ms=5, persistent=True, body=b"", body_size=0))
    bad = commands.Basic.Properties(expiration="soon").marshal()
    buried, expiration_ms = due(Published(route, bad, expiration_ms=5, persistent=True, body=b"", body_size=0))
    assert expiration_ms is None
    assert Content(buried.properties).headers == {"x-delay": -5}


# -- the hidden queue -------------------------------------------------------------------------------------------------


def test_nobody_reaches_the_hidden_queue(h: Harness) -> None:
    later(h)
    session = h.session()
    text = f"queue name '{HIDDEN}' is that of an exchange's delayed messages"
    for act in (
        lambda: h.declare(session, HIDDEN, passive=True),
        lambda: h.bind(session, "amq.direct", HIDDEN),
        lambda: h.consume(session, HIDDEN, Client()),
        lambda: h.broker.consumers.fetch(session, 1, Client(), HIDDEN, True),
        lambda: h.broker.queues.purge(session, HIDDEN),
        lambda: h.broker.queues.delete(session, HIDDEN, False, False),
    ):
        with refusal(AccessRefused, text):
            act()
    with pytest.raises(AccessRefused):
        h.declare(session, HIDDEN)
    assert h.publish(session, "", HIDDEN, b"m") == 0
    h.declare(session, "source", args(x_dead_letter_exchange="", x_dead_letter_routing_key=HIDDEN, x_message_ttl=0))
    h.publish(session, "", "source", b"m")
    h.settle()
    assert h.queue(HIDDEN).messages_delayed == 0


def test_policies_do_not_concern_the_hidden_queue(h: Harness) -> None:
    h.broker.policies.set(Actor("guest", 0), "/", "short", ".*", {"message-ttl": 1, "max-length": 0}, 0, "all")
    later(h)
    bound(h, "q")
    h.broker.policies.clear(Actor("guest", 0), "/", "short")
    send(h, b"m", 100)
    h.broker.policies.set(Actor("guest", 0), "/", "other", "^amq", {"message-ttl": 1}, 0, "queues")
    h.pass_time(100)
    assert h.ready("q") == [b"m"]


def test_delayed_messages_survive_a_restart(h: Harness) -> None:
    later(h)
    bound(h, "q")
    send(h, b"m", 1_000)
    h.now_ms += 400
    h.restart()
    h.pass_time(599)
    assert h.ready("q") == []
    h.pass_time(1)
    assert h.ready("q") == [b"m"]
    assert taken(h, "q").body == b"m"


def test_what_was_due_while_the_broker_was_down_comes_at_its_start(h: Harness) -> None:
    later(h)
    bound(h, "q")
    send(h, b"m", 1_000)
    h.now_ms += 5_000
    h.restart()
    h.pass_time(0)
    assert h.ready("q") == [b"m"]


def test_a_kill_forwards_a_delayed_message_once(h: Harness, tmp_path: Path) -> None:
    later(h)
    bound(h, "q")
    send(h, b"m", 100)
    h.pass_time(100)
    copy = h.killed_copy(tmp_path / "copy")
    with copy:
        copy.pass_time(0)
        assert copy.ready("q") == [b"m"]
        assert not copy.queue(HIDDEN).outbox


def test_the_hidden_queue_goes_with_its_exchange_and_so_do_its_messages(h: Harness) -> None:
    later(h)
    send(h, b"m", 100)
    h.broker.exchanges.delete(h.session(), "later", False)
    h.settle()
    assert h.broker.queues.get("/", HIDDEN) is None
    later(h)
    bound(h, "q")
    h.pass_time(100)
    assert h.ready("q") == []
    send(h, b"new", 100)
    h.pass_time(100)
    assert h.ready("q") == [b"new"]


def test_an_exchange_that_is_declared_anew_at_once_begins_empty(h: Harness) -> None:
    later(h)
    send(h, b"old", 100)
    h.broker.exchanges.delete(h.session(), "later", False)
    later(h)
    bound(h, "q")
    send(h, b"new", 100)
    h.pass_time(100)
    assert h.ready("q") == [b"new"]


def test_an_auto_delete_exchange_takes_its_hidden_queue_along(h: Harness) -> None:
    later(h, auto_delete=True)
    bound(h, "q")
    send(h, b"m", 100)
    h.broker.queues.delete(h.session(), "q", False, False)
    for _ in range(3):  # queue, binding and exchange, hidden queue: each goes when what it follows from is durable
        h.settle()
    assert h.broker.queues.get("/", HIDDEN) is None


def test_a_restart_removes_a_transient_exchange_and_its_hidden_queue(h: Harness) -> None:
    later(h, durable=False)
    send(h, b"m", 100)
    h.restart()
    assert h.broker.queues.get("/", HIDDEN) is None


def test_a_vhost_takes_hidden_queues_along(h: Harness) -> None:
    h.broker.vhosts.create(Actor("guest", 0), "other", "")
    h.broker.access.users.set_permissions(Actor("guest", 0), "other", "guest", ".*", ".*", ".*")
    session = h.session(vhost="other")
    h.exchange(session, "later", "x-delayed-message", arguments=args(x_delayed_type="direct"))
    assert h.broker.queues.get("other", HIDDEN) is not None
    h.broker.vhosts.delete(Actor("guest", 0), "other")
    h.settle()
    assert h.broker.queues.get("other", HIDDEN) is None


def test_a_crash_between_the_two_logs_is_mended(h: Harness) -> None:
    """An exchange without its queue, and a queue without its exchange."""
    later(h)
    later(h, name="other")
    partition = h.broker.queues.partition_for("/", HIDDEN)
    (queue,) = [each for each in partition.machine.queues() if each.name == HIDDEN]
    h.broker.hidden._drop("/", "later")  # it has its exchange: stays
    assert h.broker.queues.get("/", HIDDEN) is queue
    partition.append(BROKER, deletion(queue))
    partition.carry_out()
    h.broker.hidden.when_durable = lambda callback: None  # as if the broker died
    h.broker.metadata.append(BROKER, ExchangeDeleted("/", "other"))
    assert h.broker.queues.get("/", "amq.delayed.other") is not None
    h.restart()
    assert h.broker.queues.get("/", HIDDEN) is not None
    assert h.broker.queues.get("/", "amq.delayed.other") is None


# -- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (args(x_delayed_type=5), "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (
            args(x_delayed_type="x-delayed-message"),
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
        (args(x_delayed_type="bogus"), "unknown exchange type 'bogus'"),
        (args(x_delayed_type="x-consistent-hash", hash_property="nope"), "Unsupported property: nope"),
    ],
)
def test_delayed_exchanges_refused(h: Harness, arguments: Any, text: str) -> None:
    with refusal(PreconditionFailed, text):
        h.exchange(h.session(), "later", "x-delayed-message", arguments=arguments)
    assert h.broker.queues.get("/", HIDDEN) is None


def test_declared_again_it_stays_as_it_is(h: Harness) -> None:
    later(h)
    bound(h, "q")
    send(h, b"m", 100)
    later(h)
    h.pass_time(100)
    assert h.ready("q") == [b"m"]


def test_declared_again_it_has_its_queue_again(h: Harness) -> None:
    """Should another node's client have been faster, and have made only one of the two yet."""
    later(h)
    partition = h.broker.queues.partition_for("/", HIDDEN)
    partition.append(BROKER, deletion(h.queue(HIDDEN)))
    partition.carry_out()
    bound(h, "q")
    assert send(h, b"nowhere", 100) == []
    later(h)
    assert send(h, b"m", 100) == [HIDDEN]
