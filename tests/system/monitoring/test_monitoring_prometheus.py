"""A real Prometheus scrapes a broker at work: dashboards find their data, and an alert fires (B-52)."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from tests.support.needs import needed
from tests.support.overview_queries import RANGE, queries
from tests.support.pika_clients import connect
from tests.support.ports import free_port
from tests.support.prometheus import RunningPrometheus
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

needed("prometheus")
PROMTOOL = needed("promtool")

MONITORING = ROOT / "compose" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "history.json").read_text())
UNTIL_SECONDS = 90.0
# What our dashboard asks of a log in Kafka, of trims, and of per-object metrics: no sample of this broker.
OF_OTHERS = (
    "rewindmq_log_read_back_seconds",
    "rewindmq_archive_retention_used",
    "rewindmq_history_lost_offsets",
    "rewindmq_history_trimmed_timestamp_seconds",
    "rewindmq_queue_history_bytes",
    "rewindmq_queue_oldest_ready_age_seconds",
    "rewindmq_disk_full_in_days",  # known after ten minutes
)


class Watched:
    """A broker with seals and an archive, clients at work, and a Prometheus."""

    def __init__(self, directory: Path) -> None:
        data, key = directory / "data", directory / "seal.key"
        once = RunningBroker(data)
        assert once.stop() == 0
        subprocess.run(
            [needed("openssl"), "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True
        )
        seal = [sys.executable, "-m", "rewindmq", "seal", "--data", str(data), "--key", str(key)]
        subprocess.run(seal, cwd=ROOT, check=True, capture_output=True)
        port = free_port()
        archive = f"file://{directory / 'archive'}"
        options = ("--prometheus-port", str(port), "--archive", archive, "--keep-history", "400d", "--node", "rabbit@h")
        self.broker = RunningBroker(data, *options)
        self.prometheus = RunningPrometheus(directory, [port], [MONITORING / "alerts.yml"])
        self.connection = connect(self.broker)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        for queue in ("by-hand", "by-itself", "waiting"):
            self.channel.queue_declare(queue, durable=True)
        self.channel.basic_publish("", "waiting", b"stays")
        self.channel.basic_publish("", "waiting", b"is held")
        self.channel.basic_get("waiting")  # unacked from now on
        self.channel.basic_consume("by-hand", self._ack)
        self.channel.basic_consume("by-itself", lambda *message: None, auto_ack=True)

    def _ack(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if method.redelivered:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_reject(method.delivery_tag, requeue=True)

    def work(self) -> None:
        """A round of all that clients do."""
        for queue in ("by-hand", "by-itself"):
            self.channel.basic_publish("", queue, b"x" * 50)
        self.connection.process_data_events(0.1)
        with connect(self.broker) as another:
            channel = another.channel()
            channel.basic_publish("", "nowhere", b"dropped")
            channel.queue_declare("short")
            channel.basic_get("short")
            channel.confirm_delivery()
            for _ in range(2):
                channel.basic_publish("", "short", b"y" * 500)
            channel.basic_get("short", auto_ack=True)
            method, _, _ = channel.basic_get("short")
            channel.basic_ack(method.delivery_tag)
            channel.queue_delete("short")
            with pytest.raises(pika.exceptions.UnroutableError):
                channel.basic_publish("", "nowhere", b"returned", mandatory=True)
            channel.close()

    def work_until(self, wanted: Callable[[], list[str]]) -> list[str]:
        """Works until nothing is missing any more, or the time is over. Returns what is missing."""
        deadline = time.monotonic() + UNTIL_SECONDS
        while (missing := wanted()) and time.monotonic() < deadline:
            self.work()
        return missing

    def close(self) -> None:
        self.connection.close()
        self.prometheus.stop()
        assert self.broker.stop() == 0, "".join(self.broker.errors)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    found = Watched(tmp_path_factory.mktemp("watched"))
    yield found
    found.close()


def test_b52_every_query_of_rabbitmqs_overview_finds_its_data(watched: Watched) -> None:
    """Each of them has a value, and, where clients do the thing, one above 0."""
    left = dict(queries("rabbit@h"))
    assert len(left) == 100

    def missing() -> list[str]:
        for query, may_be_0 in list(left.items()):
            found = watched.prometheus.ask(query)
            if found and all(may_be_0 or float(each["value"][1]) > 0 for each in found):
                del left[query]
        return list(left)

    assert watched.work_until(missing) == []


def dashboard_queries() -> dict[str, str]:
    """The queries of our dashboard by title and number, as Grafana sends them."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$__rate_interval", RANGE)
        .replace("$cluster", "rabbit@h")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }


def test_b52_every_query_of_our_dashboard_finds_its_data(watched: Watched) -> None:
    left = dashboard_queries()
    assert len(left) > 25

    def missing() -> list[str]:
        for title, query in list(left.items()):
            answered = watched.prometheus.ask(query)
            if answered or any(name in query for name in OF_OTHERS):
                del left[title]
        return list(left)

    assert watched.work_until(missing) == []


def test_b52_an_alert_fires_while_publishers_are_held_back(watched: Watched) -> None:
    """The disk limit is set above what the disk has. Nothing else fires."""
    api = httpx2.Client(base_url=f"{watched.broker.http_url}/api", auth=("guest", "guest"), trust_env=False)
    before = api.get("/nodes/rabbit@h").json()["disk_free_limit"]

    def limited(value: object) -> None:
        assert api.put("/nodes/rabbit@h/limits/disk_free_limit", json={"value": value}).status_code == 204

    def until(firing: set[str]) -> dict[str, Any]:
        deadline = time.monotonic() + UNTIL_SECONDS
        while (found := watched.prometheus.firing()).keys() != firing and time.monotonic() < deadline:
            time.sleep(0.2)
        assert found.keys() == firing
        return found

    until(set())
    limited("1000TB")
    try:
        alert = until({"RewindMQDiskAlarm"})["RewindMQDiskAlarm"]
        assert alert["labels"]["severity"] == "critical"
        assert "holds publishers back" in alert["annotations"]["summary"]
    finally:
        limited(str(before))
    until(set())
    api.close()
