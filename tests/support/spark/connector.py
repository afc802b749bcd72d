"""Spark's Kafka source and Delta for tests: their jars, fetched once into tests/support/spark/target."""

import fcntl
import os
import subprocess
from pathlib import Path

from tests.support.needs import found, needed

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
# As docs/spark/keep-history.md says; and a test's table is small.
DELTA = (
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog "
    "--conf spark.databricks.delta.snapshotPartitions=1"
)


def make_connectors_known(delta: bool = False) -> None:
    """Add the jars to every Spark that is started here from now on, as a user would with --packages.

    Without Maven there are no jars, and no Kafka to read from either (tests/support/kafka)."""
    wanted = (HERE / "pom.xml").read_text()
    ready = TARGET / "ready"
    if not (ready.exists() and ready.read_text() == wanted) and found("mvn") is None:
        return
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:  # several test runs may begin at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready.exists() and ready.read_text() == wanted):
            subprocess.run([needed("mvn"), "-B", "-q", "-f", str(HERE / "pom.xml"), "package"], check=True, timeout=240)
            ready.write_text(wanted)
    jars = ",".join(sorted(str(path) for path in (TARGET / "lib").glob("*.jar")))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} {DELTA if delta else ''} pyspark-shell"
