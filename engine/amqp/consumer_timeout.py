"""Consumer timeouts: what happens to deliveries that stay unacked for too long (docs/behaviours/profiles.md).

A delivery needs no clock. Each channel is checked now and then, and its last delivery tag at that time is kept:

    samples    (when, last delivery tag), (when, tag) ...

A delivery's age counts from the first sample that covers it.

A queue's timeout is the smaller of its argument x-consumer-timeout and its policy's consumer-timeout. Without both it
is the broker's default (`Config.consumer_timeout_ms`).
The queue's profile decides what happens to an overdue delivery:

    rabbitmq-3.13    the channel is closed with 406 if its oldest delivery is overdue. Younger ones are not looked at
                     (rabbit_channel.erl evaluate_consumer_timeout)
    rabbitmq-4.3     in a quorum queue, each overdue delivery is given back (Nacked, "timeout") and its consumer is
                     cancelled. The channel is closed, too, where the client does not understand basic.cancel, or the
                     consumer is gone already. A consumer may ask for its own timeout. Other queues have none
"""

from collections import deque
from itertools import islice
from typing import Final, Protocol

from rewindmq.engine.amqp.consumer import AmqpConsumer
from rewindmq.engine.amqp.settlement import DeliveryHolder, Settlement, ranges
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.partition.sessions import Session
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.events import Nacked
from rewindmq.schemas.values import Actor

MAX_CHECKED: Final = 10_000  # deliveries of a channel, the oldest ones
TEXT: Final = (
    "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. This timeout value can be configured,"
    " see consumers doc guide to learn more"
)


class DeliveryAges:
    """The ages of one channel's unacked deliveries."""

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self.samples: deque[tuple[float, int]] = deque()  # see the head of this file

    def overdue(self, now: float, default_timeout_ms: int) -> tuple[int | None, dict[DeliveryHolder, list[int]]]:
        """Take a sample at `now` (seconds), and find what is overdue. Returns the timeout for which the channel has to
        be closed (milliseconds, or None), and the tags that are to be given back, by holder."""
        samples, last_tag = self.samples, self.settlement.last_tag
        oldest = next(iter(self.settlement.unacked), last_tag + 1)
        while samples and samples[0][1] < oldest:
            samples.popleft()
        if not samples or samples[-1][1] < last_tag:
            samples.append((now, last_tag))
        returns: dict[DeliveryHolder, list[int]] = {}
        later = iter(samples)
        since, up_to = next(later)
        for tag, (holder, _) in islice(self.settlement.unacked.items(), MAX_CHECKED):
            while tag > up_to:
                since, up_to = next(later)
            timeout_ms = _timeout_ms(holder, default_timeout_ms)
            overdue = timeout_ms is not None and since + timeout_ms / 1000 <= now
            if holder.queue is not None and holder.queue.profile.overdue_returns:
                if overdue:
                    returns.setdefault(holder, []).append(tag)
            elif overdue and tag == oldest:
                return timeout_ms, returns
        return None, returns


def _timeout_ms(holder: DeliveryHolder, default_timeout_ms: int) -> int | None:
    """Return the timeout of a holder's deliveries; None: they have none."""
    queue = holder.queue
    if queue is None:
        return default_timeout_ms
    if queue.profile.overdue_returns:
        if not queue.quorum:
            return None
        own_ms = _consumers_own_ms(queue, holder.consumer_id)
        if own_ms is not None:
            return own_ms
    return default_timeout_ms if queue.settings.consumer_timeout_ms is None else queue.settings.consumer_timeout_ms


def _consumers_own_ms(queue: Queue, consumer_id: int) -> int | None:
    """Return the timeout in the arguments of a consumer, or None."""
    known = queue.holders.get(consumer_id)
    argument = None if known is None else argument_of(known.arguments, "x-consumer-timeout")
    return argument.value if argument is not None and isinstance(argument.value, int) else None


class TimedChannel(Protocol):
    """The channel whose deliveries may time out (channel.py)."""

    broker: Broker
    session: Session
    actor: Actor
    number: int
    settlement: Settlement
    ages: DeliveryAges
    consumers: dict[str, AmqpConsumer]

    def forget_gone(self) -> None:
        """Free the tags of consumers that the broker has cancelled."""


async def time_out_deliveries(channel: TimedChannel, now: float) -> None:
    """Give back overdue deliveries. PreconditionFailed: the channel has to be closed. `now`: seconds."""
    default_timeout_ms = channel.broker.config.consumer_timeout_ms
    closing_ms, returns = channel.ages.overdue(now, default_timeout_ms)
    for holder, tags in returns.items():
        if not await _give_back(channel, holder, tags):
            closing_ms = _timeout_ms(holder, default_timeout_ms)
    if closing_ms is not None:
        raise PreconditionFailed(TEXT % (channel.number, closing_ms))


async def _give_back(channel: TimedChannel, holder: DeliveryHolder, tags: list[int]) -> bool:
    """Give deliveries back, and return whether the client was notified (basic.cancel). The consumer is cancelled first,
    or it would get them again."""
    partition, queue, settlement = holder.partition, holder.queue, channel.settlement
    assert partition is not None
    assert queue is not None
    notified = False
    consumer = await _present(channel, holder) if isinstance(holder, AmqpConsumer) else None
    if consumer is not None and consumer.partition is not None and consumer.queue is not None:
        place = consumer.partition, consumer.queue, consumer.consumer_id
        await channel.broker.consumers.cancel(channel.session, *place)
        consumer.cancelled()
        channel.forget_gone()
        notified = consumer.notify
    ids = [held[1] for tag in tags if (held := settlement.unacked.pop(tag, None)) is not None]
    settlement.returned.update(tags)
    if ids and partition.machine.queue(queue.vhost, queue.name) is queue:
        event = Nacked(queue.vhost, queue.name, holder.consumer_id, ranges(ids), True, "timeout")
        partition.append(channel.actor, event)
    return notified


async def _present(channel: TimedChannel, consumer: AmqpConsumer) -> AmqpConsumer | None:
    """Return the consumer by which the client gets the queue's messages now: this one, or its successor where the
    queue has moved. None: it is cancelled."""
    await channel.broker.consumers.at_rest(channel.session, channel.number, consumer.tag)
    channel.forget_gone()
    while consumer.followed_by is not None:
        consumer = consumer.followed_by
    return consumer if channel.consumers.get(consumer.tag) is consumer else None
