"""The audit of histories in which queues moved to other partitions: each message counts once."""

from pathlib import Path

import pytest

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.spark_replay.what_if.exclusion import homes_of
from tests.support.auditing import findings_of
from tests.support.moved_queue import BACK_AND_FORTH, write_back, write_moved


@pytest.mark.parametrize("hold", [True, False])
def test_a_queue_that_moved_is_sound(tmp_path: Path, hold: bool) -> None:
    write_moved(tmp_path / "data", hold)
    found = findings_of(tmp_path / "data")
    assert [each for each in found if not each.ok] == []
    assert "4 letters sent and arrived" in {each.detail for each in found if each.check == "arrivals"}


def test_incarnations_of_one_number_in_two_partitions_are_two_sources(tmp_path: Path) -> None:
    write_back(tmp_path / "data")
    found = findings_of(tmp_path / "data")
    assert [each for each in found if not each.ok] == []
    assert "24 letters sent and arrived" in {each.detail for each in found if each.check == "arrivals"}


def test_what_is_left_out_is_looked_for_in_the_partition_of_the_source(tmp_path: Path) -> None:
    back = write_back(tmp_path / "data")
    log = InDirectory(back.data).open()
    homes = homes_of((), log.topology().placement)
    name, (_, queue_id) = f"//{BACK_AND_FORTH}", back.lives[0]
    assert homes(name, queue_id, -1) == ("queues-0",)
    assert homes(name, queue_id, 2) == ("queues-2",)
