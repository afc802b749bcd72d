"""Duplicates over AMQP: x-message-deduplication as an exchange (B-61) and as an argument of a queue (B-62)."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.support.pika_clients import connect, count, take
from tests.support.running import RunningBroker

TYPE = "x-message-deduplication"


@pytest.fixture
def name() -> str:
    return f"once-{uuid.uuid4().hex[:8]}"


def send(channel: BlockingChannel, exchange: str, key: str, identity: object, **more: Any) -> None:
    """Publish persistently and with mandatory; returns when it is confirmed."""
    headers = {"x-deduplication-header": identity, **more}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    channel.basic_publish(exchange, key, str(identity).encode(), properties, mandatory=True)


def once(channel: BlockingChannel, name: str, **arguments: Any) -> None:
    """Declare a deduplicating exchange and its queue, both of this name."""
    channel.exchange_declare(name, TYPE, durable=True, arguments={"x-cache-size": 100, **arguments})
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)


def test_b61_duplicates_are_confirmed_and_dropped(channel: BlockingChannel, broker: RunningBroker, name: str) -> None:
    once(channel, name)
    for identity in ("a", "a", 7, "7", 7, "a"):
        send(channel, name, "any", identity)
    channel.basic_publish(name, "any", b"no id")
    channel.basic_publish(name, "any", b"no id")
    assert [body for _, _, body in take(channel, name, 5)] == [b"a", b"7", b"7", b"no id", b"no id"]
    send(channel, name, "any", "a")
    assert count(channel, name) == 0, "the exchange remembers what was consumed"
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        rows = api.get(f"/history/outcomes/%2F/{name}").json()["rows"]
        told = [row for row in rows if row["outcome"] == "duplicate"]
        assert [(row["rule"], row["reason"].split()[:3]) for row in told] == [
            (f"exchange {name}", ["duplicate", "of", "message"])
        ] * 4
        assert api.get(f"/queues/%2F/{name}").json()["outcomes"]["duplicates"] == 4
        page = api.get("../metrics").text
        assert 'outcome="duplicates",queue_type="classic"' in page


def test_b61_a_policy_goes_before_the_arguments(channel: BlockingChannel, broker: RunningBroker, name: str) -> None:
    once(channel, name)
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        policy = {"pattern": f"^{name}$", "definition": {"x-cache-size": 1}, "apply-to": "exchanges"}
        assert api.put(f"/policies/%2F/{name}", json=policy).status_code == 201
        for identity in ("a", "a", "b", "a"):
            send(channel, name, "", identity)
        assert count(channel, name) == 3
        assert api.delete(f"/policies/%2F/{name}").status_code == 204
        for identity in ("b", "a"):
            send(channel, name, "", identity)
        assert count(channel, name) == 4


def test_b61_through_other_exchanges(channel: BlockingChannel, name: str) -> None:
    once(channel, name)
    channel.exchange_declare(f"{name}-in", "fanout")
    channel.exchange_bind(name, f"{name}-in")
    channel.queue_declare(f"{name}-all")
    channel.queue_bind(f"{name}-all", f"{name}-in")
    for _ in range(3):
        send(channel, f"{name}-in", "", "a")
    assert (count(channel, name), count(channel, f"{name}-all")) == (1, 3)
    channel.queue_bind(f"{name}-all", name)  # now it is reached both ways
    send(channel, f"{name}-in", "", "a")
    assert (count(channel, name), count(channel, f"{name}-all")) == (1, 4)
    channel.queue_unbind(f"{name}-all", f"{name}-in")
    send(channel, name, "", "a")
    send(channel, name, "", "a")
    assert count(channel, f"{name}-all") == 5
    channel.exchange_declare(f"{name}-none", TYPE, arguments={"x-cache-size": "5", "x-cache-ttl": "1000"})
    with pytest.raises(UnroutableError):
        send(channel, f"{name}-none", "", "a")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": 0}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": True}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": "foo"}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": 1_000_001}, "Invalid argument, 'x-cache-size' must be at most 1000000"),
        ({"x-cache-size": 1, "x-cache-ttl": "soon"}, "Invalid argument, 'x-cache-ttl' must be an integer greater than"),
        ({"x-cache-size": 1, "x-cache-ttl": -1}, "Invalid argument, 'x-cache-ttl' must be an integer greater than 0"),
        ({"x-cache-size": 1, "x-cache-ttl": 2**60}, "Invalid argument, 'x-cache-ttl' must be at most"),
        ({"x-cache-size": 1, "x-cache-persistence": "tape"}, "must be either 'disk' or 'memory'"),
    ],
)
def test_b61_wrong_arguments(channel: BlockingChannel, name: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ChannelClosedByBroker, match=r"406") as refused:
        channel.exchange_declare(name, TYPE, arguments=arguments)
    assert text in refused.value.reply_text


def test_b62_wrong_arguments(channel: BlockingChannel, broker: RunningBroker, name: str) -> None:
    for arguments, text in (
        ({TYPE: "yes"}, "unacceptable_type"),
        ({TYPE: True, "x-queue-type": "stream"}, f"invalid arg '{TYPE}'"),
    ):
        with pytest.raises(ChannelClosedByBroker, match=r"406") as refused:
            channel.connection.channel().queue_declare(name, durable=True, arguments=arguments)
        assert text in refused.value.reply_text
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        for definition, text in (({TYPE: 1}, "it must be a boolean"), ({"x-cache-size": 0}, "from 1 to 1000000")):
            policy = {"pattern": name, "definition": definition}
            answer = api.put(f"/policies/%2F/{name}", json=policy)
            assert answer.status_code == 400
            assert text in answer.text


def test_b62_a_message_is_in_the_queue_once(channel: BlockingChannel, broker: RunningBroker, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={TYPE: True})
    send(channel, "", name, "a")
    with pytest.raises(NackError):
        send(channel, "", name, "a")
    send(channel, "", name, "b")
    assert count(channel, name) == 2
    method, _, body = channel.basic_get(name)
    with pytest.raises(NackError):
        send(channel, "", name, "a")
    assert (body, count(channel, name)) == (b"a", 1)
    channel.basic_ack(method.delivery_tag)
    send(channel, "", name, "a")
    assert count(channel, name) == 2
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        policy = {"pattern": f"^{name}$", "definition": {TYPE: False}, "apply-to": "queues"}
        assert api.put(f"/policies/%2F/{name}", json=policy).status_code == 201
        send(channel, "", name, "a")
        assert count(channel, name) == 3
        assert api.delete(f"/policies/%2F/{name}").status_code == 204


def test_b61_b62_after_a_kill_as_before(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    channel = connect(broker).channel()
    channel.confirm_delivery()
    once(channel, "x", **{"x-cache-ttl": 3_600_000})
    channel.queue_declare("q", durable=True, arguments={TYPE: True})
    for number in range(60):
        send(channel, "x", "", number)
    assert len(take(channel, "x", 60, auto_ack=True)) == 60
    send(channel, "", "q", "a")
    broker.kill()
    broker = start_broker(tmp_path / "data")
    channel = connect(broker).channel()
    channel.confirm_delivery()
    for number in range(60):
        send(channel, "x", "", number)
    with pytest.raises(NackError):
        send(channel, "", "q", "a")
    assert (count(channel, "x"), count(channel, "q")) == (0, 1)
    send(channel, "x", "", 60)
    assert count(channel, "x") == 1
    assert broker.stop() == 0
