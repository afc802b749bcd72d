"""The event exchange with clients over AMQP and HTTP: what a bound queue gets, and what nobody may do with it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.deadlines import until
from tests.support.running import RunningBroker

EVENTS = "amq.rewindmq.event"
Event = tuple[str, dict[str, Any]]


@pytest.fixture
def channel(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    yield connection.channel()
    connection.close()


def listening(channel: BlockingChannel, *keys: str) -> Callable[[int], list[Event]]:
    """Bind a queue to the events. The function that is returned takes so many events out of it."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(queue, EVENTS, key)
    found: list[Event] = []

    def take() -> bool:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            assert (body, properties.delivery_mode, method.exchange) == (b"", 2, EVENTS)
            found.append((method.routing_key, properties.headers))
        return method is not None

    def heard(count: int) -> list[Event]:
        found.clear()
        until(lambda: not take() and len(found) >= count, f"{count} events came")
        return list(found)

    return heard


def test_b36_a_reader_of_events_asks_for_the_biography_of_the_message(
    channel: BlockingChannel, api: httpx2.Client
) -> None:
    heard = listening(channel, "message.*.orders", "ack.orders")
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 1})
    for body in (b"4711", b"4712"):
        channel.basic_publish("", "orders", body)
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(method.delivery_tag)
    (dropped, first), (acked, second) = heard(2)
    assert (dropped, acked) == ("message.dropped.orders", "ack.orders")
    assert (first["rule"], second["user_who_performed_action"]) == ("argument x-max-length", "guest")
    for headers, outcome, payload in ((first, "maxlen", "4711"), (second, "acked", "4712")):
        message = f"{headers['partition']}:{headers['message_id']}"
        life = api.get(f"/history/biography/%2F/{message}").json()
        assert life["message"]["payload"] == payload
        (row,) = [row for row in life["rows"] if row["outcome"] == outcome]
        assert (row["offset"], row["message_id"]) == (headers["offset"], headers["message_id"])
    channel.queue_delete("orders")


def test_b36_clients_users_and_policies_are_told(
    broker: RunningBroker, channel: BlockingChannel, api: httpx2.Client
) -> None:
    heard = listening(channel, "policy.*", "user.#", "connection.*", "queue.purged")
    channel.queue_declare("emptied", durable=True)
    assert api.delete("/queues/%2F/emptied/contents").status_code == 204
    assert api.put("/users/eve", json={"password": "secret", "tags": "monitoring"}).status_code == 201
    assert api.put("/policies/%2F/lim", json={"pattern": "^x$", "definition": {"max-length": 3}}).status_code == 201
    assert api.delete("/policies/%2F/lim").status_code == 204
    refused = httpx2.get(f"{broker.http_url}/api/overview", auth=("eve", "wrong"), trust_env=False)
    assert refused.status_code == 401
    pika.BlockingConnection(pika.URLParameters(broker.amqp_url)).close()
    assert api.delete("/users/eve").status_code == 204
    told = [event for event in heard(9) if event[0] != "user.authentication.success"]
    assert [key for key, _ in told] == [
        "queue.purged",
        "user.created",
        "user.tags.set",
        "policy.set",
        "policy.cleared",
        "user.authentication.failure",
        "connection.created",
        "connection.closed",
        "user.deleted",
    ]
    facts = dict(told)
    assert (facts["queue.purged"]["name"], facts["queue.purged"]["user_who_performed_action"]) == ("emptied", "guest")
    assert facts["policy.set"]["definition"] == '{"max-length":3}'
    assert (facts["user.authentication.failure"]["name"], facts["user.authentication.failure"]["count"]) == ("eve", 1)
    assert facts["connection.created"]["name"] == facts["connection.closed"]["name"]
    assert facts["connection.created"]["name"].endswith(f" -> 127.0.0.1:{broker.amqp_port}")
    assert facts["connection.created"]["client_properties"]["product"].startswith("Pika")
    assert "secret" not in str(told)
    channel.queue_delete("emptied")


def test_b36_the_exchange_is_the_brokers(channel: BlockingChannel, api: httpx2.Client) -> None:
    shown = api.get(f"/exchanges/%2F/{EVENTS}").json()
    assert (shown["type"], shown["durable"], shown["internal"]) == ("topic", True, True)
    assert api.put("/vhosts/of-events").status_code == 201
    assert api.get(f"/exchanges/of-events/{EVENTS}").status_code == 200
    assert api.delete("/vhosts/of-events").status_code == 204
    assert EVENTS not in str(api.get("/definitions").json()["exchanges"])
    refused = api.delete(f"/exchanges/%2F/{EVENTS}")
    assert refused.status_code in (400, 401)
    channel.basic_publish(EVENTS, "queue.deleted", b"")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="cannot publish to internal exchange"):
        channel.queue_declare("", exclusive=True)


def test_b36_a_user_needs_the_right_to_read_the_exchange(broker: RunningBroker, api: httpx2.Client) -> None:
    api.put("/users/reader", json={"password": "r", "tags": ""})
    api.put("/permissions/%2F/reader", json={"configure": "^mine", "write": "^mine", "read": "^mine"})
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.credentials = pika.PlainCredentials("reader", "r")
    with pika.BlockingConnection(parameters) as connection:
        mine = connection.channel()
        mine.queue_declare("mine", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="read access to exchange"):
            mine.queue_bind("mine", EVENTS, "#")
    api.delete("/users/reader")


def test_b36_aio_pika_hears_its_own_acks(broker: RunningBroker) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(broker.amqp_url)
        async with connection:
            channel = await connection.channel()
            work = await channel.declare_queue("work", exclusive=True)
            events = await channel.declare_queue("", exclusive=True)
            await events.bind(EVENTS, "ack.work")
            for number in range(20):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "work")
            async with work.iterator() as messages:
                taken = 0
                async for message in messages:
                    await message.ack()
                    taken += 1
                    if taken == 20:
                        break
            told = []
            async with asyncio.timeout(20), events.iterator() as messages:
                async for event in messages:
                    await event.ack()
                    told.append(int(str(event.headers["message_id"])))
                    if len(told) == 20:
                        break
            assert told == sorted(set(told))

    asyncio.run(main())
