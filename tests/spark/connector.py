"""Spark's Kafka source for tests: its jars, fetched once into tests/spark/target."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"


def make_kafka_source_known() -> None:
    """To every Spark that is started here from now on, as a user would with --packages. Without Maven there is none,
    and no Kafka to read from either (tests/kafka)."""
    if not (TARGET / "ready").exists() and shutil.which("mvn") is None:
        return
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:  # several test runs may begin at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (TARGET / "ready").exists():
            subprocess.run(["mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), "package"], check=True, timeout=240)
            (TARGET / "ready").touch()
    jars = ",".join(sorted(str(path) for path in (TARGET / "lib").glob("*.jar")))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
