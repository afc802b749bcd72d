"""A basic.consume of a channel, and its consumer.

When its queue moves to another partition, another `BasicConsume` with its own consumer continues under the same tag
(engine/placement/consumers.py). The first consumer keeps the deliveries that the client has not settled.
"""

from typing import TYPE_CHECKING

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.consumer import AmqpConsumer
from rewindmq.engine.amqp.lookahead import LEAST_PREFETCH, LookaheadConsumer
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.projections.machine.data.queue import Queue

if TYPE_CHECKING:
    from rewindmq.engine.amqp.channel import Channel


class BasicConsume:
    """`prefetch`: that of the channel when the client asked. `replies`: the client waits for consume-ok. Implements
    `rewindmq.engine.partition.sessions.MovableConsumer`."""

    def __init__(self, channel: "Channel", method: Method, tag: str, prefetch: int, replies: bool) -> None:
        self.channel = channel
        self.method = method
        self.tag = tag
        self.prefetch = prefetch
        self.replies = replies
        self.target = self.new_consumer()
        self.subscription = Subscription(
            channel.session,
            channel=channel.number,
            tag=tag,
            no_ack=self.target.no_ack,
            exclusive=method.flag("exclusive"),
            prefetch=prefetch,
            global_prefetch=channel.global_prefetch,
            arguments=method.table("arguments"),
            movable=self,
        )

    def new_consumer(self) -> AmqpConsumer:
        """Return the consumer for these settings."""
        channel, shared, prefetch = self.channel, self.channel.shared, self.prefetch
        no_ack = self.method.flag("no_ack")
        given = channel.output, channel.settlement, self.tag, no_ack, prefetch, shared.cancel_notify, channel.gone
        if prefetch >= LEAST_PREFETCH and not no_ack and channel.broker.nodes.reads_back:
            return LookaheadConsumer(*given, shared.creditors, channel.broker.turns.end)
        return AmqpConsumer(*given, shared.creditors)

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        channel = self.channel
        self.target.attached(partition, queue, consumer_id)
        channel.consumers[self.tag] = self.target
        if self.replies and not channel.closing:
            channel.output.write(methods.encode(channel.number, "Basic.ConsumeOk", consumer_tag=self.tag))

    def leave(self) -> None:
        self.target.detached = True

    def give_back(self) -> None:
        self.target.give_back()

    def cancelled(self) -> None:
        if self.is_wanted:
            self.target.cancelled()

    def successor(self) -> Subscription | None:
        if not self.is_wanted:
            return None
        follower = BasicConsume(self.channel, self.method, self.tag, self.prefetch, replies=False)
        self.target.followed_by = follower.target
        return follower.subscription

    @property
    def is_wanted(self) -> bool:
        """Return True if the client has neither cancelled the consumer nor closed its channel."""
        return not self.channel.closing and self.channel.consumers.get(self.tag) is self.target
