"""Moves messages while a connection to each of the two brokers stands.

    source -> basic.deliver -> x-shovelled -> basic.publish, mandatory -> destination
    source <- basic.ack     <----------------------------- basic.ack  <-

Rules of this file
- A message is acked at the source only when the destination has confirmed it. So none is lost, and a message whose ack
  is lost with a connection comes twice.
- The source sends at most `prefetch` messages that are not acked: no more are in memory.
- When a message is refused, no further ones are published. Those on their way are awaited. So the next session
  publishes the refused one again, and not those around it.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pika

from rewindmq.engine.shovel.account import TransferAccount
from rewindmq.engine.shovel.address import Address
from rewindmq.engine.shovel.header import with_shovelled
from rewindmq.engine.shovel.link import Ended, Link, RawProperties

ANSWER_SECONDS = 30  # how long the messages on their way are awaited at the end

log = logging.getLogger("rewindmq.shovel")


@dataclass(frozen=True, slots=True)
class Job:
    """The queue to move, and where to.

    `exchange`: "" publishes into the queue `key`. `key`: None keeps the routing key of each message."""

    source: Address
    queue: str
    destination: Address
    exchange: str
    key: str | None
    prefetch: int

    def __str__(self) -> str:
        target = f"exchange '{self.exchange}'" if self.exchange else f"queue '{self.key}'"
        return f"queue '{self.queue}' at {self.source.shown} to {target} at {self.destination.shown}"

    @property
    def entry(self) -> dict[str, object]:
        """The table in x-shovelled, with RabbitMQ's names."""
        target: dict[str, object] = {"dest-exchange": self.exchange} if self.exchange else {"dest-queue": self.key}
        if self.exchange and self.key is not None:
            target["dest-exchange-key"] = self.key
        return {
            "shovelled-by": "rewindmq shovel",
            "shovel-type": "command",
            "src-uri": self.source.shown,
            "dest-uri": self.destination.shown,
            "src-queue": self.queue,
            **target,
        }


@dataclass(slots=True)
class Figures:
    """Counted over all sessions. `left`: how many are to be moved yet; None: all that come."""

    moved: int = 0
    repeats: int = 0  # published again, as the source had given them out before
    under_way: int = 0
    left: int | None = None


class Unroutable(Exception):
    """The destination has no queue for a message."""


class DestinationFull(Exception):
    """The destination refused a message: its queue is full."""


class ShovelSession:
    """`figures.left` is measured by the first session, if `measure`."""

    def __init__(self, job: Job, figures: Figures, measure: bool, stop: asyncio.Event) -> None:
        self.job = job
        self.figures = figures
        self.measure = measure
        self.began = False  # it consumes, or found nothing to move
        self._stop = stop
        self._account = TransferAccount()
        self._source = Link("source")
        self._destination = Link("destination")
        self._entry = job.entry
        self._failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._all_moved = asyncio.Event()
        self._answered = asyncio.Event()
        self._publishes = True

    async def run(self) -> None:
        """Move until all is moved that was to be, or `stop` is set.

        Ended: a connection. Unroutable, DestinationFull: a message was refused; it is in the source's queue again."""
        try:
            await self._begin()
            if self.figures.left == 0:
                return
            tasks = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._all_moved)]
            ends: list[asyncio.Future[Any]] = [self._failed, self._source.ended, self._destination.ended]
            await asyncio.wait((*tasks, *ends), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            self._publishes = False
            await self._settle()
            for end in ends:
                if end.done():
                    raise end.result()
        finally:
            self._publishes = False
            self.figures.under_way = 0
            await asyncio.gather(self._source.close(), self._destination.close())

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        job, source, destination = self.job, self._source, self._destination
        name = f"shovel of {job.queue}"
        await destination.open(job.destination, name)
        await source.open(job.source, name)
        channel = destination.channel
        channel.add_on_return_callback(self._returned)
        await destination.answer(lambda done: channel.confirm_delivery(self._confirmed, done))
        if job.exchange:
            await destination.answer(lambda done: channel.exchange_declare(job.exchange, passive=True, callback=done))
        else:
            await destination.answer(lambda done: channel.queue_declare(job.key, passive=True, callback=done))
        channel = source.channel
        await source.answer(lambda done: channel.basic_qos(prefetch_count=job.prefetch, callback=done))
        declared = await source.answer(lambda done: channel.queue_declare(job.queue, passive=True, callback=done))
        waiting = declared.method.message_count
        log.info("moving %s: %d messages wait", job, waiting)
        if self.measure and self.figures.left is None:
            self.figures.left = waiting
        if self.figures.left != 0:
            channel.add_on_cancel_callback(self._cancelled)
            await source.answer(lambda done: channel.basic_consume(job.queue, self._delivered, callback=done))
        self.began = True

    async def _settle(self) -> None:
        """Wait for the answers to what is on its way, and ack what arrived."""
        while self._account.on_the_way and not self._destination.ended.done():
            self._answered.clear()
            answered = asyncio.ensure_future(self._answered.wait())
            done, _ = await asyncio.wait(
                (answered, self._destination.ended), timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            answered.cancel()
            if not done:
                break
        if not self._source.ended.done():
            for tag in self._account.rest():
                self._source.channel.basic_ack(tag)
                self._moved(1)

    # -- called by pika -----------------------------------------------------------------------------------------------

    def _delivered(self, _: object, method: Any, properties: RawProperties, body: bytes) -> None:
        left = self.figures.left
        if not self._publishes or self._destination.ended.done():
            return  # it goes back to its queue when the connection ends
        if left is not None and self._account.taken - self._account.acked >= left:
            return
        if method.redelivered:
            self.figures.repeats += 1
            raw = with_shovelled(properties.raw, {**self._entry, "redelivered": True})
        else:
            raw = with_shovelled(properties.raw, self._entry)
        key = method.routing_key if self.job.key is None else self.job.key
        tag = self._account.take(hash((key, raw, body)))
        assert tag == method.delivery_tag, "a message was left out"
        self.figures.under_way = self._account.on_the_way
        try:
            self._destination.channel.basic_publish(self.job.exchange, key, body, RawProperties(raw), mandatory=True)
        except pika.exceptions.AMQPError:
            self._publishes = False  # its end comes with `Link.ended`

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Nack):
            self._account.nack(method.delivery_tag, method.multiple)
            self._fail(
                DestinationFull(f"the destination refuses messages of queue '{self.job.queue}': its queue is full")
            )
        else:
            self._account.confirm(method.delivery_tag, method.multiple)
        before = self._account.acked
        up_to = self._account.ack_up_to()
        if up_to is not None and not self._source.ended.done():
            self._source.channel.basic_ack(up_to, multiple=True)
            self._moved(up_to - before)
        self.figures.under_way = self._account.on_the_way
        self._answered.set()

    def _returned(self, _: object, method: Any, properties: RawProperties, body: bytes) -> None:
        self._account.unroutable(hash((method.routing_key, properties.raw, body)))
        where = f"exchange '{method.exchange}'" if method.exchange else "the default exchange"
        nowhere = f"the destination has no queue for a message: {where} routes the key '{method.routing_key}' nowhere"
        self._fail(Unroutable(f"{nowhere}. The message is in queue '{self.job.queue}' of the source again"))

    def _cancelled(self, _: object) -> None:
        self._fail(Ended("source", 404, f"cancelled the consumer: queue '{self.job.queue}' was deleted"))

    def _fail(self, error: Exception) -> None:
        self._publishes = False
        if not self._failed.done():
            self._failed.set_result(error)

    def _moved(self, count: int) -> None:
        self.figures.moved += count
        if self.figures.left is not None:
            self.figures.left -= count
            if self.figures.left == 0:
                self._all_moved.set()
