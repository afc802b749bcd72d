"""The event exchange of one broker: which events come, with which headers, and when none comes."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.errors import AccessRefused
from rewindmq.engine.partition.counters import EVENTS_DROPPED, EVENTS_PUBLISHED
from rewindmq.engine.routing import event_exchange
from rewindmq.engine.routing.event_headers import NODE_WIDE
from rewindmq.schemas.access_events import LoginRefused, SessionOpened
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import headers_of, values
from rewindmq.schemas.events import Purged
from rewindmq.schemas.metadata_events import (
    ExchangeDeclared,
    ParameterSet,
    PermissionsSet,
    PolicyCleared,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Client, Harness, args

EVENTS = "amq.rewindmq.event"
ANN = Actor("ann", 0)
Told = tuple[str, dict[str, Any]]


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=2) as harness:
        yield harness


def listen(h: Harness, *keys: str, queue: str = "heard") -> None:
    """Bind a queue to the events."""
    session = h.session()
    h.declare(session, queue)
    for key in keys:
        h.bind(session, EVENTS, queue, key)
    h.settle()


def heard(h: Harness, queue: str = "heard") -> list[Told]:
    """The events in the queue, which stay there, but for those of its own bindings."""
    h.settle()
    found = h.queue(queue)
    partition = h.broker.queues.partition_for("/", queue)
    events = []
    for message_id in found.ready_ids():
        message = partition.message(found.queue_id, message_id)
        assert (message.body, message.route.exchange, message.persistent) == (b"", EVENTS, True)
        headers: Any = {name: tables.untyped(kind, value) for name, kind, value in headers_of(message.properties)}
        assert headers["timestamp_in_ms"] // 1000 == values(message.properties)["timestamp"]
        if headers.get("destination_name") != queue:
            events.append((message.route.routing_key, headers))
    return events


def keys(h: Harness) -> list[str]:
    return [key for key, _ in heard(h)]


def test_b36_nobody_bound_is_nothing_told_and_no_partition_is_tapped(h: Harness) -> None:
    session = h.session()
    taps = [partition.tap for partition in h.broker.partitions]
    assert taps == [None, None]
    h.declare(session, "q", args(x_max_length=1))
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    h.settle()
    listen(h, "policy.set", "user.#")
    assert [partition.tap for partition in h.broker.partitions] == [None, None]
    assert h.broker.counters[EVENTS_PUBLISHED] == 0
    h.broker.exchanges.unbind(session, EVENTS, "queue", "heard", "policy.set", ())
    listen(h, "#")
    assert [partition.tap for partition in h.broker.partitions] == [h.broker.events] * 2
    h.broker.queues.delete(session, "heard", False, False)
    h.settle()
    assert [partition.tap for partition in h.broker.partitions] == [None, None]


def test_b36_messages_tell_how_they_end_by_which_rule_and_by_whom(h: Harness) -> None:
    listen(h, "message.#", "ack.#")
    session = h.session()
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    h.declare(session, "dead")
    h.declare(session, "dropping", args(x_max_length=1, **dead))
    h.declare(session, "refusing", args(x_max_length=1, x_overflow="reject-publish"))
    h.declare(session, "dying", args(x_message_ttl=1_000))
    first = h.broker.queues.partition_for("/", "dropping").next_offset
    for queue in ("dropping", "refusing"):
        for body in (b"1", b"2"):
            h.publish(session, "", queue, body)
    h.publish(session, "", "dying", b"1")
    h.pass_time(2_000)
    client = Client()
    consumer = h.consume(session, "dropping", client)
    h.settle()
    h.ack(session, consumer, client.deliveries[0][1])
    h.publish(session, "", "dropping", b"3")
    h.settle()
    h.nack(session, consumer, client.deliveries[1][1])
    told = heard(h)
    assert [key for key, _ in told] == [
        "message.dropped.dropping",
        "message.dead_lettered.dropping",
        "message.refused.refusing",
        "message.expired.dying",
        "ack.dropping",
        "message.rejected.dropping",
        "message.dead_lettered.dropping",
    ]
    dropped, letter, refused, expired, acked, rejected, _ = (headers for _, headers in told)
    del dropped["timestamp_in_ms"], dropped["offset"]
    assert dropped == {
        "partition": h.broker.queues.partition_for("/", "dropping").name,
        "message_id": first,
        "queue": "dropping",
        "vhost": "/",
        "reason": "maxlen",
        "rule": "argument x-max-length",
        "user_who_performed_action": "guest",
    }
    assert (letter["exchange"], letter["routing_key"], letter["reason"]) == ("", "dead", "maxlen")
    assert (refused["rule"], refused["message_id"] > 0) == ("argument x-max-length", True)
    assert (expired["rule"], expired["user_who_performed_action"]) == ("argument x-message-ttl", "rmq-internal")
    assert (acked["reason"], acked["consumer"], acked["consumer_tag"]) == ("acked", consumer[2], "tag")
    assert (acked["user_who_performed_action"], acked["session"]) == ("guest", session.session_id)
    assert acked["message_id"] == client.deliveries[0][1]
    assert rejected["message_id"] == client.deliveries[1][1]


def test_b36_queues_tell_how_they_come_and_go_and_are_purged(h: Harness) -> None:
    listen(h, "queue.#")
    session = h.session()
    queue = h.declare(session, "q", args(x_max_length=7))
    h.declare(session, "q", args(x_max_length=7))  # it is there already
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    partition = h.broker.queues.partition_for("/", "q")
    partition.append(session.actor, Purged("/", "q"))
    partition.append(session.actor, Purged("/", "no such queue"))
    h.broker.policies.set(ANN, "/", "lim", "^q$", {"max-length": 3}, 0, "queues")
    h.broker.policies.clear(ANN, "/", "lim")
    h.broker.queues.delete(session, "q", False, False)
    told = heard(h)
    assert [key for key, _ in told] == [
        "queue.created",
        "queue.purged",
        "queue.policy.updated",
        "queue.policy.cleared",
        "queue.deleted",
    ]
    created, purged, updated, _, deleted = (headers for _, headers in told)
    assert (created["name"], created["type"], created["offset"]) == ("q", "classic", queue.queue_id)
    assert (created["durable"], created["exclusive"], created["arguments"]) == (True, False, {"x-max-length": 7})
    assert (purged["name"], purged["messages"], purged["user_who_performed_action"]) == ("q", 2, "guest")
    assert (updated["policy"], updated["policy_definition"]) == ("lim", '{"max-length":3}')
    assert (deleted["reason"], deleted["messages"]) == ("deleted", 0)


def test_b36_the_metadata_log_tells_what_changed_and_nothing_secret(h: Harness) -> None:
    listen(h, "#")
    for event in (
        VhostCreated("v"),
        VhostCreated("v"),  # it exists
        UserSet("bob", "a hash", ("monitoring",)),
        UserSet("bob", "another hash", ("monitoring",)),
        UserSet("bob", "another hash", ()),
        PermissionsSet("/", "bob", ".*", "", ".*"),
        ParameterSet("/", "shovel", "s", '{"uri":"amqp://u:secret@h"}'),
        ExchangeDeclared("/", "x", "fanout", durable=True, auto_delete=False, internal=False),
        ExchangeDeclared("/", "x", "fanout", durable=True, auto_delete=False, internal=False),  # it exists
        ExchangeDeclared("v", "x", "fanout", durable=True, auto_delete=False, internal=False),  # told in v
        PolicyCleared("/", "p"),
        UserDeleted("bob"),
        UserDeleted("bob"),  # there is none
        VhostDeleted("v"),
    ):
        h.in_loop(partial(h.broker.metadata.append, ANN, event))
    told = heard(h)
    assert [key for key, _ in told] == [
        "vhost.created",
        "user.created",
        "user.tags.set",
        "user.password.changed",
        "user.tags.set",
        "permission.created",
        "parameter.set",
        "exchange.created",
        "policy.cleared",
        "user.deleted",
        "vhost.deleted",
    ]
    assert all(headers["user_who_performed_action"] == "ann" for _, headers in told)
    assert "hash" not in str(told)
    assert "secret" not in str(told)
    assert told[5][1] | {"vhost": "/", "user": "bob", "configure": ".*", "write": "", "read": ".*"} == told[5][1]


def test_b36_a_vhost_hears_its_own_events_only(h: Harness) -> None:
    h.broker.vhosts.create(ANN, "v", "")
    h.broker.access.users.set_permissions(ANN, "v", "guest", ".*", ".*", ".*")
    listen(h, "#")
    session = h.session(vhost="v")
    h.declare(session, "q")
    h.broker.access.users.set(ANN, "carol", "secret", ())
    assert keys(h) == ["user.created"]


@pytest.mark.parametrize("key", ["#", "user.#", "*.created", "user.authentication.failure", "alarm.*", "#.set", "*.*"])
def test_b36_events_of_the_whole_node_are_for_users_with_a_tag(h: Harness, key: str) -> None:
    every = (".*", ".*", ".*")
    h.broker.vhosts.create(ANN, "v", "")
    for name, tags in (("plain", ()), ("manager", ("management", "policymaker")), ("watcher", ("monitoring",))):
        h.broker.access.users.set(ANN, name, "secret", tags)
        for vhost in ("/", "v"):
            h.broker.access.users.set_permissions(ANN, vhost, name, *every)
    for name in ("plain", "manager"):
        session = h.session(name)
        h.declare(session, name)
        with pytest.raises(AccessRefused, match="needs the tag administrator or monitoring"):
            h.bind(session, EVENTS, name, key)
        h.exchange(session, "between", "fanout")
        with pytest.raises(AccessRefused):
            h.broker.exchanges.bind(session, EVENTS, "exchange", "between", key, ())
        for open_to_all in ("queue.#", "message.*.orders", "permission.created", "vhost.limits.set", "*", ""):
            h.bind(session, EVENTS, name, open_to_all)
        elsewhere = h.session(name, "v")
        h.declare(elsewhere, name)
        h.bind(elsewhere, EVENTS, name, key)  # they are not told there
    watching = h.session("watcher")
    h.declare(watching, "watched")
    h.bind(watching, EVENTS, "watched", key)
    listen(h, key)


def test_b36_no_policy_leads_events_to_an_alternate_exchange(h: Harness) -> None:
    session = h.session()
    h.exchange(session, "others", "fanout")
    h.declare(session, "caught")
    h.bind(session, "others", "caught")
    definition = {"alternate-exchange": "others"}
    h.broker.policies.set(ANN, "/", "ae", ".*", definition, 0, "exchanges")
    listen(h, "user.created")
    h.publish(session, "amq.topic", "nowhere", b"m")
    h.broker.access.users.set(ANN, "carol", "secret", ())
    h.broker.access.users.set(ANN, "carol", "secret", ("management",))
    assert keys(h) == ["user.created"]
    assert h.queue("caught").messages_ready == 1, "the message that no queue of amq.topic took"


def test_b36_the_events_of_the_whole_node_are_all_known(h: Harness) -> None:
    listen(h, "user.#", "vhost.created", "vhost.deleted", "alarm.#")
    h.broker.vhosts.create(ANN, "v", "")
    for password, tags in (("a", ()), ("b", ("monitoring",))):
        h.broker.access.users.set(ANN, "carol", password, tags)
    for event in (
        UserSet("carol", "", ("monitoring",)),
        UserLimitsSet("carol", '{"max-connections":1}'),
        UserDeleted("carol"),
        VhostDeleted("v"),
        LoginRefused(
            "eve", host="10.0.0.7", listener="", protocol="amqp", mechanism="PLAIN", reason="wrong", count=1, first_ms=0
        ),
        SessionOpened(
            77,
            vhost="/",
            protocol="http",
            address="10.0.0.7:1",
            listener="",
            proxy="",
            mechanism="PLAIN",
            tls="",
            certificate="",
            client_properties=(),
        ),
    ):
        h.in_loop(partial(h.broker.metadata.append, ANN, event))
    for on in (True, False):
        h.in_loop(partial(h.broker.events.alarm, "memory", on))
    assert set(keys(h)) == set(NODE_WIDE)


def test_b36_events_do_not_feed_themselves(h: Harness) -> None:
    """Messages of a queue that gets events, and of those that get its dead letters, have none; a queue beside has."""
    session = h.session()
    h.exchange(session, "dlx", "fanout")
    for name in ("dead", "later"):
        h.declare(session, name)
    h.bind(session, "dlx", "dead")
    h.exchange(session, "between", "fanout")
    h.declare(session, "heard", args(x_dead_letter_exchange="dlx"))
    h.declare(session, "far", args(x_dead_letter_exchange="", x_dead_letter_routing_key="later"))
    h.broker.exchanges.bind(session, EVENTS, "exchange", "between", "#", ())
    h.bind(session, "between", "far")
    h.bind(session, EVENTS, "heard", "#")
    h.declare(session, "beside")
    h.settle()
    before = h.broker.counters[EVENTS_PUBLISHED]
    client = Client()
    consumers = {name: h.consume(session, name, client) for name in ("heard", "far", "dead", "later", "beside")}
    h.publish(session, "", "beside", b"m")
    for _ in range(5):  # all that comes is acked, or goes to the dead letters
        h.settle()
        taken, client.deliveries = client.deliveries, []
        for name, message_id, *_ in taken:
            (h.ack if name in ("beside", "dead", "later") else h.nack)(session, consumers[name], message_id)
    h.settle()
    assert client.deliveries == []
    assert h.broker.counters[EVENTS_PUBLISHED] - before == 1  # the ack of the message beside


def test_b36_a_policys_dead_letter_exchange_closes_the_circle_too(h: Harness) -> None:
    session = h.session()
    h.declare(session, "heard")
    h.declare(session, "dead")
    h.bind(session, EVENTS, "heard", "ack.#")
    client = Client()
    consumers = {name: h.consume(session, name, client) for name in ("heard", "dead")}

    def go_on(message: bytes) -> int:
        h.publish(session, "", "dead", message)
        before = h.broker.counters[EVENTS_PUBLISHED]
        for _ in range(5):
            h.settle()
            taken, client.deliveries = client.deliveries, []
            for name, message_id, *_ in taken:
                (h.ack if name == "dead" else h.nack)(session, consumers[name], message_id)
        h.settle()
        return int(h.broker.counters[EVENTS_PUBLISHED] - before)

    assert go_on(b"1") == 1
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    h.broker.policies.set(ANN, "/", "dlx", "^heard$", definition, 0, "queues")
    assert go_on(b"2") == 0


def test_b36_more_queues_than_can_be_followed_have_no_events_of_messages(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_exchange, "MOST_FED", 3)
    listen(h, "#")
    session = h.session()
    h.declare(session, "q", args(x_max_length=1))
    for number in range(3):
        h.declare(session, f"fed-{number}")
        h.bind(session, EVENTS, f"fed-{number}", "message.#")
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    assert "message.dropped.q" not in keys(h)
    assert "more than 3 queues get events" in caplog.text


def test_b36_a_storm_is_bounded_and_its_rest_is_counted(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_exchange, "MOST_WAITING", 250)
    listen(h, "message.expired.#")
    session = h.session()
    h.declare(session, "q", args(x_message_ttl=1_000))
    for number in range(1_000):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    with caplog.at_level(logging.WARNING):
        h.pass_time(2_000)
        assert len(heard(h)) == 250
        assert h.broker.counters[EVENTS_DROPPED] == 750
        ids = [headers["message_id"] for _, headers in heard(h)]
        assert ids == sorted(set(ids))
    assert "events are dropped" in caplog.text
    assert "750 events were dropped" in caplog.text


def test_b36_an_event_waits_until_its_cause_is_durable(h: Harness) -> None:
    listen(h, "ack.#")
    session = h.session()
    h.declare(session, "q")
    client = Client()
    consumer = h.consume(session, "q", client)
    h.publish(session, "", "q", b"m")
    h.settle()

    def ack() -> int:
        h.ack(session, consumer, client.deliveries[0][1])
        h.broker.events._round()
        return int(h.broker.counters[EVENTS_PUBLISHED])

    assert h.in_loop(ack) == 0
    h.settle()
    assert keys(h) == ["ack.q"]


def test_b36_a_start_tells_nothing_again(h: Harness, tmp_path: Path) -> None:
    listen(h, "#")
    session = h.session()
    h.declare(session, "q", args(x_max_length=1))
    for body in (b"1", b"2"):
        h.publish(session, "", "q", body)
    told = keys(h)
    assert told == ["queue.created", "message.dropped.q"]
    with h.killed_copy(tmp_path / "copy") as copy:
        assert keys(copy) == told
    h.restart()
    assert keys(h) == told
    h.publish(h.session(), "", "q", b"3")
    assert keys(h)[-1] == "message.dropped.q"


def test_b36_a_key_is_never_longer_than_amqp_allows(h: Harness) -> None:
    listen(h, "message.#")
    session = h.session()
    name = "é" * 127
    h.declare(session, name, args(x_max_length=1))
    for body in (b"1", b"2"):
        h.publish(session, "", name, body)
    ((key, headers),) = heard(h)
    assert len(key.encode()) <= 255
    assert key.startswith("message.dropped.é")
    assert headers["queue"] == name


def test_b36_alarms_are_told(h: Harness) -> None:
    listen(h, "alarm.*")
    h.in_loop(partial(h.broker.host.alarms._tell, "memory", True))
    h.in_loop(partial(h.broker.host.alarms._tell, "memory", False))
    told = heard(h)
    assert [key for key, _ in told] == ["alarm.set", "alarm.cleared"]
    assert told[0][1]["source"] == "memory"
