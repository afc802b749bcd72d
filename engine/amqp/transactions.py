"""A transactional channel (tx.select): publishes and settlements are kept back until tx.commit.

    publish   permissions, routing and properties are looked at when it comes; it is logged at commit, and returned then
    settle    its delivery tags are taken at once, so a second ack is refused; logged at commit, put back by rollback
    commit    publishes in their order (keys of their subjects are made before), then settlements in theirs; commit-ok
              when all of it is durable. When a queue refused one of them (reject-publish) the channel closes instead:
              406 "partial tx completion"
    the end   of the channel forgets what was kept: nothing is published, and what it held returns to the queues

A transactional channel is never `ready`: what frames.py takes out of the stream in one piece knows no transactions, so
the hot path has no question to ask. A commit is no atomic write across queues, as with RabbitMQ (S-099 for the texts;
rabbit_channel.erl). Within a queue it is one on an embedded log: all of it is appended in one turn, so it lies in one
block of a group commit, which a crash keeps or cuts as a whole. On Kafka it is not: each event is a record, the
producer makes batches of them as time goes by, and each batch is appended for itself. Clients are told so
(`atomic_commits`).
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewindmq.engine.amqp.publishing import Publishing
from rewindmq.engine.amqp.settlement import Holder, Verdict
from rewindmq.engine.errors import ConnectionForced, PreconditionFailed, ResourceError
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.engine.runtime.memory import Kind
from rewindmq.schemas.amqp.properties import Parsed
from rewindmq.schemas.events import Encryption

if TYPE_CHECKING:
    from rewindmq.engine.amqp.channel import Channel

MAX_BYTES = 536_870_912  # kept for one transaction: RabbitMQ's bound for one message
KEPT_BYTES = 500  # of a publish beside its body: an empty one takes memory, too


@dataclass(slots=True)
class Kept:
    """A publish until commit. `destinations` are those that it had when it came."""

    publishing: Publishing
    parsed: Parsed
    body: bytes
    destinations: tuple[Destination, ...]


class Commit:
    """What a commit waits for. Implements `rewindmq.engine.runtime.partition.Confirms`."""

    def __init__(self) -> None:
        self.waiting = 0
        self.refused = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirm(self, _sequence: int, refused: bool) -> None:
        self.refused = self.refused or refused
        self.step()

    def step(self) -> None:
        self.waiting -= 1
        if self.waiting == 0 and not self.done.done():  # the connection may be gone, and its task with it
            self.done.set_result(None)


class Transaction:
    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.publishes: list[Kept] = []
        self.settled: list[tuple[Verdict, list[tuple[int, Holder, int]]]] = []  # verdict, (tag, holder, message id)
        self.size = 0  # bytes
        self.version = channel.broker.router.version  # of the first publish that is kept

    def publish(self, publishing: Publishing, raw: bytes, body: bytes) -> None:
        channel = self.channel
        if publishing.version != channel.broker.router.version:
            channel.resolve(publishing, raw, body)
        parsed = channel.parsed.get(raw) or channel.parse_properties(raw)
        destinations = channel.destinations(publishing, parsed)
        if not destinations:
            channel.make_sure(publishing, raw, body)
        size = len(body) + KEPT_BYTES
        if self.size + size > MAX_BYTES:
            raise ResourceError(f"transaction is larger than {MAX_BYTES} bytes")
        if not self.publishes:
            self.version = channel.broker.router.version
        self.publishes.append(Kept(publishing, parsed, body, destinations))
        self.size += size
        channel.broker.memory.take(Kind.TRANSACTION, size)
        channel.status.messages_uncommitted += 1
        if len(body) != channel.tally.size:
            channel.tally.another_size(len(body))
        channel.tally.received += 1
        channel.tally.received_confirm += 1

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """PreconditionFailed (406) for a tag that is not outstanding."""
        taken = self.channel.settlement.take(tag, multiple)
        if self.settled and self.settled[-1][0] == verdict:
            self.settled[-1][1].extend(taken)
        else:
            self.settled.append((verdict, taken))
        if verdict is None:
            self.channel.status.acks_uncommitted += len(taken)

    async def commit(self) -> None:
        """PreconditionFailed (406) when a queue would not take a message; the others have theirs."""
        publishes, settled = self.publishes, self.settled
        self.forget()
        logged = [await self.logged(kept) for kept in publishes]
        if self.channel.closing:
            raise ConnectionForced("the connection is gone")
        commit = Commit()
        for kept, (body, encryption) in zip(publishes, logged, strict=True):
            self.deliver(kept, body, encryption, commit)
        for verdict, taken in settled:
            self.channel.settlement.settle_taken(taken, verdict)
        commit.waiting += 1
        self.channel.broker.turns.when_durable(commit.step)
        if any(encryption is not None for _, encryption in logged):  # after a wait nobody else ends this turn
            asyncio.get_running_loop().call_soon(self.channel.broker.turns.end)
        await commit.done
        if commit.refused:
            raise PreconditionFailed("partial tx completion")

    async def logged(self, kept: Kept) -> tuple[bytes, Encryption | None]:
        """Its body as it gets into the log. Where that waits for a key nothing of the commit is logged yet."""
        subject = kept.parsed.subject
        if subject is None or not (kept.destinations or kept.publishing.traced):
            return kept.body, None
        return await self.channel.broker.subjects.seal(subject, kept.body)

    def deliver(self, kept: Kept, body: bytes, encryption: Encryption | None, commit: Commit) -> None:
        channel = self.channel
        destinations = kept.destinations
        if self.version != channel.broker.router.version:
            destinations = still_there(destinations, channel.broker.router)
        if kept.publishing.traced:
            channel.trace(kept.publishing, kept.parsed, body, encryption, destinations)
        if not destinations:
            channel.unroutable(kept.publishing, kept.parsed.raw, kept.body)
            return
        placing = channel.placing(kept.publishing, destinations, kept.parsed.raw, kept.body)
        for destination in destinations:
            mark = channel.publish_to(destination, kept.parsed, body, encryption, placing)
            commit.waiting += 1
            destination.partition.await_durable(mark, commit, 0)
        if kept.publishing.returned:
            channel.return_message(kept.publishing, kept.parsed.raw, kept.body)

    def rollback(self) -> None:
        taken = [each for _, some in self.settled for each in some]
        self.channel.settlement.put_back(taken)
        self.forget()

    def forget(self) -> None:
        self.publishes = []
        self.settled = []
        self.channel.broker.memory.give_back(Kind.TRANSACTION, self.size)
        self.size = 0
        self.channel.status.messages_uncommitted = self.channel.status.acks_uncommitted = 0


def still_there(destinations: tuple[Destination, ...], router: Router) -> tuple[Destination, ...]:
    """Without the queues that are gone."""
    live: list[Destination] = []
    for destination in destinations:
        route, machine = destination.route, destination.partition.machine
        queues = tuple(name for name in route.queues if machine.queue(route.vhost, name) is not None)
        if queues:
            live.append(router.narrowed(destination, queues))
    return tuple(live)
