"""A data directory goes from a broker to worker processes, and back: the states that either leaves to the other."""

import shutil
from pathlib import Path

import pytest

from rewindmq.engine.cluster import entry
from rewindmq.engine.embedded import lifecycle
from rewindmq.engine.embedded.lifecycle import Alone
from rewindmq.engine.log.served.states import FileStates
from tests.support.broker_harness import Harness


def test_b67_a_start_begins_with_the_state_that_was_left_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "STATE_EVENTS", 1)
    monkeypatch.setattr(entry, "LEAST_EVENTS", 1)
    states = FileStates(tmp_path / "processes" / "states")
    bodies = [b"%d" % number for number in range(20)]
    harness = Harness(tmp_path, partitions=1)
    session = harness.session()
    harness.declare(session, "orders")
    for body in bodies:
        harness.publish(session, "", "orders", body)
    alone = harness.broker.keeper
    assert isinstance(alone, Alone)
    harness.in_loop(lambda: alone.hand_over(states))  # as engine/processes/prepare.py does
    harness.loop.close()
    assert states.newest_offset(0) > len(bodies)
    shutil.rmtree(tmp_path / "state")
    for number in ("1", "2"):
        (tmp_path / "processes" / number / "state").mkdir(parents=True)
    caplog.set_level("INFO")
    with Harness(tmp_path) as again:
        assert again.ready("orders") == bodies
    assert "begins with the state that another node has left" in caplog.text
    assert [each.name for each in (tmp_path / "processes").iterdir()] == ["states"], "workers do not run now"
