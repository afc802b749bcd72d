"""The simulated log's faults: each happens, each comes from the seed, and none breaks the contract."""

from collections.abc import Callable

import pytest

from rewindmq.engine.log.embedded import blocks
from rewindmq.engine.log.simulated import embedded as memory
from rewindmq.engine.log.simulated.embedded import Faults, MemoryLog
from tests.support.log_listener import Listener
from tests.support.records import START_MS, contents, expected, record

STORM = Faults(seed=0, commit_delay_seconds=0.5, failure_rate=0.3, torn_rate=0.5)


class Clock:
    """A virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[tuple[float, int, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.waiting.append((self.now + seconds, len(self.waiting), callback))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [item for item in self.waiting if item[0] <= end]:
            first = min(due)
            self.waiting.remove(first)
            self.now = first[0]
            first[2]()
        self.now = end


def story(seed: int, body_bytes: int | None = None) -> tuple[list[tuple[str, int]], int, int, MemoryLog]:
    """Append and commit for a while; what was heard, what was durable, what was appended, the log after the crash."""
    clock = Clock()
    log = MemoryLog(1, Faults(seed, STORM.commit_delay_seconds, STORM.failure_rate, STORM.torn_rate), clock.call_later)
    queue = log.queues[0]
    heard: list[tuple[str, int]] = []
    log.start(
        Listener(
            lambda: heard.append(("durable", queue.durable_offset)),
            lambda error: heard.append(("failure", queue.durable_offset)),
        )
    )
    for number in range(200):
        queue.append(START_MS + number, record(number, body_bytes=body_bytes))
        log.commit()
        clock.run(0.05)
    durable, appended = queue.durable_offset, queue.next_offset
    after = log.crash()
    clock.run(100.0)
    assert queue.durable_offset == durable, "a dead broker's commits land nowhere"
    return heard, durable, appended, after


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_keeps_what_is_durable_and_a_front_part_of_the_rest(seed: int) -> None:
    heard, durable, appended, after = story(seed)
    queue = after.queues[0]
    assert durable <= queue.durable_offset == queue.next_offset <= appended
    assert contents(queue.read()) == expected(queue.next_offset)
    offsets = [offset for _, offset in heard]
    assert offsets == sorted(offsets)
    assert queue.append(START_MS + 1_000, record(queue.next_offset)) == queue.next_offset - 1
    after.commit_and_wait()
    assert contents(queue.read()) == expected(queue.next_offset)


def test_every_kind_of_fault_happens_and_a_seed_tells_its_story_again() -> None:
    stories = [story(seed) for seed in range(30)]
    assert any(("failure") in [what for what, _ in heard] for heard, *_ in stories)
    kept = [after.queues[0].durable_offset - durable for _, durable, _, after in stories]
    lost = [appended - after.queues[0].durable_offset for _, _, appended, after in stories]
    assert max(kept) > 0
    assert min(kept) == 0
    assert max(lost) > 0
    for seed in range(5):
        heard, durable, appended, after = story(seed)
        assert (heard, durable, appended) == stories[seed][:3]
        assert list(after.queues[0].read()) == list(stories[seed][3].queues[0].read())


def test_a_failed_commit_is_tried_again_until_it_lands() -> None:
    clock = Clock()
    log = MemoryLog(1, Faults(seed=3, failure_rate=0.9), clock.call_later)
    failures: list[Exception] = []
    log.start(Listener(commit_failed=failures.append))
    for number in range(10):
        log.queues[0].append(START_MS + number, record(number))
    log.commit()
    clock.run(200.0)
    assert failures
    assert contents(log.queues[0].read()) == expected(10)


@pytest.mark.parametrize("hole", ["no checksum", "no place"])
def test_a_hole_in_the_checks_of_a_block_shows_in_what_a_crash_leaves(
    hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torn, stale and misdirected blocks are there: without their checks they are taken for what was written."""

    def sound(seed: int) -> bool:
        queue = story(seed, 2_000)[3].queues[0]
        return contents(queue.read()) == [record(number, body_bytes=2_000) for number in range(queue.next_offset)]

    assert all(map(sound, range(60)))
    if hole == "no checksum":
        monkeypatch.setattr(blocks, "crc32", lambda data, before=0: 7)
    else:
        monkeypatch.setattr(memory, "require_place", lambda *arguments: None)
    assert not all(map(sound, range(60)))
