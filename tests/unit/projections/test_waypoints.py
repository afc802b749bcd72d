"""States that are kept along a history equal those of a fold from its beginning, and are bounded (B-44)."""

from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections import waypoints as module
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.waypoints import Waypoints
from tests.bench.generated_history import write_history

EVENTS = 6_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("history")
    write_history(made, EVENTS)
    return made


def test_b44_a_moment_from_a_waypoint_equals_a_fold_from_the_beginning(data: Path) -> None:
    log = EmbeddedLogReader(data).queues[0]
    waypoints = Waypoints()
    with patch.object(module, "EVERY", 500):
        for offset in (5_900, 3_001, 3_000, 2_999, 500, 501, 499, 5_901, 0):
            for _ in range(2):
                found = state_at(log, None, At(offset=offset), waypoints, log.durable_offset)
                plain = state_at(log, None, At(offset=offset))
                assert (found.next_offset, found.clock_ms) == (plain.next_offset, plain.clock_ms)
                assert (found.head(), found.digest()) == (plain.head(), plain.digest())
        middle = state_at(log, None, At(offset=3_333)).log_ms + 7
        found = state_at(log, None, At(time_ms=middle), waypoints, log.durable_offset)
        assert found.digest() == state_at(log, None, At(time_ms=middle)).digest()
        kept = waypoints.before(log.name, 5_900)
    assert 5_900 - (kept or 0) <= 500, "the fold left waypoints behind"


def test_b44_no_waypoint_is_left_where_events_are_not_durable(data: Path) -> None:
    log = EmbeddedLogReader(data).queues[0]
    waypoints = Waypoints()
    with patch.object(module, "EVERY", 500):
        state_at(log, None, At(offset=EVENTS), waypoints, 1_700)
    assert waypoints.before(log.name, EVENTS) == 1_500


def test_b44_waypoints_are_bounded_in_bytes_and_the_least_used_goes(data: Path) -> None:
    log = EmbeddedLogReader(data).queues[0]
    sizes = Waypoints()
    with patch.object(module, "EVERY", 500):
        state_at(log, None, At(offset=EVENTS), sizes, EVENTS)
        largest = max(size for _, size in sizes._kept.values())
        waypoints = Waypoints(most_bytes=3 * largest)
        state_at(log, None, At(offset=EVENTS), waypoints, EVENTS)
        assert waypoints._bytes == sum(size for _, size in waypoints._kept.values()) <= 3 * largest
        assert waypoints.before(log.name, EVENTS) == 5_500
        assert waypoints.before(log.name, 500) is None
        assert state_at(log, None, At(offset=700), waypoints, EVENTS).next_offset == 700
        none = Waypoints(most_bytes=1)
        state_at(log, None, At(offset=EVENTS), none, EVENTS)
        assert none.before(log.name, EVENTS) is None


def test_b44_a_large_state_is_packed_more_rarely(data: Path) -> None:
    log = EmbeddedLogReader(data).queues[0]
    waypoints = Waypoints()
    with patch.object(module, "EVERY", 100), patch.object(module, "BYTES_AN_EVENT", 10):
        state_at(log, None, At(offset=EVENTS), waypoints, EVENTS)
    offsets = waypoints._offsets[log.name]
    sizes = {offset: size for (_, offset), (_, size) in waypoints._kept.items()}
    assert any(offset - before > 200 for before, offset in pairwise(offsets))
    for before, offset in pairwise(offsets):
        assert offset - before >= max(100, sizes[before] // 10)
