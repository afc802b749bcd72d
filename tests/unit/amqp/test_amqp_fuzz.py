"""Whatever a client sends: no crash, no hang, nothing kept without a bound, and the close code that the protocol has.

`make test` feeds some thousands of frames, `-m slow` a million (FUZZ_FRAMES, FUZZ_SEED).
"""

import asyncio
import os
import random
import resource
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.config import Config
from rewindmq.engine.process import open_broker
from rewindmq.schemas.amqp import tables
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_fuzz import Streams, expect, run, summary
from tests.support.amqp_wire import Wire, header_frame, method, publish, raw_frame
from tests.support.examples import examples

FRAMES = int(os.environ.get("FUZZ_FRAMES", "1000000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))


@pytest.mark.parametrize("seed", range(4))
def test_some_thousands_of_frames(tmp_path: Path, seed: int) -> None:
    async def main() -> dict[int, int]:
        broker = open_broker(Config(data=tmp_path))
        try:
            return await run(broker, seed, 3_000)
        finally:
            broker.close()

    closes = asyncio.run(main())
    assert {0, 501, 504} <= set(closes), closes


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_frames(tmp_path: Path) -> None:
    """In pieces, each on the same broker: what it uses does not grow with them."""
    used: list[int] = []
    pieces, closes = 20, Counter[int]()

    async def main() -> None:
        broker = open_broker(Config(data=tmp_path))
        try:
            for piece in range(pieces):
                closes.update(await run(broker, SEED + piece, FRAMES // pieces))
                used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        finally:
            broker.close()

    asyncio.run(main())
    print(f"{FRAMES} frames, {summary(closes)}; MiB at most after each piece: {used}")
    assert used[-1] - used[pieces // 4] < 200, used


# What is wrong, and the code for it. `{channel}` 1 is open, 9 is not.
WRONG: list[tuple[int, bytes]] = [
    (501, raw_frame(3, 1, b"x", end=b"\x00")),
    (501, b"\x01\x00\x01\xff\xff\xff\xff\x00"),
    (501, raw_frame(0, 1, b"")),
    (501, raw_frame(7, 0, b"x")),
    (501, raw_frame(8, 0, b"not empty")),
    (501, raw_frame(1, 1, b"\x00\x32")),
    (501, raw_frame(1, 1, b"\x00\x32\x00\x0a\x00")),
    (501, raw_frame(1, 1, method(1, "Basic.Qos")[7:-1] + b"left over")),
    (501, raw_frame(1, 1, method(1, "Basic.Publish")[7:-1] + b"left over")),
    (501, raw_frame(2, 1, b"short")),
    (502, method(1, "Queue.Declare", queue="t", arguments=b"\x01aZ")),
    (502, method(1, "Queue.Declare", queue="t", arguments=b"\x09a")),
    (502, method(1, "Queue.Declare", queue="t", arguments=tables.encode({"deep": {}}).replace(b"F", b"F" * 40))),
    (502, method(1, "Basic.Publish") + header_frame(1, 0, b"\x80\x00\x05ab")),
    (502, method(1, "Basic.Publish") + header_frame(1, 0, b"\x20\x00\x00\x00\x00\x09\x01aA\x00\x00\x00\x02Zz")),
    (503, raw_frame(1, 1, b"\x00\x3c\x00\xff")),
    (503, raw_frame(1, 0, b"\x00\x01\x00\x01")),
    (503, method(1, "Basic.ConsumeOk", consumer_tag="x")),
    (504, method(9, "Basic.Qos")),
    (504, method(1, "Channel.Open")),
    (504, method(0, "Connection.TuneOk", channel_max=1, frame_max=4096)),
    (505, header_frame(1, 5)),
    (505, raw_frame(3, 1, b"x")),
    (505, raw_frame(3, 9, b"x")),
    (505, raw_frame(3, 0, b"x")),
    (505, raw_frame(8, 1, b"")),
    (505, method(1, "Basic.Publish") + method(1, "Basic.Qos")),
    (505, method(1, "Basic.Publish") + raw_frame(3, 1, b"x")),
    (505, method(1, "Basic.Publish") + header_frame(1, 5, class_id=10)),
    (505, method(1, "Basic.Publish") + header_frame(1, 5) + header_frame(1, 5)),
    (505, method(1, "Basic.Publish") + header_frame(1, 5) + publish(1, "", "q", b"x")),
    (540, method(1, "Basic.Publish", immediate=True) + header_frame(1, 0)),
]


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(WRONG), st.integers(0, 2**32), st.lists(st.integers(0, 10_000), max_size=6))
def test_what_is_wrong_is_told_by_its_code(wrong: tuple[int, bytes], seed: int, cuts: list[int]) -> None:
    """After anything that is right, however it is cut."""
    code, frames = wrong
    pick = random.Random(seed)
    right = b"".join(publish(1, "", "q", pick.randbytes(pick.randrange(20))) for _ in range(pick.randrange(5)))
    data = right + frames
    edges = sorted(min(cut, len(data)) for cut in cuts)
    wire = Wire(DoubleBroker())
    wire.send(method(1, "Queue.Declare", queue="q"))
    said = [each for a, b in zip([0, *edges], [*edges, len(data)], strict=True) for each in wire.send(data[a:b])]
    expect(said, code)
    assert wire.send(publish(1, "", "q", b"ignored"), method(2, "Channel.Open")) == []


def test_a_seed_is_a_history() -> None:
    assert [Streams(7).next() for _ in range(3)] == [Streams(7).next() for _ in range(3)]
