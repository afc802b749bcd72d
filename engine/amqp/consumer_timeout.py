"""Deliveries that stay unacked for too long: RabbitMQ's consumer timeout (docs/behaviours/profiles.md).

    looks, now and then      (when, the channel's last delivery tag by then), (when, tag) ...
    a delivery's age         counts from the first look after it, so that a delivery needs no clock

A queue's timeout is the smaller of its argument x-consumer-timeout and its policy's consumer-timeout, else the node's.
What happens then is a matter of the queue's profile:

    rabbitmq-3.13    the channel is closed with 406, if its oldest delivery is overdue: the younger ones are not looked
                     at (rabbit_channel.erl evaluate_consumer_timeout)
    rabbitmq-4.3     of a quorum queue, each overdue delivery is given back (Nacked, "timeout") and its consumer is
                     cancelled; where the client does not understand basic.cancel, or there is no consumer (any more),
                     the channel is closed besides. A consumer may ask for a timeout of its own. Other queues have none
"""

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from rewindmq.engine.amqp.consumer import Consumer
from rewindmq.engine.amqp.settlement import Holder, Settlement, ranges
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.events import Nacked

if TYPE_CHECKING:
    from rewindmq.engine.amqp.channel import Channel

OLDEST = 10_000  # deliveries of a channel that are looked at
TEXT = (
    "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. This timeout value can be configured,"
    " see consumers doc guide to learn more"
)


class Looks:
    """The looks at one channel's deliveries."""

    def __init__(self, settlement: Settlement) -> None:
        self.settlement = settlement
        self.marks: deque[tuple[float, int]] = deque()

    def look(self, now: float, node_timeout_ms: int) -> tuple[int | None, dict[Holder, list[int]]]:
        """The timeout for which the channel has to be closed (milliseconds, or None), and what is to be given back: the
        tags of each holder. `now`: in seconds."""
        marks, last_tag = self.marks, self.settlement.last_tag
        oldest = next(iter(self.settlement.unacked), last_tag + 1)
        while marks and marks[0][1] < oldest:
            marks.popleft()
        if not marks or marks[-1][1] < last_tag:
            marks.append((now, last_tag))
        late: dict[Holder, list[int]] = {}
        looks = iter(marks)
        since, up_to = next(looks)
        for tag, (holder, _) in islice(self.settlement.unacked.items(), OLDEST):
            while tag > up_to:
                since, up_to = next(looks)
            timeout_ms = _timeout_ms(holder, node_timeout_ms)
            overdue = timeout_ms is not None and since + timeout_ms / 1000 <= now
            if holder.queue is not None and holder.queue.profile.overdue_returns:
                if overdue:
                    late.setdefault(holder, []).append(tag)
            elif overdue and tag == oldest:
                return timeout_ms, late
        return None, late


def _timeout_ms(holder: Holder, node_timeout_ms: int) -> int | None:
    """None: there is none."""
    queue = holder.queue
    if queue is None:
        return node_timeout_ms
    if queue.profile.overdue_returns:
        if not queue.quorum:
            return None
        asked = _asked_ms(queue, holder.consumer_id)
        if asked is not None:
            return asked
    return node_timeout_ms if queue.settings.consumer_timeout_ms is None else queue.settings.consumer_timeout_ms


def _asked_ms(queue: Queue, consumer_id: int) -> int | None:
    """The timeout that a consumer has asked for."""
    known = queue.holders.get(consumer_id)
    argument = None if known is None else argument_of(known.arguments, "x-consumer-timeout")
    return argument.value if argument is not None and isinstance(argument.value, int) else None


async def look_after(channel: "Channel", now: float) -> None:
    """Give back what is overdue. PreconditionFailed: the channel has to be closed."""
    node_timeout_ms = channel.broker.config.consumer_timeout_ms
    closing_ms, late = channel.looks.look(now, node_timeout_ms)
    for holder, tags in late.items():
        if not await _give_back(channel, holder, tags):
            closing_ms = _timeout_ms(holder, node_timeout_ms)
    if closing_ms is not None:
        raise PreconditionFailed(TEXT % (channel.number, closing_ms))


async def _give_back(channel: "Channel", holder: Holder, tags: list[int]) -> bool:
    """Whether the client was told. First the consumer goes, or it would get them again."""
    partition, queue, settlement = holder.partition, holder.queue, channel.settlement
    assert partition is not None
    assert queue is not None
    told = False
    if isinstance(holder, Consumer) and not holder.detached:
        await channel.broker.consumers.cancel(channel.session, partition, queue, holder.consumer_id)
        holder.cancelled()
        channel.forget_gone()
        told = holder.notify
    ids = [held[1] for tag in tags if (held := settlement.unacked.pop(tag, None)) is not None]
    settlement.given_back.update(tags)
    if ids and partition.machine.queue(queue.vhost, queue.name) is queue:
        event = Nacked(queue.vhost, queue.name, holder.consumer_id, ranges(ids), True, "timeout")
        partition.append(channel.actor, event)
    return told
