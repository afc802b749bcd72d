"""A consumer whose node has its next messages ready: on a log that is read back an ack takes effect only a round trip
later, and a client that is faster than that would wait for it.

    fold        [ at most the prefetch ][ the lookahead ]       what the consumer holds (machine/events/lookahead.py)
    here        sent to the client      `lookahead`             a message that the client settles lets out the next one

A client never has more than its prefetch. Once in LOOK_SECONDS the consumer looks at what was settled since:

    a whole prefetch or more       it asks for a lookahead as large as the prefetch, and of LOOKAHEAD_BYTES at most
    less than half a prefetch      it asks for none
    the fold gives it none now     it gives back what is left, unchanged. So does one that is cancelled or closed

While the queue is paused nothing of the lookahead goes out, and the next look gives it back.

So a client that settles slowly, or stands still, has a lookahead for no longer than two looks. While it has one,
basic.get and a purge do not find the messages in it. The fold gives one only to a consumer that is alone at its queue,
and ends it when another consumer comes, at any node.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from rewindmq.engine.amqp.consumer import MAX_WINDOW, AmqpConsumer
from rewindmq.engine.amqp.output import KEPT_BYTES, ChannelOutput
from rewindmq.engine.amqp.settlement import Settlement
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.effects import Deliver
from rewindmq.projections.machine.events.lookahead import may_have_lookahead
from rewindmq.schemas.events import Credited, Published

log = logging.getLogger("rewindmq.amqp")

LEAST_PREFETCH: Final = 50  # a smaller one is meant to share messages out evenly, or to have few under way
LOOKAHEAD_BYTES: Final = 1_048_576  # of bodies, if all are as large as the last one
LOOK_SECONDS = 0.1


class LookaheadConsumer(AmqpConsumer):
    """One basic.consume with a large prefetch. `end_turn`: called after an event that no socket read caused."""

    def __init__(
        self,
        output: ChannelOutput,
        settlement: Settlement,
        tag: str,
        no_ack: bool,
        prefetch: int,
        notify: bool,
        gone: list[AmqpConsumer],
        creditors: list[AmqpConsumer],
        end_turn: Callable[[], None],
    ) -> None:
        super().__init__(output, settlement, tag, no_ack, prefetch, notify, gone, creditors)
        self.end_turn = end_turn
        self.outstanding = 0  # deliveries that the client has and has not settled
        self.lookahead: deque[tuple[Partition, Deliver, int, Published | None]] = deque()  # None: it is in the store
        self.settled_lately = 0  # since the last look
        self.asked_position = -1  # of the last Credited
        self.looks = False  # a look is due

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if self.reader is not None:
            super().deliver(partition, effect, message_id, message)
        elif self.lookahead or self.outstanding >= self.prefetch:
            kept = message if message is not None and len(message.body) <= KEPT_BYTES else None
            self.lookahead.append((partition, effect, message_id, kept))
        else:
            self.outstanding += 1
            super().deliver(partition, effect, message_id, message)

    def settled(self, count: int) -> None:
        self.outstanding -= count
        self.settled_lately += count
        if self.detached:
            return
        queue = self.queue
        while self.lookahead and self.outstanding < self.prefetch and (queue is None or queue.serves):
            self.send_next()
        self.look_later()

    def send_next(self) -> None:
        """Send the first message of the lookahead to the client."""
        partition, effect, message_id, message = self.lookahead.popleft()
        self.outstanding += 1
        try:
            super().deliver(partition, effect, message_id, message)
        except Exception:  # as with any delivery
            log.exception("%s: message %d was not delivered", effect.queue.name, message_id)
            partition.deliveries.undelivered(self.consumer_id)

    def cancelled(self) -> None:
        self.lookahead.clear()
        super().cancelled()

    def give_back(self) -> None:
        partition, queue = self.partition, self.queue
        if not self.lookahead or partition is None or queue is None:
            return
        first = self.lookahead[0][2]
        self.lookahead.clear()
        if not queue.gone:
            self.credit_lookahead(-1 - first)

    def credit_lookahead(self, credit: int) -> None:
        """Append what the fold is to do with the lookahead."""
        partition, queue = self.partition, self.queue
        assert partition is not None
        assert queue is not None
        event = Credited(queue.vhost, queue.name, self.consumer_id, credit)
        self.asked_position = partition.append(self.settlement.actor, event)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look_later(self) -> None:
        """Look in LOOK_SECONDS, unless a look is due already."""
        if not self.looks:
            self.looks = True
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Ask for a lookahead, or for none, or give back what is in it."""
        self.looks = False
        settled, self.settled_lately = self.settled_lately, 0
        partition, queue = self.partition, self.queue
        if self.detached or partition is None or queue is None or queue.gone:
            return
        holder = queue.holders.get(self.consumer_id)
        if holder is None:
            return
        if partition.effects or partition.durable_position <= self.asked_position:
            self.look_later()  # what it asked for is not folded, or not carried out
            return
        if holder.lookahead:
            if 2 * settled < self.prefetch:
                self.credit_lookahead(0)
        elif self.lookahead:
            self.give_back()
        elif settled >= self.prefetch and may_have_lookahead(queue, holder):
            self.credit_lookahead(min(self.prefetch, MAX_WINDOW, LOOKAHEAD_BYTES // (self.size + 1)))
        if settled or holder.lookahead:
            self.look_later()
        self.end_turn()
