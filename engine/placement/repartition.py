"""The course of a repartition: names are held, queues are listed, placed anew, and moved.

    PartitionsAdded -> all nodes work with the new number -> NamesHeld -> all nodes know -> QueuesStay ...
                   -> PlacementChanged
    then, for some of the queues that stay, again and again:
    QueueMoveBegan -> all nodes know, consumers have left -> QueueDeclared (target) -> QueueDrained (source) ...
                   -> nothing is left that can go, and all that went is there -> QueueMoveEnded

Rules of this file
- The owner of the first queue partition does it, driven by the fold alone. A successor finds what was begun, and goes
  on. Two owners may do it at once for a moment: each event is harmless when it comes twice.
- A step follows when the one before is durable. So no crash leaves a message in no queue.
- A queue is not begun while it can't move: it stays where it is, and is looked at again. A move that doesn't get on is
  given up as long as the queue is not declared in its new partition.
- An owner that stood still may give up what its successor has declared. Then a part of the messages is where the name
  does not lead to: this move is begun again at once, whatever the queue has become, and ends.
- A node that reads that names wait shows so at once (`Keeper.show_soon`): a name is held for a moment, not for a beat.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from rewindmq.engine.config import Config
from rewindmq.engine.errors import AmqpError, PreconditionFailed
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.placement.strays import MOST_LETTERS, PORTION, Strays, letters_of
from rewindmq.engine.runtime.lifecycle import Keeper
from rewindmq.engine.runtime.loop_share import LoopShare, Work
from rewindmq.engine.runtime.metadata import Metadata
from rewindmq.engine.runtime.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.relocation import moved_from, why_it_stays
from rewindmq.projections.machine.rules.versions import RELOCATION
from rewindmq.projections.rules.placement import partition_of
from rewindmq.projections.topology.effective_policies import outstanding, without_lease
from rewindmq.projections.topology.placement import Moving, Name
from rewindmq.schemas.events import Event, QueueDeclared, QueueDrained
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PlacementChanged,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER

LOOK_SECONDS = 1.0
STEP_SECONDS = 0.01  # between two looks at a queue that moves
AGAIN_SECONDS = 300.0  # after which a queue that can't move is looked at again: this node folds all partitions for it
SOON_SECONDS = 5.0  # the same, where this node folds its partitions anyhow
SLOW_SECONDS = 30.0  # a move that takes so long is logged, and given up if its consumers don't leave
LOST_LATELY = 20  # nodes whose end has to be in all partitions. Far more than are lost at once
TOGETHER = 50  # queues that move at once
MESSAGES_TOGETHER = 1_000  # in all of them; a queue with more moves alone
NAMES_TOGETHER = 500  # in one record: less than 256 KiB

LEFT_OVER = "the rest of a queue of this name is still in the partition to which it would go"
NOT_UPGRADED = "its partition is not at this machine version yet"

logger = logging.getLogger(__name__)


class Repartition:
    """The repartition of a broker's log, and what is left of queues that moved.

    `start` makes it go on whenever this node has the duty. Without a repartition it does nothing. `enter_all` makes
    this node fold all partitions, `when_durable` calls back when all that was appended is durable, `end_turn` ends a
    turn."""

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        partitions: Sequence[Partition],
        keeper: Keeper,
        share: LoopShare,
        enter_all: Callable[[], Awaitable[None]],
        when_durable: Callable[[Callable[[], None]], None],
        end_turn: Callable[[], None],
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.topology = metadata.topology
        self.placement = metadata.topology.placement
        self.partitions = partitions
        self.keeper = keeper
        self.strays = Strays(self.placement, partitions, end_turn)
        self._share = share
        self._enter_all = enter_all
        self._when_durable = when_durable
        self._end_turn = end_turn
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self._again_at: dict[Name, float] = {}  # seconds of the loop: a queue that can't move is looked at then
        self._given_up: set[Name] = set()  # of these: moves that were begun, and did not get on
        self._soon_at = 0.0  # seconds of the loop: those that this node folds are looked at then
        self._added = 0  # so many partitions the log has
        self._told = ""  # the problem that was logged last
        self._moved = 0  # queues, since the last line of the log about them

    def start(self) -> None:
        """Go on with what was begun, from now on."""
        self._started = True
        self._begin()

    def stop(self) -> None:
        """Go no further. Another node, or the next start, does."""
        self._started = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def changed(self, event: Event) -> None:
        """Take note of an event of placement, or that a node came or went.

        LogError: queues are in partitions that this node did not find when it started. It was away, or declared lost,
        while the others were started again: it has to be, too."""
        if not self.placement.count:
            return
        if self.placement.count > len(self.partitions):
            raise LogError(
                f"queues are placed by {self.placement.count} partitions now, and this node works with the"
                f" {len(self.partitions)} that it found when it started: start it again"
            )
        if isinstance(event, NamesHeld | QueueMoveBegan):
            self.keeper.show_soon(self.topology.next_offset)
        self.strays.changed(event)
        self._woken.set()
        self._begin()

    def _begin(self) -> None:
        if self._started and not self._tasks and self.placement.count:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._run()), loop.create_task(self._look_after_strays())]

    @property
    def _mine(self) -> bool:
        """Whether this node has the duty."""
        return self.keeper.joined and self.partitions[0].owned and not self.partitions[0].read_only

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            busy = False
            try:
                if self._mine:
                    busy = await self._step()
                    self._told = ""
            except (LogError, AmqpError, OSError) as error:  # the log is away, or refuses: the next look tries again
                self._tell(f"it is tried again: {error}")
            except Exception as error:  # a defect here must not end the node, nor hold names without a word
                if self._tell(f"{type(error).__name__}: {error}"):
                    logger.exception("the repartition")
            if not busy:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()

    async def _look_after_strays(self) -> None:
        told = ""
        while True:
            more = False
            try:
                more = await self.strays.look(Work(self._share))
                told = ""
            except Exception as error:  # as above
                if str(error) != told:
                    logger.exception("what is left of queues that have moved")
                told = str(error)
            await asyncio.sleep(STEP_SECONDS if more else LOOK_SECONDS)

    def _tell(self, problem: str) -> bool:
        """Log a problem, each once. Returns whether it is a new one."""
        new = problem != self._told
        if new:
            self._told = problem
            names = ", ".join(f"queue '{name}' in vhost '{vhost}'" for vhost, name in list(self.placement.moving)[:3])
            logger.error("the repartition does not get on%s: %s", f" ({names} waits)" if names else "", problem)
        return new

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _step(self) -> bool:
        """Do what is next. Returns whether there may be more to do at once."""
        placement = self.placement
        if placement.moving:
            await self._end_moves()
            return True
        if placement.wanted != placement.count:
            if self.waits_for():
                await self._add_partitions()
                return False
            if not placement.held:
                logger.info("queues are to be placed by %d partitions: names wait until they are", placement.wanted)
                await self.metadata.ask(BROKER, NamesHeld(placement.wanted))
            await self._place_anew()
            return True
        return bool(placement.staying or self._moved) and await self._begin_moves()

    async def _add_partitions(self) -> None:
        """Complete what a crash cut short, or nodes would be started again in vain. Nothing happens if it is done."""
        wanted = self.placement.wanted
        if self._added < wanted:
            await self.keeper.add_partitions(wanted, only_ask=False)
            self._added = wanted

    def waits_for(self) -> list[str]:
        """The nodes that have to be started again before queues are placed by the new number."""
        wanted = self.placement.wanted
        nodes = self.topology.nodes.values()
        waiting = sorted({each.node for each in nodes if each.partitions < wanted})
        if not waiting and (len(self.partitions) < wanted or self.topology.machine_version < RELOCATION):
            waiting = [self.config.node]
        return waiting

    async def _all_know(self) -> None:
        """Wait until every node goes by the metadata log up to here, and this node has all that they did before."""
        keeper = self.keeper
        await self._durable()
        await keeper.until_known(self.topology.next_offset)
        await self._enter_all()
        await self._until(self._are_lost_nodes_over, SLOW_SECONDS)
        for partition in self.partitions:
            await partition.folded()
        await self._read_to_end()

    def _are_lost_nodes_over(self) -> bool:
        """Whether no partition takes anything any more from nodes that were lost lately: nobody waited for them."""
        lately = list(self.topology.ended)[-LOST_LATELY:]
        return all(epoch in each.machine.lost_epochs for each in self.partitions for epoch in lately)

    async def _read_to_end(self) -> None:
        """Fold all that the log has by now: this node may have stood still, and another one has gone on."""
        if self.keeper.read_to_end is not None:
            await self.keeper.read_to_end()

    async def _durable(self) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_durable(lambda: None if durable.done() else durable.set_result(None))
        self._end_turn()
        await durable

    async def _place_anew(self) -> None:
        """List the queues that the new number would place elsewhere, and place by it."""
        placement = self.placement
        await self._all_know()
        if not (self._mine and placement.held):
            return
        wanted = placement.wanted
        staying = 0
        for partition in self.partitions:
            names = []
            async for vhost, name in Work(self._share).over(list(partition.machine.by_name)):
                here = partition.index
                if placement.home(vhost, name, 0) == here != partition_of(vhost, name, wanted):
                    names.append(QueueName(vhost, name))
            for first in range(0, len(names), NAMES_TOGETHER):
                portion = tuple(names[first : first + NAMES_TOGETHER])
                self.metadata.append(BROKER, QueuesStay(partition.index, portion))
            staying += len(names)
        await self.metadata.ask(BROKER, PlacementChanged(wanted))
        await self._durable()
        logger.info("queues are placed by %d partitions now; %d queues are to move", wanted, staying)

    # -- moves --------------------------------------------------------------------------------------------------------

    async def _begin_moves(self) -> bool:
        """Begin to move the next queues. Returns whether there was one."""
        placement, now = self.placement, asyncio.get_running_loop().time()
        self._again_at = {name: at for name, at in self._again_at.items() if name in placement.staying}
        due = [name for name in placement.staying if self._again_at.get(name, 0.0) <= now]
        if due:
            self._given_up.difference_update(due)
            await self._enter_all()
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
            queue = self.partitions[placement.staying[name]].machine.queue(*name)
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
        if began and self._mine:
            await asyncio.gather(*(self.metadata.ask(BROKER, each) for each in began))
        return bool(began)

    def _is_free_here(self, name: Name) -> bool:
        """Whether the reason is gone why a queue stays, as far as this node knows without folding more for it."""
        source = self.placement.staying.get(name)
        if source is None or name in self._given_up:
            return False
        target = partition_of(*name, self.placement.count)
        return self.partitions[source].current and self.partitions[target].current and not self.why_not_now(name)

    def why_not_now(self, name: Name) -> str:
        """Why a queue that stays does not move now, in words; empty: it may."""
        partitions, placement = self.partitions, self.placement
        source, target = partitions[placement.staying[name]], partitions[partition_of(*name, placement.count)]
        if min(source.machine.machine_version, target.machine.machine_version) < RELOCATION:
            return NOT_UPGRADED
        there = target.machine.queue(*name)
        if there is not None:  # else its move was given up in the middle, and has to go on
            return LEFT_OVER if placement.has_left(*name, target.index, there.queue_id) else ""
        queue = source.machine.queue(*name)
        if queue is None:
            return ""
        return why_it_stays(queue)

    async def _end_moves(self) -> None:
        """Bring all queues that are on their way to their new partitions."""
        placement = self.placement
        await self._all_know()
        results = await asyncio.gather(*map(self._end_move, list(placement.moving)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _end_move(self, name: Name) -> None:
        """Bring a queue to its new partition. All nodes know that its name waits."""
        placement = self.placement
        moving = placement.moving.get(name)
        if moving is None:
            return
        source, target = self.partitions[moving.source], self.partitions[moving.target]
        queue = source.machine.queue(*name)
        if queue is not None and queue.queue_id > moving.from_id:  # declared anew before all nodes knew
            await self.metadata.ask(BROKER, QueueMoveBegan(*name, queue.queue_id, moving.target))
        if queue is not None and target.machine.queue(*name) is None:
            reason = await self._declare(name, moving, queue)
            if reason:
                await self._give_up(name, moving, reason)
                return
        elif queue is not None:  # else, as a rule, its consumers have left
            await self._until(lambda: queue.gone or queue.consumer_count() == 0, SLOW_SECONDS)
        if queue is not None and not queue.gone:
            await self._drain(name, moving, queue)
        await self._durable()
        await target.enter()
        if not self._is_on(name, moving):
            return
        there = target.machine.queue(*name)
        await self.metadata.ask(BROKER, QueueMoveEnded(*name, -1 if there is None else there.queue_id))
        applied = None if there is None or there.gone else outstanding(self.topology, there)
        if applied is not None:  # it may expire from now on
            target.append(BROKER, applied)
        self._moved += 1
        self._end_turn()

    def _is_on(self, name: Name, moving: Moving) -> bool:
        """Whether this move is still under way: another owner may have ended it, or given it up."""
        now = self.placement.moving.get(name)
        return now is not None and (now.began_ms, now.target) == (moving.began_ms, moving.target)

    async def _declare(self, name: Name, moving: Moving, queue: Queue) -> str:
        """Declare the queue in its new partition, when its consumers have left the old one: they wait for it there.

        Returns why that can't be, after all; empty: it was done, or the queue is gone, or its move is over."""
        target = self.partitions[moving.target]
        if not await self._until(lambda: queue.gone or queue.consumer_count() == 0, SLOW_SECONDS):
            return f"{queue.consumer_count()} consumers do not leave it"
        reason = why_it_stays(queue)
        if reason:
            return reason
        if queue.vhost not in self.topology.vhosts:
            await self._until(lambda: queue.gone, SLOW_SECONDS)
        if queue.gone or not self._is_on(name, moving):
            return ""
        if queue.vhost not in self.topology.vhosts:
            return "its vhost is being deleted"
        try:
            await target.ask(BROKER, self._declaration(queue, moving.source))
        except PreconditionFailed as error:  # it has to remember more than a record takes
            return str(error)
        await self._durable()
        return "" if target.machine.queue(*name) is not None else "its new partition does not take it"

    async def _give_up(self, name: Name, moving: Moving, reason: str) -> None:
        """Let a queue stay, unless another owner has declared it in its new partition meanwhile."""
        target = self.partitions[moving.target]
        await self._read_to_end()
        if not self._is_on(name, moving) or target.machine.queue(*name) is not None:
            return
        logger.warning("queue '%s' in vhost '%s' does not move now: %s", name[1], name[0], reason)
        await self.metadata.ask(BROKER, QueueMoveBegan(*name, moving.from_id, moving.source))
        if target.machine.queue(*name) is None:  # else the other owner was faster, and the move has to go on
            self._again_at[name] = asyncio.get_running_loop().time() + AGAIN_SECONDS
            self._given_up.add(name)

    def _declaration(self, queue: Queue, source: int) -> QueueDeclared:
        """The event that makes the queue in its new partition."""
        topology, vhost, name = self.topology, queue.vhost, queue.name
        return QueueDeclared(
            vhost,
            name,
            queue.type,
            queue.durable,
            queue.exclusive,
            queue.auto_delete,
            queue.owner,
            queue.arguments,
            queue.semantics,
            without_lease(topology.effective_policy(vhost, name, queue.type)),
            without_lease(topology.effective_operator_policy(vhost, name, queue.type)),
            moved_from(source, queue),
        )

    async def _drain(self, name: Name, moving: Moving, queue: Queue) -> None:
        """Let the queue's messages go, in portions, until all that can go has arrived, or the move is over."""
        loop = asyncio.get_running_loop()
        source, slow_at = self.partitions[moving.source], loop.time() + SLOW_SECONDS
        while not queue.gone and self._is_on(name, moving):
            await source.enter()  # so that this node goes on to fold it
            waiting, letters = queue.messages_ready + queue.messages_delayed, letters_of(queue)
            if not waiting and not letters:
                return
            if waiting and letters + PORTION <= MOST_LETTERS:
                await source.ask(BROKER, QueueDrained(queue.vhost, queue.name, queue.queue_id, PORTION))
                self._end_turn()
                await asyncio.sleep(0)  # an embedded log answers at once: others have their turn
            else:
                await asyncio.sleep(STEP_SECONDS)
            if loop.time() > slow_at:
                slow_at = loop.time() + SLOW_SECONDS
                what = "queue '%s' in vhost '%s' is still on its way: %d messages, and %d that are under way"
                logger.warning(what, queue.name, queue.vhost, queue.messages_ready + queue.messages_delayed, letters)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so, for a limited time. Returns whether it is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not is_so():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(STEP_SECONDS)
        return True
