"""A transactional channel (tx.select): publishes and settlements are kept until tx.commit.

    publish   its permissions, route and properties are judged when it comes. It is logged at commit, and returned then
    settle    its delivery tags are taken at once, so a second ack is refused. It is logged at commit; rollback puts the
              deliveries back
    commit    keys of subjects are made, and the log has room for all of it; then publishes are logged in their order,
              then settlements in theirs; commit-ok is sent when all of it is durable. When a queue refused a message
              (reject-publish) the channel is closed instead: 406 "partial tx completion"
    close     a channel that ends before commit publishes nothing, and its deliveries return to the queues

A transactional channel is never `ready`: frames.py gives it no whole publishes or acks, so the hot path need not ask.

A commit is not atomic across queues, as with RabbitMQ (S-099 for the texts; rabbit_channel.erl). Within one queue it is
atomic on an embedded log: all of it is appended in one turn, so it is in one block of a group commit, and a crash
keeps or cuts a block as a whole. On Kafka it is not: each event is a record, and the producer sends batches of records
as time goes by. Clients can see which it is (`rewindmq_atomic_commits` in the server's properties).
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from rewindmq.engine.amqp.basic_publish import BasicPublish, PublishProperties, reaches_none
from rewindmq.engine.amqp.publish_path import PublishPath
from rewindmq.engine.amqp.settlement import DeliveryHolder, Verdict
from rewindmq.engine.errors import ConnectionForced, PreconditionFailed, ResourceError
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.partition.flow_control import LARGE_BYTES
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.schemas.values import Encryption, Unrouted

MAX_BYTES = 536_870_912  # of one transaction: RabbitMQ's bound for one message
PUBLISH_BYTES: Final = 500  # that a publish takes beside its body


@dataclass(slots=True)
class PendingPublish:
    """A publish that waits for commit. `destinations`: as they were when it came. A queue may have moved since."""

    publish: BasicPublish
    properties: PublishProperties
    body: bytes
    destinations: tuple[Destination, ...]


class Commit:
    """A commit under way. Each publish is confirmed to it.

    Implements `rewindmq.engine.partition.partition.Confirms`."""

    def __init__(self) -> None:
        self.waiting = 0
        self.refused = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirm(self, _sequence: int, refused: bool) -> None:
        """A publish is durable, or a queue has refused it."""
        self.refused = self.refused or refused
        self.step()

    def step(self) -> None:
        """One of the things that are waited for is there."""
        self.waiting -= 1
        if self.waiting == 0 and not self.done.done():  # the connection may be gone, and its task with it
            self.done.set_result(None)


class Transaction:
    """The publishes and settlements of a transactional channel since the last commit or rollback."""

    def __init__(self, channel: PublishPath) -> None:
        self.channel = channel
        self.publishes: list[PendingPublish] = []
        # verdict, and (tag, holder, message id) of each delivery
        self.settled: list[tuple[Verdict, list[tuple[int, DeliveryHolder, int]]]] = []
        self.size = 0  # bytes
        self.version = channel.router.version  # of routing, at the first publish

    def publish(self, publish: BasicPublish, raw: bytes, body: bytes) -> None:
        """Judge and keep a publish. Raises as `Channel.publish`. ResourceError (506): the transaction is too large."""
        channel = self.channel
        if publish.version != channel.router.version:
            channel.resolve(publish, raw, body)
        properties = channel.parsed.get(raw) or channel.parse_properties(raw)
        destinations = channel.destinations(publish, properties, body)
        if reaches_none(destinations):
            channel.require_certainty(publish, raw, body)
        size = len(body) + PUBLISH_BYTES
        if self.size + size > MAX_BYTES:
            raise ResourceError(f"transaction is larger than {MAX_BYTES} bytes")
        if not self.publishes:
            self.version = channel.router.version
        self.publishes.append(PendingPublish(publish, properties, body, destinations))
        self.size += size
        channel.counts.unfinished += 1
        channel.broker.host.memory.take(MemoryKind.TRANSACTION, size)
        channel.status.messages_uncommitted += 1
        if len(body) != channel.tally.size:
            channel.tally.another_size(len(body))
        channel.tally.received += 1
        channel.tally.received_confirm += 1

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """Take delivery tags. PreconditionFailed (406) for a tag that is not outstanding."""
        taken = self.channel.settlement.take(tag, multiple)
        if self.settled and self.settled[-1][0] == verdict:
            self.settled[-1][1].extend(taken)
        else:
            self.settled.append((verdict, taken))
        if verdict is None:
            self.channel.status.acks_uncommitted += len(taken)

    async def commit(self) -> None:
        """Log everything, and wait until it is durable. PreconditionFailed (406): a queue has refused a message; the
        other queues have theirs."""
        publishes, settled, size = self.publishes, self.settled, self.size
        self.forget()
        logged, waited = await self.channel.wait_keeping(size, partial(self.made_ready, publishes))
        if self.channel.closing:
            raise ConnectionForced("the connection is gone")
        commit = Commit()
        for pending, (body, encryption) in zip(publishes, logged, strict=True):
            self.log(pending, body, encryption, commit)
        for verdict, taken in settled:
            self.channel.settlement.settle_taken(taken, verdict)
        commit.waiting += 1
        self.channel.broker.turns.when_durable(commit.step)
        if waited:  # nobody else ends this turn
            asyncio.get_running_loop().call_soon(self.channel.broker.turns.end)
        await commit.done
        if commit.refused:
            raise PreconditionFailed("partial tx completion")

    async def made_ready(self, publishes: list[PendingPublish]) -> tuple[list[tuple[bytes, Encryption | None]], bool]:
        """Return the bodies as they are logged, and whether this waited. The publishes have homes then, and the log has
        room for them, unless the channel was closed meanwhile."""
        logged = [await self.logged(pending) for pending in publishes]
        waited = any(encryption is not None for _, encryption in logged)
        logged_bytes = sum(len(pending.body) * len(pending.destinations) for pending in publishes)
        has_room = logged_bytes < LARGE_BYTES
        while True:  # a queue may begin to move while the commit waits for something else
            waited = await self.wait_for_homes(publishes) or waited
            if has_room or not await self.channel.wait_for_room(logged_bytes):
                return logged, waited
            has_room = waited = True

    async def wait_for_homes(self, publishes: list[PendingPublish]) -> bool:
        """Wait until no queue of these publishes is on its way to another partition, and this node folds their
        partitions, or until the channel is closed. Returns whether it waited."""
        channel, homes = self.channel, self.channel.broker.homes
        vhost = channel.session.vhost
        waited = False
        while not channel.closing:
            partitions = dict.fromkeys(to.partition for each in publishes for to in each.destinations)
            if homes.has_moves:
                names = {name: None for each in publishes for to in each.destinations for name in to.route.queues}
                held = homes.first_held(vhost, names)
                if held is not None:
                    await homes.wait_until_free(vhost, held, lambda: channel.closing, channel.session.session_id)
                    waited = True
                    continue
                partitions = dict.fromkeys(homes.of(vhost, name) for name in names)
            paused = [partition for partition in partitions if not partition.current]
            if not paused:
                break
            for partition in paused:
                await partition.enter()
            waited = True
        return waited

    async def logged(self, pending: PendingPublish) -> tuple[bytes, Encryption | None]:
        """Return the body as it is logged. Nothing of the commit is logged before all bodies are ready."""
        if not (pending.destinations or pending.publish.traced):
            return pending.body, None
        return await self.channel.broker.subjects.make_key_and_encrypt(pending.properties.subject, pending.body)

    def log(self, pending: PendingPublish, body: bytes, encryption: Encryption | None, commit: Commit) -> None:
        """Append a publish to its partitions."""
        channel = self.channel
        destinations = pending.destinations
        if self.version != channel.router.version:
            destinations = existing(destinations, channel.broker.router, channel.broker.homes)
            if not destinations:
                publish, how = pending.publish, Unrouted(alternate=False, returned=pending.publish.mandatory)
                vhost = channel.session.vhost
                destinations = channel.router.unrouted(vhost, publish.exchange, publish.routing_key, how)
        if pending.publish.traced:
            channel.trace(pending.publish, pending.properties, body, encryption, destinations)
        unroutable = reaches_none(destinations)
        if unroutable:
            channel.unroutable(pending.publish, pending.properties.raw, pending.body, bool(destinations))
        check = channel.route_check(pending.publish, destinations, pending.properties.raw, pending.body)
        for destination in destinations:
            position = channel.publish_to(destination, pending.properties, body, encryption, check)
            commit.waiting += 1
            destination.partition.await_durable(position, commit, 0)
        if destinations:
            channel.counts.copies -= 1  # one of them is the publish itself
        else:
            channel.counts.grouped += 1
        channel.counts.unfinished -= 1
        if pending.publish.returned and not unroutable:
            channel.return_message(pending.publish, pending.properties.raw, pending.body)

    def rollback(self) -> None:
        """Drop the publishes, and make the settled deliveries outstanding again."""
        taken = [each for _, some in self.settled for each in some]
        self.channel.settlement.put_back(taken)
        self.forget()

    def forget(self) -> None:
        """Drop everything that is kept."""
        self.publishes = []
        self.settled = []
        self.channel.broker.host.memory.give_back(MemoryKind.TRANSACTION, self.size)
        self.size = 0
        self.channel.status.messages_uncommitted = self.channel.status.acks_uncommitted = 0


def existing(destinations: tuple[Destination, ...], router: Router, homes: Homes) -> tuple[Destination, ...]:
    """Return the destinations without the queues that are gone. A queue that has moved is where it is now."""
    live: list[Destination] = []
    for destination in destinations:
        route = destination.route
        if not route.queues:
            live.append(destination)
        there: dict[Partition, list[str]] = {}
        for name in route.queues:
            partition = homes.of(route.vhost, name) if homes.has_moves else destination.partition
            if partition.machine.queue(route.vhost, name) is not None:
                there.setdefault(partition, []).append(name)
        live += [router.placed(destination, partition, tuple(names)) for partition, names in there.items()]
    return tuple(live)
