"""Delayed messages: an x-delayed-message exchange keeps them in a hidden queue, and routes them when they are due.

    publish with x-delay > 0  ->  hidden queue amq.delayed.<exchange>  -- due ->  outbox -> Forwarder -> the bindings

The queue waits in projections/machine/data/delayed_order.py.

Rules of this file
- The hidden queue is made with its exchange and goes with it, on every kind of log. Clients can't name it. Exchange and
  queue are in two logs, so one may exist without the other after a crash, or after an exchange went by rule
  (auto-delete): the owner of the queue's partition mends that (`broken`).
- A new exchange begins with a new hidden queue: it does not get the messages of an earlier exchange of its name.
- A message is forwarded effectively once, as a dead letter is (dead_letters.py), but it did not die: it has no x-death
  and keeps its own expiration. Its header x-delay is negated, as RabbitMQ's plugin does: a consumer sees that it was
  delayed, and no other such exchange delays it again.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from rewindmq.engine.errors import AccessRefused, resource
from rewindmq.engine.routing.death_headers import Buried
from rewindmq.engine.routing.homes import Homes
from rewindmq.projections.machine.data.delayed_order import TYPE, exchange_of, queue_of
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.properties import (
    EXPIRATION,
    HEADERS,
    copies_of,
    expiration,
    join,
    join_headers,
    split,
    split_headers,
)
from rewindmq.schemas.events import Event, Published, QueueDeclared, QueueDeleted
from rewindmq.schemas.metadata_events import ExchangeDeclared
from rewindmq.schemas.values import BROKER, Actor, Argument

if TYPE_CHECKING:
    from rewindmq.engine.partition.partition import Partition

DELAYED_EXCHANGE: Final = "x-delayed-message"  # the exchange's type
SEMANTICS: Final = "rabbitmq-3.13"  # of a hidden queue: it is the same in all profiles
# The hidden queue's argument: an offset of the metadata log, its exchange is below.
KNOWN_AT: Final = "x-exchange-known-at"
GONE_TRIES: Final = 500
GONE_SECONDS: Final = 0.01


def check_not_hidden(queue: str) -> None:
    if is_delay_queue(queue):
        raise AccessRefused(f"queue name '{queue}' is that of an exchange's delayed messages")


# -- the hidden queue comes and goes with its exchange ----------------------------------------------------------------


class HiddenQueues:
    """The hidden queues of all delayed-message exchanges. `when_durable`: of `Turns`."""

    def __init__(
        self,
        topology: Topology,
        homes: Homes,
        when_durable: Callable[[Callable[[], None]], None],
    ) -> None:
        self._topology = topology
        self._homes = homes
        self.when_durable = when_durable
        self._exchanges = {key: None for key in topology.exchanges if self._delays(*key)}

    def _delays(self, vhost: str, exchange: str) -> bool:
        found = self._topology.exchanges.get((vhost, exchange))
        return found is not None and found.type == DELAYED_EXCHANGE

    def changed(self, event: Event) -> None:
        """Take an event that was folded into the topology: exchanges may have come or gone."""
        if isinstance(event, ExchangeDeclared):
            if self._delays(event.vhost, event.exchange):
                self._exchanges[event.vhost, event.exchange] = None
        elif self._exchanges:
            for key in [key for key in self._exchanges if not self._delays(*key)]:
                del self._exchanges[key]
                self.when_durable(partial(self._drop, *key))

    def _drop(self, vhost: str, exchange: str) -> None:
        """Delete the queue of an exchange that is gone, now that its end is durable."""
        partition = self._homes.of(vhost, queue_of(exchange))
        queue = partition.machine.queue(vhost, queue_of(exchange))
        if partition.owned and queue is not None and self._is_orphan(queue):
            partition.append(BROKER, deletion(queue))

    def of(self, vhost: str, exchange: str) -> Queue | None:
        return self._homes.of(vhost, queue_of(exchange)).machine.queue(vhost, queue_of(exchange))

    async def left_over(self, vhost: str, exchange: str) -> Queue | None:
        """Return the queue that an earlier exchange of this name left, before a new one is declared."""
        await self._homes.of(vhost, queue_of(exchange)).enter()
        return self.of(vhost, exchange)

    async def begin(self, actor: Actor, vhost: str, exchange: str, left_over: Queue | None) -> bool:
        """Make the queue of an exchange that was declared, unless it has one. Returns whether it was made."""
        partition = await self._caught_up(vhost, queue_of(exchange))
        queue = self.of(vhost, exchange)
        if queue is not None and queue is left_over:
            await partition.ask(actor, deletion(queue))
            partition = await self._caught_up(vhost, queue_of(exchange))
        if self.of(vhost, exchange) is not None:
            return False
        await partition.ask(actor, self._declaration(vhost, exchange))
        return True

    async def _caught_up(self, vhost: str, name: str) -> "Partition":
        """Return the partition of a hidden queue, once its name is not held."""
        homes = self._homes
        while True:
            await homes.wait_until_free(vhost, name)
            partition = homes.of(vhost, name)
            await partition.catch_up()
            if homes.is_home(partition, vhost, name) and not homes.is_held(vhost, name):
                return partition

    async def until_gone(self, vhost: str, exchange: str) -> None:
        """Wait, for some seconds at most, until the queue of a deleted exchange is gone.

        So its deletion cannot hit the queue of a new exchange of this name. Another node may have to delete it. If that
        node is gone, its successor does so later."""
        await self._homes.of(vhost, queue_of(exchange)).enter()
        for _ in range(GONE_TRIES):
            if self.of(vhost, exchange) is None:
                return
            await asyncio.sleep(GONE_SECONDS)

    def _is_orphan(self, queue: Queue) -> bool:
        """Return True if the queue's exchange is gone.

        An exchange that this node has not read about yet is not gone."""
        return (
            queue.type == TYPE
            and not self._delays(queue.vhost, exchange_of(queue.name))
            and all(int(str(each.value)) <= self._topology.next_offset for each in queue.arguments)
        )

    def _declaration(self, vhost: str, exchange: str) -> QueueDeclared:
        known = Argument(KNOWN_AT, "long", self._topology.next_offset)
        return QueueDeclared(
            vhost,
            queue_of(exchange),
            type=TYPE,
            durable=True,
            exclusive=False,
            auto_delete=False,
            owner=0,
            arguments=(known,),
            semantics=SEMANTICS,
        )

    def broken(self, partition: "Partition") -> Iterator[tuple[str, QueueDeclared | QueueDeleted]]:
        """Yield the hidden queues of a partition that a crash left without exchange, or that are missing.

        Yields each in words, with the event that mends it."""
        there = [(queue.vhost, queue.name) for queue in partition.machine.queues()]
        due = [name for name in self.names() if self._homes.of(*name) is partition]
        for name in dict.fromkeys((*there, *due)):
            found = self.broken_at(partition, *name)
            if found is not None:
                yield found

    def names(self) -> list[tuple[str, str]]:
        """Yield the vhost and the name of each hidden queue that has to exist."""
        return [(vhost, queue_of(exchange)) for vhost, exchange in self._exchanges]

    def broken_at(
        self, partition: "Partition", vhost: str, name: str
    ) -> tuple[str, QueueDeclared | QueueDeleted] | None:
        """Return the fault of one name of the partition, as `broken` yields it."""
        queue, exchange = partition.machine.queue(vhost, name), exchange_of(name)
        if queue is not None:
            orphan = f"queue '{name}' in vhost '{vhost}', whose exchange is gone"
            return (orphan, deletion(queue)) if self._is_orphan(queue) else None
        if is_delay_queue(name) and (vhost, exchange) in self._exchanges and not self._homes.is_held(vhost, name):
            missing = f"{resource('exchange', exchange, vhost)}, which has no queue for delayed messages"
            return missing, self._declaration(vhost, exchange)
        return None


def deletion(queue: Queue) -> QueueDeleted:
    return QueueDeleted(queue.vhost, queue.name, if_unused=False, if_empty=False)


# -- delayed messages -------------------------------------------------------------------------------------------------


def due(message: Published) -> tuple[Buried, int | None]:
    """Return a delayed message as it is routed now.

    It has all its routing keys, no deaths, and its own expiration. Raises ValueError if its properties are not valid
    AMQP."""
    fields = split(message.properties)
    headers = split_headers(fields)
    keys = (message.route.routing_key, *copies_of(headers.get("CC")), *copies_of(headers.get("BCC")))
    headers["x-delay"] = b"l" + (-(message.expiration_ms or 0)).to_bytes(8, "big", signed=True)
    fields[HEADERS] = join_headers(headers)
    return Buried(join(fields), keys, ()), _expiration(fields.get(EXPIRATION))


def _expiration(field: bytes | None) -> int | None:
    try:
        return None if field is None else expiration(field[1:])
    except Unacceptable:  # a service may have put anything into the log
        return None
