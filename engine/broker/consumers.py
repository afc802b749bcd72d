"""Consumers of queues: basic.consume, basic.cancel, basic.get and basic.qos global.

A consumer of a stream, or of a queue's history, reads: engine/rewind does that (`Readings`). Acks and nacks need no
method here: the channel appends `Acked` and `Nacked` to the partition.
"""

from collections.abc import Callable

from rewindmq.engine.broker import declarations
from rewindmq.engine.broker.access_control import Access
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.broker.queues import Queues, check_not_gone, is_next_large
from rewindmq.engine.errors import AccessRefused, NotImplementedByBroker, resource
from rewindmq.engine.partition.partition import DeliveryTarget, FetchTarget, Partition
from rewindmq.engine.partition.sessions import Attached, Attachment, Session, Subscription
from rewindmq.engine.placement.consumers import ConsumerMoves
from rewindmq.engine.rewind.arguments import is_past_asked
from rewindmq.engine.rewind.reader import ReadingConsumer, ReadRequest
from rewindmq.engine.rewind.stream_consumers import Readings
from rewindmq.engine.routing.firehose import Firehose
from rewindmq.engine.routing.homes import Homes
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_reply_queue
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.events import ConsumerAttached, ConsumerCancelled, Fetched, GlobalPrefetchSet

# Deliveries that a consumer without prefetch (or with no_ack) starts with (`ConsumerAttached.credit`): few, because the
# broker does not know yet how large they are. Its channel gives more by `Credited`, in windows that fit the size of its
# messages, while the client's socket takes what was sent.
CREDIT_WINDOW = 16


class Consumers:
    def __init__(
        self,
        access: Access,
        queues: Queues,
        homes: Homes,
        sessions: OpenSessions,
        firehose: Firehose,
        readings: Readings,
        end_turn: Callable[[], None],
    ) -> None:
        self._access = access
        self._queues = queues
        self._sessions = sessions
        self._firehose = firehose
        self._readings = readings
        self.moves = ConsumerMoves(homes, sessions.by_id.get, queues.entered, self._attach_again, end_turn)

    def moved(self, vhost: str, name: str) -> None:
        """A queue has come to its new partition, or is gone, or stays for now: its consumers go on."""
        self.moves.ended(vhost, name)
        self._readings.moved(vhost, name, self._queues.entered)

    async def consume(
        self, queue: str, subscription: Subscription, consumer: ReadingConsumer, attached: Attached
    ) -> None:
        """Attach a consumer to a queue. `attached(partition, queue, consumer id)` is called when the consumer is
        there, before its first delivery."""
        session = subscription.session
        if not is_reply_queue(queue):
            self._access.check(session, session.vhost, "read", "queue", queue)
            self._access.check_contents(session)
        partition, found = await self._queues.usable(session, queue)
        if found.stream or is_past_asked(subscription.arguments):
            request = ReadRequest(subscription, self._sessions.next_id(), consumer)
            await self._readings.begin(partition, found, request, attached)
            self._readings.moved(session.vhost, queue, self._queues.entered)  # it may have moved meanwhile
        else:
            await self._consume_live(partition, found, subscription, consumer, attached)

    async def _consume_live(
        self,
        partition: Partition,
        queue: Queue,
        subscription: Subscription,
        consumer: DeliveryTarget,
        attached: Attached,
    ) -> None:
        where = resource("queue", queue.name, queue.vhost)
        if subscription.global_prefetch > 0 and queue.type == "quorum":
            raise NotImplementedByBroker(f"{where} does not support global qos")
        declarations.check_consumer_arguments(queue, subscription.arguments)
        declarations.check_exclusive_use(queue, _is_exclusive(subscription, queue))
        if not await self._attach(partition, queue, subscription, consumer, attached):
            check_not_gone(queue)
            raise AccessRefused(f"{where} in exclusive use")  # another node's client was faster

    async def _attach(
        self,
        partition: Partition,
        queue: Queue,
        subscription: Subscription,
        consumer: DeliveryTarget,
        attached: Attached,
    ) -> bool:
        """Attach a live consumer. False: the fold has refused it."""
        session, channel = subscription.session, subscription.channel
        consumer_id = self._sessions.next_id()
        partition.deliveries.attach(consumer_id, self._firehose.tapped(session, channel, consumer))
        session.note(channel, partition, consumer_id)
        is_attached = False

        def folded() -> None:
            nonlocal is_attached
            if consumer_id in queue.holders:
                is_attached = True
                attached(partition, queue, consumer_id)
                self.moves.note(Attachment(partition, queue, subscription, consumer_id))

        await self._sessions.ask(session, partition, _attachment(queue, subscription, consumer_id), folded)
        if not is_attached:
            partition.deliveries.detach(consumer_id)
            session.forget(partition, consumer_id)
        return is_attached

    async def _attach_again(self, partition: Partition, queue: Queue, subscription: Subscription) -> bool:
        """Attach a consumer whose queue has moved, as it was. False: another consumer is exclusive."""
        movable = subscription.movable
        assert movable is not None
        return await self._attach(partition, queue, subscription, movable.target, movable.attached)

    async def at_rest(self, session: Session, channel: int, tag: str) -> None:
        """Wait while the consumer with this tag follows its queue to another partition."""
        await self.moves.at_rest(session, channel, tag)

    def set_global_prefetch(self, session: Session, channel: int, prefetch: int) -> None:
        """basic.qos global, for the consumers that the channel has. A later consumer brings the limit with it
        (`Subscription.global_prefetch`)."""
        for partition in session.attached.get(channel, {}):
            partition.append(session.actor, GlobalPrefetchSet(session.session_id, channel, prefetch))

    async def cancel(self, session: Session, partition: Partition, queue: Queue, consumer_id: int) -> None:
        """Detach a consumer. The deliveries that are on their way still reach it, and no others. An auto-delete queue
        goes with its last consumer."""
        holder = queue.holders.get(consumer_id)
        if holder is not None and holder.attached:  # else it reads the history, or the queue is gone or on its way
            await partition.ask(session.actor, ConsumerCancelled(queue.vhost, queue.name, consumer_id))
            await self._queues.carry_out_end(partition, queue)
        partition.deliveries.detach(consumer_id)
        session.forget(partition, consumer_id)
        self._readings.landed()

    def is_next_large(self, session: Session, queue: str) -> bool:
        """Return True if a basic.get of this queue would read a large body. False if there is no such queue."""
        found = self._queues.get(session.vhost, queue)
        return found is not None and is_next_large(found)

    async def fetch(
        self, session: Session, channel: int, getter: FetchTarget, queue: str, no_ack: bool, count: int = 1
    ) -> tuple[Partition, Queue, int]:
        """basic.get, `count` times at once: the partition, the queue, and the holder's id, under which the messages
        are acked. `getter.fetched(...)` is called with each answer, at the latest when the turn ends."""
        self._access.check(session, session.vhost, "read", "queue", queue)
        self._access.check_contents(session)
        partition, found = await self._queues.usable(session, queue)
        declarations.check_fetch(found)
        of_channel = session.holders.setdefault(channel, {})
        key = (partition.index, found.queue_id)
        holder_id = of_channel.get(key)
        if holder_id is None:
            holder_id = of_channel[key] = self._sessions.next_id()
            session.note(channel, partition, holder_id)
        partition.deliveries.attach_getter(holder_id, self._firehose.tapped_getter(session, channel, getter))
        get = Fetched(session.vhost, queue, holder_id, channel, no_ack)
        for _ in range(count - 1):
            partition.append(session.actor, get)
        await self._sessions.ask(session, partition, get)
        check_not_gone(found)
        return partition, found, holder_id


def _is_exclusive(subscription: Subscription, queue: Queue) -> bool:
    return subscription.exclusive and queue.type != "quorum"  # a quorum queue ignores it (S-112)


def _attachment(queue: Queue, subscription: Subscription, consumer_id: int) -> ConsumerAttached:
    priority = argument_of(subscription.arguments, "x-priority")
    return ConsumerAttached(
        queue.vhost,
        queue.name,
        consumer_id,
        channel=subscription.channel,
        tag=subscription.tag,
        no_ack=subscription.no_ack,
        exclusive=_is_exclusive(subscription, queue),
        prefetch=subscription.prefetch,
        credit=0 if subscription.prefetch > 0 and not subscription.no_ack else CREDIT_WINDOW,
        global_prefetch=subscription.global_prefetch,
        priority=int(priority.value) if priority is not None and isinstance(priority.value, int) else 0,
        arguments=subscription.arguments,
    )
