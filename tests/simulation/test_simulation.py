"""Thousands of short lives: random clients, faults and crashes around the real broker, judged against the log.

python -m pytest tests/simulation                 a few hundred histories
python -m pytest tests/simulation --seed 4711     this one (also SIMULATION_SEED=4711)
python -m pytest tests/simulation -m slow         thousands (SIMULATION_FIRST: the first seed)
"""

import os
from collections import Counter
from functools import cache

import pytest

from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELAYED,
    DELETED,
    DELIVERED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    PURGED,
    REJECTED,
    TRANSIENT,
)
from tests.simulation.history import WEIGHTS, check
from tests.simulation.witness import Witness
from tests.simulation.world import POINTS

SEEDS = 200
VALIDATED = range(10_000, 10_030)
REAL_ROCKS = range(20_000, 20_006)
MANY = 5_000


@cache
def witness_of(seed: int) -> Witness:
    return check(seed)


@pytest.mark.long(seed=range(12, SEEDS))
@pytest.mark.rare(seed=range(100, SEEDS))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history(seed: int) -> None:
    witness_of(seed)


@pytest.mark.rare
def test_the_histories_meet_everything() -> None:
    """Every kind of step, every place to be killed at, every end of a message."""
    met: Counter[str] = Counter()
    for seed in range(2 * SEEDS):
        witness = witness_of(seed)
        met += witness.counts + witness.ended
    wanted = [
        *WEIGHTS,
        *(f"killed at {point}" for point in POINTS),
        "crashes",
        "clean stops",
        "deliveries",
        ACKED,
        DELAYED,
        DELETED,
        DELIVERED,
        DELIVERY_LIMIT,
        EXPIRED,
        MAXLEN,
        PURGED,
        REJECTED,
        TRANSIENT,
        "dead letters",
        "dead letters seen before",
        "refused",
        "snapshots",
        "waypoints",
        "snapshots of the topology",
        "commits failed",
        "batches failed",
        "tails lost",
        "states mended",
    ]
    assert [what for what in wanted if met[what] < 5] == []


@pytest.mark.long(seed=VALIDATED[12:])
@pytest.mark.parametrize("seed", VALIDATED)
def test_a_history_with_every_invariant_after_every_event(seed: int) -> None:
    check(seed, steps=60, validate=True)


@pytest.mark.parametrize("seed", REAL_ROCKS)
def test_a_history_over_a_real_rocksdb(seed: int) -> None:
    check(seed, real_rocks=True)


def test_the_seed_asked_for(asked_seed: int) -> None:
    check(
        asked_seed,
        steps=60 if asked_seed in VALIDATED else 100,
        validate=asked_seed in VALIDATED,
        real_rocks=asked_seed in REAL_ROCKS,
    )


@pytest.mark.slow
def test_thousands_of_histories() -> None:
    first = int(os.environ.get("SIMULATION_FIRST", "100000"))
    for seed in range(first, first + MANY):
        check(seed)
