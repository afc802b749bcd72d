"""The watch of the loop: what it reports of work that takes long, and whose it was."""

import asyncio
import gc
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from rewindmq.engine.host.durations import short_ms
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.host.loop_watch import BOUNDS, IDLE_SECONDS, LoopWatch
from tests.support.running import LONG_WORK

LIMIT = 0.1
LONG = 0.4  # seconds of processor time


class Client:
    def __str__(self) -> str:
        return "client 7"


def use_processor(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def stop_program(seconds: float) -> None:
    time.sleep(seconds)


def watched(
    caplog: pytest.LogCaptureFixture, scenario: Callable[[LoopShare, LoopWatch], Awaitable[None]]
) -> tuple[LoopWatch, list[str]]:
    """Run the scenario with a watch; return it, and the texts that it logged."""

    async def main() -> LoopWatch:
        share = LoopShare()
        watch = LoopWatch(share, LIMIT)
        watch.start()
        try:
            await scenario(share, watch)
            await asyncio.sleep(0.01)  # the last call is answered
        finally:
            watch.stop()
        return watch

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        watch = runner.run(main())
    return watch, [record.getMessage() for record in caplog.records if record.name == "rewindmq.loop"]


def least(text: str) -> int:
    """Milliseconds that one piece of work has used at least, as a test of a broker reads them."""
    found = LONG_WORK.search(text)
    assert found is not None
    return int(found[1])


def test_long_work_is_reported_with_the_client_and_the_function(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        share.mark(Client())
        use_processor(LONG)

    watch, texts = watched(caplog, scenario)
    (text,) = (text for text in texts if "client 7 in use_processor" in text)
    assert "test_loop_watch.py" in text
    assert LONG * 1_000 / 2 <= least(text) <= LONG * 1_000
    assert sum(watch.counts) == len(texts)
    assert watch.counts[0] == 0, "it was longer than the limit"
    assert watch.sum_seconds >= LONG / 2


def test_waiting_in_the_loop_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        stop_program(LONG)

    _, texts = watched(caplog, scenario)
    (text,) = (text for text in texts if "stop_program" in text)
    assert least(text) < 100, "it used no processor"


def test_many_short_pieces_are_not_one_long_piece(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        for _ in range(100):
            asyncio.get_running_loop().call_soon(use_processor, LONG / 100)
        await asyncio.sleep(0)

    _, texts = watched(caplog, scenario)
    assert all(least(text) < 100 for text in texts)


class SlowToGo:
    def __del__(self) -> None:
        time.sleep(0.001)  # other threads run meanwhile, while the frame of `leave` is being cleared


def leave(depth: int) -> int:
    gone = SlowToGo()
    return depth if gone is None or not depth else leave(depth - 1)


def test_frames_that_are_being_cleared_are_let_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            share.mark(Client())
            leave(100)
            await asyncio.sleep(0)

    _, texts = watched(caplog, scenario)
    assert any("client 7 in SlowToGo.__del__" in text or "client 7 in leave" in text for text in texts), texts


def test_a_busy_loop_whose_turns_are_short_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        for _ in range(300):
            use_processor(0.002)
            await asyncio.sleep(0)

    _, texts = watched(caplog, scenario)
    assert all(least(text) < 100 for text in texts)
    assert all(int(re.findall(r"processor for (\d+) ms", text)[0]) < 100 for text in texts), "only the machine was busy"


def test_a_collection_of_all_garbage_is_a_piece_of_work(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(share: LoopShare, watch: LoopWatch) -> None:
        gc.disable()
        many = [[number] for number in range(3_000_000)]
        began = time.thread_time()
        gc.collect()
        took = time.thread_time() - began
        gc.enable()
        await asyncio.sleep(0)
        assert took > LIMIT, "otherwise this test shows nothing"
        assert len(many) == 3_000_000

    _, texts = watched(caplog, scenario)
    assert any(text.endswith("a collection of all garbage") and least(text) >= 100 for text in texts)


class WokenLoop(uvloop.Loop):
    """A loop that counts the calls from other threads."""

    woken = 0

    def call_soon_threadsafe(self, *given: Any, **named: Any) -> asyncio.Handle:  # type: ignore[override]
        self.woken += 1
        return super().call_soon_threadsafe(*given, **named)


def test_an_idle_loop_is_not_woken() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WokenLoop)
        watch = LoopWatch(LoopShare(), LIMIT)
        watch.start()
        while not loop.woken:  # a busy loop is
            pass
        await asyncio.sleep(2 * IDLE_SECONDS)
        busy = loop.woken
        await asyncio.sleep(10 * IDLE_SECONDS)
        watch.stop()
        assert loop.woken - busy <= 3

    with asyncio.Runner(loop_factory=WokenLoop) as runner:
        runner.run(main())


def test_bounds_are_in_order() -> None:
    assert list(BOUNDS) == sorted(BOUNDS)


def test_durations_may_be_short() -> None:
    assert [short_ms(text) for text in ("0", "100ms", "2s", "1m30s")] == [0, 100, 2_000, 90_000]
    for text in ("", "ms", "5", "-5ms", "0s", "²ms"):
        with pytest.raises(ValueError, match="is not a duration"):
            short_ms(text)
