"""Exchanges, bindings and publishing over the management API."""

import base64
import time

import httpx2
import pytest


def publish(api: httpx2.Client, exchange: str, **content: object) -> httpx2.Response:
    defaults: dict[str, object] = {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}
    return api.post(f"/exchanges/%2F/{exchange}/publish", json=defaults | content)


def test_exchanges_are_declared_shown_and_deleted(api: httpx2.Client, name: str) -> None:
    content = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api.put(f"/exchanges/%2F/{name}", json=content).status_code == 201
    assert api.put(f"/exchanges/%2F/{name}", json=content).status_code == 204
    shown = api.get(f"/exchanges/%2F/{name}").json()
    assert (shown["type"], shown["internal"], shown["arguments"]) == (
        "topic",
        False,
        {"alternate-exchange": "amq.fanout"},
    )
    other = api.put(f"/exchanges/%2F/{name}", json=content | {"type": "fanout"})
    assert other.json()["reason"] == (
        f"inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'fanout' but current is 'topic'"
    )
    assert api.delete(f"/exchanges/%2F/{name}").status_code == 204
    assert api.get(f"/exchanges/%2F/{name}").status_code == 404


def test_system_exchanges_and_unknown_types_are_refused(api: httpx2.Client, name: str) -> None:
    assert api.delete("/exchanges/%2F/amq.topic").status_code == 401
    assert api.put(f"/exchanges/%2F/amq.{name}", json={"durable": True, "type": "direct"}).status_code == 401
    unknown = api.put(f"/exchanges/%2F/{name}", json={"durable": True, "type": "bogus"})
    assert (unknown.status_code, unknown.json()["reason"]) == (400, "unknown exchange type 'bogus'")
    names = [each["name"] for each in api.get("/exchanges/%2F").json()]
    assert {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"} <= set(names)


def test_a_delayed_exchange_tells_how_much_waits_and_hides_its_queue(api: httpx2.Client, queue: str, name: str) -> None:
    content = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    assert api.put(f"/exchanges/%2F/{name}", json=content).status_code == 201
    assert api.post(f"/bindings/%2F/e/{name}/q/{queue}", json={"routing_key": "k"}).status_code == 201
    assert api.get(f"/exchanges/%2F/{name}").json()["messages_delayed"] == 0
    for delay in (1, 600_000):
        properties = {"headers": {"x-delay": delay}}
        assert publish(api, name, routing_key="k", properties=properties).json() == {"routed": True}
    deadline = time.monotonic() + 60
    while api.get(f"/queues/%2F/{queue}").json()["messages"] != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (taken,) = api.post(f"/queues/%2F/{queue}/get", json=asked).json()
    assert (taken["exchange"], taken["properties"]["headers"]) == (name, {"x-delay": -1})
    assert api.get(f"/exchanges/%2F/{name}").json()["messages_delayed"] == 1
    assert not [each for each in api.get("/queues/%2F").json() if each["name"].startswith("amq.delayed.")]
    assert api.delete(f"/exchanges/%2F/{name}").status_code == 204


def test_an_exchange_shows_its_policy(api: httpx2.Client, name: str) -> None:
    api.put(f"/exchanges/%2F/{name}", json={"durable": True, "type": "fanout"})
    policy = {"pattern": f"^{name}$", "definition": {"alternate-exchange": "amq.fanout"}, "apply-to": "exchanges"}
    assert api.put(f"/policies/%2F/{name}", json=policy).status_code in (201, 204)
    assert api.get(f"/exchanges/%2F/{name}").json()["policy"] == name
    assert api.delete(f"/policies/%2F/{name}").status_code == 204
    assert api.get(f"/exchanges/%2F/{name}").json()["policy"] is None


def test_a_binding_is_made_found_by_its_properties_key_and_removed(api: httpx2.Client, queue: str) -> None:
    between = f"/bindings/%2F/e/amq.topic/q/{queue}"
    made = api.post(between, json={"routing_key": "a.*", "arguments": {"x": 1}})
    assert made.status_code == 201
    assert api.post(between, json={"routing_key": "b.#"}).status_code == 201
    listed = api.get(between).json()
    assert [(each["routing_key"], each["arguments"]) for each in listed] == [("a.*", {"x": 1}), ("b.#", {})]
    assert listed[1]["properties_key"] == "b.%23"
    for each in listed:
        assert api.get(f"{between}/{each['properties_key']}").json() == each
    assert api.get(f"{between}/{listed[1]['properties_key'].replace('%', '%25')}").json() == listed[1]
    assert listed[0] in api.get("/exchanges/%2F/amq.topic/bindings/source").json()
    of_queue = api.get(f"/queues/%2F/{queue}/bindings").json()
    assert [each["source"] for each in of_queue] == ["", "amq.topic", "amq.topic"]
    assert api.delete(f"{between}/{listed[0]['properties_key']}").status_code == 204
    assert [each["routing_key"] for each in api.get(between).json()] == ["b.#"]
    assert api.delete(f"{between}/nope").status_code == 404


def test_a_bindings_location_is_encoded_as_rabbitmqs(api: httpx2.Client, queue: str) -> None:
    """As 3.10.8 answers, but for the digest of arguments."""
    between = f"/bindings/%2F/e/amq.direct/q/{queue}"
    made = api.post(between, json={"routing_key": "a b~c#.*/é"})
    assert made.headers["location"] == f"{queue}/a%2Bb%257Ec%2523.%252A%252F%25C3%25A9"
    (listed,) = api.get(between).json()
    assert listed["properties_key"] == "a+b%7Ec%23.%2A%2F%C3%A9"
    for name in (listed["properties_key"], made.headers["location"].rpartition("/")[2]):
        assert api.get(f"{between}/{name}").json() == listed
    assert api.delete(f"{between}/{made.headers['location'].rpartition('/')[2]}").status_code == 204
    assert api.post(between, json={"routing_key": ""}).headers["location"] == f"{queue}/~"


def test_exchanges_bind_to_exchanges(api: httpx2.Client, name: str) -> None:
    api.put(f"/exchanges/%2F/{name}", json={"durable": True, "type": "fanout"})
    assert api.post(f"/bindings/%2F/e/amq.direct/e/{name}", json={"routing_key": "k"}).status_code == 201
    (bound,) = api.get(f"/exchanges/%2F/{name}/bindings/destination").json()
    assert (bound["source"], bound["destination_type"]) == ("amq.direct", "exchange")


@pytest.mark.parametrize(
    ("source", "kind", "destination", "reason"),
    [
        ("amq.topic", "q", "missing", "no queue 'missing' in vhost '/'"),
        ("missing", "q", "missing", "no exchange 'missing' in vhost '/'"),
        ("amq.topic", "e", "missing", "no exchange 'missing' in vhost '/'"),
    ],
)
def test_binding_what_is_not_there_says_what(
    api: httpx2.Client, source: str, kind: str, destination: str, reason: str
) -> None:
    answer = api.post(f"/bindings/%2F/e/{source}/{kind}/{destination}", json={"routing_key": "k"})
    assert (answer.status_code, answer.json()) == (404, {"error": "not_found", "reason": reason})


def test_publish_says_whether_it_was_routed(api: httpx2.Client, queue: str) -> None:
    assert publish(api, "amq.default", routing_key=queue).json() == {"routed": True}
    assert publish(api, "amq.default", routing_key="nowhere").json() == {"routed": False}
    api.post(f"/bindings/%2F/e/amq.headers/q/{queue}", json={"arguments": {"x-match": "all", "kind": "order"}})
    assert publish(api, "amq.headers", properties={"headers": {"kind": "order"}}).json() == {"routed": True}
    assert publish(api, "amq.headers", properties={"headers": {"kind": "other"}}).json() == {"routed": False}
    assert api.get(f"/queues/%2F/{queue}").json()["messages"] == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"payload": "!!", "payload_encoding": "base64"}, "not_base64: !!"),
        ({"payload_encoding": "rot13"}, "unsupported_encoding: rot13"),
        ({"payload": 7}, "not_string: payload 7"),
        ({"properties": {"expiration": "abc"}}, "406 PRECONDITION_FAILED - invalid expiration 'abc': no_integer"),
        ({"properties": {"priority": "high"}}, "not_int: priority"),
        ({"properties": {"headers": [1]}}, "headers must be a JSON object"),
        ({"properties": {"headers": {"n": 2**64}}}, "18446744073709551616 does not fit in 64 bits"),
        ({"properties": {"headers": {"k" * 256: 1}}}, "headers cannot be encoded"),
        ({"routing_key": "k" * 256}, "routing_key is longer than 255 bytes"),
        ({"properties": {"message_id": "x" * 256}}, "property message_id is longer than 255 bytes"),
        ({"properties": 5}, "properties must be a JSON object"),
    ],
)
def test_a_bad_publish_is_refused_and_nothing_enters_the_queue_s043(
    api: httpx2.Client, queue: str, content: dict[str, object], reason: str
) -> None:
    answer = publish(api, "amq.default", **{"routing_key": queue, **content})
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert answer.json()["reason"].startswith(reason)
    assert api.get(f"/queues/%2F/{queue}").json()["messages"] == 0


def test_publishing_to_an_exchange_that_is_not_there(api: httpx2.Client) -> None:
    answer = publish(api, "missing")
    assert answer.json() == {"error": "bad_request", "reason": "404 NOT_FOUND - no exchange 'missing' in vhost '/'"}


def test_a_publish_that_a_queue_refuses_is_an_error_s009(api: httpx2.Client, name: str) -> None:
    api.put(
        f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    )
    assert publish(api, "amq.default", routing_key=name).json() == {"routed": True}
    refused = publish(api, "amq.default", routing_key=name)
    assert (refused.status_code, refused.json()["reason"]) == (
        400,
        "rejected Unable to publish message. Check queue limits.",
    )


def test_all_properties_come_back(api: httpx2.Client, queue: str) -> None:
    properties = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "app_id": "a",
        "headers": {"s": "ü", "i": -5, "f": 0.1, "b": True, "n": None, "t": {"x": [1, {}]}},
    }
    assert publish(api, "amq.default", routing_key=queue, properties=properties | {"bogus": 1}).json()["routed"]
    content = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (taken,) = api.post(f"/queues/%2F/{queue}/get", json=content).json()
    assert taken["properties"] == properties


def test_bodies_in_base64(api: httpx2.Client, queue: str) -> None:
    body = base64.b64encode(bytes(range(256))).decode()
    assert publish(api, "amq.default", routing_key=queue, payload=body, payload_encoding="base64").json()["routed"]
    assert api.get(f"/queues/%2F/{queue}").json()["message_bytes_ready"] == 256


def test_carbon_copies_and_the_user_id_as_over_amqp(api: httpx2.Client, queue: str, name: str) -> None:
    api.put(f"/queues/%2F/{name}-copy", json={"durable": True})
    properties = {"headers": {"CC": [f"{name}-copy"], "BCC": []}, "user_id": "guest"}
    assert publish(api, "amq.default", routing_key=queue, properties=properties).json() == {"routed": True}
    for each in (queue, f"{name}-copy"):
        assert api.get(f"/queues/%2F/{each}").json()["messages"] == 1
    refused = publish(api, "amq.default", routing_key=queue, properties={"user_id": "somebody"})
    assert refused.json()["reason"] == (
        "406 PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    )
