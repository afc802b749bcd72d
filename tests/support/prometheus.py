"""A real Prometheus (Debian's package) that scrapes brokers every second."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import start_process

START_SECONDS = 60.0
# Prometheus 3 writes bounds of histograms so, and RabbitMQ's dashboard asks for them so. Debian has Prometheus 2.
BOUNDS = {
    "100": "100.0",
    "1000": "1000.0",
    "10000": "10000.0",
    "100000": "100000.0",
    "1000000": "1e+06",
    "10000000": "1e+07",
    "50000000": "5e+07",
    "100000000": "1e+08",
}
AS_PROMETHEUS_3 = [
    {"source_labels": ["le"], "regex": bound, "target_label": "le", "replacement": name}
    for bound, name in BOUNDS.items()
]


class RunningPrometheus:
    """A Prometheus whose job `rewindmq` has these ports, with the rules of these files."""

    def __init__(self, directory: Path, targets: Sequence[int], rules: Sequence[Path] = ()) -> None:
        self.port = free_port()
        config = directory / "prometheus.yml"
        job = {
            "job_name": "rewindmq",
            "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in targets]}],
            "metric_relabel_configs": AS_PROMETHEUS_3,
        }
        every_second = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        text = {"global": every_second, "rule_files": [str(each) for each in rules], "scrape_configs": [job]}
        config.write_text(yaml.safe_dump(text))
        self.log = directory / "prometheus.log"
        command = [
            needed("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'series'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with self.log.open("wb") as log:
            self.process = start_process(command, stdout=log, stderr=subprocess.STDOUT)
        self.api = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False)
        self._until_ready()

    def _until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.api.get("/-/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"Prometheus is not ready: {self.log.read_text()}")

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples that a query finds now. A query that Prometheus does not understand is a failure."""
        answer = self.api.post("/api/v1/query", data={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire now, by their names."""
        alerts = self.api.get("/api/v1/alerts").json()["data"]["alerts"]
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}

    def stop(self) -> None:
        self.api.close()
        self.process.terminate()
        self.process.wait(timeout=30)
