"""Bringing messages back: POST /api/queues/{vhost}/{queue}/restore, and `rewindmq restore` (B-02)."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pika
import pytest
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.cli.main import rewindmq
from rewindmq.engine.keeping.single_records import record_digest
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from tests.support.moments import now
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"kept": "yes"}, message_id="m")


def restore(api: httpx2.Client, queue: str, status: int = 200, **content: object) -> dict[str, Any]:
    answer = api.post(f"/queues/%2F/{queue}/restore", json=content)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def channel(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    yield connection.channel()
    connection.close()


Got = list[tuple[bytes, bool]]
Take = Callable[[str], Got]


@pytest.fixture
def take(channel: BlockingChannel) -> Take:
    """Everything in a queue, acked: bodies and redelivered flags, in order."""

    def taken(queue: str) -> Got:
        found = []
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            assert got[1].headers["kept"] == "yes"
            found.append((got[2], got[0].redelivered))
        return found

    return taken


def publish(channel: BlockingChannel, queue: str, *bodies: str, **properties: object) -> None:
    channel.confirm_delivery()
    for body in bodies:
        given = pika.BasicProperties(delivery_mode=2, headers={"kept": "yes"}, **properties)
        channel.basic_publish("", queue, body.encode(), given)


@pytest.mark.long
def test_b02_a_purge_is_undone(api: httpx2.Client, queue: str, channel: BlockingChannel, take: Take) -> None:
    publish(channel, queue, "a", "b", "c")
    got = channel.basic_get(queue)  # a was delivered once: it says so when it is back
    channel.basic_nack(got[0].delivery_tag)
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    publish(channel, queue, "new")
    tried = restore(api, queue, undo="purge", dry_run=True)
    assert (tried["messages"], tried["message_bytes"], tried["fates"]) == (3, 3, {"purged": 3})
    done = restore(api, queue, undo="purge")
    assert (done["restored"], done["duplicates"], done["refused"], done["declared"]) == (3, 0, 0, False)
    again = restore(api, queue, undo="purge")
    assert (again["restored"], again["duplicates"]) == (0, 3)
    assert take(queue) == [(b"new", False), (b"a", True), (b"b", False), (b"c", False)]
    third = restore(api, queue, undo="purge", name="once more")
    assert (third["restored"], third["name"]) == (3, "once more")


def test_an_undone_purge_brings_back_only_what_the_purge_took(
    api: httpx2.Client, queue: str, channel: BlockingChannel, take: Take
) -> None:
    publish(channel, queue, "held", "purged")
    held = channel.basic_get(queue)
    channel.queue_purge(queue)
    channel.basic_reject(held[0].delivery_tag, requeue=False)
    while api.get(f"/queues/%2F/{queue}").json()["messages"]:
        time.sleep(0.02)
    done = restore(api, queue, undo="purge")
    assert (done["restored"], done["fates"]) == (1, {"purged": 1, "rejected": 1})
    assert take(queue) == [(b"purged", False)]


def test_b02_a_deleted_queue_comes_back_as_it_was(
    api: httpx2.Client, name: str, channel: BlockingChannel, take: Take
) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    channel.queue_declare(name, durable=True, arguments=arguments)
    publish(channel, name, "a", "b")
    got = channel.basic_get(name)
    channel.basic_reject(got[0].delivery_tag)
    while api.get(f"/queues/%2F/{name}").json()["messages_ready"] < 2:
        time.sleep(0.02)
    channel.queue_delete(name)
    done = restore(api, name, undo="delete")
    assert (done["restored"], done["declared"], done["fates"]) == (2, True, {"deleted": 2})
    shown = api.get(f"/queues/%2F/{name}").json()
    assert (shown["type"], shown["arguments"]) == ("quorum", arguments)
    counts = {}
    while (got := channel.basic_get(name, auto_ack=True))[0] is not None:
        counts[got[2]] = (got[0].redelivered, (got[1].headers or {}).get("x-delivery-count"))
    assert counts == {b"a": (True, 1), b"b": (False, None)}


def test_b02_a_deleted_queue_gets_its_bindings_back(
    broker: RunningBroker, api: httpx2.Client, name: str, channel: BlockingChannel
) -> None:
    channel.queue_declare(name, durable=True)
    for exchange in (f"{name}-x", f"{name}-gone"):
        channel.exchange_declare(exchange, "direct", durable=True)
        channel.queue_bind(name, exchange, "old")
        channel.queue_bind(name, exchange, "unbound")
    channel.queue_bind(name, "amq.headers", "", {"x-match": "all", "n": 1})
    publish(channel, name, "a")
    channel.queue_unbind(name, f"{name}-x", "unbound")
    channel.queue_bind(name, f"{name}-x", "new")  # the queue's partition knows nothing of it
    time.sleep(0.01)
    channel.queue_delete(name)
    channel.exchange_delete(f"{name}-gone")
    tried = restore(api, name, undo="delete", dry_run=True)
    keys = [(each["source"], each["routing_key"]) for each in tried["bindings"]]
    assert keys == [(f"{name}-x", "old"), ("amq.headers", ""), (f"{name}-x", "new")]
    lost = [(each["source"], each["routing_key"], each["reason"]) for each in tried["bindings_lost"]]
    reason = f"there is no exchange '{name}-gone' any more"
    assert lost == [(f"{name}-gone", "old", reason), (f"{name}-gone", "unbound", reason)]
    answer = CliRunner().invoke(rewindmq, ["restore", name, "--undo", "delete"], env={"REWINDMQ_URL": broker.http_url})
    assert f"Bound to exchange '{name}-x' with key 'new'" in answer.output
    assert f"A binding is lost, to exchange '{name}-gone' with key 'old': {reason}" in answer.output
    there = [each for each in api.get(f"/queues/%2F/{name}/bindings").json() if each["source"]]
    assert {(each["source"], each["routing_key"]) for each in there} == set(keys)
    assert next(each for each in there if each["source"] == "amq.headers")["arguments"] == {"x-match": "all", "n": 1}
    channel.basic_publish(f"{name}-x", "new", b"routed", PERSISTENT)
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(2)] == [b"a", b"routed"]
    again = restore(api, name, undo="delete")
    assert (again["declared"], again["bindings"], again["duplicates"]) == (False, [], 1)


def test_a_queue_that_is_there_again_keeps_the_bindings_it_was_given(
    api: httpx2.Client, name: str, channel: BlockingChannel
) -> None:
    """They come back with a queue that is gone, and with one whose restoration was cut short before a message came."""

    def bound() -> list[str]:
        return sorted(each["routing_key"] for each in api.get(f"/bindings/%2F/e/amq.direct/q/{name}").json())

    channel.queue_declare(name, durable=True)
    for key in ("a", "b"):
        channel.queue_bind(name, "amq.direct", key)
    publish(channel, name, "x")
    channel.queue_delete(name)
    offset = restore(api, name, undo="delete", dry_run=True)["at"]["offset"]
    assert len(restore(api, name, offset=offset)["bindings"]) == 2
    channel.queue_unbind(name, "amq.direct", "a")
    again = restore(api, name, offset=offset)
    assert (again["duplicates"], again["bindings"], bound()) == (1, [], ["b"]), "it had been finished"
    for durable, keys, after in ((False, ["a"], ["a"]), (True, ["a", "new"], ["a", "new"]), (True, ["a"], ["a", "b"])):
        channel.queue_delete(name)
        channel.queue_declare(name, durable=durable)
        for key in keys:
            channel.queue_bind(name, "amq.direct", key)
        dry = restore(api, name, offset=offset, dry_run=True)
        done = restore(api, name, offset=offset)
        assert dry["bindings"] == done["bindings"]
        assert (done["declared"], done["restored"], bound()) == (False, 1, after)


def test_b02_as_it_was_then_into_another_queue(
    api: httpx2.Client, queue: str, name: str, channel: BlockingChannel, take: Take
) -> None:
    other = f"{name}-copy"
    api.put(f"/queues/%2F/{other}", json={"durable": True})
    publish(channel, queue, "acked", "expired", expiration="200")
    publish(channel, queue, "there")
    then = now()
    channel.basic_get(queue, auto_ack=True)
    time.sleep(0.3)
    assert restore(api, queue, time=then, to=other, dry_run=True)["fates"] == {"delivered": 1, "expired": 1, "ready": 1}
    assert restore(api, queue, time=then, to=other)["restored"] == 1
    assert take(other) == [(b"expired", False)]
    assert restore(api, queue, time=then, to=other, only="all", name="all")["restored"] == 3
    assert restore(api, queue, time=then, only="all")["restored"] == 2  # what is still there does not come twice
    time.sleep(0.3)
    assert [body for body, _ in take(other)] == [b"there"]  # the others' time that was left has passed again


def test_a_target_that_is_full_refuses_and_says_so(
    api: httpx2.Client, queue: str, name: str, channel: BlockingChannel
) -> None:
    strict = f"{name}-strict"
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api.put(f"/queues/%2F/{strict}", json={"durable": True, "arguments": limits})
    publish(channel, queue, "a", "b", "c")
    channel.queue_purge(queue)
    done = restore(api, queue, undo="purge", to=strict)
    assert (done["restored"], done["refused"]) == (1, 2)
    channel.queue_purge(strict)
    assert restore(api, queue, undo="purge", to=strict)["restored"] == 1  # the refused ones may come in now


def test_only_those_that_are_asked_for(api: httpx2.Client, queue: str, channel: BlockingChannel, take: Take) -> None:
    publish(channel, queue, "a", "b", "c")
    then = now()
    past = api.get(f"/queues/%2F/{queue}/at", params={"time": then}).json()
    ids = [each["message_id"] for each in past["message_details"]]
    channel.queue_purge(queue)
    assert restore(api, queue, time=then, messages=[ids[0], ids[2]])["restored"] == 2
    assert restore(api, queue, time=then, messages=ids)["restored"] == 1
    assert [body for body, _ in take(queue)] == [b"a", b"c", b"b"]


def test_messages_by_their_ids_whenever_they_were(
    api: httpx2.Client, queue: str, name: str, channel: BlockingChannel, take: Take
) -> None:
    other = f"{name}-other"
    api.put(f"/queues/%2F/{other}", json={"durable": True})
    publish(channel, queue, "a", "b")
    past = api.get(f"/queues/%2F/{queue}/at", params={"time": now()}).json()
    first, second = (each["message_id"] for each in past["message_details"])
    taken = take(queue)
    assert len(taken) == 2
    assert restore(api, queue, messages=[second, first])["restored"] == 2  # in their order
    assert [body for body, _ in take(queue)] == [b"a", b"b"]
    assert restore(api, queue, messages=[first])["duplicates"] == 1
    assert restore(api, queue, messages=[first], to=other)["restored"] == 1


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        ({}, 400, "give one of time, offset and undo, or messages"),
        ({"messages": [0]}, 400, "the event at 0 is no publish"),
        ({"messages": [10**9]}, 400, "has no message 1000000000"),
        ({"undo": "ack"}, 400, "undo is one of purge, delete, remove, not 'ack'"),
        ({"undo": "purge"}, 404, "nobody has asked to purge queue"),
        ({"offset": 0}, 404, "no queue"),
        ({"offset": -1}, 400, "offset is a whole number"),
        ({"offset": 10**9}, 400, "has offsets 0 to"),
        ({"undo": "purge", "only": ["lost"]}, 400, 'only is "all", or a list of'),
        ({"undo": "purge", "messages": ["a"]}, 400, "messages is a list of message ids"),
        ({"undo": "purge", "rate": 0}, 400, "rate is at least 1 message a second, not 0"),
        ({"undo": "purge", "rate": -5}, 400, "rate is at least 1 message a second, not -5"),
        ({"undo": "purge", "rate": 0.5}, 400, "not_integer: rate 0.5"),
        ({"undo": "purge", "rate": "fast"}, 400, "not_integer: rate"),
        ({"undo": "purge", "where": 1}, 400, "unknown key 'where'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    api: httpx2.Client, queue: str, content: dict[str, object], status: int, reason: str
) -> None:
    assert reason in str(restore(api, queue, status, **content)["reason"])


def test_no_target(api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    publish(channel, queue, "a")
    channel.queue_purge(queue)
    assert restore(api, queue, 404, undo="purge", to="nowhere")["reason"] == "no queue 'nowhere' in vhost '/'"


def test_messages_come_back_from_but_not_into_the_brokers_own_queues(
    api: httpx2.Client, queue: str, name: str, channel: BlockingChannel, take: Take
) -> None:
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    hidden = f"amq.delayed.{name}"
    channel.confirm_delivery()
    delayed = {"kept": "yes", "x-delay": 3_600_000}
    channel.basic_publish(name, "", b"later", pika.BasicProperties(delivery_mode=2, headers=delayed))
    publish(channel, queue, "one")
    channel.queue_purge(queue)
    restore(api, queue, 404, undo="purge", to=hidden)
    restore(api, queue, 404, undo="purge", to="amq.rabbitmq.reply-to.nobody")
    channel.exchange_delete(name)
    restore(api, hidden, 404, undo="delete")
    assert restore(api, hidden, undo="delete", to=queue)["restored"] == 1
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.message_count, body) == (0, b"later")
    assert properties.headers.items() > delayed.items()


def test_the_command(broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    publish(channel, queue, "a", "b")
    channel.queue_purge(queue)
    command = ["--url", broker.http_url, "restore", queue, "--undo", "purge", "--formatter", "json", "--silent"]
    tried = CliRunner().invoke(rewindmq, [*command, "--dry-run"])
    assert json.loads(tried.output)[0] | {"name": ""} == {"name": "", "messages": 2, "since": "2 purged"}
    done = CliRunner().invoke(rewindmq, command)
    [row] = json.loads(done.output)
    assert (row["restored"], row["duplicates"], row["declared"]) == (2, 0, False)
    assert api.get(f"/queues/%2F/{queue}").json()["messages_ready"] == 2


def test_ids_of_another_history_are_refused(
    api: httpx2.Client, queue: str, channel: BlockingChannel, broker: RunningBroker, take: Take
) -> None:
    """A record says when it came, so no other history has it at the same place."""
    publish(channel, queue, "a", "b")
    ids: list[int] = []
    partition = ""
    for row in api.get(f"/history/outcomes/%2F/{queue}").json()["rows"]:
        if row["outcome"] == "published":
            ids, partition = [*ids, row["message_id"]], row["partition"]
    channel.queue_purge(queue)
    log = next(each for each in EmbeddedLogReader(broker.data).queues if each.name == partition)
    wish: dict[str, Any] = {"messages": ids, "partition": partition}
    for wrong in ({str(ids[1]): "0" * 64}, {str(ids[1] + 100_000): record_digest(log, ids[1])}):
        refused = restore(api, queue, 409, **wish, records=wrong)
        assert "is another one in this broker's history" in refused["reason"]
    for senseless in ({"x": "0"}, ["1"], 1):
        restore(api, queue, 400, **wish, records=senseless)
    assert take(queue) == []
    done = restore(api, queue, **wish, records={str(ids[1]): record_digest(log, ids[1])})
    assert done["restored"] == 2
