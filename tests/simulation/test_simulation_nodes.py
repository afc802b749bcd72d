"""Hundreds of short histories of several nodes on one log: random clients and faults around the real brokers, judged
against the log.

    python -m pytest tests/simulation/test_simulation_nodes.py                 a few dozen histories
    python -m pytest tests/simulation/test_simulation_nodes.py --seed 4711     this one (also SIMULATION_SEED=4711)
    python -m pytest tests/simulation/test_simulation_nodes.py -m slow         thousands (SIMULATION_FIRST: the first)
"""

import os
import random
from collections import Counter
from functools import cache
from itertools import count
from unittest.mock import patch

import pytest

from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELETED,
    DELIVERED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    PURGED,
    REJECTED,
)
from tests.simulation.nodes_history import STEPS, WEIGHTS, check, history_of, run
from tests.simulation.nodes_world import Record

SEEDS = 60
MANY = 5_000


@cache
def record_of(seed: int) -> Record:
    return check(seed)


@pytest.mark.long(seed=range(12, SEEDS))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history(seed: int) -> None:
    record_of(seed)


@pytest.mark.rare
def test_the_histories_meet_everything() -> None:
    """Every kind of step, every end of a message and of a life."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met += record_of(seed).counts
    wanted = [
        *WEIGHTS,
        ACKED,
        DELETED,
        DELIVERED,
        DELIVERY_LIMIT,
        EXPIRED,
        MAXLEN,
        PURGED,
        REJECTED,
        "killed",
        "stopped",
        "failed",
        "dead letters",
        "dead letters seen before",
        "publishes refused",
        "ignored, of a lost life",
        "declared lost",
        "checkpoints",
        "snapshots of the topology",
        "waypoints",
        "ticks",
        "refused",
        "returned",
        "returned below the log",
    ]
    assert [what for what in wanted if met[what] == 0] == []


# Few consumers, and messages for them: a consumer is alone at its queue, and gets more than its prefetch.
LOOKAHEADS = {
    "publish": 40,
    "settle": 12,
    "consume": 4,
    "credit": 30,
    "cancel": 2,
    "connect": 3,
    "close": 2,
    "wait": 12,
    "kill": 1,
    "start": 4,
    "cut": 1,
    "mend": 3,
}


@pytest.mark.long
def test_histories_of_lookaheads() -> None:
    """Messages that were not sent to a client come back unchanged (projections/machine/events/lookahead.py)."""
    met: Counter[str] = Counter()
    for seed in range(20):
        dice = random.Random(f"steps with lookaheads {seed}")
        kinds = dice.choices(list(LOOKAHEADS), list(LOOKAHEADS.values()), k=2 * STEPS)
        met += run(seed, [(kind, dice.getrandbits(32)) for kind in kinds]).counts
    assert met["not sent"] >= 10
    assert met["declared lost"]


# Publishes that are alike, to queues that have consumers and limits, while nodes come and go.
RUNS = {
    "run": 40,
    "publish": 5,
    "declare": 6,
    "policy": 3,
    "consume": 8,
    "settle": 20,
    "credit": 8,
    "close": 2,
    "wait": 6,
    "kill": 2,
    "start": 5,
    "cut": 2,
    "mend": 4,
    "hold": 2,
    "owners": 2,
}


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
def test_histories_of_runs(seed: int) -> None:
    """Runs come back in parts, between other nodes' records, and some of their messages are refused."""
    dice = random.Random(f"steps with runs {seed}")
    kinds = dice.choices(list(RUNS), list(RUNS.values()), k=STEPS)
    assert run(seed, [(kind, dice.getrandbits(32)) for kind in kinds]).counts["messages in runs"]


def test_a_seed_makes_one_history() -> None:
    """The speed of the machine does not matter, because the world has its own clock."""
    one = run(7, history_of(7, STEPS))
    slow = count(0, 0.01).__next__  # seconds: each look finds that 10 ms have passed
    with patch("time.perf_counter", slow), patch.object(LoopShare.__init__, "__defaults__", (slow,)):
        other = run(7, history_of(7, STEPS))
    assert one.trace == other.trace
    assert one.claims == other.claims
    assert one.trace != run(8, history_of(8, STEPS)).trace


def test_the_seed_asked_for(asked_seed: int) -> None:
    check(asked_seed)


@pytest.mark.slow
def test_thousands_of_histories() -> None:
    first = int(os.environ.get("SIMULATION_FIRST", "100000"))
    for seed in range(first, first + MANY):
        check(seed)
