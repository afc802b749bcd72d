"""A connection's share of the loop's time, by a clock that each look at it moves: who parses how much in a turn."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

import pytest

from rewindmq.engine.amqp.frames import FRAME_BYTES, PAUSE_CHECK_BYTES
from rewindmq.engine.host.loop_share import AT_ONCE_SECONDS, SLICE_SECONDS, LoopAccount, LoopShare
from rewindmq.schemas.events import Published
from tests.support.amqp_double import DoubleBroker, DoubleTurns
from tests.support.amqp_wire import HANDSHAKE, Wire, header_frame, method, publish, raw_frame
from tests.support.async_tests import run_by

STEP = 0.000_1  # seconds that a look at the clock takes
CHECKED = PAUSE_CHECK_BYTES // FRAME_BYTES + 1  # tiny frames between two looks
IN_A_SLICE = (round(SLICE_SECONDS / STEP) + 2) * CHECKED
AT_ONCE = (round(AT_ONCE_SECONDS / STEP) + 2) * CHECKED
CONTENT = method(1, "Basic.Publish", routing_key="q") + header_frame(1, 1_000_000)
FLOODS = {
    "heartbeats": (b"", raw_frame(8, 0, b"")),
    "empty bodies": (CONTENT, raw_frame(3, 1, b"")),
    "bytes": (CONTENT, raw_frame(3, 1, b"x")),
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += STEP
        return self.now


class Sliced(DoubleBroker):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.host.loop_share = LoopShare(self.clock)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(), 30)

    asyncio.run(main())


in_loop = run_by(run, given=0)


async def opened(broker: DoubleBroker) -> Wire:
    """A connection that has opened channel 1 and declared q, and has used nothing of the loop lately."""
    wire = Wire(broker, opened=False)
    wire.send(HANDSHAKE + method(1, "Channel.Open") + method(1, "Queue.Declare", queue="q"))
    while wire.connection.gate.waiting:
        await asyncio.sleep(0)
    wire.read()
    wire.connection.account.pay()
    if isinstance(broker, Sliced):
        broker.clock.now += 2
    return wire


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_tiny_frames_is_parsed_a_slice_at_a_time(kind: str) -> None:
    before, frame = FLOODS[kind]

    async def scenario() -> None:
        wire = await opened(Sliced())
        wire.send(before)
        wire.connection.broker.host.loop_share.clock.now += 2  # type: ignore[attr-defined]
        wire.push(frame * 20_000)
        left = [20_000, len(wire.connection.parser.rest) // len(frame)]
        while wire.connection.parser.rest:
            assert not wire.connection.reads_socket(), "nothing is read until the buffer is parsed"
            await asyncio.sleep(0)
            left.append(len(wire.connection.parser.rest) // len(frame))
        parsed = [earlier - later for earlier, later in pairwise(left)]
        assert 0 < parsed[0] <= AT_ONCE
        assert max(parsed) <= IN_A_SLICE
        assert sum(parsed) == 20_000
        assert wire.connection.reads_socket()

    run(scenario)


@in_loop
async def test_a_bystander_does_not_wait_behind_a_hundred_floods() -> None:
    broker = Sliced()
    floods = [await opened(broker) for _ in range(100)]
    bystander = await opened(broker)
    frame = raw_frame(8, 0, b"")
    for each in floods:
        each.push(frame * 5_000)
    for turn in range(50):
        before = sum(len(each.connection.parser.rest) for each in floods)
        broker.clock.now += 0.02
        bystander.push(publish(1, "", "q", b"%d" % turn))
        bystander.connection.account.pay()
        bodies = [event.body for event in broker.events if isinstance(event, Published)]
        assert bodies == [b"%d" % number for number in range(turn + 1)], "it was taken at once"
        await asyncio.sleep(0)
        after = sum(len(each.connection.parser.rest) for each in floods)
        assert 0 < (before - after) // len(frame) <= IN_A_SLICE, "one slice for all floods together"


@in_loop
async def test_floods_share_the_line_evenly() -> None:
    broker = Sliced()
    floods = [await opened(broker) for _ in range(10)]
    for each in floods:
        each.push(raw_frame(8, 0, b"") * 50_000)
    for _ in range(200):
        await asyncio.sleep(0)
    left = [len(each.connection.parser.rest) // 8 for each in floods]
    assert max(left) < 50_000
    assert max(left) - min(left) <= 2 * IN_A_SLICE


@in_loop
async def test_what_comes_while_a_connection_stands_in_the_line_comes_behind_it() -> None:
    wire = await opened(Sliced())
    bodies = [b"%0300d" % number for number in range(3_000)]
    for first in range(0, 3_000, 1_000):
        wire.push(*(publish(1, "", "q", body) for body in bodies[first : first + 1_000]))
    assert wire.connection.gate.waiting
    while wire.connection.parser.rest:
        await asyncio.sleep(0)
    assert [event.body for event in wire.broker.events if isinstance(event, Published)] == bodies


@in_loop
async def test_a_connection_that_is_lost_in_the_line_holds_up_nobody() -> None:
    broker = Sliced()
    floods = [await opened(broker) for _ in range(3)]
    for each in floods:
        each.push(raw_frame(8, 0, b"") * 5_000)
    floods[0].connection.lost()
    while floods[2].connection.parser.rest:
        await asyncio.sleep(0)


class OneTurn(DoubleTurns):
    """Turns that end when the test says so, so that only slices and cuts differ."""

    held = True

    def end(self) -> None:
        if not self.held:
            super().end()


@pytest.mark.parametrize("seed", range(30))
def test_slices_and_cuts_change_nothing(seed: int) -> None:
    random = Random(seed)
    frames = [
        random.choice(
            [
                publish(1, "", "q", bytes(random.randrange(300)), piece=random.choice([1, 7, 4_000])),
                raw_frame(8, 0, b""),
                method(1, "Basic.Get", queue="q"),
                method(1, "Queue.Declare", queue=f"q{random.randrange(5)}"),
                method(1, "Basic.Publish", routing_key="nowhere", mandatory=True)
                + header_frame(1, 2)
                + raw_frame(3, 1, b"") * 20
                + raw_frame(3, 1, b"ab"),
            ]
        )
        for _ in range(60)
    ]
    stream = b"".join(frames)
    cuts = sorted(random.randrange(len(stream)) for _ in range(20))

    async def outcome(broker: DoubleBroker, chunks: list[bytes]) -> tuple[bytes, list[object]]:
        wire = await opened(broker)
        turns = broker.turns = OneTurn(broker)
        for chunk in chunks:
            wire.connection.receive(chunk)
            wire.connection.account.pay()
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
        while wire.connection.gate.waiting:
            await asyncio.sleep(0)
        turns.held = False
        turns.end()
        return wire.read_raw(), broker.events

    async def scenario() -> None:
        whole = await outcome(DoubleBroker(), [stream])
        cut = await outcome(Sliced(), [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])])
        assert cut[0] == whole[0]
        assert [repr(each) for each in cut[1]] == [repr(each) for each in whole[1]]

    run(scenario)


@in_loop
async def test_an_account_pays_and_earns() -> None:
    clock = Clock()
    share = LoopShare(clock)
    account, other = LoopAccount(share), LoopAccount(share)
    assert account.begin("flood")
    clock.now += SLICE_SECONDS
    assert [account.due, account.due] == [False, True]
    account.pay()
    account.pay()  # of nothing
    assert account.begin("flood"), "it owes time, and nobody else wants the slice of this turn"
    clock.now += SLICE_SECONDS
    account.pay()
    assert not account.begin("flood"), "this turn has had its slice"
    assert other.begin("light")
    assert share.who == "light"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now += 1.1
    assert share.take_slice()
    assert account.begin("flood"), "a second without work is enough"
