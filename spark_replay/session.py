"""A local Spark session that starts fast, says nothing on stdout and whose workers find our packages.

Under spark-submit the existing session is used as it was set up; only the data source is registered. Output of the JVM
(warnings that concern no user) goes to a file that is shown only when the JVM fails to start.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import rewindmq
from rewindmq import builds
from rewindmq.spark_replay.commands.failures import NoSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = str(Path(rewindmq.__file__).resolve().parent.parent)

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "OFF",  # the code that catches a task's error reports it once
}
_JAVA_OPTIONS = "-XX:+UseSerialGC"
_SHORT = " -XX:TieredStopAtLevel=1"  # jobs are short and in Python


def session(cores: str = "*", memory: str = "1g", records_in_java: bool = False) -> "SparkSession":
    """Return the session of this process, with `spark.read.format("rewindmq")`.

    `cores` and `memory` are of a local session. `records_in_java`: records go through the JVM (Kafka), so good
    compilation pays off. Raises NoSpark, most likely because there is no Java 17."""
    _prepare_environment()
    import_early()
    from pyspark.sql import SparkSession

    from rewindmq.spark_replay.source.source import register

    builder = SparkSession.builder.appName("rewindmq").config("spark.sql.session.timeZone", "UTC")
    submitted = "SPARK_ENV_LOADED" in os.environ
    if SparkSession.getActiveSession() is None and not submitted:
        builder = builder.master(f"local[{cores}]").config("spark.driver.memory", memory)
        for name, value in _LOCAL.items():
            builder = builder.config(name, value)
        java_options = _JAVA_OPTIONS if records_in_java else _JAVA_OPTIONS + _SHORT
        builder = builder.config("spark.driver.extraJavaOptions", java_options)
        with _stderr_kept():
            spark = builder.getOrCreate()
    else:
        spark = builder.getOrCreate()
    register(spark)
    return spark


def import_early() -> None:
    """Import what several threads of a driver would import when each first needs it.

    Two that import pandas at once may meet a half-made module: an audit on Spark 4.3 ended so now and then."""
    for name in ("pandas", "pyarrow.compute", "pyarrow.dataset", "pyspark.sql.pandas.conversion"):
        import_module(name)
    # Spark 4.2 says so wherever it asks for pandas. None of our rows passes through pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


@contextmanager
def pure_workers(spark: "SparkSession") -> Iterator[None]:
    """Tasks that are made in here run the pure build (rewindmq/builds.py), whatever the driver and other tasks run.

    PySpark hands the environment of the SparkContext on with each Python function, and starts other workers for another
    environment. So this holds in a session that somebody else has made, too, and needs no setting of Spark."""
    environment: dict[str, str] = spark.sparkContext.environment
    before = environment.get(builds.SWITCH)
    environment[builds.SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del environment[builds.SWITCH]
        else:
            environment[builds.SWITCH] = before


def _prepare_environment() -> None:
    """Set what the JVM and its Python workers inherit: this interpreter, this checkout, the loopback address."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _ROOT not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, paths)])


@contextmanager
def _stderr_kept() -> Iterator[None]:
    """Redirects stderr of processes that start here to a file without a name, for as long as they live.

    Raises NoSpark with their first error."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except Exception as error:
            kept.seek(0)
            lines = kept.read().decode(errors="replace").strip().splitlines()
            said = [line for line in lines if not line.startswith("WARNING")]
            raise NoSpark(f"Spark does not start: {said[0] if said else error}") from error
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
