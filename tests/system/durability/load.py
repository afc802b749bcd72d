"""Clients that publish and consume through whatever happens to the broker, and write down what they saw.

    publisher ---- confirms ---> classic | quorum | fanout of two queues | a queue whose messages expire to another
    consumer  <--- prefetch 50 --- acks, requeues some, keeps some; at intervals a barrier: the answer to a purge of
                                   its own empty queue (in the same partition) comes when its acks are durable

Each is a connection of its own (aio-pika) that connects again when the broker comes back, on whatever port. Where there
are several nodes it takes them in turn, and a publisher that connects again counts as another one: what its old node
still has on its way may come into the log later than what its new node takes. `apart`: consumers are at the first
node, and publishers at the others.
"""

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from aio_pika.connection import make_url
from pamqp.common import FieldTable

from rewindmq.projections.rules.partition_hash import partition_of
from tests.system.durability.ledger import Ledger, Message, decode, encode

# queue -> arguments. What is published to `aging` expires, and is consumed from `aged`: one account, `aged`.
QUEUES: dict[str, FieldTable] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "left": {},
    "right": {"x-queue-type": "quorum"},
    "aged": {},
    "aging": {"x-message-ttl": 150, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "aged"},
}
# (exchange, routing key) -> the accounts in which it is found
TARGETS = {
    ("", "classic"): ["classic"],
    ("", "quorum"): ["quorum"],
    ("both", ""): ["left", "right"],
    ("", "aging"): ["aged"],
}
CONSUMED = ["classic", "classic", "quorum", "quorum", "left", "right", "aged"]
ACCOUNTS = ["classic", "quorum", "left", "right", "aged"]

PARTITIONS = 2
BATCH = 50  # publishes that wait for their confirm at a time
PREFETCH = 50
# What a client of a killed broker meets; ChannelInvalidStateError is a RuntimeError of the client's own.
GONE = (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError, OSError, asyncio.TimeoutError)


@contextlib.contextmanager
def until_gone() -> Iterator[None]:
    """Goes on after it when the broker goes away. The client library throws a plain Exception at calls of a channel
    that it closes without a reason, and also a CancelledError, which must be told from the end of the task."""
    try:
        yield
    except GONE:
        pass
    except Exception as error:
        if type(error) is not Exception:
            raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise


class Clients:
    """`urls` says where the broker is now, or its nodes; empty while there is none."""

    targets = TARGETS
    batch = BATCH

    def __init__(self, ledger: Ledger, seed: int, nodes: bool = False, apart: bool = False) -> None:
        self.ledger = ledger
        self.random = random.Random(seed)
        self.nodes = nodes
        self.apart = apart
        self.urls: list[str] = []
        self.connects = itertools.count()
        self.publishers = itertools.count(100)
        self.publishing = True
        self.settles = True  # a barrier is in the partition of its queue, which is so until queues move
        self.orderly = False  # consumers ack everything and keep nothing: the last drain
        self.ended = False  # a client library may swallow a task's cancellation: this can't be swallowed
        self.sequence = 0

    async def declare(self, url: str) -> None:
        async with self.connected(url) as channel:
            for name, arguments in QUEUES.items():
                await channel.declare_queue(name, durable=True, arguments=arguments)
            exchange = await channel.declare_exchange("both", aio_pika.ExchangeType.FANOUT, durable=True)
            for name in ("left", "right"):
                await (await channel.get_queue(name, ensure=False)).bind(exchange)

    @contextlib.asynccontextmanager
    async def connected(self, url: str, confirms: bool = True) -> AsyncIterator[AbstractChannel]:
        """Yield a channel of a new connection, and close it behind, also where the broker does not answer.

        A connection that is not closed closes itself when it is collected, which may be in a thread without an event
        loop: "coroutine was never awaited".
        """
        connection = aio_pika.Connection(make_url(url))
        try:
            await connection.connect(timeout=5)
            yield await connection.channel(publisher_confirms=confirms)
        finally:
            try:
                with until_gone():
                    await asyncio.wait_for(connection.close(), 1)
            finally:
                await connection.close()  # the first may have taken too long; this one only notes that it is closed

    def urls_of(self, publishes: bool) -> list[str]:
        """Where such a client may connect now."""
        if not self.apart or len(self.urls) < 2:
            return self.urls
        return self.urls[1:] if publishes else self.urls[:1]

    async def again_and_again(
        self, publishes: bool, work: Callable[[AbstractChannel], Awaitable[None]], confirms: bool = True
    ) -> None:
        while not self.ended:
            life = self.ledger.life
            if urls := self.urls_of(publishes):
                with until_gone():
                    async with self.connected(urls[next(self.connects) % len(urls)], confirms) as channel:
                        await work(channel)
            while life == self.ledger.life and not self.urls and not self.ended:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)

    # -- publishing -------------------------------------------------------------------------------------------------

    async def publisher(self, number: int, exchange: str, key: str) -> None:
        accounts = self.targets[exchange, key]

        async def work(channel: AbstractChannel) -> None:
            to = channel.default_exchange if not exchange else await channel.get_exchange(exchange, ensure=False)
            name = next(self.publishers) if self.nodes else number
            while self.publishing:
                await asyncio.gather(*(self.publish(to, key, accounts, name) for _ in range(self.batch)))
            while not self.ended:
                await asyncio.sleep(0.1)

        await self.again_and_again(True, work)

    async def publish(self, exchange: AbstractExchange, key: str, accounts: list[str], number: int) -> None:
        self.sequence += 1
        message: Message = (number, self.sequence)
        self.ledger.published(accounts, message)
        try:
            await exchange.publish(
                aio_pika.Message(encode(message), delivery_mode=aio_pika.DeliveryMode.PERSISTENT), key
            )
        except BaseException:
            self.ledger.unknown += 1
            raise
        self.ledger.confirm(accounts, message)

    # -- consuming --------------------------------------------------------------------------------------------------

    async def consumer(self, name: str) -> None:
        async def work(channel: AbstractChannel) -> None:
            await Consuming(self, name, channel).run()

        await self.again_and_again(False, work)


class Consuming:
    """A consumer on one connection. `life`: the broker's life in which it began. What a killed broker sent may be read
    from the socket when the next one lives already."""

    def __init__(self, clients: Clients, name: str, channel: AbstractChannel) -> None:
        self.clients = clients
        self.account = clients.ledger.queues[name]
        self.life = clients.ledger.life
        self.name = name
        self.channel = channel
        self.prefetch = PREFETCH
        self.last: dict[int, int] = {}
        self.kept: list[AbstractIncomingMessage] = []
        self.unsettled: list[Message] = []

    async def run(self) -> None:
        await self.channel.set_qos(prefetch_count=self.prefetch)
        own = await self.channel.declare_queue(beside(self.name), exclusive=True)
        queue = await self.channel.get_queue(self.name, ensure=False)
        await queue.consume(self.taken)
        while not self.clients.ended:
            await asyncio.sleep(0.1)
            while self.clients.orderly and self.kept:
                first = self.kept.pop()
                await self.ack(first, decode(first.body))
            sent, self.unsettled = self.unsettled, []
            await own.purge()
            if self.clients.settles:
                self.account.settled.update(sent)

    async def taken(self, incoming: AbstractIncomingMessage) -> None:
        with until_gone():
            await self.take(incoming)

    async def take(self, incoming: AbstractIncomingMessage) -> None:
        clients = self.clients
        message = decode(incoming.body)
        clients.ledger.delivered(self.name, message, bool(incoming.redelivered), self.last, self.life)
        choice = 1.0 if clients.orderly else clients.random.random()
        if choice < 0.05:
            await incoming.nack(requeue=True)
        elif choice < 0.15 and len(self.kept) < self.prefetch // 2:
            self.kept.append(incoming)
        else:
            await self.ack(incoming, message)
            if self.kept and clients.random.random() < 0.1:
                first = self.kept.pop(0)
                await self.ack(first, decode(first.body))

    async def ack(self, incoming: AbstractIncomingMessage, message: Message) -> None:
        await incoming.ack()
        self.account.acked.add(message)
        self.unsettled.append(message)


def beside(queue: str) -> str:
    """A new queue's name that puts it into the partition of this one."""
    while True:
        name = f"own-{uuid.uuid4().hex}"
        if partition_of("/", name, PARTITIONS) == partition_of("/", queue, PARTITIONS):
            return name
