"""Spark reads an archive on Google Cloud Storage and on Azure Blob Storage, and writes its results there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.objects import open_objects
from tests.support.archiving import archive_all
from tests.support.clouds import cloud
from tests.support.running import ROOT
from tests.support.store_server import StoreServer

__all__ = ["cloud"]
pytestmark = pytest.mark.timeout(900)  # the first test may have to build a server


@pytest.mark.rare
def test_spark_reads_the_archive_and_writes_its_results_there(
    cloud: StoreServer, busy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    bucket = cloud.bucket("spark")
    url = f"{bucket}/history"
    archive_all(busy, url)

    def spark(*arguments: str, **changed: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "spark_replay", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | changed)

    done = spark("audit", "--archive", url, "--format", "json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert all(finding["ok"] for finding in json.loads(done.stdout))
    done = spark("history", "--archive", url, "--format", "parquet", "--out", f"{bucket}/out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    written = list(open_objects(f"{bucket}/out").list(""))
    assert written[0] == "_SUCCESS"
    assert all(name.endswith(".parquet") for name in written[1:])
    assert len(written) > 1
    for wrong in cloud.wrong_logins:
        done = spark("history", "--archive", url, **wrong)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (69, "", 1)
        assert "check bucket and login" in done.stderr
        assert not [each for each in (*cloud.secrets, *wrong.values()) if each != "nobody" and each in done.stderr]
