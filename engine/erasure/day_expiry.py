"""Bodies for so many days, events for ever (B-21): the keys of a day are destroyed when it has been over for so long.

    look          once a minute: is it time for a pass?
    pass          each hour and each new day, by one node: today's key is made, the directory says which days are due
      watch       which queues hold a message of a due day? (projections/store/key_watch.py, in slices of the loop)
      destroy     the keys of each due day that no queue holds; a thread waits for the disk
      log         `BodiesExpired`: the history says so

A day is due when more than `keep_days` later days were seen: the directory has a key of each day in which a broker ran.
So a clock that jumps makes one day, however far it jumps, and a day in which no broker ran does not count.

Rules of this file
- No key is destroyed before this process has run for SETTLE_SECONDS by its monotonic clock while the time in the log
  advanced as much. A clock that an administrator sets begins this anew.
- A day whose message is in a queue, an outbox or a stream is held back as a whole. The decision is made in one turn of
  the loop, after all nodes' records up to then were read: what was in a queue all the time has been met by the watch. A
  message that is restored after the decision comes without its body.
- Keys first, then the event. If the broker dies between the two, the tombstones are there, and the next pass logs them.
  If two nodes do it at once, both do the same.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewindmq import failpoints
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.encryption import Subjects, day_at
from rewindmq.engine.erasure.key_store import NOBODY, day_of, is_of_nobody
from rewindmq.engine.host.loop_share import LoopShare, Work
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.lifecycle import Nodes
from rewindmq.engine.partition.log_clock import NS, LogClock
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.store.key_watch import KeyWatch
from rewindmq.projections.store.keys import SHARED
from rewindmq.projections.store.projector import holds
from rewindmq.projections.store.rocks import StoreError
from rewindmq.schemas.metadata_events import BodiesExpired
from rewindmq.schemas.values import BROKER

LOOK_SECONDS = 60.0
PASS_SECONDS = 3_600
SETTLE_SECONDS = 600
STEP_MS = 1_000  # log time and the monotonic clock may differ by so much, and a thousandth
TOGETHER = 1_000  # keys in one event: a record in Kafka has at most a mebibyte

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A queue that holds messages of a day, and how many when it was looked through. One of them is `message_id`.

    Messages that it shares with other queues are reported apart from its own, and under the first of these queues."""

    partition: Partition
    queue_id: int
    message_id: int
    messages: int

    @property
    def name(self) -> tuple[str, str]:
        """The vhost and the queue; empty when it is gone."""
        queue = self.partition.machine.by_id.get(self.queue_id)
        return ("", "") if queue is None else (queue.vhost, queue.name)

    @property
    def holds(self) -> bool:
        """Return True if the message is still in the queue."""
        return self.partition.projector.has(self.queue_id, self.message_id)


class NotNow(Exception):
    """The pass cannot go on; the text says why. The next one tries again."""


class Expiry:
    """`keep_days`: how long a day's bodies are kept; None: no day expires. `days`: of each day that the directory of
    keys names, the keys that are not destroyed, or are and the history does not say so. `held`: the due days that
    queues hold back."""

    def __init__(
        self,
        config: Config,
        clock: LogClock,
        metadata: Metadata,
        partitions: Sequence[Partition],
        nodes: Nodes,
        subjects: Subjects,
        end_turn: Callable[[], None],
        share: LoopShare,
    ) -> None:
        self.keep_days = config.keep_bodies_days
        self.days: dict[str, list[str]] = {}
        self.held: dict[str, list[HeldBack]] = {}
        self.problem = ""
        self._clock = clock
        self._metadata = metadata
        self._partitions = partitions
        self._nodes = nodes
        self._subjects = subjects
        self._end_turn = end_turn
        self._lag_seconds = 2 * config.node_timeout_ms / 1_000 if nodes.reads_back else 0.0  # of another node's fold
        self._share = share
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._began_ns = self._began_ms = 0
        self._next_pass_ns = 0
        self._passed_day = ""

    # -- when ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look from now on."""
        if self.keep_days is not None:
            self._begin_to_trust()
            self._look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_SECONDS, self._look)
        if self._task is None or self._task.done():
            if not self._acts:
                self.days, self.held, self._passed_day = {}, {}, ""  # another node knows
            elif self._clock.elapsed_ns() >= self._next_pass_ns or self._today() != self._passed_day:
                self._task = loop.create_task(self.run())

    @property
    def _acts(self) -> bool:
        """Return True if this node is the one that destroys keys."""
        return self._nodes.joined and self._partitions[0].owned

    def _begin_to_trust(self) -> None:
        self._began_ns, self._began_ms = self._clock.elapsed_ns(), self._clock.now_ms()

    @property
    def trusts(self) -> bool:
        """Return True if the time in the log has advanced with the monotonic clock for long enough."""
        elapsed_ms = (self._clock.elapsed_ns() - self._began_ns) // NS
        stepped_ms = abs(self._clock.now_ms() - self._began_ms - elapsed_ms)
        if stepped_ms > STEP_MS + elapsed_ms // 1_000:
            logger.warning("the time in the log was set: bodies stay for at least %d seconds more", SETTLE_SECONDS)
            self._begin_to_trust()
            return False
        return elapsed_ms >= SETTLE_SECONDS * 1_000

    def _today(self) -> str:
        """The day by the earlier one of this node's log time and Kafka's time."""
        return day_at(min(self._clock.now_ms(), self._partitions[0].log_ms()))

    def due_days(self) -> list[str]:
        """The days whose keys have to go, the oldest first."""
        today = self._today()
        if self.keep_days is None:
            return []
        seen = [day for day in self.days if day <= today]
        return [day for day in seen[: max(0, len(seen) - self.keep_days - 1)] if self.days[day]]

    # -- a pass -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make a pass. Never fails: the reason is logged, and is `problem`."""
        try:
            await self._pass()
            self.problem = ""
        except (NotNow, OSError, LogError, StoreError) as error:
            self.problem = str(error)
            logger.error("bodies of days that are over can't be made unreadable now: %s", error)
        except Exception:  # a defect here must not end the passes: it would keep bodies for ever
            self.problem = "see the broker's log"
            logger.exception("bodies of days that are over can't be made unreadable now")
        self._end_turn()

    async def _pass(self) -> None:
        elapsed_ns = self._clock.elapsed_ns()
        self._passed_day = self._today()
        trusted = self.trusts
        pause = PASS_SECONDS if trusted else SETTLE_SECONDS
        self._next_pass_ns = elapsed_ns + pause * 1_000 * NS
        await self._subjects.in_thread(self._look_at_directory)
        await self._finish()
        due = self.due_days()
        self.held = {day: held for day, held in self.held.items() if day in due}
        if not due:
            return
        if not trusted:
            logger.warning("the bodies of %s expire in %d seconds, if no queue holds them", _words(due), SETTLE_SECONDS)
            return
        for day, held in list(self.held.items()):
            if not any(each.holds for each in held):
                del self.held[day]
        free = [day for day in due if day not in self.held]
        if free:
            await self._expire(free)

    def _look_at_directory(self) -> None:
        """Make today's key, and learn which days there are. In a thread."""
        keys = self._subjects.keys
        keys.current(NOBODY, self._subjects.today())
        self.days = {
            day: [each for each in key_ids if not keys.is_erased(each) or keys.is_there(each)]
            for day, key_ids in keys.of_days().items()
        }

    async def _finish(self) -> None:
        """Log the days' keys that were destroyed before a crash could be followed by their event."""
        keys = self._subjects.keys
        for day, key_ids in self.days.items():
            unlogged = [
                each for each in key_ids if is_of_nobody(each) and keys.has_tombstone(each) and not keys.is_erased(each)
            ]
            if unlogged:
                logger.warning("the keys of %s were destroyed before the broker's end; now the history says so", day)
                await self._destroy(day, unlogged)

    async def _expire(self, days: list[str]) -> None:
        """Destroy the keys of those days that no queue holds."""
        parts = tuple(f"00000000{day.replace('-', '')}-".encode() for day in days)  # of the ids
        wanted = frozenset(days)

        def group_of(key_id: str) -> str | None:
            day = day_of(key_id)
            return day if day in wanted else None

        watches: list[tuple[Partition, KeyWatch]] = []
        try:
            for partition in self._partitions:
                watches.append((partition, KeyWatch(partition.projector, group_of, parts)))
            await self._look_through(watches)
            failpoints.reached("expiry.after_search")
            # Another node may just be giving a consumer the message that this node's queues have no more.
            await asyncio.sleep(self._lag_seconds)
            if self._nodes.read_to_end is not None:
                await self._nodes.read_to_end()
            for day in days:
                await self._subjects.in_thread(self._look_at_directory)
                if not self._acts or not self.trusts or day not in self.due_days():
                    raise NotNow("this node has to wait again before it may")
                self._end_turn()  # effects that wait may keep a message
                held = held_back(watches, day)
                if held:
                    self.held[day] = held
                    self._tell(day, held)
                else:
                    await self._destroy(day, self.days[day])
        finally:
            for _, watch in watches:
                watch.end()

    async def _look_through(self, watches: list[tuple[Partition, KeyWatch]]) -> None:
        work = Work(self._share)
        for partition, watch in watches:
            for queue_id in [*partition.machine.by_id, SHARED]:
                start: int | None = 0
                while start is not None:
                    require_whole(partition)
                    start = watch.look(queue_id, start)
                    if work.due:
                        await work.give_way()
            require_whole(partition)

    async def _destroy(self, day: str, key_ids: list[str]) -> None:
        for first in range(0, len(key_ids), TOGETHER):
            some = key_ids[first : first + TOGETHER]
            await self._subjects.destroy(some)
            await self._metadata.ask(BROKER, BodiesExpired(day, tuple(some)))
            self._end_turn()
        self.days[day] = [each for each in self.days[day] if each not in set(key_ids)]
        logger.info("the bodies of %s have expired: %d keys were destroyed", day, len(key_ids))

    def _tell(self, day: str, held: list[HeldBack]) -> None:
        """Log which queues hold a day back."""
        queues = ", ".join(f"queue '{each.name[1]}' in vhost '{each.name[0]}' ({each.messages})" for each in held[:10])
        logger.info("the bodies of %s stay: messages of that day are in %s", day, queues)


def held_back(watches: list[tuple[Partition, KeyWatch]], day: str) -> list[HeldBack]:
    """The queues in which a message of the day was met. NotNow."""
    held = []
    for partition, watch in watches:
        require_whole(partition)
        if partition.projector.watch is not watch:
            raise NotNow(f"{partition.name}: another look at the queues began")
        for queue_id, groups in watch.found.items():
            if day in groups:
                message_id = groups[day].message_id
                holder = _holder(partition, message_id) if queue_id == SHARED else queue_id
                held.append(HeldBack(partition, holder, message_id, groups[day].count))
    return held


def _holder(partition: Partition, message_id: int) -> int:
    """The first of the queues that share a message; SHARED if it has left them all."""
    queues = partition.machine.by_id.values()
    return next((queue.queue_id for queue in queues if holds(queue, message_id)), SHARED)


def require_whole(partition: Partition) -> None:
    """Raises NotNow if the state store may lack a message."""
    projector = partition.projector
    if projector.failed is not None:
        raise NotNow(f"{partition.name}: the state store has failed: {projector.failed}")
    if projector.missing:
        raise NotNow(f"{partition.name}: the state store lacks {projector.missing} messages, which only the log has")


def _words(days: list[str]) -> str:
    if len(days) <= 3:
        return ", ".join(days)
    return f"{len(days)} days, from {days[0]} to {days[-1]},"
