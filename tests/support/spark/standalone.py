"""A Spark standalone cluster on loopback: a master and two workers, each a JVM of its own, by pyspark's own scripts.

    with StandaloneCluster(directory, environment) as cluster:
        cluster.submit("state-at", "--archive", URL)

`environment`: of the workers, and so of their executors and tasks. The driver has it, too. Everything that Spark writes
is below the directory: `cluster.logs()`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyspark

from tests.support.ports import free_port
from tests.support.running import ROOT, start_process

SPARK_HOME = Path(pyspark.__file__).resolve().parent
START_SECONDS = 120
WORKERS = 2
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # they do not live for long


class StandaloneCluster:
    """The cluster. It ends with the process that started it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = os.environ | {
            **environment,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for name in ("conf", "events", "work", "logs"):
            (self.directory / name).mkdir(parents=True)
        try:
            place = ("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--webui-port", str(free_port()))
            self._start("master.Master", "master", *place)
            self._wait("master", "I have been elected leader", 1)
            for number in range(WORKERS):
                place = ("--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port()))
                work = str(self.directory / "work" / str(number))
                size = ("--cores", "1", "--memory", "1g", "--work-dir", work)
                self._start("worker.Worker", f"worker-{number}", *place, *size, self.url)
            self._wait("master", "Registering worker", WORKERS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def submit(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of spark_replay on the cluster, with event logs."""
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (self.directory / "events").as_uri(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.log.level": "INFO",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both workers get tasks
        }
        conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, *conf]
        return subprocess.run(
            [*command, str(ROOT / "spark_replay" / "__main__.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.environment,
            timeout=600,
        )

    def logs(self) -> Iterator[Path]:
        """Yields all files that Spark has written: event logs, logs of master, workers and executors."""
        for name in ("events", "work", "logs"):
            yield from (path for path in (self.directory / name).rglob("*") if path.is_file())

    def _start(self, program: str, name: str, *arguments: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments]
        with (self.directory / "logs" / f"{name}.log").open("wb") as output:
            self._processes.append(
                start_process(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            )

    def _wait(self, name: str, text: str, times: int) -> None:
        log = self.directory / "logs" / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS
        while log.read_text().count(text) < times:
            assert all(process.poll() is None for process in self._processes), log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
