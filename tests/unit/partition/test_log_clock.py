"""Log time: what steps of the wall clock do to it, and to a broker that lives by it."""

import pytest

from rewindmq.engine.partition.log_clock import NS, LogClock, Telling
from tests.support.clocks import HOUR_MS, START_MS, Clocks


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def clock(clocks: Clocks) -> LogClock:
    return LogClock(clocks.wall_ms, clocks.elapsed_ns)


@pytest.mark.parametrize("step_ms", [5 * HOUR_MS, -5 * HOUR_MS, 20_000, -20_000])
def test_a_step_of_the_wall_clock_is_not_obeyed(clocks: Clocks, clock: LogClock, step_ms: int) -> None:
    clocks.run(60_000)
    clocks.wall += step_ms
    assert clock.now_ms() == START_MS + 60_000
    assert clock.look() == pytest.approx(-step_ms, abs=31)
    for _ in range(10):
        before = clock.now_ms()
        clocks.run(1_000)
        clock.look()
        assert clock.now_ms() - before == pytest.approx(1_000, abs=1)  # 0.5 ms, in whole milliseconds


def test_log_time_is_drawn_to_the_wall_clock_and_stays_there(clocks: Clocks, clock: LogClock) -> None:
    clocks.wall += 100
    for _ in range(199):
        clocks.run(1_000)
        clock.look()
    assert clock.difference_ms in (-1, 0)
    for _ in range(100):
        clocks.run(1_000)
        assert clock.look() in (-1, 0)


def test_a_quartz_that_drifts_is_followed(clocks: Clocks, clock: LogClock) -> None:
    for _ in range(1_000):
        clocks.run(10_000, wall=1.0003)
        assert abs(clock.look()) <= 6


def test_a_life_begins_at_the_wall_clock_or_where_the_log_ended(clocks: Clocks, clock: LogClock) -> None:
    assert (clock.begin(0), clock.now_ms()) == (0, START_MS)
    assert (clock.begin(START_MS - 500), clock.now_ms()) == (500, START_MS)
    assert (clock.begin(START_MS + 9_000), clock.now_ms(), clock.difference_ms) == (-9_000, START_MS + 9_000, 9_000)
    clocks.run(1_000)
    assert clock.now_ms() == START_MS + 10_000


def test_what_the_system_offers_is_about_right() -> None:
    clock = LogClock()
    assert abs(clock.now_ms() - clock.wall_ms()) < 1_000
    assert clock.elapsed_ns() <= clock.elapsed_ns()


# --- what is told -----------------------------------------------------------------------------------------------------


def told(differences: list[int], every_ms: int = 1_000) -> list[tuple[int, int]]:
    """Which of these differences, seen one after the other, are told: (number, difference)."""
    telling = Telling()
    return [(at, each) for at, each in enumerate(differences) if telling.is_due(each, at * every_ms * NS)]


def test_a_step_is_told_once_and_its_end_too() -> None:
    assert told([0, 1, 0, 5_000, 5_000, 5_000, *[5_000] * 60, 0, 0]) == [(3, 5_000), (66, 0)]
    assert told([0, 999, 0, -999]) == []


def test_while_a_difference_is_drawn_in_it_is_told_seldom() -> None:
    assert told([*range(4_000, 0, -1)]) == [(0, 4_000), (2_000, 2_000), (3_000, 1_000)]


def test_a_clock_that_stands_still_is_told_once_a_minute() -> None:
    seen = told([1_000 * at for at in range(600)])
    assert [at for at, _ in seen] == [1, *range(61, 600, 60)]


def test_a_step_within_the_minute_is_told_when_it_is_over() -> None:
    assert told([0, 5_000, 65_000, *[65_000] * 60])[-1] == (61, 65_000)
    assert told([0, 5_000, 65_000, *[5_000] * 100]) == [(1, 5_000)]
