"""The moves of queues: some of those that stay begin to move, and all that are on their way get to their new partition.

    QueueMoveBegan -> all nodes know, consumers have left -> QueueDeclared (target) -> QueueDrained (source) ...
                   -> nothing is left that can go, and all that went is there -> QueueMoveEnded

Rules of this file
- A step follows when the one before is durable. So no crash leaves a message in no queue.
- A queue is not begun while it can't move: it stays where it is, and is looked at again. A move that doesn't get on is
  given up as long as the queue is not declared in its new partition.
- An owner that stood still may give up what its successor has declared. Then a part of the messages is where the name
  does not lead to: this move is begun again at once, whatever the queue has become, and ends.
- When no queue is left that can move now, what went and where it arrived is settled.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import LoopShare, Work
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.placement.leftover_queues import MOST_LETTERS, PORTION, letters_of
from rewindmq.engine.placement.step_barrier import STEP_SECONDS, StepBarrier, until
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.relocation import moved_from, why_it_stays
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.outstanding_policies import outstanding, without_lease
from rewindmq.projections.topology.placement import Moving, Name
from rewindmq.schemas.events import QueueDeclared, QueueDrained
from rewindmq.schemas.placement_events import QueueMoveBegan, QueueMoveEnded
from rewindmq.schemas.values import BROKER

AGAIN_SECONDS = 300.0  # after which a queue that can't move is looked at again: this node folds all partitions for it
SOON_SECONDS = 5.0  # the same, where this node folds its partitions anyhow
SLOW_SECONDS = 30.0  # a move that takes so long is logged, and given up if its consumers don't leave
TOGETHER = 50  # queues that move at once
MESSAGES_TOGETHER = 1_000  # in all of them; a queue with more moves alone

LEFT_OVER = "the rest of a queue of this name is still in the partition to which it would go"
NOT_UPGRADED = "its partition is not at this machine version yet"

logger = logging.getLogger(__name__)


class Moves:
    """Begins moves, and ends them.

    `mine` says whether this node has the duty. `settled` is called when a batch of queues has moved."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Sequence[Partition],
        agreement: StepBarrier,
        share: LoopShare,
        mine: Callable[[], bool],
        settled: Callable[[], None],
    ) -> None:
        self._settled = settled
        self._metadata = metadata
        self._topology = metadata.topology
        self._placement = metadata.topology.placement
        self._partitions = partitions
        self._agreement = agreement
        self._share = share
        self._mine = mine
        self._again_at: dict[Name, float] = {}  # seconds of the loop: a queue that can't move is looked at then
        self._given_up: set[Name] = set()  # of these: moves that were begun, and did not get on
        self._soon_at = 0.0  # seconds of the loop: those that this node folds are looked at then
        self._moved = 0  # queues, since the last line of the log about them

    @property
    def may_go_on(self) -> bool:
        """Return True if `begin` has something to do."""
        return bool(self._placement.staying or self._moved)

    async def begin(self) -> bool:
        """Begin to move the next queues. Returns whether there was one."""
        placement, now = self._placement, asyncio.get_running_loop().time()
        self._again_at = {name: at for name, at in self._again_at.items() if name in placement.staying}
        due = [name for name in placement.staying if self._again_at.get(name, 0.0) <= now]
        if due:
            self._given_up.difference_update(due)
            await self._agreement.enter_all()
        elif now >= self._soon_at:
            self._soon_at = now + SOON_SECONDS
            async for name in Work(self._share).over(list(placement.staying)):
                if self._is_free_here(name):
                    due.append(name)
        began: list[QueueMoveBegan] = []
        messages = 0
        async for name in Work(self._share).over(due):
            if name not in placement.staying:  # another owner was faster
                continue
            if self.why_not_now(name):
                self._again_at[name] = now + AGAIN_SECONDS
                continue
            queue = self._partitions[placement.staying[name]].machine.queue(*name)
            messages += 0 if queue is None else queue.messages_ready + queue.messages_delayed
            if began and messages > MESSAGES_TOGETHER:
                break
            target = partition_of(*name, placement.count)
            began.append(QueueMoveBegan(*name, -1 if queue is None else queue.queue_id, target))
            if len(began) == TOGETHER:
                break
        if not began and self._moved:
            logger.info("%d queues have moved; %d stay where they are for now", self._moved, len(placement.staying))
            self._moved = 0
            self._settled()
        if began and self._mine():
            await asyncio.gather(*(self._metadata.ask(BROKER, each) for each in began))
        return bool(began)

    def _is_free_here(self, name: Name) -> bool:
        """Return True if a queue that stays may move now, as far as this node knows without folding more for it."""
        source = self._placement.staying.get(name)
        if source is None or name in self._given_up:
            return False
        target = partition_of(*name, self._placement.count)
        return self._partitions[source].current and self._partitions[target].current and not self.why_not_now(name)

    def why_not_now(self, name: Name) -> str:
        """Why a queue that stays does not move now, in words; empty: it may."""
        partitions, placement = self._partitions, self._placement
        source, target = partitions[placement.staying[name]], partitions[partition_of(*name, placement.count)]
        there = target.machine.queue(*name)
        if there is not None:  # else its move was given up in the middle, and has to go on
            return LEFT_OVER if placement.has_left(*name, target.index, there.queue_id) else ""
        queue = source.machine.queue(*name)
        if queue is None:
            return ""
        return NOT_UPGRADED if queue.version > target.machine.machine_version else why_it_stays(queue)

    async def end(self) -> None:
        """Bring all queues that are on their way to their new partitions."""
        placement = self._placement
        await self._agreement.all_know()
        results = await asyncio.gather(*map(self._end_move, list(placement.moving)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _end_move(self, name: Name) -> None:
        """Bring a queue to its new partition. All nodes know that its name waits."""
        placement = self._placement
        moving = placement.moving.get(name)
        if moving is None:
            return
        source, target = self._partitions[moving.source], self._partitions[moving.target]
        queue = source.machine.queue(*name)
        if queue is not None and queue.queue_id > moving.from_id:  # declared anew before all nodes knew
            await self._metadata.ask(BROKER, QueueMoveBegan(*name, queue.queue_id, moving.target))
        if queue is not None and target.machine.queue(*name) is None:
            reason = await self._declare(name, moving, queue)
            if reason:
                await self._give_up(name, moving, reason)
                return
        elif queue is not None:  # else, as a rule, its consumers have left
            await until(lambda: queue.gone or queue.consumer_count() == 0, SLOW_SECONDS)
        if queue is not None and not queue.gone:
            await self._drain(name, moving, queue)
        await self._agreement.durable()
        await target.enter()
        if not self._is_on(name, moving):
            return
        there = target.machine.queue(*name)
        await self._metadata.ask(BROKER, QueueMoveEnded(*name, -1 if there is None else there.queue_id))
        applied = None if there is None or there.gone else outstanding(self._topology, there)
        if applied is not None:  # it may expire from now on
            target.append(BROKER, applied)
        self._moved += 1
        self._agreement.end_turn()

    def _is_on(self, name: Name, moving: Moving) -> bool:
        """Return True if this move is still under way: another owner may have ended it, or given it up."""
        now = self._placement.moving.get(name)
        return now is not None and (now.began_ms, now.target) == (moving.began_ms, moving.target)

    async def _declare(self, name: Name, moving: Moving, queue: Queue) -> str:
        """Declare the queue in its new partition, when its consumers have left the old one: they wait for it there.

        Returns why that can't be, after all; empty: it was done, or the queue is gone, or its move is over."""
        target = self._partitions[moving.target]
        if not await until(lambda: queue.gone or queue.consumer_count() == 0, SLOW_SECONDS):
            return f"{queue.consumer_count()} consumers do not leave it"
        reason = why_it_stays(queue)
        if reason:
            return reason
        if queue.vhost not in self._topology.vhosts:
            await until(lambda: queue.gone, SLOW_SECONDS)
        if queue.gone or not self._is_on(name, moving):
            return ""
        if queue.vhost not in self._topology.vhosts:
            return "its vhost is being deleted"
        try:
            await target.ask(BROKER, self._declaration(queue, moving.source))
        except PreconditionFailed as error:  # it has to remember more than a record takes
            return str(error)
        await self._agreement.durable()
        return "" if target.machine.queue(*name) is not None else "its new partition does not take it"

    async def _give_up(self, name: Name, moving: Moving, reason: str) -> None:
        """Let a queue stay, unless another owner has declared it in its new partition meanwhile."""
        target = self._partitions[moving.target]
        await self._agreement.read_to_end()
        if not self._is_on(name, moving) or target.machine.queue(*name) is not None:
            return
        logger.warning("queue '%s' in vhost '%s' does not move now: %s", name[1], name[0], reason)
        await self._metadata.ask(BROKER, QueueMoveBegan(*name, moving.from_id, moving.source))
        if target.machine.queue(*name) is None:  # else the other owner was faster, and the move has to go on
            self._again_at[name] = asyncio.get_running_loop().time() + AGAIN_SECONDS
            self._given_up.add(name)

    def _declaration(self, queue: Queue, source: int) -> QueueDeclared:
        """The event that makes the queue in its new partition."""
        topology, vhost, name = self._topology, queue.vhost, queue.name
        return QueueDeclared(
            vhost,
            name,
            type=queue.type,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            owner=queue.owner,
            arguments=queue.arguments,
            semantics=queue.semantics,
            policy=without_lease(topology.effective_policy(vhost, name, queue.type)),
            operator_policy=without_lease(topology.effective_operator_policy(vhost, name, queue.type)),
            moved_from=moved_from(source, queue),
        )

    async def _drain(self, name: Name, moving: Moving, queue: Queue) -> None:
        """Let the queue's messages go, in portions, until all that can go has arrived, or the move is over."""
        loop = asyncio.get_running_loop()
        source, slow_at = self._partitions[moving.source], loop.time() + SLOW_SECONDS
        while not queue.gone and self._is_on(name, moving):
            await source.enter()  # so that this node goes on to fold it
            waiting, letters = queue.messages_ready + queue.messages_delayed, letters_of(queue)
            if not waiting and not letters:
                return
            if waiting and letters + PORTION <= MOST_LETTERS:
                await source.ask(BROKER, QueueDrained(queue.vhost, queue.name, queue.queue_id, PORTION))
                self._agreement.end_turn()
                await asyncio.sleep(0)  # an embedded log answers at once: others have their turn
            else:
                await asyncio.sleep(STEP_SECONDS)
            if loop.time() > slow_at:
                slow_at = loop.time() + SLOW_SECONDS
                what = "queue '%s' in vhost '%s' is still on its way: %d messages, and %d that are under way"
                logger.warning(what, queue.name, queue.vhost, queue.messages_ready + queue.messages_delayed, letters)
