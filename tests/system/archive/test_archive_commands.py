"""`archive`, `archive_status` and `archive_verify` as processes, on a real S3 server and on a directory."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fastavro
import pytest

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.archive_commands import Place, archive, require_whole, status, verify
from tests.support.commands import COMMAND, require_failure
from tests.support.forked import run
from tests.support.records import avro_rows, fill
from tests.support.running import RunningBroker, start_process
from tests.support.s3.server import SECRET_KEY, S3Server

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the S3 server


def test_what_is_closed_is_archived_once(data: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = archive(data, place)
    assert [(row["partition"], row["records"]) for row in first] == [("metadata-0", 1_800), ("queues-0", 6_000)]
    assert int(str(first[1]["archived_bytes"])) < int(str(first[1]["bytes"]))  # the metadata are mostly schemas here
    require_whole(data, place, monkeypatch)
    assert [row["segments"] for row in archive(data, place)] == [0, 0]
    shown = status(data, place)["queues-0"]
    assert (shown["floor"], shown["archived_end"], shown["lag"], shown["lag_bytes"]) == (0, 6_000, 0, 0)
    assert [shown[name] for name in ("bytes", "archived_bytes")] == [
        first[1][name] for name in ("bytes", "archived_bytes")
    ]


def test_any_avro_tool_reads_the_archived_records(data: Path, place: Place) -> None:
    archive(data, place)
    archived = sorted((place.files / "queues-0" / "segments").glob("*.avro"))
    stored = segment_files(data / "log" / "queues-0")[:-1]
    assert len(archived) == len(stored) > 1
    for one, other in zip(archived, stored, strict=True):
        with one.open("rb") as left, other.open("rb") as right:
            assert avro_rows(left) == avro_rows(right)
    with archived[0].open("rb") as file:
        assert fastavro.reader(file).codec == "zstandard"


def test_a_changed_byte_is_found_and_named(data: Path, place: Place) -> None:
    archive(data, place)
    one = sorted((place.files / "queues-0" / "segments").glob("*.avro"))[1]
    other = sorted((place.files / "metadata-0" / "segments").glob("*.blocks"))[0]
    for path in (one, other):
        changed = bytearray(path.read_bytes())
        changed[-30] ^= 1
        path.write_bytes(changed)
    done = verify(place)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 2
    for path in (one, other):
        assert f"{path.name}: damaged at byte " in done.stderr
    assert "damaged in 1 places" in done.stdout


def test_a_changed_manifest_is_found_and_named(data: Path, place: Place) -> None:
    archive(data, place)
    entry = place.files / "queues-0" / "manifest" / "0000000001.json"
    entry.write_text(entry.read_text().replace('"kind": "segment"', '"kind": "topic"'))
    done = verify(place)
    assert done.returncode == 1
    assert "0000000001.json: not an entry of a manifest" in done.stderr
    assert "it was changed" in done.stderr
    require_failure(run("archive", "-q", "--data", str(data), "--to", place.url, **place.environment), 65, "Error: ")


def test_another_history_is_refused(data: Path, place: Place, tmp_path: Path) -> None:
    archive(data, place)
    log = EmbeddedLog.open(tmp_path / "other", 1)
    fill(log.metadata, range(3))
    log.close()
    done = run("archive", "-q", "--data", str(tmp_path / "other"), "--to", place.url, **place.environment)
    require_failure(done, 65, "Error: ")
    assert "the archive of another history" in done.stderr
    arguments = ("archive_status", "--archive", place.url, "--data", str(tmp_path / "other"))
    require_failure(run(*arguments, **place.environment), 65, "Error: ")


@pytest.mark.long
def test_a_kill_at_any_moment_and_several_at_once(data: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    command = [str(COMMAND), "archive", "--data", str(data), "--to", place.url]
    environment = {"PATH": "/usr/bin", **place.environment}
    how = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(6):
        process = start_process(command, **how)
        time.sleep(0.4 + chance.random() * 0.6)  # the interpreter takes most of the first half second
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (place.files / "archive.json").exists():
            assert verify(place).returncode == 0
    both = [start_process(command, **how) for _ in range(3)]
    assert [process.wait(60) for process in both] == [0, 0, 0]
    require_whole(data, place, monkeypatch)


def test_roll_is_for_a_broker_that_does_not_run(broker: RunningBroker, place: Place) -> None:
    """Without --roll the broker may run."""
    options = ("archive", "-q", "--data", str(broker.data), "--to", place.url)
    refused = run(*options, "--roll", **place.environment)
    require_failure(refused, 69, "Error: ")
    assert "in use by another broker" in refused.stderr
    assert run(*options, **place.environment).returncode == 0
    shown = status(broker.data, place)
    assert int(str(shown["metadata-0"]["lag"])) > 0


def test_what_a_broker_wrote_is_archived_with_its_snapshots(
    start_broker: Callable[..., RunningBroker], place: Place
) -> None:
    running = start_broker()
    running.stop()
    rows = archive(running.data, place, "--roll")
    assert {row["partition"] for row in rows} >= {"metadata-0", "queues-0", "queues-1"}
    assert verify(place).returncode == 0
    log = status(running.data, place)
    assert {row["lag"] for row in log.values()} == {0}


# -- S3 alone -----------------------------------------------------------------------------------------------------


def s3_failed(data: Path, url: str, environment: dict[str, str], line: str) -> None:
    for command in (("archive", "-q", "--data", str(data), "--to", url), ("archive_verify", "-q", "--archive", url)):
        done = run(*command, **environment)
        require_failure(done, 69, f"Error: {url}/archive.json: the store {line}")
        assert SECRET_KEY not in done.stdout + done.stderr


def test_a_login_that_is_refused(data: Path, s3: S3Server) -> None:
    url = s3.bucket("refused")
    wrong = {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"}
    s3_failed(
        data, url, s3.environment | wrong, "refuses (HTTP 403 Forbidden, SignatureDoesNotMatch): check bucket and login"
    )
    s3_failed(
        data, url, s3.environment | {"AWS_ACCESS_KEY_ID": "nobody"}, "refuses (HTTP 404 Not Found, XAdminUserNotFound)"
    )


def test_a_bucket_that_is_not_there(data: Path, s3: S3Server) -> None:
    done = run("archive", "-q", "--data", str(data), "--to", "s3://nowhere/x", **s3.environment)
    require_failure(done, 69, "Error: s3://nowhere/x/archive.json: the store refuses (HTTP 404 Not Found")


def test_a_store_that_is_away_and_comes_back(
    data: Path, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server(tmp_path / "own") as own:
        place = Place(own.bucket("history"), own.environment, own.files("history"))
        own.stop()
        s3_failed(data, place.url, own.environment, "does not answer")
        own.start()
        archive(data, place)
        require_whole(data, place, monkeypatch)


@pytest.mark.parametrize(
    ("url", "code", "line"),
    [
        ("ftp://host/x", 64, "Error: ftp://: an archive is at s3://"),
        ("s3://", 64, "Error: s3:"),
        ("s3://key:secret@bucket/x", 64, "Error: the URL of an archive holds no credentials"),
        ("s3://bucket/x?token=secret", 64, "Error: the URL of an archive holds no credentials"),
    ],
)
def test_a_url_that_is_none(url: str, code: int, line: str, data: Path) -> None:
    for command in (("archive", "-q", "--data", str(data), "--to", url), ("archive_status", "--archive", url)):
        done = run(*command)
        require_failure(done, code, line)
        assert "secret" not in done.stderr


def test_a_directory_without_an_archive(tmp_path: Path) -> None:
    require_failure(
        run("archive_status", "--archive", str(tmp_path / "none")), 64, f"Error: {tmp_path}/none: no such directory"
    )
    require_failure(
        run("archive_status", "--archive", str(tmp_path)), 65, f"Error: file://{tmp_path}: there is no archive"
    )


def test_nothing_loads_obstore_without_an_archive() -> None:
    program = "import sys, rewindmq.__main__, rewindmq.engine.process; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
