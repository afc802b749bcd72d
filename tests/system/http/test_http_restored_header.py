"""The header x-restored, by which a consumer tells a message that a restoration brought back (B-33)."""

from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import MAX_PROPERTIES_BYTES
from tests.support.moments import now

FORGED = {"partition": "queues-9", "id": 1, "at": "1970-01-01T00:00:00.000+00:00"}


def publish(channel: BlockingChannel, queue: str, body: str, **headers: object) -> None:
    channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2, headers=headers))


def restore(api: httpx2.Client, queue: str, **content: object) -> dict[str, Any]:
    answer = api.post(f"/queues/%2F/{queue}/restore", json=content)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def only_message(api: httpx2.Client, queue: str) -> dict[str, Any]:
    """The one message in the queue, as the API shows it."""
    [found] = api.get(f"/queues/%2F/{queue}/at", params={"time": now()}).json()["message_details"]
    shown: dict[str, Any] = found
    return shown


def headers(channel: BlockingChannel, queue: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Bodies and headers of all messages in the queue, which are acked."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[1].headers))
    return found


@pytest.mark.long
def test_b33_a_restored_message_says_where_it_was_and_when(
    api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    publish(channel, queue, "a", kept="yes")
    message_id = only_message(api, queue)["message_id"]
    channel.queue_purge(queue)
    publish(channel, queue, "new", kept="yes")
    done = restore(api, queue, undo="purge")
    was = {"partition": done["at"]["partition"], "id": message_id, "at": done["at"]["time"]}
    shown = api.post(
        f"/queues/%2F/{queue}/get", json={"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}
    ).json()
    assert [each["properties"]["headers"] for each in shown] == [{"kept": "yes"}, {"kept": "yes", "x-restored": was}]
    assert headers(channel, queue) == [(b"new", {"kept": "yes"}), (b"a", {"kept": "yes", "x-restored": was})]


def test_b33_a_copy_of_a_copy_names_the_copy_it_was_made_of(
    api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    publish(channel, queue, "a")
    first = only_message(api, queue)["message_id"]
    channel.queue_purge(queue)
    restore(api, queue, undo="purge")
    copy = only_message(api, queue)["message_id"]
    channel.queue_purge(queue)
    again = restore(api, queue, undo="purge")
    assert (again["restored"], copy > first) == (1, True)
    assert restore(api, queue, undo="purge")["duplicates"] == 1
    [(_, found)] = headers(channel, queue)
    assert found == {"x-restored": {"partition": again["at"]["partition"], "id": copy, "at": again["at"]["time"]}}


def test_b33_a_message_by_its_id_is_as_of_its_publish(api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    publish(channel, queue, "a")
    was = only_message(api, queue)
    channel.queue_purge(queue)
    restore(api, queue, messages=[was["message_id"]])
    [(_, found)] = headers(channel, queue)
    assert (found["x-restored"]["id"], found["x-restored"]["at"]) == (was["message_id"], was["published"])


def test_b33_no_client_sets_it(api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    publish(channel, queue, "a", **{"x-restored": FORGED, "kept": "yes", "nested": {"x-restored": "is mine"}})
    properties = {"headers": {"x-restored": FORGED, "kept": "yes"}}
    sent = {"properties": properties, "routing_key": queue, "payload": "b", "payload_encoding": "string"}
    assert api.post("/exchanges/%2F/amq.default/publish", json=sent).json() == {"routed": True}
    own = {"kept": "yes", "nested": {"x-restored": "is mine"}}
    assert headers(channel, queue) == [(b"a", own), (b"b", {"kept": "yes"})]


def test_b33_a_dead_letter_of_a_restored_message_keeps_it(
    api: httpx2.Client, queue: str, name: str, channel: BlockingChannel
) -> None:
    source = f"{name}-source"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(source, durable=True, arguments=arguments)
    publish(channel, source, "a")
    channel.queue_purge(source)
    restore(api, source, undo="purge")
    [(method, _, _)] = [channel.basic_get(source)]
    channel.basic_reject(method.delivery_tag, requeue=False)
    for _, properties, _ in channel.consume(queue, inactivity_timeout=None):
        assert properties.headers["x-restored"]["id"] >= 0
        assert properties.headers["x-death"][0]["queue"] == source
        break
    channel.cancel()


def test_b33_properties_that_fill_their_frame_come_back_without_it(
    api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    around = len(tables.encode({"big": ""})) + 2 + 4 + 1  # flags, length of the table, delivery mode
    big = "x" * (MAX_PROPERTIES_BYTES - around)
    publish(channel, queue, "a", big=big)
    channel.queue_purge(queue)
    restore(api, queue, undo="purge")
    assert headers(channel, queue) == [(b"a", {"big": big})]
