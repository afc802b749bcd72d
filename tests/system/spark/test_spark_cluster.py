"""Spark on a standalone cluster, a master and two workers: each task reads the archive in S3 by itself.

The broker's directory is gone by then. The login is in the environment of the processes, and nowhere in what Spark
writes: plans, event logs, logs of master, workers, executors and driver.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs, parquet

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import decoder_for, drive
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.fold import log_groups
from rewindmq.spark_replay.history.history import history
from tests.support.archiving import archive_all
from tests.support.s3.server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.spark.standalone import WORKERS, StandaloneCluster

pytestmark = [pytest.mark.timeout(900), pytest.mark.rare]


@pytest.fixture(scope="module")
def told(busy: Path, spark: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """The busy history with snapshots, and the number of rows of its history, folded from the directory."""
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    data = tmp_path_factory.mktemp("told") / "data"
    shutil.copytree(busy, data)
    for partition in EmbeddedLogReader(data).queues:
        machine = Machine(partition.name)
        for start, end in ((0, 200), (200, 400)):
            drive(machine, log_groups(data, partition.name, start, end), decoder_for(partition))
            Snapshots(data / "snapshots").take(machine)
    return str(data), history(spark, str(data)).count()


@pytest.fixture(scope="module")
def archive(told: tuple[str, int], s3: S3Server) -> str:
    """The URL of the archive. The directory is removed."""
    url = f"{s3.bucket('history')}/archive"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        archive_all(Path(told[0]), url)
    shutil.rmtree(told[0])
    return url


@pytest.fixture(scope="module")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster") / "spark", s3.environment) as started:
        yield started


def events_of(cluster: StandaloneCluster) -> list[dict[str, Any]]:
    """All events in the event logs."""
    files = [path for path in (cluster.directory / "events").rglob("*") if path.is_file()]
    return [json.loads(line) for path in files for line in path.read_text().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Return the list that collects the output of the commands."""
    return []


def submitted(cluster: StandaloneCluster, said: list[str], *arguments: str) -> str:
    """Run a command on the cluster, add its output to `said`, and return its stdout."""
    done = cluster.submit(*arguments)
    said.append(done.stdout + done.stderr)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr[-5_000:])
    return done.stdout


def test_state_at(cluster: StandaloneCluster, archive: str, said: list[str]) -> None:
    queues = json.loads(submitted(cluster, said, "state-at", "--archive", archive, "--format", "json"))
    assert {"rest", "calm", "still", "quiet"} <= {queue["queue"] for queue in queues}


def test_audit(cluster: StandaloneCluster, archive: str, said: list[str]) -> None:
    findings = json.loads(submitted(cluster, said, "audit", "--archive", archive, "--format", "json"))
    assert findings
    assert [each for each in findings if not each["ok"]] == []


def test_history_goes_to_object_storage(
    cluster: StandaloneCluster, archive: str, told: tuple[str, int], s3: S3Server, said: list[str]
) -> None:
    out = f"{s3.bucket('products')}/history"
    submitted(cluster, said, "history", "--archive", archive, "--format", "parquet", "--out", out)
    files = s3.files("products") / "history"
    names = sorted(path.name for path in files.iterdir())
    assert names[0] == "_SUCCESS"
    assert len(names) > 2
    rows = parquet.ParquetDataset(str(files), filesystem=fs.LocalFileSystem()).read().num_rows
    assert rows == told[1]


def test_both_workers_have_worked_and_spark_writes_the_login_nowhere(
    cluster: StandaloneCluster, archive: str, said: list[str]
) -> None:
    if not said:
        submitted(cluster, said, "state-at", "--archive", archive, "--format", "json")
    events = events_of(cluster)
    assert sum(each["Event"] == "SparkListenerExecutorAdded" for each in events) == WORKERS * len(said)
    workers = {each["Task Info"]["Executor ID"] for each in events if each["Event"] == "SparkListenerTaskEnd"}
    assert len(workers) == WORKERS
    written = {path: path.read_bytes() for path in cluster.logs()}
    assert any(archive.encode() in data for data in written.values())  # the plans are in it
    assert any("stderr" in path.name for path in written)
    for login in (ACCESS_KEY, SECRET_KEY):
        assert not any(login in text for text in said)
        assert [path for path, data in written.items() if login.encode() in data] == []
