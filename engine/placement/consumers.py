"""Consumers follow their queue to another partition. Each node moves those of its clients.

    QueueMoveBegan     a consumer is detached from the partition that the queue leaves. What it holds stays there
                       until it is settled
    QueueMoveEnded     it is attached in the new partition under its tag, as a consumer with a new id
                       the queue was deleted meanwhile: the client is told so (basic.cancel)

Rules of this file
- The client hears nothing, and may settle, cancel, and close meanwhile. Its basic.cancel waits while the consumer is
  being attached.
- Deliveries that were under way when the consumer was detached reach the client. The messages of a lookahead that were
  not sent go back to the queue, and follow it.
- A single active consumer leaves when the others have left, at all nodes, and is attached before them. Else one of them
  would get messages in its place.
- Consumers of one node are attached in the order in which they were before. An exclusive consumer may find that one of
  another node was faster: then the client is told that it is cancelled.
- Streams do not move. Readers of the past go on by themselves (rewind/stream_consumers.py `moved`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from rewindmq.engine.errors import ConnectionForced
from rewindmq.engine.host.eager import begin
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Attachment, Name, Place, Session, Subscription
from rewindmq.engine.placement.step_barrier import until
from rewindmq.engine.routing.homes import Homes
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import ConsumerCancelled

PATIENCE_SECONDS = 3.0  # the longest wait for consumers of other nodes: their client may be gone, or the node

logger = logging.getLogger(__name__)


class ConsumerMoves:
    """The consumers of this node whose queue is on its way.

    `session(id)`: an open session, or None. `entered(session, queue)`: the partition of a queue that does not move,
    once this node folds it. `attach(partition, queue, subscription)`: attaches the consumer of a subscription; False:
    it was refused."""

    def __init__(
        self,
        homes: Homes,
        session: Callable[[int], Session | None],
        entered: Callable[[Session, str], Awaitable[Partition]],
        attach: Callable[[Partition, Queue, Subscription], Awaitable[bool]],
        end_turn: Callable[[], None],
    ) -> None:
        self._homes = homes
        self._session = session
        self.entered = entered
        self._attach = attach
        self._end_turn = end_turn
        self._waiting: dict[Name, list[Attachment]] = {}
        self._under_way: dict[Place, asyncio.Task[None]] = {}  # consumers that are being detached or attached

    def note(self, attachment: Attachment) -> None:
        """A consumer was attached. Its queue may have begun to move meanwhile."""
        if attachment.consumer_id not in attachment.partition.deliveries.consumers:  # its channel was closed meanwhile
            return
        attachment.subscription.session.attachments[attachment.consumer_id] = attachment
        if self._homes.is_held(*attachment.name) or not self._homes.is_home(attachment.partition, *attachment.name):
            self._leave([attachment])

    def began(self, vhost: str, name: str) -> None:
        """A queue begins to move: detach its consumers."""
        source = self._homes.source(vhost, name)
        queue = None if source is None else source.machine.queue(vhost, name)
        leaving = []
        for holder in [] if queue is None else queue.holders.values():
            session = self._session(holder.session)
            attachment = None if session is None else session.attachments.get(holder.consumer)
            if attachment is not None and holder.attached:
                leaving.append(attachment)
        self._leave(leaving)

    def ended(self, vhost: str, name: str) -> None:
        """A queue has come to its new partition, or is gone: attach its consumers."""
        if self._homes.is_held(vhost, name):
            return
        for attachment in self._waiting.pop((vhost, name), []):
            if attachment.detached:
                self._follow(attachment)
            else:  # it follows when it has left
                self._waiting.setdefault((vhost, name), []).append(attachment)

    async def at_rest(self, session: Session, channel: int, tag: str) -> None:
        """Wait while the consumer with this tag is being detached or attached."""
        while (task := self._under_way.get((session.session_id, channel, tag))) is not None:
            await asyncio.wait([task])

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, leaving: Sequence[Attachment]) -> None:
        for attachment in leaving:
            queue, of = attachment.queue, attachment.subscription
            attachment.stands_by = queue.active is not None and queue.active.consumer != attachment.consumer_id
            self._waiting.setdefault(attachment.name, []).append(attachment)
            of.session.attachments.pop(attachment.consumer_id, None)
            if of.movable is not None:
                of.movable.leave()
        for attachment in sorted(leaving, key=lambda each: not each.stands_by):
            self._begin(attachment.place, self._detach(attachment))

    async def _detach(self, attachment: Attachment) -> None:
        partition, queue, of = attachment.partition, attachment.queue, attachment.subscription
        holder = queue.holders.get(attachment.consumer_id)
        if queue.active is holder is not None:
            await until(
                lambda: queue.consumer_count() <= 1 or not self._homes.is_held(*attachment.name), PATIENCE_SECONDS
            )
        if holder is not None and holder.attached:
            await partition.ask(of.session.actor, ConsumerCancelled(queue.vhost, queue.name, attachment.consumer_id))
            partition.carry_out()  # deliveries that were under way
        target = partition.deliveries.consumers.get(attachment.consumer_id)
        partition.deliveries.detach(attachment.consumer_id)
        of.session.forget(partition, attachment.consumer_id)
        if of.movable is not None:
            of.movable.give_back()
        elif target is not None:
            target.cancelled()
        attachment.detached = True
        self.ended(*attachment.name)
        self._soon()

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, attachment: Attachment) -> None:
        self._begin(attachment.place, self._attach_again(attachment))
        self._soon()

    async def _attach_again(self, attachment: Attachment) -> None:
        of, name = attachment.subscription, attachment.queue.name
        if of.movable is None:
            return
        try:
            partition = await self.entered(of.session, name)
            there = partition.machine.queue(of.session.vhost, name)
            if attachment.stands_by and there is not None:
                await until(partial(_is_used, there), PATIENCE_SECONDS)
                partition = await self.entered(of.session, name)
            successor = of.movable.successor()
            if successor is None:  # the client has cancelled it, or closed its channel
                return
            queue = partition.machine.queue(of.session.vhost, name)
            if queue is None or not await self._attach(partition, queue, successor):
                of.movable.cancelled()
        except ConnectionForced:  # the session has ended
            return
        except Exception:
            logger.exception("a consumer of queue '%s' could not follow it", name)
            of.movable.cancelled()
        self._soon()

    def _begin(self, place: Place, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work)
        if task is not None:
            self._under_way[place] = task
            task.add_done_callback(lambda _: self._under_way.get(place) is task and self._under_way.pop(place))

    def _soon(self) -> None:
        """End the turn, behind what is being done."""
        asyncio.get_running_loop().call_soon(self._end_turn)


def _is_used(queue: Queue) -> bool:
    return queue.gone or queue.consumer_count() > 0
