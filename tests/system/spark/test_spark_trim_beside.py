"""A Spark job goes on when the history is trimmed while it reads: it begins anew at the new floor, and says so."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.location import InDirectory, Location
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import TrimmedMeanwhile
from rewindmq.spark_replay.__main__ import run
from rewindmq.spark_replay.audit import archive_bytes, log_bytes
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history import state as states
from rewindmq.spark_replay.location import trims
from rewindmq.spark_replay.location.log import in_archive
from rewindmq.spark_replay.snapshots import verify as verifies
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.histories import START_MS, Recorder, random_history

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # each asks Spark several times


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A history of many segments, and its last time."""
    data = tmp_path_factory.mktemp("long") / "data"
    recorded = Recorder(data, segment_bytes=SCHEMA_BYTES + 3_000)
    for queue in ("rest", "calm"):
        recorded.declare(queue)
        recorded.publish(queue, b"left")
        del recorded.definitions[queue]  # the traffic leaves it alone
    random_history(recorded, 22, 600)
    recorded.close()
    close_segments(data)
    return data, recorded.now_ms


class Trimmed:
    """A history that is trimmed a part further whenever `once` says so."""

    def __init__(self, directory: Path, long: tuple[Path, int], archived: bool) -> None:
        self.data, self.end_ms = directory / "data", long[1]
        shutil.copytree(long[0], self.data)
        self.place = str(self.data)
        self.location: Location = InDirectory(self.data)
        self.archived = archived
        self.trims = 0
        if archived:
            objects = open_objects(str(directory / "archive"), make=True)
            Archiver(objects, self.data).run()
            note_archive(self.data, objects.url)
            self.place, self.location = objects.url, in_archive(objects.url)

    def trim(self) -> None:
        self.trims += 1
        before_ms = START_MS + self.trims * (self.end_ms - START_MS) // (self.trims + 1)
        trim_directory(
            self.data, TrimRequest(before_ms=before_ms, reason="a test", accept_findings=True), wall_ms=self.end_ms
        )

    def before(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, times: int = 1) -> None:
        """Let it be trimmed right before a function is called: what was planned is gone then."""
        unchanged: Callable[..., Any] = getattr(owner, name)

        def trimming(*given: Any, **named: Any) -> Any:
            if self.trims < times:
                self.trim()
            return unchanged(*given, **named)

        monkeypatch.setattr(owner, name, trimming)


@pytest.fixture(params=["local", "archive"])
def history(request: pytest.FixtureRequest, long: tuple[Path, int], tmp_path: Path) -> Trimmed:
    return Trimmed(tmp_path, long, request.param == "archive")


def test_b42_an_audit_begins_anew_at_the_new_floor(
    spark: SparkSession, history: Trimmed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The trim comes when the segments or objects are planned, right before the tasks read them."""
    history.before(monkeypatch, archive_bytes if history.archived else log_bytes, "for_each")
    with caplog.at_level(logging.WARNING):
        findings = audit(spark, history.location)
    assert [finding for finding in findings if not finding.ok] == []
    assert history.trims == 1
    [told] = [record.message for record in caplog.records if "beginning anew" in record.message]
    floors = {each.name: each.start_offset for each in EmbeddedLogReader(history.data).queues}
    moved = [f"{name} was trimmed up to offset {floor}" for name, floor in floors.items() if floor > 0]
    assert told == f"{', '.join(moved)} while it was read: beginning anew there (1 of 4)"


def test_b42_verify_and_state_at_begin_anew(
    spark: SparkSession,
    history: Trimmed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    history.before(monkeypatch, verifies, "for_each")
    assert [finding for finding in verify(spark, history.location) if not finding.ok] == []
    monkeypatch.undo()
    history.before(monkeypatch, states, "state_frame", times=2)
    where = ("--archive" if history.archived else "--data", history.place)
    assert run(["state-at", *where, "--format", "json"]) == 0
    assert '"queue": "rest"' in capsys.readouterr().out
    assert history.trims == 2


def test_b42_a_history_that_is_trimmed_again_and_again_ends_the_job(
    spark: SparkSession, long: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trims, "TIMES", 2)
    history = Trimmed(tmp_path, long, False)
    history.before(monkeypatch, log_bytes, "for_each", times=9)
    with pytest.raises(TrimmedMeanwhile, match=r"was trimmed up to offset \d+ .*, and 1 times before: run it again"):
        audit(spark, history.location)
    assert history.trims == 2
