"""Defects put into nodes on purpose: the simulation must find each of them, and does not have to look for long."""

import re
from typing import Any
from unittest.mock import patch

import pytest

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.projections.machine.machine import HANDLERS
from rewindmq.schemas.events import NodeLost, Tick
from rewindmq.schemas.values import BROKER
from tests.simulation.nodes_history import history_of, run
from tests.support.needs import require_patchable

pytestmark = pytest.mark.rare

TRIES = 80


def nothing(*_: Any) -> None:
    """It is left out."""


def keep_clients(node: Any, reason: str) -> None:
    """A node that is lost joins again, and its clients stay."""
    node.joined = False


def confirm_all(partition: Any) -> None:
    """Nobody is told that a queue refused."""
    partition.refused.clear()
    SETTLE(partition)


def only_end_the_epoch(state: Any, offset: int, actor: Any, event: Any, effects: list[Any]) -> None:
    state.lose_epoch(event.epoch)


def own_clock(partition: Any, arrived: Any) -> None:
    """Time is the node's own, not the log's."""
    arrived.timestamps_ms = [partition._clock()] * len(arrived.offsets)
    READ_BACK(partition, arrived)


async def owned_still(rounds: Any, work: Any) -> bool:
    """Nothing is removed."""
    return True


SETTLE, READ_BACK = ReadBackPartition.on_durable, ReadBackPartition.read_back
PLANTED: dict[str, tuple[str, Any, str]] = {  # what, where, how, and what is found
    "clients of a lost node stay": (
        "rewindmq.engine.cluster.node.ClusterKeeper.drop_clients",
        keep_clients,
        r"and ignored|is nobody's|never answered|is of a life|missed",
    ),
    "nobody misses a node": (
        "rewindmq.engine.cluster.node.ClusterKeeper.declare_lost",
        nothing,
        r"alive are|is nobody's|not drained|does not come",
    ),
    "refusals are confirmed": (
        "rewindmq.engine.cluster.partition.ReadBackPartition.on_durable",
        confirm_all,
        r"was told a lie",
    ),
    "who takes duties over does not look into the outboxes": (
        "rewindmq.engine.routing.dead_letters.Forwarder.recover",
        nothing,
        r"not drained: .*outbox \[\d|dead letter \d+ of \w+ arrived 0 times",
    ),
    "nodes go by their own clocks": (
        "rewindmq.engine.cluster.partition.ReadBackPartition.read_back",
        own_clock,
        r"is not at|claims another state|by the log|the nodes differ|not drained",
    ),
    "a tick is sent again and again": (
        "rewindmq.engine.cluster.partition.ReadBackPartition.tick",
        lambda partition: partition.append(BROKER, Tick()),
        r"came for nothing|never come to rest",
    ),
    "a lost node's messages stay with it": (
        "rewindmq.projections.machine.machine.HANDLERS",
        HANDLERS | {NodeLost: only_end_the_epoch},
        r"is nobody's|not drained|is of a life|a lost node's session is there",
    ),
    "dead letters are taken in twice": (
        "rewindmq.projections.machine.events.publish.is_repeated",
        lambda queue, origin: False,
        r"taken in more than once",
    ),
    "queues that are gone stay in the listings of others": (
        "rewindmq.engine.cluster.counter_rounds.PartitionRounds.remove_gone",
        owned_still,
        r"does not come to that",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_defect_is_found(what: str) -> None:
    target, replacement, expected = PLANTED[what]
    found = finding(target, replacement)
    assert re.search(expected, found), f"{what}; found: {found or f'nothing in {TRIES} histories'}"


def finding(target: str, replacement: Any) -> str:
    """Return the first failure of the first `TRIES` seeds, or an empty text if none fails."""
    require_patchable(target)
    with patch(target, replacement):
        for seed in range(TRIES):
            try:
                run(seed, history_of(seed))
            except Exception as error:
                return f"{type(error).__name__}: {error}"
    return ""
