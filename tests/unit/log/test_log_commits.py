"""A group commit has an end, and a large block is made in pieces: so no client waits for all bytes of the others."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.blocks import (
    PIECE_BYTES,
    STORED_BYTES,
    encode_block,
    encode_pieces,
    one_behind_the_other,
)
from rewindmq.engine.log.embedded.log import BLOCK_BYTES, EmbeddedLog
from rewindmq.projections import system_calls
from tests.support.log_listener import Listener
from tests.support.records import START_MS, contents, record

FULL = record(0, START_MS, BLOCK_BYTES)  # fills a block by itself


def test_a_commit_ends_with_the_records_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that fills blocks as fast as the disk takes them must not put off the confirms before them."""
    began, goes_on = threading.Event(), threading.Event()
    log = EmbeddedLog.open(tmp_path, 1)
    fdatasync = system_calls.sync_data

    def slowly(descriptor: int) -> None:
        began.set()
        assert goes_on.wait(60)
        fdatasync(descriptor)

    monkeypatch.setattr(system_calls, "sync_data", slowly)
    queue = log.queues[0]

    async def run() -> list[int]:
        ends: list[int] = []
        log.start(Listener(durable=lambda: ends.append(queue.durable_offset)))
        queue.append(START_MS, record(0, START_MS))
        log.commit()
        assert await asyncio.to_thread(began.wait, 60)
        for _ in range(3):
            queue.append(START_MS, FULL)
        goes_on.set()
        while not ends or ends[-1] < 4:
            await asyncio.sleep(0.001)
        return ends

    assert asyncio.run(run()) == [1, 4]
    log.close()


def test_groups_are_closed_while_the_thread_writes_others(tmp_path: Path) -> None:
    """A broker that stops makes all durable, also while a commit is under way."""
    log = EmbeddedLog.open(tmp_path, 1)
    queue = log.queues[0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_001)
    try:
        for _ in range(40):
            queue.append(START_MS, FULL)
        queue.close_group()
        thread = threading.Thread(target=queue.write_closed)
        thread.start()
        while thread.is_alive():
            queue.close_group()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert queue.close_group() == 0
    log.close()


@pytest.mark.parametrize("sizes", [(3 * PIECE_BYTES + 17,), (10, 2 * PIECE_BYTES, 100_000), (30_000,) * 500])
def test_a_large_block_is_never_in_one_piece(sizes: tuple[int, ...]) -> None:
    records = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    size, where = sum(sizes), (b"s" * 16, 7, b"c" * 32)
    pieces = encode_pieces(one_behind_the_other(records, size), len(records), size, *where)
    assert max(map(len, pieces)) <= PIECE_BYTES + STORED_BYTES + 5
    assert b"".join(pieces) == encode_block(records, size, *where)


def test_a_large_block_is_read_back(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, 1)
    large = record(1, START_MS, 3 * PIECE_BYTES)
    for each in (record(0, START_MS), large, record(3, START_MS)):
        log.queues[0].append(START_MS, each)
    log.commit_and_wait()
    assert contents(log.queues[0].read()) == [record(0, START_MS), large, record(3, START_MS)]
    log.close()
