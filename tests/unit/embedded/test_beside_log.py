"""Which state and snapshots belong to a history: its own, and what a parent left before the branch."""

import pytest

from rewindmq.engine.embedded.beside_log import _is_ours
from rewindmq.projections.topology.about_history import Fork
from rewindmq.schemas.metadata_events import HistoryForked

FORKS = [
    Fork(at, 0, "", HistoryForked(parent, identity, "", (("queues-0", offset), ("queues-1", 5))))
    for at, parent, identity, offset in ((10, "root", "one", 100), (20, "one", "two", 200))
]
OURS = ["root", "one", "two"]


@pytest.mark.parametrize(
    ("noted", "reach", "ours"),
    [
        ([], {"queues-0": 900}, True),  # an older version noted nothing
        (None, {"queues-0": 900}, True),
        (OURS, {"queues-0": 900}, True),
        (["other"], {"queues-0": 0}, False),
        (["root", "elsewhere"], {"queues-0": 0}, False),
        ([*OURS, "three"], {"queues-0": 0}, False),  # of a fork of this history
        (["root"], {"queues-0": 100, "queues-1": 5, "metadata-0": 10}, True),
        (["root"], {"queues-0": 101}, False),
        (["root"], {"metadata-0": 11}, False),
        (["root", "one"], {"queues-0": 101, "metadata-0": 20}, True),
        (["root", "one"], {"queues-0": 201}, False),
        (["root"], {"queues-7": 1}, False),  # a partition that came after the branch
    ],
)
def test_what_was_noted_before_a_fork_counts_up_to_the_branch(
    noted: list[str] | None, reach: dict[str, int], ours: bool
) -> None:
    assert _is_ours(noted, OURS, FORKS, reach) == ours


def test_beside_an_empty_log_everything_tells_of_a_lost_end() -> None:
    assert _is_ours(["root"], [], [], {"queues-0": 3})
