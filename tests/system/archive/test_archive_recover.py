"""`recover` as a process, and reading by ranges, from a real S3 server and from a directory; Spark from S3."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.archive_commands import Place, archive
from tests.support.archiving import archive_all
from tests.support.commands import require_failure
from tests.support.forked import run
from tests.support.s3.server import SECRET_KEY, S3Server
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the S3 server


def test_a_data_directory_comes_back_from_the_archive_alone(data: Path, place: Place, tmp_path: Path) -> None:
    archive(data, place)
    recovered = tmp_path / "recovered"
    arguments = ("recover", "--archive", place.url, "--data", str(recovered))
    done = run(*arguments, "--formatter", "json", **place.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = json.loads(done.stdout)
    assert [(row["partition"], row["next_offset"]) for row in rows] == [("metadata-0", 1_800), ("queues-0", 6_000)]
    assert all(row["archived_until"].startswith("2025-11-21T") for row in rows)
    for name in ("metadata-0", "queues-0"):
        ours, theirs = segment_files(recovered / "log" / name), segment_files(data / "log" / name)
        assert [path.read_bytes() for path in ours[:-1]] == [path.read_bytes() for path in theirs[:-1]]
    require_failure(
        run(*arguments, **place.environment), 65, f"Error: {recovered}: it already has a log: recover to another"
    )


def test_reading_by_ranges(data: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(data, place)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    fetched: list[int] = []
    get_range = Objects.get_range

    def counted(self: Objects, key: str, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return get_range(self, key, start, end)

    monkeypatch.setattr(Objects, "get_range", counted)
    archived, stored = ArchivedLog(place.url).queues[0], EmbeddedLogReader(data).queues[0]
    assert [block.chain for block in archived.read(2_345, 2_355)] == [
        block.chain for block in stored.read(2_345, 2_355)
    ]
    assert len(fetched) == 1
    assert [block.chain for block in archived.read()] == [block.chain for block in stored.read()]


@pytest.mark.rare
def test_spark_reads_objects_with_the_login_of_its_environment(s3: S3Server, tmp_path: Path) -> None:
    told = Recorder(tmp_path / "data", partitions=1)
    told.declare("orders")
    for number in range(20):
        told.publish("orders", b"%d" % number)
    told.get("orders", 1)
    told.close()
    url = f"{s3.bucket('spark')}/history"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        archive_all(tmp_path / "data", url)
    command = [sys.executable, "-m", "spark_replay", "state-at", "--archive", url, "--format", "json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, **s3.environment},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert SECRET_KEY not in done.stdout
    assert [queue["queue"] for queue in json.loads(done.stdout)] == ["orders"]
