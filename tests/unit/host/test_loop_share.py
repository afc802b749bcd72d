"""Long work in slices: how much of it a turn of the loop has, by a clock that the work itself moves."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from rewindmq.engine.host.loop_share import (
    LONG_SLICE_SECONDS,
    SHARED_SECONDS,
    SLICE_SECONDS,
    LoopAccount,
    LoopShare,
    Work,
)
from rewindmq.engine.http import pieces

STEP = SLICE_SECONDS / 4  # what an item costs


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Callable[[Clock, LoopShare, list[float]], Awaitable[None]], shared: bool = True) -> list[float]:
    """Return how long each turn of the loop took. `shared`: a client is served at once in each of them."""
    turns: list[float] = []

    async def main() -> None:
        clock = Clock()
        share = LoopShare(clock)

        async def bystander() -> None:
            while True:
                if shared:
                    assert LoopAccount(share).begin("a client that does little")
                began = clock.now
                await asyncio.sleep(0)
                turns.append(clock.now - began)

        watching = asyncio.create_task(bystander())
        await asyncio.wait_for(scenario(clock, share, turns), 30)
        watching.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    return turns


async def request(clock: Clock, share: LoopShare, items: int) -> int:
    await share.turn()
    work, done = Work(share), 0
    async for _ in work.over(range(items)):
        clock.now += STEP
        done += 1
    return done


@pytest.mark.parametrize("requests", [1, 2, 50])
def test_a_turn_has_one_slice_however_many_requests_there_are(requests: int) -> None:
    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        assert await asyncio.gather(*(request(clock, share, 100) for _ in range(requests))) == [100] * requests

    turns = run(scenario)
    assert 0 < max(turns) < 2 * SLICE_SECONDS, "a slice and its last item, and not one for each request"


def test_short_work_shares_a_slice() -> None:
    called: list[int] = []

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        def short(number: int) -> None:
            clock.now += STEP
            called.append(number)

        for number in range(1_000):
            share.call(partial(short, number))
        while len(called) < 1_000:
            await asyncio.sleep(0)

    turns = run(scenario)
    assert called == list(range(1_000))
    assert 0 < max(turns) < 2 * SLICE_SECONDS
    assert len([turn for turn in turns if turn]) <= 260, "four in a slice"


def test_a_short_request_is_not_behind_all_of_a_long_one() -> None:
    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        long = asyncio.create_task(request(clock, share, 10_000))
        await asyncio.sleep(0)
        assert await request(clock, share, 1) == 1
        assert clock.now < 10 * SLICE_SECONDS
        assert not long.done()
        long.cancel()

    run(scenario)


def stand_in_line(clock: Clock, share: LoopShare, times: int) -> None:
    """Take a step of a busy client, and put its next one into the line, until `times` are over."""
    clock.now += STEP
    if times:
        share.call(partial(stand_in_line, clock, share, times - 1))


def test_slices_are_long_where_all_stand_in_the_line() -> None:
    said: list[tuple[bool, bool]] = []

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        share.start(lambda shared: said.append((shared, clock.now >= SHARED_SECONDS)))
        for _ in range(100):
            share.call(partial(stand_in_line, clock, share, 100))
        while share.busy:
            await asyncio.sleep(0)

    turns = run(scenario, shared=False)
    assert LONG_SLICE_SECONDS <= max(turns) < LONG_SLICE_SECONDS + SLICE_SECONDS
    assert said == [(True, False), (False, True)], "a client was there at first"


def test_one_client_that_does_little_makes_slices_short_again() -> None:
    said: list[bool] = []

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        share.start(said.append)
        for _ in range(100):
            share.call(partial(stand_in_line, clock, share, 200))
        while share.shared:
            await asyncio.sleep(0)
        assert LoopAccount(share).begin("a client that does little")
        await asyncio.sleep(0)
        turns.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        assert 0 < max(turns) < 2 * SLICE_SECONDS
        assert share.busy

    run(scenario, shared=False)
    assert said == [True, False, True]


def test_work_that_is_given_up_holds_up_nobody() -> None:
    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        tasks = [asyncio.create_task(request(clock, share, 100)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[:9]:
            task.cancel()
        assert await tasks[9] == 100

    run(scenario)


def test_a_defect_of_one_costs_the_others_nothing() -> None:
    called: list[int] = []

    def broken() -> None:
        raise ZeroDivisionError

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        share.call(broken)
        share.call(lambda: called.append(1))
        assert await request(clock, share, 10) == 10

    run(scenario)
    assert called == [1]


def test_sorting_in_runs_is_sorting() -> None:
    entries = [(random.Random(7).randrange(50) + n % 50, n) for n in range(9_000)]

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        found = await Work(share).in_order(entries)
        assert found == [n for _, n in sorted(entries, key=lambda entry: entry[0])]
        assert await Work(share).in_order([]) == []

    run(scenario)


def test_pieces_are_json() -> None:
    import json

    content: dict[str, object] = {
        "a": 1,
        "empty": iter(()),
        "many": ({"n": n, "é": "\u20ac"} for n in range(20_000)),
        "text": '"\n\\',
        "object": {"x": [1]},
    }

    async def scenario(clock: Clock, share: LoopShare, turns: list[float]) -> None:
        work = Work(share)
        made = json.loads("".join([piece async for piece in pieces.members(work, content)]))
        many = [{"n": n, "é": "\u20ac"} for n in range(20_000)]
        assert made == {"a": 1, "empty": [], "many": many, "text": '"\n\\', "object": {"x": [1]}}
        assert "".join([piece async for piece in pieces.members(work, {})]) == "{}"

    run(scenario)
