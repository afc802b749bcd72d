"""Turns of work: effects are performed, groups are committed, time passes.

    socket read, HTTP request, timer -> ... appends ... -> end(): effects out, letters forwarded, commit kicked
    group commit landed              -> confirms, letters told, waiters called back, RocksDB, snapshots -> end()
    a deadline of a machine passed   -> Tick where one is due, letters tried again -> end()

Rules of this file
- A turn goes on until no partition has effects left; dead letters beyond one round wait for the loop's next turn.
- One timer, armed to the earliest deadline. A Tick is appended only when something is due (docs/design.md#one-idea),
  not more often than every `TICK_EVERY_MS`: a stream of messages that expire one by one must not be a stream of Ticks.
- When the disk will not have the log or the state, publishing is held back (`blocked`) until it does; everything is
  kept and tried again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.dead_letters import ROUND, Forwarder
from rewindmq.schemas.inheritance import mypyc_attr

TICK_EVERY_MS: Final = 10
STORE_RETRY_SECONDS = 1.0  # as the log's own retry
PAUSE_SECONDS = 0.002  # between slices of dead letters: the thread of the log has its turn, too

logger = logging.getLogger(__name__)


class LogReaders(Protocol):
    """The consumers of streams and of the past, which read what is durable (engine/rewind/stream_consumers.py)."""

    @property
    def awaits_log(self) -> bool:
        """Return True if a reader waits for more."""

    def landed(self) -> None:
        """Take note that more is durable."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a double
class Turns:
    """`mark`: of LoopShare."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Sequence[Partition],
        clock: Callable[[], int],
        keeper: Keeper,
        mark: Callable[[object], object],
    ) -> None:
        self.mark = mark
        self.metadata = metadata
        self.keeper = keeper
        self.partitions = partitions
        self.clock = clock
        self.blocked: str | None = None  # why publishing is held back, in words for connection.blocked; None: it is not
        self.on_blocked: list[Callable[[], None]] = []  # called when `blocked` changed
        self._problems: dict[str, str] = {}  # texts, by the part that has the problem
        self._waiters: deque[tuple[list[tuple[Metadata | Partition, int]], Callable[[], None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._rang_ms = 0
        self._in_turn = False
        self._next_turn_asked = False
        self._closed = False
        self._store_retry_asked = False

    def start(self, forwarder: Forwarder, readers: LogReaders) -> None:
        """Forward dead letters in turns, and tell `readers` when more is durable.

        The constructor does not take these: they end turns, and so are made after them."""
        self.forwarder = forwarder
        self.readers = readers

    def stop(self) -> None:
        """End no more turns, and ring no timer."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def at_rest(self) -> bool:
        return all(partition.at_rest for partition in self.partitions) and not self.forwarder.has_work

    @property
    def awaits_log(self) -> bool:
        """Return True if anybody waits until appended events are durable: a client for its answer or its confirm, a
        dead letter, a reader of a stream, or a publisher that is held back."""
        if self._waiters or self.forwarder.awaits_log or self.readers.awaits_log or self.keeper.flow.awaits_log:
            return True
        return any(partition.awaits_log for partition in self.partitions)

    @property
    def problems(self) -> dict[str, str]:
        """The reasons why publishing waits, as texts, by the part that has the problem."""
        return self._problems

    def end(self) -> None:
        """End a turn: carry out the effects, forward dead letters, arm the timer, begin a group commit."""
        if self._in_turn or self._closed:  # in a turn: called by a consumer that is being delivered to
            return
        self._carry_out_all(0 if self._next_turn_asked else ROUND)  # or other turns would take that one's time
        self._arm_timer()
        self.keeper.kick()

    def _carry_out_all(self, budget: int) -> None:
        """Carry out all effects, and forward up to `budget` dead letters, which make more effects."""
        self._in_turn = True
        try:
            self._carry_out(budget)
        finally:
            self._in_turn = False

    def _carry_out(self, budget: int) -> None:
        forwards = budget > 0
        busy = True
        while busy:
            for partition in self.partitions:
                if partition.effects or partition.fresh:
                    partition.carry_out()
            budget = self.forwarder.forward(budget)
            busy = any(partition.effects for partition in self.partitions)
        if forwards and self.forwarder.has_work:
            self._next_turn_asked = True
            self._loop.call_later(PAUSE_SECONDS, self._next_turn)

    def _next_turn(self) -> None:
        self._next_turn_asked = False
        self.end()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back in the loop once everything appended so far, in every partition, is durable."""
        logs: list[Metadata | Partition] = [self.metadata, *self.partitions]
        outstanding = [(each, each.append_position) for each in logs if each.durable_position < each.append_position]
        if outstanding or self._waiters:
            self._waiters.append((outstanding, callback))
        else:
            self._loop.call_soon(callback)

    async def written(self) -> None:
        """Wait until everything appended so far is durable. Each partition then packs what changed into a batch for
        RocksDB, unless a batch of before still waits for the log."""
        durable: asyncio.Future[None] = self._loop.create_future()

        def land() -> None:
            if not durable.done():
                durable.set_result(None)

        for partition in self.partitions:
            partition.prepare_soon = True
        self.when_durable(land)
        self.end()
        await durable

    def landed(self) -> None:
        """More of what was appended is durable: a group commit landed, or events were read back."""
        if self._closed:
            return
        self.mark("a group commit")
        for partition in self.partitions:
            partition.on_durable()
        self.forwarder.on_durable()
        waiters = self._waiters
        while waiters and all(position <= each.durable_position for each, position in waiters[0][0]):
            _, callback = waiters.popleft()
            try:
                callback()
            except Exception:  # a defect of one connection must not cost the others their answers
                logger.exception("an answer that waited for the disk was not given")
        self._carry_out_all(0)  # or a partition whose letters were told would not project
        self._project()
        self.end()
        self.keeper.flow.landed()
        self.readers.landed()

    def _project(self) -> None:
        failure: Exception | None = None
        for partition in self.partitions:
            try:
                partition.project()
            except Exception as error:  # RocksDB knows no narrower class; the log has everything
                failure = failure or error
        if failure is None:
            try:
                self.keeper.take_snapshots()
            except Exception as error:  # the log may fail, too
                failure = error
        if failure is None:
            self.problem("store", None)
            return
        self.problem("store", f"the state can't be written: {failure}")
        if not self._store_retry_asked:  # publishers that are held back bring no commit that would try again
            self._store_retry_asked = True
            self._loop.call_later(STORE_RETRY_SECONDS, self._project_again)

    def _project_again(self) -> None:
        self._store_retry_asked = False
        if not self._closed:
            try:
                self.keeper.mend_store()
            except Exception as error:  # as above
                logger.error("the state can't be made good yet: %s", error)
            self._project()
            self.end()

    def problem(self, who: str, text: str | None) -> None:
        """Hold publishing back because of this problem, or (None) no longer."""
        if text is not None:
            if text != self._problems.get(who):
                logger.error("publishing is held back: %s", text)
            self._problems[who] = text
        elif who in self._problems:
            del self._problems[who]
        else:
            return
        before, self.blocked = self.blocked, next(iter(self._problems.values()), None)
        if self.blocked != before:
            if self.blocked is None:
                logger.warning("publishing goes on")
            for callback in list(self.on_blocked):
                callback()

    def _arm_timer(self) -> None:
        due = self.forwarder.retry_ms()
        for partition in self.partitions:
            deadline = partition.due_ms()
            if deadline is not None and (due is None or deadline < due):
                due = deadline
        if due is None or (self._timer is not None and self._timer_due_ms <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due
        now = self.clock()
        delay_ms = max(1, due - now, min(self._rang_ms + TICK_EVERY_MS - now, TICK_EVERY_MS))
        self._timer = self._loop.call_later(delay_ms / 1000, self.time_passed)

    def clock_was_set(self, by_ms: int) -> None:
        """The broker's time jumped, and no time passed: keep all distances."""
        self.forwarder.clock_was_set(by_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rang_ms = self.clock()

    def time_passed(self) -> None:
        """The timer rang: append a Tick where something is due."""
        self.mark("the timer of deadlines")
        self._timer = None
        self._rang_ms = self.clock()
        for partition in self.partitions:
            partition.tick()
        self.forwarder.wake()
        self.end()
