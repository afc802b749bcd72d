"""Histories under a wall clock that is set, stands still, and is wrong at a start (clock_history.py).

python -m tests.simulation.clock_history 0 10000     # thousands of them
"""

from collections import Counter

import pytest

from rewindmq.engine.partition.log_clock import LogClock
from tests.simulation import clock_history, history
from tests.simulation.clock_history import ClockClients, ClockWorld, check, history_of

SEEDS = 20


@pytest.mark.long
def test_histories_under_a_wrong_clock() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        witness = check(seed)
        met += witness.counts + witness.ended
    wanted = ("clock", "repair", "crashes", "clean stops", "expired", "dead letters", "audited checked")
    assert [what for what in wanted if met[what] < SEEDS // 3] == []


def test_the_seed_asked_for(asked_seed: int) -> None:
    check(asked_seed)


def test_a_broker_that_obeys_the_wall_clock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogClock, "now_ms", lambda clock: clock.wall_ms())
    assert finds_something()


def test_a_repair_that_lets_the_queues_clock_jump_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = clock_history.ClockClients.repair

    def repair(clients: ClockClients) -> str:
        log_clock = clients.world.broker.host.clock_watch.clock
        log_clock.set(log_clock.wall_ms())  # and no ClockSet
        return original(clients)

    monkeypatch.setattr(ClockClients, "repair", repair)
    assert finds_something()


def finds_something() -> bool:
    for seed in range(10):
        try:
            history.run(seed, history_of(seed, 100), False, worlds=ClockWorld, people=ClockClients)
        except AssertionError:
            return True
    return False
