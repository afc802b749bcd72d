"""Who may look at what, over HTTP and AMQP: messages need read permission, connections are closed by their own user or
an administrator, copies need topic permissions, and a queue that is made again hides what bore its name before.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import httpx2
import pika
import pytest

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def user(api: httpx2.Client, broker: RunningBroker, name: str) -> Iterator[Callable[..., httpx2.Client]]:
    """`user(tags, configure, write, read, vhost)`: a client of the API who logs in as a user with these rights."""
    clients: list[httpx2.Client] = []

    def make(
        tags: str = "management", configure: str = ".*", write: str = ".*", read: str = ".*", vhost: str = "%2F"
    ) -> httpx2.Client:
        who = f"{name}-{len(clients)}"
        api.put(f"/users/{who}", json={"password": "p", "tags": tags}).raise_for_status()
        rights = {"configure": configure, "write": write, "read": read}
        api.put(f"/permissions/{vhost}/{who}", json=rights).raise_for_status()
        clients.append(httpx2.Client(base_url=f"{broker.http_url}/api", auth=(who, "p"), trust_env=False))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def name_of(client: httpx2.Client) -> str:
    found: str = client.get("/whoami").json()["name"]
    return found


def test_messages_are_shown_to_users_who_may_read_the_queue(
    api: httpx2.Client, broker: RunningBroker, queue: str, user: Callable[..., httpx2.Client]
) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in (b"one", b"two"):
            channel.basic_publish("", queue, body, PERSISTENT)
        channel.basic_get(queue, auto_ack=False)
        reader, other = user(read=queue), user(read="^no$")
        for path in (f"/queues/%2F/{queue}/peek/1", f"/queues/%2F/{queue}/unacked"):
            assert reader.get(path).status_code == 200
            assert other.get(path).status_code == 401
            assert f"read access to queue '{queue}' in vhost '/' refused" in other.get(path).json()["reason"]


def test_an_exclusive_queue_is_for_the_user_who_declared_it(
    api: httpx2.Client, broker: RunningBroker, name: str, user: Callable[..., httpx2.Client]
) -> None:
    owner, reader, nobody = user(), user(), user(read="^$")
    moment = datetime.now(UTC).isoformat()
    with connect(broker, name_of(owner), "p") as connection:
        channel = connection.channel()
        channel.queue_declare(name, exclusive=True)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"private")
        for path in (f"/queues/%2F/{name}/peek/1", f"/queues/%2F/{name}/unacked"):
            assert owner.get(path).status_code == 200
            assert api.get(path).status_code == 200
            assert nobody.get(path).status_code == 401
            assert reader.get(path).status_code == 400
            assert "cannot obtain exclusive access to locked queue" in reader.get(path).json()["reason"]
        past = reader.get(f"/queues/%2F/{name}/at", params={"time": moment})
        assert "cannot obtain exclusive access" in past.json()["reason"]


def test_a_monitoring_user_closes_its_own_connections_only(
    api: httpx2.Client, broker: RunningBroker, user: Callable[..., httpx2.Client]
) -> None:
    watcher = user("monitoring")
    theirs, own = connect(broker), connect(broker, name_of(watcher), "p")
    found = {each["user"]: each["name"] for each in watcher.get("/connections").json()}
    assert watcher.delete(f"/connections/{found['guest']}").status_code == 401
    assert watcher.delete("/connections/username/guest").status_code == 401
    theirs.process_data_events(0.1)
    assert theirs.is_open
    assert watcher.delete(f"/connections/{found[name_of(watcher)]}").status_code == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        own.process_data_events(5)
    theirs.close()


def test_copies_need_topic_permissions_as_the_message_does(
    api: httpx2.Client, broker: RunningBroker, queue: str, user: Callable[..., httpx2.Client]
) -> None:
    limited = user()
    who = name_of(limited)
    rights = {"exchange": "amq.topic", "write": "^mine\\.", "read": ""}
    api.put(f"/topic-permissions/%2F/{who}", json=rights).raise_for_status()
    api.post(f"/bindings/%2F/e/amq.topic/q/{queue}", json={"routing_key": "theirs.#"}).raise_for_status()
    for header in ("CC", "BCC"):
        with connect(broker, who, "p") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            copied = pika.BasicProperties(headers={header: ["theirs.b"]})
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"access to topic 'theirs\.b'") as refused:
                channel.basic_publish("amq.topic", "mine.a", b"x", copied)
            assert refused.value.reply_code == 403
        content = {
            "properties": {"headers": {header: ["theirs.b"]}},
            "routing_key": "mine.a",
            "payload": "x",
            "payload_encoding": "string",
        }
        refused_too = limited.post("/exchanges/%2F/amq.topic/publish", json=content)
        assert refused_too.status_code == 400  # RabbitMQ's answer to every refused publish
        assert refused_too.json()["reason"].startswith("403 ACCESS_REFUSED - write access to topic 'theirs.b'")
    with connect(broker, who, "p") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "mine.a", b"x", pika.BasicProperties(headers={"CC": ["mine.b"]}))
    assert api.get(f"/queues/%2F/{queue}").json()["messages"] == 0


def past_of(broker: RunningBroker, who: str, vhost: str, queue: str, **arguments: object) -> list[bytes]:
    """Return the bodies that a consumer of the past receives, until "end", or until none arrives for 5 seconds."""
    found: list[bytes] = []
    with connect(broker, who, "p", vhost) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, body in channel.consume(queue, arguments=dict(arguments), inactivity_timeout=5):
            if method is None or body == b"end":
                break
            found.append(body)
            channel.basic_ack(method.delivery_tag)
    return found


@pytest.mark.parametrize("again", ["queue", "vhost"])
def test_what_is_made_again_hides_what_bore_its_name_before(
    api: httpx2.Client, broker: RunningBroker, name: str, user: Callable[..., httpx2.Client], again: str
) -> None:
    api.put(f"/vhosts/{name}").raise_for_status()
    where = f"/queues/{name}/orders"
    api.put(f"/permissions/{name}/guest", json=dict.fromkeys(("configure", "write", "read"), ".*")).raise_for_status()
    api.put(where, json={"durable": True}).raise_for_status()
    before = publish(broker, name, b"secret of the first")
    first = api.get(where).json()["queue_id"]
    api.put(f"/marks/{name}", json={}).raise_for_status()
    api.delete(where if again == "queue" else f"/vhosts/{name}").raise_for_status()
    api.put(f"/vhosts/{name}").raise_for_status()
    new = user(vhost=name)
    gone = new.get(f"{where}/at", params={"offset": before})
    assert gone.status_code == 404  # gone, and not made again
    assert "only administrators" in gone.json()["reason"]
    api.put(f"/permissions/{name}/guest", json=dict.fromkeys(("configure", "write", "read"), ".*")).raise_for_status()
    new.put(where, json={"durable": True}).raise_for_status()
    publish(broker, name, b"mine", b"end")
    for query in ({"offset": str(before)}, {"time": f"mark:{name}"}):
        assert new.get(f"{where}/at", params=query).status_code == 404, query
    for content in ({"offset": before}, {"time": f"mark:{name}"}, {"undo": "delete"}, {"undo": "purge"}):
        restored = new.post(f"{where}/restore", json=content)
        assert restored.status_code == 404, restored.text
    stolen = new.post(f"{where}/restore", json={"messages": [before - 1]})
    assert stolen.status_code == 400
    assert "has no message" in stolen.json()["reason"]
    assert new.get(f"{where}/at", params={"offset": str(before), "incarnation": str(first)}).status_code == 401
    who = name_of(new)
    assert past_of(broker, who, name, "orders", **{"x-stream-offset": "first"}) == [b"mine"]
    assert past_of(broker, who, name, "orders", **{"x-stream-offset": 0}) == [b"mine"]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        past_of(broker, who, name, "orders", **{"x-rewind-to": before})
    assert refused.value.reply_code == 404
    # an administrator may, by the name of the incarnation
    found = api.get(f"{where}/at", params={"offset": str(before), "incarnation": str(first)}).json()
    assert [each["payload"] for each in found["message_details"]] == ["secret of the first"]
    second = api.get(where).json()["queue_id"]
    assert second != first
    missing = api.get(f"{where}/at", params={"offset": str(before), "incarnation": str(second)})
    assert missing.status_code == 404
    undone = api.post(f"{where}/restore", json={"undo": "delete", "incarnation": first, "dry_run": True})
    assert undone.json()["messages"] == 1, undone.text


def publish(broker: RunningBroker, vhost: str, *bodies: bytes) -> int:
    """The offset behind the last of them."""
    with connect(broker, vhost=vhost) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "orders", body, PERSISTENT)
    path = f"{broker.http_url}/api/queues/{vhost}/orders/peek/1"
    shown = httpx2.get(path, auth=("guest", "guest"), trust_env=False).json()
    return int(shown["message_id"]) + 1
