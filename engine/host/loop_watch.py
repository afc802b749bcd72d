"""The watch of the loop: it reports work that kept all other clients waiting, and whose work it was.

A thread looks at the loop ten times a second, more often while it is busy. If the loop does something, the thread
leaves a call there, and measures how long it takes until the loop comes round to it. Meanwhile it sends signals to the
loop's thread, whose handler notes

- whose work it is: `LoopShare.mark` says so when a client's work begins,
- the function: the innermost one in the stack,
- the processor time that this one piece of work has used at least: the marks and the outermost function say that it is
  still the same piece.

The loop's thread looks at its own stack because another thread must not: in Python 3.11 `sys._current_frames` may meet
a frame that is being cleared, and its f_back is then memory that serves something else. A call into C is noted when it
returns.

A stall longer than the limit is one line of the log and counts in the metric `rewindmq_loop_stall_seconds`. A garbage
collection of all objects counts as a piece of work. An idle loop is not woken. In the compiled build (docs/development/
builds.md) compiled functions have no names in the stack; the marks are there.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.projections import system_calls

IDLE_SECONDS: Final = 0.1  # between two looks at an idle loop
BUSY_CPU: Final = 0.2  # a loop that used this part of the time since the last look is busy
BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # of the histogram, in seconds
ROOT: Final = Path(__file__).resolve().parents[2]
RUNNER: Final = asyncio.Runner.run.__code__
LOOK: Final = signal.SIGURG  # Linux sends it to nobody who has not asked for it, and ignores it by default
POLLS: Final = frozenset((b"232", b"281", b"22", b"441"))  # Linux's numbers of epoll_wait and similar calls
NOTHING: Final[tuple[float, FrameType | None]] = (-1.0, None)
UNKNOWN: Final = "unknown work"

logger = logging.getLogger("rewindmq.loop")


class LoopWatch:
    """The watch of one loop. `limit_seconds`: shorter stalls are not reported."""

    def __init__(self, share: LoopShare, limit_seconds: float) -> None:
        self.share = share
        self.limit_seconds = limit_seconds
        self.counts = [0] * (len(BOUNDS) + 1)  # stalls, by the first of BOUNDS that they are not above
        self.sum_seconds = 0.0
        self._ended = threading.Event()
        self._asked = False  # a call waits in the loop
        self._turned = share.clock()  # the loop was last known to wait, or to begin something new
        self._began = 0.0  # the stall did, if it is one
        self._began_cpu = 0.0  # the loop's processor time then
        self._seen: Counter[str] = Counter()  # what the looks since then have found
        self._piece = NOTHING  # what tells the work that runs from other work
        self._frames: list[FrameType] = []  # freed in the loop's thread, with all that only they refer to
        self._piece_cpu = 0.0  # the loop's processor time when the piece was first seen
        self._least_cpu = 0.0  # that the longest piece has used, since the loop turned
        self._collects = 0.0

    def start(self) -> None:
        """Begin to watch the loop that runs, in the process's main thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")
        signal.signal(LOOK, self._look)
        signal.siginterrupt(LOOK, False)
        self._cpu = system_calls.processor_clock(self._thread_id)
        gc.callbacks.append(self._collecting)
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        signal.signal(LOOK, signal.SIG_DFL)
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _watch(self) -> None:
        cpu, busy, last = self._cpu(), False, self.share.clock()
        while not self._ended.wait(min(self.limit_seconds / 2, IDLE_SECONDS) if busy else IDLE_SECONDS):
            now, before, cpu = self.share.clock(), cpu, self._cpu()
            busy = self._asked or cpu - before > (now - last) * BUSY_CPU or not self._waits_for_events()
            last = now
            if not busy:
                self._turned = now
                continue
            if not self._asked:
                marked = self.share.since  # by work that has used the processor since, or by other work before it
                passed = min(now - marked, cpu - before) if marked >= self._turned else 0
                self._began, self._began_cpu = now - passed, cpu - passed
                self._seen, self._piece, self._least_cpu = Counter(), NOTHING, 0.0
            signal.pthread_kill(self._thread_id, LOOK)
            if not self._asked:
                self._asked = True
                try:
                    self._loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed
                    return

    def _waits_for_events(self) -> bool:
        """Return True if the loop's thread waits for events in the kernel, or if /proc does not say."""
        try:
            return self._task.read_bytes().split(maxsplit=1)[0] in POLLS
        except (OSError, IndexError):
            return True

    def _look(self, number: int, inner: FrameType | None) -> None:
        """Note what the loop does now. (The handler of LOOK, called in the loop's thread.)"""
        try:
            self._note(self._cpu(), *self._stack(inner))
        except Exception:  # it would end the work that was interrupted
            logger.exception("the loop was not looked at")

    def _note(self, cpu: float, outer: FrameType | None, function: str) -> None:
        marked = self.share.since
        whose = name_of(self.share.who) if marked >= self._turned else ""
        self._seen[" in ".join(filter(None, (whose, function))) or UNKNOWN] += 1
        if marked != self._piece[0] or outer is not self._piece[1]:
            self._piece, self._piece_cpu = (marked, outer), cpu
            self._frames += [] if outer is None else [outer]
        self._least_cpu = max(self._least_cpu, cpu - self._piece_cpu)

    def _answer(self) -> None:
        """The loop has come round (called there)."""
        now = self.share.clock()
        lasted, used = now - self._began, self._cpu() - self._began_cpu
        self._turned, self._asked = now, False
        self._frames.clear()
        if lasted >= self.limit_seconds:
            [(what, _)] = self._seen.most_common(1) or [(UNKNOWN, 0)]
            self.report(lasted, used, self._least_cpu, what)

    def report(self, lasted: float, used: float, least: float, what: str) -> None:
        """Log and count a stall. The loop used the processor for `used` seconds, one piece of work for `least` or
        more."""
        self.counts[sum(lasted > bound for bound in BOUNDS)] += 1
        self.sum_seconds += lasted
        text = (
            "the loop stood still for %d ms, and used the processor for %d ms (one piece of work for %d at least): %s"
        )
        logger.warning(text, lasted * 1_000, used * 1_000, least * 1_000, what)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Note a collection. The collector calls this in the thread that collects, which stops all threads."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._collects = time.thread_time()
            return
        cpu = time.thread_time() - self._collects
        if cpu >= self.limit_seconds:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.report, cpu, cpu, cpu, "a collection of all garbage")

    @staticmethod
    def _stack(inner: FrameType | None) -> tuple[FrameType | None, str]:
        """Return the function that the loop has called, and in words where the innermost one is. (None, ""): the loop
        waits, or all functions are compiled."""
        outer = inner
        if inner is None or inner.f_code is RUNNER:
            return None, ""
        while outer is not None and outer.f_back is not None and outer.f_back.f_code is not RUNNER:
            outer = outer.f_back
        assert outer is not None
        called_by = "" if outer is inner else f", called by {place_of(outer)}"
        return outer, place_of(inner) + called_by


def place_of(frame: FrameType) -> str:
    """Return where a function is: its name, its file and the line that runs."""
    code = frame.f_code
    path = Path(code.co_filename)
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{code.co_qualname} ({file}:{frame.f_lineno})"


def name_of(who: object) -> str:
    """Return the name of a client, or of the function that works for it."""
    owner = getattr(who, "__self__", who)
    if owner is None:
        return ""
    if type(owner).__str__ is not object.__str__:
        return str(owner)
    return str(getattr(who, "__qualname__", type(owner).__qualname__))
