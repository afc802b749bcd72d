"""A broker on a real log and store in a temporary directory, without sockets: clients are plain objects here.

with Harness(tmp_path) as h:          # its own event loop
    session = h.session()
    h.declare(session, "q", arguments=args(**{"x-max-length": 2}))
    h.publish(session, "", "q", b"one")
    h.settle()                        # effects out, everything durable
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from rewindmq.engine.broker.turns import PAUSE_SECONDS
from rewindmq.engine.config import Config
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.identity.grants import Identity
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session, Subscription
from rewindmq.engine.process import open_broker
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import Block, events_of
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.events import Acked, Nacked, Published
from rewindmq.schemas.values import Argument
from tests.support.consumers import NeverCongested
from tests.support.deadlines import eventually
from tests.support.direct import Attached, Direct
from tests.support.queues import queue_of

T = TypeVar("T")
PERSISTENT = b"\x10\x00\x02"  # delivery mode 2


def args(**values: Any) -> tuple[Argument, ...]:
    """Arguments by name (`_` stands for `-`) with the AMQP types that clients use."""
    types = {bool: "bool", int: "signedint", str: "longstr", float: "double", bytes: "binary", type(None): "void"}
    return tuple(Argument(name.replace("_", "-"), types[type(value)], value) for name, value in values.items())


class Client(NeverCongested):
    """A consumer, a holder of basic.get, and a publisher that waits for confirms."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[str, int, bytes, bool, int]] = []  # queue, id, body, redelivered, delivery count
        self.messages: list[Published] = []
        self.fetches: list[tuple[int, bytes | None, int]] = []  # id, body, ready behind it
        self.cancellations = 0
        self.confirms: list[tuple[int, bool]] = []

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        name, count = effect.queue.name, effect.delivery_count
        self.deliveries.append((name, message_id, message.body, effect.redelivered, count))
        self.messages.append(message)

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        self.fetches.append((effect.message_id, None if message is None else message.body, effect.messages_ready))
        if message is not None:
            self.messages.append(message)

    def cancelled(self) -> None:
        self.cancellations += 1

    def confirm(self, sequence: int, refused: bool) -> None:
        self.confirms.append((sequence, refused))

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body, _, _ in self.deliveries]


class Harness:
    def __init__(self, data: Path, **settings: Any) -> None:
        self.now_ms: int = settings.pop("now_ms", 1_700_000_000_000)
        self.config = Config(data=data, **settings)
        self.loop = asyncio.new_event_loop()
        self.broker = self.open(self.config)
        self.sequence = 0

    def open(self, config: Config) -> Any:
        async def start() -> Direct:
            return Direct(open_broker(config, wall_ms=lambda: self.now_ms))

        return self.loop.run_until_complete(start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self.in_loop(self.broker.close)
        finally:
            self.loop.close()

    def in_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.loop.run_until_complete(call())

    def restart(self) -> None:
        """Stop the broker cleanly, and start it again."""
        self.in_loop(self.broker.close)
        self.broker = self.open(self.config)

    def killed_copy(self, directory: Path) -> "Harness":
        """Another broker on the files that a `kill -9` at this moment would have left behind."""
        shutil.copytree(self.config.data, directory)
        copy = Harness.__new__(Harness)
        copy.now_ms = self.now_ms
        copy.config = Config(data=directory, partitions=self.config.partitions)
        copy.loop = asyncio.new_event_loop()
        copy.broker = copy.open(copy.config)
        copy.sequence = 0
        return copy

    # -- steps of clients ----------------------------------------------------------------------------------------------

    def session(self, user: str = "guest", vhost: str = "/") -> Session:
        session: Session = self.broker.sessions.open(user, vhost, "test", {})
        return session

    def login(self, user: str, password: str) -> str:
        """Log in. Returns the user's name; it may have to wait."""
        who: Identity = self.loop.run_until_complete(
            self.broker.access.control.authenticate(user, password, "127.0.0.1")
        )
        return who.user

    def declare(self, session: Session, name: str, arguments: tuple[Argument, ...] = (), **flags: bool) -> Queue:
        flags = {"passive": False, "durable": True, "exclusive": False, "auto_delete": False} | flags
        queue: Queue = self.broker.queues.declare(session, name, arguments=arguments, **flags)
        return queue

    def exchange(self, session: Session, name: str, type: str, **flags: Any) -> None:
        given = {"passive": False, "durable": True, "auto_delete": False, "internal": False, "arguments": ()} | flags
        self.broker.exchanges.declare(session, name, type, **given)

    def bind(self, session: Session, source: str, queue: str, key: str = "", **arguments: Any) -> None:
        self.broker.exchanges.bind(session, source, "queue", queue, key, args(**arguments))

    def publish(
        self,
        session: Session,
        exchange: str,
        key: str,
        body: bytes,
        confirms: Client | None = None,
        properties: bytes = PERSISTENT,
        expiration_ms: int | None = None,
    ) -> int:
        """Publish a message. Returns the number of partitions in which queues took it."""
        destinations = self.broker.exchanges.route(session, exchange, key, None)
        self.sequence += 1
        for destination in destinations:
            offset = destination.partition.publish(
                session.actor,
                Published(
                    destination.route,
                    properties,
                    expiration_ms=expiration_ms,
                    persistent=True,
                    body=body,
                    body_size=len(body),
                ),
            )
            if confirms is not None:
                destination.partition.await_durable(offset, confirms, self.sequence)
        return sum(1 for each in destinations if each.route.queues)

    def consume(
        self,
        session: Session,
        queue: str,
        client: Client,
        prefetch: int = 0,
        no_ack: bool = False,
        channel: int = 1,
        exclusive: bool = False,
        shared: int = 0,
        arguments: tuple[Argument, ...] = (),
    ) -> tuple[Partition, Queue, int]:
        subscription = Subscription(
            session,
            channel=channel,
            tag="tag",
            no_ack=no_ack,
            exclusive=exclusive,
            prefetch=prefetch,
            global_prefetch=shared,
            arguments=arguments,
        )
        attached: Attached = self.broker.consumers.consume(queue, subscription, client)
        return attached

    def ack(self, session: Session, consumer: tuple[Partition, Queue, int], *message_ids: int) -> None:
        partition, queue, consumer_id = consumer
        ranges = tuple((message_id, message_id) for message_id in message_ids)
        partition.append(session.actor, Acked(queue.vhost, queue.name, consumer_id, ranges))

    def nack(
        self, session: Session, consumer: tuple[Partition, Queue, int], *message_ids: int, requeue: bool = False
    ) -> None:
        partition, queue, consumer_id = consumer
        ranges = tuple((message_id, message_id) for message_id in message_ids)
        partition.append(session.actor, Nacked(queue.vhost, queue.name, consumer_id, ranges, requeue, "nack"))

    def fetch(self, session: Session, queue: str, no_ack: bool = True) -> Published | None:
        client = Client()
        self.broker.consumers.fetch(session, 1, client, queue, no_ack)
        self.settle()
        return client.messages[0] if client.messages else None

    # -- time and durability ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Send all effects, forward letters, and make everything durable, with all that follows from it."""

        async def settled() -> None:
            for _ in range(500):
                durable = asyncio.get_running_loop().create_future()
                self.broker.turns.end()
                self.broker.turns.when_durable(partial(durable.set_result, None))
                await durable
                if self.broker.turns.at_rest and not self.broker.host.loop_share.busy:
                    return
                if self.broker.forwarder.has_work or self.broker.host.loop_share.busy:
                    await asyncio.sleep(PAUSE_SECONDS)  # the next slice may come after a pause
            raise AssertionError("the broker does not come to rest")

        self.loop.run_until_complete(settled())

    def until(self, condition: Callable[[], object], what: str = "it does not come to that") -> None:
        """Let the broker work until a condition holds. `what`: the words of the error if it does not hold in time."""
        self.loop.run_until_complete(eventually(condition, what))

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.in_loop(self.broker.turns.time_passed)
        self.settle()

    def digests(self) -> list[str]:
        return [partition.machine.digest() for partition in self.broker.partitions]

    def queue(self, name: str, vhost: str = "/") -> Queue:
        return queue_of(self.broker, name, vhost)

    def ready(self, name: str) -> list[bytes]:
        """The bodies in the queue, in delivery order. They stay there."""
        queue = self.queue(name)
        projector = self.broker.queues.partition_for(queue.vhost, name).projector
        return [projector.message(queue.queue_id, message_id).body for message_id in queue.ready_ids()]


def refusal(error: type[AmqpError], text: str) -> Any:
    """Expect exactly this error: `with refusal(NotFound, "no queue 'q' in vhost '/'"):`"""
    import re

    return pytest.raises(error, match=f"^{re.escape(text)}$")


class HistoryDouble:
    """A partition's log whose records come from `read`, if it is read; else it is the log itself."""

    def __init__(self, history: Any, read: Callable[[int, int], Iterator[Block]]) -> None:
        self.history, self.read = history, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.history, name)


def overheard(kind: type[T], *partitions: Partition) -> Callable[[], list[T]]:
    """A function that returns the events of one type that these partitions have appended since now, and that are
    durable."""
    starts = [(partition, partition.next_offset) for partition in partitions]

    def heard() -> list[T]:
        events = [event for partition, start in starts for *_, event in events_of(partition.history, start)]
        return [event for event in events if isinstance(event, kind)]

    return heard


class ReadingClient(Client):
    """A consumer that reads a stream or the past. `numbers`: the offsets of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.relief: list[Callable[[], None]] = []
        self.numbers: list[int] = []

    def when_relieved(self, callback: Callable[[], None]) -> None:
        self.relief.append(callback)

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        super().deliver(partition, effect, message_id, message)
        self.numbers.append(int(str(tables.mapping(parse(message.properties).header_table())["x-stream-offset"])))

    def ack(self, count: int) -> None:
        assert self.reader is not None
        self.reader.credited(count)
