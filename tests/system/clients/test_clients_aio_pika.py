"""aio-pika as services use it: robust connections that outlive the broker, exchanges of all kinds, requeue, rpc."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError
from aio_pika.patterns import RPC
from aiormq.exceptions import ChannelLockedResource
from pamqp.common import FieldTable

from tests.support.running import RunningBroker


def run(scenario: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(*arguments), 60)

    asyncio.run(limited())


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_robust_connection_outlives_kill_9(start_broker: Callable[..., RunningBroker]) -> None:
    run(outlive, start_broker)


async def outlive(start_broker: Callable[..., RunningBroker]) -> None:
    """A robust connection declares, binds and consumes again by itself when the broker is back on its port."""
    broker = await asyncio.to_thread(start_broker)
    port, http_port = broker.amqp_port, broker.http_port
    connection = await aio_pika.connect_robust(broker.amqp_url, reconnect_interval=0.1)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue("robust", durable=True)
    await queue.bind(exchange, "event.#")
    private = await channel.declare_queue("", exclusive=True)
    await private.bind(exchange, "event.#")
    seen: list[bytes] = []
    private_seen: list[bytes] = []

    async def take(message: AbstractIncomingMessage) -> None:
        async with message.process():
            seen.append(message.body)

    async def take_private(message: AbstractIncomingMessage) -> None:
        async with message.process():
            private_seen.append(message.body)

    await queue.consume(take)
    await private.consume(take_private)
    await exchange.publish(aio_pika.Message(b"before", delivery_mode=2), "event.a")
    await until(lambda: b"before" in seen and b"before" in private_seen)
    await asyncio.to_thread(broker.kill)
    options = ("--amqp-port", str(port), "--http-port", str(http_port))  # the last of an option holds
    again = await asyncio.to_thread(start_broker, broker.data, *options)
    assert f"amqp 127.0.0.1:{port}," in again.ready_line
    async with asyncio.timeout(20):
        while b"after" not in private_seen or b"after" not in seen:
            try:
                await exchange.publish(aio_pika.Message(b"after", delivery_mode=2), "event.b")
            except (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError, OSError):
                continue
            finally:
                await asyncio.sleep(0.1)
    await connection.close()


def test_all_exchange_types(broker: RunningBroker) -> None:
    run(exchanges, broker)


async def exchanges(broker: RunningBroker) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel(on_return_raises=True)
        queue = await channel.declare_queue("", exclusive=True)
        kinds = aio_pika.ExchangeType
        matching: FieldTable = {"x-match": "all", "n": 1}
        cases: tuple[tuple[aio_pika.ExchangeType, str, FieldTable | None, str, FieldTable | None], ...] = (
            (kinds.DIRECT, "k", None, "k", None),
            (kinds.FANOUT, "", None, "whatever", None),
            (kinds.TOPIC, "*.b.#", None, "a.b.c.d", None),
            (kinds.HEADERS, "", matching, "", {"n": 1, "m": 2}),
        )
        for kind, key, arguments, routing_key, headers in cases:
            exchange = await channel.declare_exchange(f"aio.{kind.value}", kind, auto_delete=True)
            await queue.bind(exchange, key, arguments=arguments)
            message = aio_pika.Message(kind.value.encode(), headers=headers)
            await exchange.publish(message, routing_key)
            got = await queue.get(timeout=5)
            assert got is not None
            assert got.body == kind.value.encode()
            await got.ack()
            if kind is not kinds.FANOUT:
                with pytest.raises(DeliveryError):
                    await exchange.publish(aio_pika.Message(b""), "no.where")
            await queue.unbind(exchange, key, arguments=arguments)
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):  # auto-delete: its last binding is gone
                await (await connection.channel()).get_exchange(f"aio.{kind.value}")


def test_concurrent_publishes_and_nacks(broker: RunningBroker) -> None:
    run(concurrent, broker)


async def concurrent(broker: RunningBroker) -> None:
    """A thousand publishes at once on ten channels; half of the deliveries are returned once."""
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channels = [await connection.channel() for _ in range(10)]
        queue = await channels[0].declare_queue("", auto_delete=True)
        publishes = [
            channel.default_exchange.publish(aio_pika.Message(b"%d.%d" % (index, number)), queue.name)
            for index, channel in enumerate(channels)
            for number in range(100)
        ]
        await asyncio.gather(*publishes)
        done: list[bytes] = []

        async def take(message: AbstractIncomingMessage) -> None:
            if int(message.body.split(b".")[1]) % 2 and not message.redelivered:
                await message.nack(requeue=True)
            else:
                await message.ack()
                done.append(message.body)

        await channels[1].set_qos(prefetch_count=50)
        theirs = await channels[1].get_queue(queue.name)
        await theirs.consume(take)
        await until(lambda: len(done) == 1_000)
        assert len(set(done)) == 1_000


def test_rpc(broker: RunningBroker) -> None:
    run(rpc, broker)


async def rpc(broker: RunningBroker) -> None:
    """aio-pika's own pattern: server-named reply queues, correlation ids, expiration, mandatory."""
    async with await aio_pika.connect(broker.amqp_url) as server, await aio_pika.connect(broker.amqp_url) as client:
        theirs = await RPC.create(await server.channel())

        async def multiply(*, x: int, y: int) -> int:
            return x * y

        await theirs.register("multiply", multiply, auto_delete=True)
        ours = await RPC.create(await client.channel())
        answers = await asyncio.gather(*(ours.call("multiply", {"x": n, "y": 2}, expiration=10) for n in range(50)))
        assert answers == [2 * n for n in range(50)]
        await theirs.unregister(multiply)
        await ours.close()
        await theirs.close()


def test_exclusive_queue_of_another_connection(broker: RunningBroker) -> None:
    run(exclusive, broker)


async def exclusive(broker: RunningBroker) -> None:
    async with await aio_pika.connect(broker.amqp_url) as one, await aio_pika.connect(broker.amqp_url) as two:
        queue = await (await one.channel()).declare_queue("", exclusive=True)
        with pytest.raises(ChannelLockedResource):
            await (await two.channel()).get_queue(queue.name)
