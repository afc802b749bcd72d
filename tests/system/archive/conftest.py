"""A real S3 server for the tests of a module: `s3`. An archive of a test's own, there or in a directory: `place`."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import close_segments
from rewindmq.engine.log.embedded.log import EmbeddedLog
from tests.support.archive_commands import Place
from tests.support.archiving_brokers import begin as begin
from tests.support.records import SCHEMA_BYTES, fill
from tests.support.s3.server import S3Server, require_s3


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_s3()
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Place(str(tmp_path / "archive"), {}, tmp_path / "archive")
    server: S3Server = request.getfixturevalue("s3")
    bucket = f"b-{uuid.uuid4().hex[:8]}"
    return Place(f"{server.bucket(bucket)}/some/prefix", server.environment, server.files(bucket) / "some" / "prefix")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log of several closed segments in each partition, and an open one that is empty."""
    directory = tmp_path / "data"
    log = EmbeddedLog.open(directory, 1, segment_bytes=SCHEMA_BYTES + 100_000)
    for number in range(0, 6_000, 100):
        fill(log.queues[0], range(number, number + 100))
        fill(log.metadata, range(number, number + 30))
        log.commit_and_wait()
    log.close()
    close_segments(directory)
    return directory
