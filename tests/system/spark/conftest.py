"""One Spark session and one busy history for all tests of this directory."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.s3.server import S3Server, require_s3
from tests.support.spark.connector import make_connectors_known
from tests.support.spark.forging import with_state
from tests.support.spark.histories import Recorder, random_history


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from rewindmq.spark_replay.session import session

    make_connectors_known(delta=True)
    found = session(cores="2")
    yield found
    found.stop()


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of 1,500 events in two partitions, with everything in it that a queue can meet."""
    data = tmp_path_factory.mktemp("busy")
    history = Recorder(data)
    random_history(history, 20, 1_500)
    for queue in ("rest", "calm", "still", "quiet"):  # in which something stays
        history.declare(queue)
        for n in range(3):
            history.publish(queue, b"left %d" % n)
    history.get("rest", 1)
    history.close()
    return data


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    require_s3()
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def live(busy: Path, tmp_path: Path) -> Path:
    """A copy of the busy history with the RocksDB of a broker."""
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    with_state(data)
    return data
