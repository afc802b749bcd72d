"""Histories of nodes whose log gets more partitions: queues move while clients, nodes and the log do what they do.

python -m pytest tests/simulation/test_simulation_nodes_moves.py                 some histories
python -m pytest tests/simulation/test_simulation_nodes_moves.py -m slow         a thousand (SIMULATION_FIRST)
"""

import os
from collections import Counter
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.nodes_history import run
from tests.simulation.nodes_moves import REPARTITIONS, moves_of
from tests.simulation.nodes_world import Record
from tests.support.needs import require_patchable

SEEDS = 12
MANY = 1_000


@cache
def record_of(seed: int) -> Record:
    return run(seed, moves_of(seed))


def many(first: int, end: int) -> None:
    for seed in range(first, end):
        run(seed, moves_of(seed))


@pytest.mark.long(seed=range(4, SEEDS))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_with_repartitions(seed: int) -> None:
    record_of(seed)


@pytest.mark.rare
def test_the_histories_meet_everything() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met += record_of(seed).counts
    wanted = [
        *REPARTITIONS,
        "repartitions",
        "queues that moved",
        "queues that moved twice",
        "relocated",
        "publishes that waited for a queue",
        "declared lost",
        "killed",
        "returned",
    ]
    assert [what for what in wanted if met[what] == 0] == []


def forget(word: int) -> bool:
    """A message that moves was never given to a consumer."""
    return False


def leave(moves: Any, vhost: str, name: str) -> None:
    """A consumer that has left its queue's partition is not attached in the new one."""


PLANTED: dict[str, tuple[str, Any, str]] = {  # where, how, and what is found
    "flags are lost": (
        "rewindmq.projections.machine.events.relocation.is_redelivered",
        forget,
        r"redelivered=False",
    ),
    "consumers do not follow": (
        "rewindmq.engine.placement.consumers.ConsumerMoves.ended",
        leave,
        r"did not follow its queue|is nobody's, and was not told|not drained",
    ),
}


@pytest.mark.rare
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_defect_is_found(what: str) -> None:
    where, how, expected = PLANTED[what]
    require_patchable(where)
    with patch(where, how), pytest.raises(AssertionError, match=expected):
        many(0, SEEDS)


@pytest.mark.slow
def test_a_thousand_histories_with_repartitions() -> None:
    first = int(os.environ.get("SIMULATION_FIRST", "100000"))
    many(first, first + MANY)
