"""Spark's Kafka source and Delta for tests: their jars, fetched once for each Spark, into tests/support/spark/target.

The Spark of requirements.lock has all of them. `make test-spark` runs others: their Kafka source, and no Delta."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pyspark

from tests.support.needs import found, needed

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
POM = (HERE / "pom.xml").read_text()
IS_LOCKED = f"<spark>{pyspark.__version__}</spark>" in POM
HAS_JARS = pyspark.__version__ != "4.3.0"  # Maven Central had none for it when we last looked
# The token provider's later versions are not everywhere, and nothing in it changed.
OF_ANOTHER = [f"-Dspark={pyspark.__version__}", "-Dtoken=4.0.0", "-P!delta"]
# As docs/spark/keep-history.md says; and a test's table is small.
DELTA = (
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog "
    "--conf spark.databricks.delta.snapshotPartitions=1"
)


def make_connectors_known(delta: bool = False) -> None:
    """Add the jars to every Spark that is started here from now on, as a user would with --packages.

    Without Maven there are no jars, and no Kafka to read from either (tests/support/kafka)."""
    if not HAS_JARS:
        return
    jars = TARGET / pyspark.__version__
    ready = jars / "ready"
    if not (ready.exists() and ready.read_text() == POM) and found("mvn") is None:
        return
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:  # several test runs may begin at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready.exists() and ready.read_text() == POM):
            shutil.rmtree(jars, ignore_errors=True)  # jars of an older pom
            options = [f"-Djars={pyspark.__version__}", *([] if IS_LOCKED else OF_ANOTHER)]
            command = [needed("mvn"), "-B", "-q", "-f", str(HERE / "pom.xml"), *options, "package"]
            subprocess.run(command, check=True, timeout=240)
            ready.write_text(POM)
    names = ",".join(sorted(str(path) for path in jars.glob("*.jar")))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {names} {DELTA if delta and IS_LOCKED else ''} pyspark-shell"
