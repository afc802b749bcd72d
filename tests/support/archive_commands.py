"""The commands of the archive, run on a data directory, and what they print."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.forked import run

PARTITIONS = ("metadata-0", "queues-0")


@dataclass
class Place:
    """Where an archive goes: `url`, the `environment` for it, and the `files` that it becomes."""

    url: str
    environment: dict[str, str]
    files: Path


def archive(data: Path, place: Place, *options: str) -> list[dict[str, object]]:
    """Archive a data directory. Returns the rows that the command prints."""
    done = run("archive", "--data", str(data), "--to", place.url, "--formatter", "json", *options, **place.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def status(data: Path, place: Place) -> dict[str, dict[str, object]]:
    """Return the row of `archive_status` for each partition."""
    arguments = ("archive_status", "--archive", place.url, "--data", str(data), "--format", "json")
    done = run(*arguments, **place.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return {row["partition"]: row for row in json.loads(done.stdout)}


def verify(place: Place) -> "subprocess.CompletedProcess[str]":
    return run("archive_verify", "--archive", place.url, "-q", **place.environment)


def require_whole(data: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive verifies, and makes each closed segment again, byte for byte."""
    done = verify(place)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    objects = open_objects(place.url)
    for name in PARTITIONS:
        manifest = Manifest.load(objects, name)
        files = segment_files(data / "log" / name)[:-1]
        assert len(manifest.segments) == len(files)
        for entry, path in zip(manifest.segments, files, strict=True):
            assert b"".join(Unpacked(objects, name, entry).original_bytes()) == path.read_bytes()
