"""A real OpenTelemetry Collector on loopback, for tests: its OTLP receiver, and its debug exporter that prints spans.

    with CollectorProcess(directory) as collector:
        collector.url              the OTLP receiver
        collector.printed()        all that it has printed

Needs Go, which builds the Collector once into tests/support/collector/target (`make collector`). It dies with the
process that started it.
"""

import os
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.support.deadlines import until
from tests.support.installed_once import installing
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import start_process

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
BINARY = TARGET / "collector"
CONFIG = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: detailed
    sampling_initial: 1000000
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [debug]
"""


def require_collector() -> None:
    """Skip the tests where no Collector can be built; fail in CI."""
    if not BINARY.exists():
        needed("go")


def build() -> None:
    """Build the Collector, once for this checkout."""
    with installing(TARGET, "built") as missing:
        if missing:
            environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false"}
            command = [needed("go"), "build", "-ldflags", "-s -w", "-o", str(BINARY), "."]
            subprocess.run(command, check=True, env=environment, cwd=HERE)


class CollectorProcess:
    """The Collector, with its configuration and its output in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = directory / "collector.log"

    def __enter__(self) -> Self:
        build()
        config = self.directory / "collector.yaml"
        config.write_text(CONFIG.format(port=self.port))
        with self._output.open("wb") as output:
            self._process = start_process(
                [str(BINARY), "--config", f"file:{config}"], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        until(self._answers, "the Collector does not answer")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def printed(self) -> str:
        return self._output.read_text()

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.printed()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
