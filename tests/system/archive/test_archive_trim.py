"""`rewindmq trim` of a history with an archive, in a directory and on an S3 server: as a command, and killed."""

import json
import shutil
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.tiers import floors_of
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.projections.rewind import format_time
from tests.support.archive_commands import Place, archive
from tests.support.broker_harness import Harness
from tests.support.commands import require_failure
from tests.support.forked import run
from tests.support.killed import killed_at_store
from tests.support.trimmed_broker import QUEUES, SEGMENT_BYTES, Story, live
from tests.support.trimming import PARTITION, starts

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # the first test may have to build the S3 server


@pytest.fixture
def story(tmp_path: Path, place: Place) -> Story:
    """A broker's days, all archived."""
    story = live(tmp_path / "data")
    close_segments(tmp_path / "data")
    archive(tmp_path / "data", place)
    return story


def ready(data: Path, story: Story) -> dict[str, list[bytes]]:
    with Harness(data, now_ms=story.end_ms, partitions=1, segment_bytes=SEGMENT_BYTES) as h:
        return {name: h.ready(name) for name in QUEUES}


def test_b26_the_commands_on_a_trimmed_archive(tmp_path: Path, place: Place, story: Story) -> None:
    data, url = tmp_path / "data", place.url

    def done(*arguments: str) -> list[dict[str, object]]:
        finished = run(*arguments, "--formatter", "json", **place.environment)
        assert finished.returncode == 0, finished.stderr
        rows: list[dict[str, object]] = json.loads(finished.stdout)
        return rows

    wanted = ("trim", "--data", str(data), "--before", format_time(story.days[2]), "--reason", "ticket 7")
    [planned] = done(*wanted, "--dry-run")
    [row] = done(*wanted)
    assert (row["floor"], row["archived_bytes"]) == (planned["floor"], planned["archived_bytes"])
    assert int(str(row["archived_bytes"])) > 0
    assert starts(data)[0] == row["floor"]
    assert not [path for path in place.files.glob(f"{PARTITION}/segments/*") if int(path.name[:20]) < starts(data)[0]]
    status = {each["partition"]: each for each in done("archive_status", "--archive", url, "--data", str(data))}
    assert (status["metadata-0"]["floor"], status[PARTITION]["floor"]) == (0, row["floor"])
    verified = {each["partition"]: each["result"] for each in done("archive_verify", "--archive", url)}
    assert verified == {"metadata-0": "whole", PARTITION: "whole"}
    rows = {each["partition"]: each for each in done("recover", "--archive", url, "--data", str(tmp_path / "new"))}
    assert (rows["metadata-0"]["begins"], rows[PARTITION]["begins"]) == (0, row["floor"])
    early = ("recover", "--archive", url, "--data", str(tmp_path / "early"), "--at", format_time(story.days[1]))
    require_failure(
        run(*early, **place.environment), 65, f"Error: {PARTITION} begins at offset {row['floor']}, with the state of"
    )
    for each in (data, tmp_path / "new"):
        assert ready(each, story) == story.ready


def test_the_archive_is_named_where_the_directory_does_not(tmp_path: Path, place: Place, story: Story) -> None:
    data = tmp_path / "data"
    (data / "log" / "archive.json").unlink()
    wanted = ("trim", "--data", str(data), "--before", format_time(story.days[2]))
    elsewhere = f"{place.url}-elsewhere"
    if not place.environment:
        Path(elsewhere).mkdir()
    require_failure(run(*wanted, "--archive", elsewhere, **place.environment), 65, "Error: ")
    assert starts(data)[0] == 0
    assert run(*wanted, "--archive", place.url, **place.environment).returncode == 0
    assert (data / "log" / "archive.json").exists()
    assert not [path for path in place.files.glob(f"{PARTITION}/segments/*") if int(path.name[:20]) < starts(data)[0]]


def do_trim(data: Path, before_ms: int, wall_ms: int) -> None:
    trim_directory(data, TrimRequest(before_ms=before_ms), wall_ms=wall_ms)


@pytest.mark.rare(place=["directory"])
def test_b26_kill_9_before_each_object_that_comes_or_goes(
    tmp_path: Path, place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trim, killed again and again: each try goes on where the last ones ended, and comes one step further."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    data, objects = tmp_path / "data", open_objects(place.url)
    whole = set(objects.list(f"{PARTITION}/segments"))
    kills, was_killed = 0, True
    while was_killed:
        was_killed = killed_at_store(kills + 1, place.environment, do_trim, data, story.days[2], story.end_ms)
        kills += was_killed
        floor = floors_of(data)[PARTITION].event.offset if floors_of(data) else 0
        manifest = Manifest.load(objects, PARTITION)
        assert manifest.floor <= floor
        gone = whole - set(objects.list(f"{PARTITION}/segments"))
        assert all(manifest.trimmed_keys[key] <= floor for key in gone)
        assert [error for _, error in verify(objects, PARTITION) if error is not None] == []
    assert kills > 3
    assert manifest.floor == starts(data)[0] > 0
    Archiver(objects, data).run()
    recover(objects, tmp_path / "new")
    for each in (data, tmp_path / "new"):
        assert ready(each, story) == story.ready
    shutil.rmtree(tmp_path / "new")
