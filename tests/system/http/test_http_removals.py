"""Single messages are removed and moved, and queues paused, over HTTP, with pika beside it (B-38, B-39)."""

import time
from collections.abc import Callable
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.running import RunningBroker


def ids_of(api: httpx2.Client, queue: str) -> list[int]:
    there = api.get(f"/queues/%2F/{queue}/at", params={"time": "-0s"}).json()
    return [each["message_id"] for each in there["message_details"]]


def taken(channel: BlockingChannel, queue: str) -> list[bytes]:
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    return bodies


def until(holds: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < 20
        time.sleep(0.02)


def post(api: httpx2.Client, queue: str, how: str, status: int = 200, **content: object) -> dict[str, Any]:
    answer = api.post(f"/queues/%2F/{queue}/messages/{how}", json=content)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.long
@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}])
def test_b38_an_operator_deletes_single_messages(
    api: httpx2.Client, name: str, channel: BlockingChannel, arguments: dict[str, object]
) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    for body in (b"a", b"b", b"c", b"d", b"e"):
        channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
    a, b, _, d, e = ids_of(api, name)
    assert api.delete(f"/queues/%2F/{name}/messages/{b}", params={"reason": "poison"}).status_code == 204
    gone = api.delete(f"/queues/%2F/{name}/messages/{b}")
    assert (gone.status_code, gone.json()["reason"]) == (404, f"message {b} is not in queue '{name}'")
    held = channel.basic_get(name)
    conflict = api.delete(f"/queues/%2F/{name}/messages/{a}")
    assert conflict.status_code == 409
    assert "a client that took it by basic.get of user 'guest' has it" in conflict.json()["reason"]
    found = post(api, name, "remove", messages=[e, a, 999_999, d], reason="old")
    assert found["removed"] == [d, e]
    assert [each["message"] for each in found["stayed"]] == [a, 999_999]
    channel.basic_nack(held[0].delivery_tag)
    until(lambda: api.get(f"/queues/%2F/{name}").json()["messages_ready"] == 2)
    shown = api.get(f"/queues/%2F/{name}").json()
    assert shown["outcomes"]["removed"] == 3
    assert post(api, name, "remove", messages=[a])["removed"] == [a]  # it came back
    assert taken(channel, name) == [b"c"]
    rows = api.get(f"/history/outcomes/%2F/{name}", params={"tail": 100}).json()["rows"]
    removed = [(row["message_id"], row["user"], row["reason"]) for row in rows if row["outcome"] == "removed"]
    assert sorted(removed) == [(a, "guest", None), (b, "guest", "poison"), (d, "guest", "old"), (e, "guest", "old")]
    undone = api.post(f"/queues/%2F/{name}/restore", json={"undo": "remove"}).json()
    assert undone["restored"] == 1
    assert taken(channel, name) == [b"a"]


def test_b38_an_operator_moves_single_messages(api: httpx2.Client, name: str, channel: BlockingChannel) -> None:
    target, dead = f"{name}.to", f"{name}.dead"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    for queue, given in ((name, arguments), (target, {}), (dead, {})):
        channel.queue_declare(queue, durable=True, arguments=given)
    properties = pika.BasicProperties(delivery_mode=2, message_id="m", headers={"kept": "yes"}, expiration="3600000")
    for body in (b"a", b"b", b"c", b"d"):
        channel.basic_publish("", name, body, properties)
    _, b, _, d = ids_of(api, name)
    found = post(api, name, "move", messages=[d, b], to=target, reason="by hand")
    assert (found["moved"], found["arrived"], found["stayed"]) == ([b, d], True, [])
    again = post(api, name, "move", messages=[d, b], to=target)
    assert (again["moved"], [each["message"] for each in again["stayed"]]) == ([], [b, d])
    got, props, body = channel.basic_get(target, auto_ack=True)
    assert (got.routing_key, got.redelivered, body) == (target, False, b"b")
    assert (props.headers, props.expiration, props.message_id) == ({"kept": "yes"}, "3600000", "m")
    assert taken(channel, target) == [b"d"]
    assert taken(channel, dead) == []  # it did not die
    partition = api.get(f"/queues/%2F/{name}").json()["partition"]
    life = api.get(f"/history/biography/%2F/{partition}:{b}").json()
    told = [(row["queue"], row["outcome"], row["user"]) for row in life["rows"]]
    assert told[:3] == [(name, "published", "guest"), (name, "moved", "guest"), (target, "published", "")]
    moved = life["rows"][1]
    assert (moved["reason"], moved["exchange"], moved["routing_key"], moved["final"]) == ("by hand", "", target, True)
    channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=False)  # a dead letter behind moved messages
    until(lambda: api.get(f"/queues/%2F/{dead}").json()["messages_ready"] == 1)


def test_b38_a_move_that_has_no_way_leaves_the_message_where_it_is(
    api: httpx2.Client, name: str, channel: BlockingChannel
) -> None:
    full = f"{name}.full"
    channel.queue_declare(name, durable=True)
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.exchange_declare(f"{name}.headers", "headers")
    channel.exchange_declare(f"{name}.unbound", "direct")
    channel.basic_publish("", name, b"a")
    (a,) = ids_of(api, name)
    for status, way, why in (
        (404, {"to": "nowhere"}, "no queue 'nowhere' in vhost '/'"),
        (404, {"exchange": "nowhere"}, "no exchange 'nowhere' in vhost '/'"),
        (409, {"exchange": f"{name}.unbound", "routing_key": "k"}, f"no queue is bound to exchange '{name}.unbound'"),
        (409, {"exchange": f"{name}.headers"}, "routes by more than routing keys: name the queue instead"),
        (409, {"to": full}, "is at its limit, and refuses publishes"),
        (400, {}, "give either to, the name of a queue, or exchange with routing_key"),
        (400, {"to": full, "exchange": ""}, "give either to"),
    ):
        assert why in post(api, name, "move", status, messages=[a], **way)["reason"]
    for ids in ([], ["1"], [True], [-1], list(range(1_001)), 7):
        post(api, name, "remove", 400, messages=ids)
    post(api, "nowhere", "remove", 404, messages=[1])
    channel.queue_declare(f"{name}.stream", durable=True, arguments={"x-queue-type": "stream"})
    assert "is a stream" in post(api, f"{name}.stream", "remove", 409, messages=[1])["reason"]
    assert taken(channel, name) == [b"a"]


def test_b38_scheduled_messages_are_removed_too(api: httpx2.Client, name: str, channel: BlockingChannel) -> None:
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)
    for body, delay in ((b"late", 3_600_000), (b"later", 3_600_001)):
        channel.basic_publish(name, "", body, pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay}))
    found = api.get("/history/find/%2F", params={"body": "late", "limit": 10}).json()["messages"]
    late, later = sorted(int(each["message"].rpartition(":")[2]) for each in found if name in str(each))
    hidden = f"amq.delayed.{name}"
    assert post(api, hidden, "move", messages=[late], to=name)["arrived"]
    assert taken(channel, name) == [b"late"]
    assert post(api, hidden, "remove", messages=[late, later])["removed"] == [later]


def test_b38_rights(api: httpx2.Client, name: str, channel: BlockingChannel, broker: RunningBroker) -> None:
    """Removing takes the read permission, as a purge does; moving besides write for the exchange; pausing configure."""
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"a")
    (a,) = ids_of(api, name)
    api.put(f"/users/{name}", json={"password": "p", "tags": "management"})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "p"), trust_env=False) as other:

        def may(configure: str, write: str, read: str) -> list[int]:
            rights = {"configure": configure, "write": write, "read": read}
            assert api.put(f"/permissions/%2F/{name}", json=rights).is_success
            where = f"/queues/%2F/{name}"
            return [
                other.delete(f"{where}/messages/999999").status_code,
                other.post(f"{where}/messages/move", json={"messages": [999_999], "to": name}).status_code,
                other.put(f"{where}/pause").status_code,
                other.put(f"{where}/resume").status_code,
            ]

        assert may("", "", "") == [401, 401, 401, 401]
        assert may("", "", name) == [404, 401, 401, 401]
        assert may("", "amq.default", name) == [404, 200, 401, 401]
        assert may(name, "", "") == [401, 401, 204, 204]
    assert ids_of(api, name) == [a]


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-single-active-consumer": True}])
def test_b39_a_paused_queue_delivers_nothing(
    api: httpx2.Client, name: str, channel: BlockingChannel, arguments: dict[str, object]
) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    came: list[bytes] = []

    def deliver(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        came.append(body)
        ch.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(name, deliver)
    channel.basic_publish("", name, b"before")
    while not came:
        channel.connection.process_data_events(0.1)
    assert api.put(f"/queues/%2F/{name}/pause", json={"reason": "the shop is closed"}).status_code == 204
    assert api.put(f"/queues/%2F/{name}/pause").status_code == 204  # once more
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", name, body)
    channel.connection.process_data_events(0.3)
    shown = api.get(f"/queues/%2F/{name}").json()
    assert (came, shown["state"], shown["consumers"], shown["messages_ready"]) == ([b"before"], "paused", 1, 3)
    other = channel.connection.channel()
    assert other.basic_get(name) == (None, None, None)
    assert other.queue_purge(name).method.message_count == 3
    channel.basic_publish("", name, b"d")
    channel.basic_publish("", name, b"e")
    assert api.put(f"/queues/%2F/{name}/resume").status_code == 204
    while len(came) < 3:
        channel.connection.process_data_events(0.1)
    assert came == [b"before", b"d", b"e"]
    assert api.get(f"/queues/%2F/{name}").json()["state"] == "running"


def test_b39_a_paused_stream_delivers_nothing(api: httpx2.Client, name: str, channel: BlockingChannel) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    came: list[bytes] = []
    channel.basic_qos(prefetch_count=10)
    channel.basic_publish("", name, b"a")
    assert api.put(f"/queues/%2F/{name}/pause").status_code == 204

    def deliver(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        came.append(body)
        ch.basic_ack(method.delivery_tag)

    channel.basic_consume(name, deliver, arguments={"x-stream-offset": "first"})
    channel.basic_publish("", name, b"b")
    channel.connection.process_data_events(0.3)
    assert came == []
    assert api.put(f"/queues/%2F/{name}/resume").status_code == 204
    while len(came) < 2:
        channel.connection.process_data_events(0.1)
    assert came == [b"a", b"b"]
