"""`--out URL`: results in object storage, whole or not at all, without a connector of Spark."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.commands import object_output
from rewindmq.spark_replay.history.history import history
from tests.support.running import ROOT
from tests.support.s3.server import S3Server

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the S3 server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bucket of this test, and the login to it in the environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    name = f"b-{abs(hash(request.node.name))}"
    s3.bucket(name)
    return s3.files(name)


@pytest.mark.rare
def test_each_format_goes_to_a_url(spark: SparkSession, busy: Path, bucket: Path) -> None:
    rows = history(spark, str(busy))
    url = f"s3://{bucket.name}"
    for form in ("json", "csv", "table"):
        assert cli.run(["history", "--data", str(busy), "--format", form, "--out", f"{url}/{form}"]) == 0
    # tasks write this one: the JVM must have had the login when it began
    command = ("history", "--data", str(busy), "--format", "parquet", "--out", f"{url}/parquet")
    done = subprocess.run([sys.executable, "-m", "spark_replay", *command], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(json.loads((bucket / "json" / "part-0.json").read_text())) == rows.count()
    with (bucket / "csv" / "part-0.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == rows.count()
    assert (bucket / "table" / "part-0.txt").read_text().startswith("partition")
    names = sorted(path.name for path in (bucket / "parquet").iterdir())
    assert names[0] == "_SUCCESS"
    assert names[1] == "part-00000-000.parquet"
    written = spark.read.parquet(str(bucket / "parquet"))
    assert written.dtypes == rows.dtypes
    assert sorted(written.collect(), key=str) == sorted(rows.collect(), key=str)


def test_a_table_without_rows_has_its_columns(spark: SparkSession, busy: Path, bucket: Path) -> None:
    object_output.write_parquet(history(spark, str(busy)).where("false"), open_objects(f"s3://{bucket.name}/none"))
    written = spark.read.parquet(str(bucket / "none"))
    assert (written.count(), written.dtypes) == (0, history(spark, str(busy)).dtypes)


def test_many_rows_are_several_objects(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.range(0, 5_000, numPartitions=1)
    monkeypatch.setattr(object_output, "FILE_BYTES", 1)
    batches = frame.toArrow().to_batches(max_chunksize=1_000)
    files = list(object_output._files(batches, to_arrow_schema(frame.schema)))
    assert [rows for _, rows in files] == [1_000] * 5


def test_a_task_that_is_tried_again_finds_its_objects(tmp_path: Path) -> None:
    objects: Objects = open_objects(str(tmp_path / "out"), make=True)
    object_output.create_once(objects, "part", b"rows")
    object_output.create_once(objects, "part", b"rows")
    with pytest.raises(ArchiveError, match="part: another program writes to this place, too"):
        object_output.create_once(objects, "part", b"other rows")


def test_what_cannot_be_written_is_said_before_spark_works(
    busy: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bucket / "there").mkdir()
    (bucket / "there" / "object").write_text("x")
    url = f"s3://{bucket.name}"
    for arguments, status, said in (
        (("history", "--out", f"{url}/there"), 64, f"something is at {url}/there already"),
        (("history", "--out", "s3://key:secret@bucket/x"), 64, "holds no credentials"),
        (("history", "--out", "ftp://bucket/x"), 64, "an archive is at s3://"),
        (("history", "--out", f"{url}/delta", "--format", "delta"), 64, "to a directory only"),
        (("history", "--out", "s3://no-such-bucket-here/x"), 69, "check bucket and login"),
        (("keep-history", "--out", f"{url}/kept"), 64, "this command writes to a directory only"),
        (("cut", "--out", f"{url}/cut"), 64, "this command writes to a directory only"),
    ):
        assert cli.run([arguments[0], "--data", str(busy), *arguments[1:]]) == status, arguments
        printed = capsys.readouterr()
        assert printed.out == ""
        assert said in printed.err
        assert "secret" not in printed.err
