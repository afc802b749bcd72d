"""The course of a repartition: names are held, queues are listed, placed anew, and moved.

    PartitionsAdded -> all nodes work with the new number -> NamesHeld -> all nodes know -> QueuesStay ...
                   -> PlacementChanged
    then, for some of the queues that stay, again and again: a move (moves.py)

Rules of this file
- The owner of the first queue partition does it, driven by the fold alone. A successor finds what was begun, and goes
  on. Two owners may do it at once for a moment: each event is harmless when it comes twice.
- A step follows when the one before is durable, and every node knows it (step_barrier.py).
- A node that reads that names wait shows so at once (`Keeper.show_soon`): a name is held for a moment, not for a beat.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from rewindmq.engine.config import Config
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.host.loop_share import LoopShare, Work
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.placement.leftover_queues import LeftoverQueues
from rewindmq.engine.placement.moves import Moves
from rewindmq.engine.placement.step_barrier import STEP_SECONDS, StepBarrier
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import Event
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PlacementChanged,
    QueueMoveBegan,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER

LOOK_SECONDS = 1.0
NAMES_TOGETHER = 500  # in one record: less than 256 KiB
SETTLE_SECONDS = 60.0  # at least, between two calls of `on_settled` for what follows a queue

logger = logging.getLogger(__name__)


class Repartition:
    """The repartition of a broker's log, and what is left of queues that moved.

    `start` makes it go on whenever this node has the duty. Without a repartition it does nothing. `enter_all`,
    `when_durable` and `end_turn` as in StepBarrier."""

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
        self.leftovers = LeftoverQueues(self.placement, partitions, end_turn)
        self._share = share
        self.barrier = StepBarrier(metadata, partitions, keeper.nodes, enter_all, when_durable, end_turn)
        self.moves = Moves(metadata, partitions, self.barrier, share, lambda: self._mine, self._settled)
        # Called when a step has ended: the log has both ends of what went from one partition to another.
        self.on_settled: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self._added = 0  # so many partitions the log has
        self._told = ""  # the problem that was logged last

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
            self.keeper.nodes.show_soon(self.topology.next_offset)
        self.leftovers.changed(event)
        self._woken.set()
        self._begin()

    def _begin(self) -> None:
        if self._started and not self._tasks and self.placement.count:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._run()), loop.create_task(self._look_after_strays())]

    @property
    def _mine(self) -> bool:
        """Return True if it is this node's duty to carry out the repartition."""
        return self.keeper.nodes.joined and self.partitions[0].owned

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
        told, loop = "", asyncio.get_running_loop()
        settle_at = loop.time()
        while True:
            more = False
            try:
                more = await self.leftovers.look(Work(self._share))
                if self.leftovers.followed and not more and loop.time() >= settle_at:
                    self.leftovers.followed = False
                    settle_at = loop.time() + SETTLE_SECONDS
                    self._settled()
                told = ""
            except Exception as error:  # as above
                if str(error) != told:
                    logger.exception("what is left of queues that have moved")
                told = str(error)
            await asyncio.sleep(STEP_SECONDS if more else LOOK_SECONDS)

    def _settled(self) -> None:
        for callback in self.on_settled:
            callback()

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
            await self.moves.end()
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
        return self.moves.may_go_on and await self.moves.begin()

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
        if not waiting and len(self.partitions) < wanted:
            waiting = [self.config.node]
        return waiting

    async def _place_anew(self) -> None:
        """List the queues that the new number would place elsewhere, and place by it."""
        placement = self.placement
        await self.barrier.all_know()
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
        await self.barrier.durable()
        self._settled()
        logger.info("queues are placed by %d partitions now; %d queues are to move", wanted, staying)
