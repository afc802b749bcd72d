"""Queues over the management API of a real broker: RabbitMQ's paths, shapes, statuses and reasons
(docs/behaviours/interfaces.md#http)."""

import base64
import time
from typing import Any

import httpx2
import pika
import pytest

from tests.support.http_clients import publish
from tests.support.running import RunningBroker

INEQUIVALENT = "inequivalent arg '{}' for queue '{{q}}' in vhost '/'"


def get(api: httpx2.Client, queue: str, ackmode: str, count: int = 10, **more: object) -> list[dict[str, Any]]:
    content = {"count": count, "ackmode": ackmode, "encoding": "auto", **more}
    answer = api.post(f"/queues/%2F/{queue}/get", json=content)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()
    return items


def test_declare_answers_201_then_204_and_shows_what_was_declared(api: httpx2.Client, name: str) -> None:
    content = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-max-length": 7}}
    assert api.put(f"/queues/%2F/{name}", json=content).status_code == 201
    assert api.put(f"/queues/%2F/{name}", json=content).status_code == 204
    shown = api.get(f"/queues/%2F/{name}").json()
    assert shown["type"] == "quorum"
    assert shown["durable"] is True
    assert shown["arguments"] == {"x-queue-type": "quorum", "x-max-length": 7}
    assert shown["argument_types"] == {"x-queue-type": "longstr", "x-max-length": "long"}
    assert (shown["messages"], shown["consumers"], shown["policy"]) == (0, 0, None)
    assert name in [each["name"] for each in api.get("/queues/%2F").json()]
    assert name in [each["name"] for each in api.get("/queues").json()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"durable": False}, f"{INEQUIVALENT.format('durable')}: received 'false' but current is 'true'"),
        ({}, f"{INEQUIVALENT.format('durable')}: received 'false' but current is 'true'"),
        (
            {"durable": True, "auto_delete": True},
            f"{INEQUIVALENT.format('auto_delete')}: received 'true' but current is 'false'",
        ),
        ({"durable": "maybe"}, 'not_boolean: durable "maybe"'),
        ({"arguments": 5}, "arguments must be a JSON object"),
    ],
)
def test_declaring_it_otherwise_is_refused_with_rabbitmqs_reason_s067(
    api: httpx2.Client, queue: str, content: dict[str, object], reason: str
) -> None:
    answer = api.put(f"/queues/%2F/{queue}", json=content)
    assert answer.status_code == 400
    assert answer.json() == {"error": "bad_request", "reason": reason.format(q=queue)}


def test_4_3_shows_priorities_and_what_waits_for_its_time(api: httpx2.Client, name: str) -> None:
    retry = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 60_000, "x-delayed-retry-max": 120_000}
    arguments = {"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3", **retry}
    assert api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": arguments}).status_code == 201
    shown = (
        "messages",
        "messages_ready",
        "messages_by_priority",
        "messages_active_priorities",
        "messages_delayed",
        "delayed_retry",
        "delivery_limit",
    )
    publish(api, name, "x")
    for _ in range(2):
        publish(api, name, "x", priority=9)
    queue = api.get(f"/queues/%2F/{name}").json()
    all_retry = "all (min: 60000ms, max: 120000ms)"
    assert [queue[key] for key in shown] == [3, 3, {"9": 2, "4": 1}, 2, 0, all_retry, 20]
    assert "next_delayed_at" not in queue
    began = int(time.time() * 1000)
    assert len(get(api, name, "reject_requeue_true", count=1)) == 1
    assert len(get(api, name, "reject_requeue_true", count=1)) == 1
    queue = api.get(f"/queues/%2F/{name}").json()
    assert [queue[key] for key in shown] == [3, 1, {"4": 1}, 1, 2, all_retry, 20]
    first, last = began + 59_000, time.time() * 1000 + 61_000  # the time in the log has a pace of its own
    assert first <= queue["next_delayed_at"] <= queue["last_delayed_at"] <= last
    assert (
        api.put(f"/queues/%2F/{name}-3", json={"durable": True, "arguments": {"x-queue-type": "quorum"}}).status_code
        == 201
    )
    assert "messages_by_priority" not in api.get(f"/queues/%2F/{name}-3").json()


def test_bad_arguments_are_refused_s020_s079(api: httpx2.Client, name: str) -> None:
    negative = api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-max-length": -1}})
    assert (
        negative.json()["reason"]
        == f"invalid arg 'x-max-length' for queue '{name}' in vhost '/': {{value_negative,-1}}"
    )
    transient = api.put(f"/queues/%2F/{name}", json={"durable": False, "arguments": {"x-queue-type": "quorum"}})
    assert transient.json()["reason"] == f"invalid property 'non-durable' for queue '{name}' in vhost '/'"
    reserved = api.put(f"/queues/%2F/amq.{name}", json={"durable": True})
    assert (reserved.status_code, reserved.json()["error"]) == (401, "not_authorised")
    assert "reserved prefix" in reserved.json()["reason"]


@pytest.mark.parametrize("body", ["not json", "[]", "7", '{"durable":', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_body_that_is_no_json_object_is_refused(api: httpx2.Client, name: str, body: str | bytes) -> None:
    answer = api.put(f"/queues/%2F/{name}", content=body)
    assert answer.status_code == 400
    assert answer.json() == {"error": "bad_request", "reason": "not_json"}


def test_a_body_over_the_limit_is_refused_and_the_broker_goes_on(api: httpx2.Client, queue: str) -> None:
    answer = api.post("/exchanges/%2F/amq.default/publish", content=b" " * 10_485_761)
    assert answer.status_code == 413
    assert answer.json()["reason"].startswith("Exceeded HTTP request body size limit")
    assert api.get(f"/queues/%2F/{queue}").json()["messages"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/queues/%2F/missing"),
        ("GET", "/queues/nowhere"),
        ("GET", "/queues/nowhere/q"),
        ("GET", "/nothing"),
        ("DELETE", "/queues/%2F/missing"),
        ("DELETE", "/queues/%2F/missing/contents"),
        ("GET", "/exchanges/%2F/missing"),
        ("GET", "/policies/%2F/missing"),
        ("GET", "/bindings/%2F/e/amq.topic/q/missing/key"),
        ("GET", "/users/missing"),
    ],
)
def test_what_is_not_there_is_404(api: httpx2.Client, method: str, path: str) -> None:
    answer = api.request(method, path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "reason"}


def test_a_put_into_an_unknown_vhost_says_so(api: httpx2.Client, name: str) -> None:
    answer = api.put(f"/queues/nowhere/{name}", json={"durable": True})
    assert (answer.status_code, answer.json()) == (404, {"error": "not_found", "reason": "vhost_not_found"})


def test_a_wrong_method_is_405(api: httpx2.Client) -> None:
    assert api.post("/queues", json={}).status_code == 405
    assert api.patch("/queues/%2F", json={}).status_code == 405


def test_names_with_slashes_spaces_and_other_alphabets(api: httpx2.Client, name: str) -> None:
    assert api.put(f"/queues/%2F/a%2Fb%20%C3%BC{name}", json={"durable": True}).status_code == 201
    assert api.get(f"/queues/%2F/a%2Fb%20%C3%BC{name}").json()["name"] == f"a/b ü{name}"
    assert api.delete(f"/queues/%2F/a%2Fb%20%C3%BC{name}").status_code == 204


def test_get_and_requeue_leaves_the_queue_as_it_was(api: httpx2.Client, queue: str) -> None:
    for number in range(3):
        publish(
            api, queue, f"body {number}", delivery_mode=2, headers={"n": number, "f": 1.5, "l": [1, "x"]}, priority=3
        )
    taken = get(api, queue, "ack_requeue_true")
    assert [each["payload"] for each in taken] == ["body 0", "body 1", "body 2"]
    assert [each["message_count"] for each in taken] == [2, 1, 0]
    assert taken[1]["properties"] == {"delivery_mode": 2, "priority": 3, "headers": {"n": 1, "f": 1.5, "l": [1, "x"]}}
    assert taken[0] | {"properties": 0} == {
        "payload_bytes": 6,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 2,
        "properties": 0,
        "payload": "body 0",
        "payload_encoding": "string",
    }
    again = get(api, queue, "reject_requeue_true")
    assert [each["payload"] for each in again] == ["body 0", "body 1", "body 2"]
    assert all(each["redelivered"] for each in again)
    assert api.get(f"/queues/%2F/{queue}").json()["messages_ready"] == 3


def test_get_without_requeue_empties_the_queue(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, "one")
    publish(api, queue, "two")
    assert [each["payload"] for each in get(api, queue, "ack_requeue_false", count=1)] == ["one"]
    assert [each["payload"] for each in get(api, queue, "ack_requeue_false")] == ["two"]
    assert get(api, queue, "ack_requeue_false") == []
    shown = api.get(f"/queues/%2F/{queue}").json()
    assert (shown["messages"], shown["message_bytes"]) == (0, 0)


def test_get_and_reject_dead_letters_s155(api: httpx2.Client, name: str) -> None:
    api.put(f"/queues/%2F/{name}.dlq", json={"durable": True})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dlq"}
    api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": arguments})
    publish(api, name, "poison")
    assert [each["payload"] for each in get(api, name, "reject_requeue_false")] == ["poison"]
    (letter,) = get(api, f"{name}.dlq", "ack_requeue_false")
    headers = letter["properties"]["headers"]
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-death"][0]["queue"] == name


def test_bodies_that_are_no_text_come_in_base64_and_may_be_cut(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, base64.b64encode(b"\xff\x00abc").decode(), encoding="base64")
    publish(api, queue, "grüße")
    binary, text = get(api, queue, "ack_requeue_true")
    assert (binary["payload"], binary["payload_encoding"]) == (base64.b64encode(b"\xff\x00abc").decode(), "base64")
    assert (text["payload"], text["payload_bytes"]) == ("grüße", 7)
    binary, text = get(api, queue, "ack_requeue_true", truncate=2)
    assert (binary["payload"], binary["payload_bytes"]) == (base64.b64encode(b"\xff\x00").decode(), 5)
    assert text["payload"] == "gr"
    (first, _) = get(api, queue, "ack_requeue_true", encoding="base64")
    assert first["payload_encoding"] == "base64"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"count": 1}, "[{key_missing,ackmode},{key_missing,encoding}]"),
        ({"count": "x", "ackmode": "ack_requeue_true", "encoding": "auto"}, 'not_integer: count "x"'),
        ({"count": 1, "ackmode": "nack", "encoding": "auto"}, "ackmode is one of"),
        ({"count": 1, "ackmode": "ack_requeue_true", "encoding": "utf9"}, "Unsupported encoding. Please use"),
        ({"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"}, "count is a number from 0"),
    ],
)
def test_a_bad_get_is_refused(api: httpx2.Client, queue: str, content: dict[str, object], reason: str) -> None:
    answer = api.post(f"/queues/%2F/{queue}/get", json=content)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert answer.json()["reason"].startswith(reason)


def test_purge_and_delete_with_conditions(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    publish(api, queue, "x")
    full = api.delete(f"/queues/%2F/{queue}", params={"if-empty": "true"})
    assert (full.status_code, full.json()["reason"]) == (400, f"queue '{queue}' in vhost '/' not empty")
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    connection.channel().basic_consume(queue, lambda *message: None)
    used = api.delete(f"/queues/%2F/{queue}", params={"if-unused": "true"})
    assert (used.status_code, used.json()["reason"]) == (400, f"queue '{queue}' in vhost '/' in use")
    connection.close()
    assert api.delete(f"/queues/%2F/{queue}", params={"if-unused": "true", "if-empty": "true"}).status_code == 204
    assert api.get(f"/queues/%2F/{queue}").status_code == 404


def test_counts_and_bytes_of_ready_and_unacknowledged_s006(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    for body in ("a", "bb", "ccc"):
        publish(api, queue, body)
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    assert channel.basic_get(queue)[2] == b"a"
    shown = api.get(f"/queues/%2F/{queue}").json()
    assert (shown["messages_ready"], shown["messages_unacknowledged"], shown["messages"]) == (2, 1, 3)
    assert (shown["message_bytes_ready"], shown["message_bytes_unacknowledged"], shown["message_bytes"]) == (5, 1, 6)
    connection.close()


def test_listings_can_be_named_sorted_paged_and_cut(api: httpx2.Client, name: str) -> None:
    for number in range(3):
        api.put(f"/queues/%2F/{name}-page-{number}", json={"durable": True})
    query = {"page": "2", "page_size": "2", "name": f"{name}-page", "sort": "name", "columns": "name,messages"}
    page = api.get("/queues", params=query).json()
    assert page["items"] == [{"name": f"{name}-page-2", "messages": 0}]
    assert (page["filtered_count"], page["item_count"], page["page"], page["page_count"]) == (3, 1, 2, 2)
    query = {
        "page": "1",
        "name": f"^{name}-page-[01]$",
        "use_regex": "true",
        "sort": "name",
        "sort_reverse": "true",
    }
    page = api.get("/queues", params=query).json()
    assert [each["name"] for each in page["items"]] == [f"{name}-page-1", f"{name}-page-0"]
    for wrong in (
        {"page": "9"},
        {"page": "0"},
        {"page": "x"},
        {"page": "1", "page_size": "501"},
        {"page": "1", "page_size": "0"},
    ):
        assert api.get("/queues", params=wrong | {"name": name}).status_code == 400, wrong
    assert api.get("/queues", params={"page": "1", "name": "(", "use_regex": "true"}).status_code == 400


def test_the_head_messages_timestamp_is_shown_while_a_client_holds_it(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    def head() -> object:
        return api.get(f"/queues/%2F/{queue}").json()["head_message_timestamp"]

    assert head() is None
    for timestamp in (1_700_000_000, 1_700_000_100):
        publish(api, queue, "x", timestamp=timestamp)
    assert head() == 1_700_000_000
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        channel = connection.channel()
        for _ in range(2):
            first = channel.basic_get(queue)[0]
            assert head() == 1_700_000_000
        channel.basic_ack(first.delivery_tag - 1)
        channel.basic_ack(first.delivery_tag)
        assert head() is None


def test_what_is_not_asked_to_be_durable_is_not(api: httpx2.Client, name: str) -> None:
    """As RabbitMQ (3.10.8) has it."""
    for kind in ("queues", "exchanges"):
        assert api.put(f"/{kind}/%2F/{name}", json={}).status_code == 201
        assert api.get(f"/{kind}/%2F/{name}").json()["durable"] is False
        assert api.put(f"/{kind}/%2F/{name}", json={"durable": False}).status_code == 204
        assert api.delete(f"/{kind}/%2F/{name}").status_code == 204


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"arguments":{"x":"\\ud800"}}', "not_json"),
        ('{"arguments":{"x":1e400}}', "not_json"),
        ('{"arguments":{"x":NaN}}', "not_json"),
        ("[" * 5_000 + "]" * 5_000, "nested deeper than 34"),
        ('{"arguments":{"x":' + "[" * 40 + "]" * 40 + "}}", "nested deeper than 34"),
        ('{"arguments":{"x":' + "9" * 30 + "}}", f"{'9' * 30} does not fit in 64 bits"),
    ],
)
def test_what_could_not_be_kept_or_shown_is_refused_at_the_door(
    api: httpx2.Client, name: str, body: str, reason: str
) -> None:
    answer = api.put(f"/queues/%2F/{name}", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert answer.json()["reason"] in (reason, "not_json")
    assert api.get(f"/queues/%2F/{name}").status_code == 404


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("%FF", "the queue in the path is not UTF-8"),
        ("q" * 256, "queue is longer than 255 bytes"),
        ("%C3%BC" * 128, "queue is longer than 255 bytes"),
    ],
)
def test_names_that_amqp_cannot_say_s062(api: httpx2.Client, path: str, reason: str) -> None:
    answer = api.put(f"/queues/%2F/{path}", json={"durable": True})
    assert (answer.status_code, answer.json()) == (400, {"error": "bad_request", "reason": reason})


# -- get, in bounds ---------------------------------------------------------------------------------------------------


def publish_bytes(broker: RunningBroker, queue: str, *bodies: bytes) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body)
    connection.close()


@pytest.mark.long
def test_get_answers_with_so_many_bytes_and_leaves_the_rest(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    publish_bytes(broker, queue, *[bytes(10_000_000)] * 5, b"last")
    got = get(api, queue, "ack_requeue_false", count=10)
    assert [each["payload_bytes"] for each in got] == [10_000_000] * 3
    assert api.get(f"/queues/%2F/{queue}").json()["messages_ready"] == 3
    cut = get(api, queue, "ack_requeue_true", count=10, truncate=5)
    assert [(each["payload_bytes"], len(each["payload"])) for each in cut] == [(10_000_000, 5)] * 2 + [(4, 4)]
    got = get(api, queue, "ack_requeue_false", count=10)
    assert [each["payload_bytes"] for each in got] == [10_000_000] * 2 + [4]


def test_a_message_above_the_bound_is_got_alone(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    publish_bytes(broker, queue, bytes(40_000_000), b"last")
    (got,) = get(api, queue, "ack_requeue_false", count=10)
    assert (len(got["payload"]), got["payload_encoding"]) == (40_000_000, "string")
    assert [each["payload"] for each in get(api, queue, "ack_requeue_false", count=10)] == ["last"]


@pytest.mark.parametrize("encoding", ["auto", "base64"])
def test_large_bodies_come_as_they_are(api: httpx2.Client, broker: RunningBroker, queue: str, encoding: str) -> None:
    """They are encoded piece by piece, and pieces end anywhere in a character."""
    text = 'é"\\\n\u20ac\U0001f407' * 50_000
    binary = bytes(range(256)) * 2_000
    cut = text.encode()[:-1]
    publish_bytes(broker, queue, text.encode(), binary, cut)
    got = get(api, queue, "ack_requeue_false", count=3, encoding=encoding)
    for each, sent in zip(got, (text.encode(), binary, cut), strict=True):
        is_text = encoding == "auto" and sent == text.encode()
        assert each["payload_encoding"] == ("string" if is_text else "base64")
        assert (each["payload"].encode() if is_text else base64.b64decode(each["payload"])) == sent
