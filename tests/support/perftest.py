"""RabbitMQ's PerfTest (Java 17, Maven) as it is: a short run in each of the modes that services use."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass

import httpx2
import pika
import pytest

from tests.support.needs import needed
from tests.support.running import ROOT, RunningBroker

BENCH = ROOT / "tests" / "bench"
LIB = BENCH / "target" / "lib"
COUNT = 3_000


@dataclass(frozen=True)
class Mode:
    options: tuple[str, ...]
    producers: int = 1
    count: int = COUNT


MODES = {
    "auto-ack": Mode(("-a",)),
    "confirms and acks": Mode(("-c", "100", "-q", "100")),
    "multi-ack": Mode(("-q", "200", "-A", "50")),
    "several producers and consumers": Mode(("-x", "3", "-y", "3", "-q", "20", "-c", "50"), producers=3),
    "quorum queue": Mode(("-qq", "-c", "100", "-q", "100")),
    "topic exchange": Mode(("-t", "topic", "-e", "perf.topic", "-k", "perf.key", "-c", "100", "-q", "100")),
    "large bodies and mandatory": Mode(("-s", "300000", "-f", "mandatory", "-c", "10", "-q", "10"), count=150),
    "many channels and basic.get": Mode(("-X", "5", "-Y", "5", "-c", "10", "-po", "-pi", "1"), 5, 1_000),
}


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    """Build PerfTest once."""
    needed("java")
    if not LIB.exists():
        subprocess.run([needed("mvn"), "-B", "-q", "-f", str(BENCH / "pom.xml"), "package"], check=True, timeout=240)


def counters(broker: RunningBroker) -> dict[str, int]:
    """Of the whole broker, by name without `rabbitmq_global_messages_` and `_total`; labels added up."""
    text = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest")).text
    found: Counter[str] = Counter()
    for name, value in re.findall(r"^rabbitmq_global_messages_(\w+)_total(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.M):
        found[name] += int(float(value))
    return dict(found)


def require_arrival(broker: RunningBroker, name: str) -> None:
    """Run one mode: what is published arrives, and the broker's counters say so."""
    mode = MODES[name]
    queue = f"perf.{name}"
    before = counters(broker)
    command = [
        needed("java"),
        "-XX:TieredStopAtLevel=1",
        "-Xmx256m",
        "-cp",
        f"{LIB}/*",
        "com.rabbitmq.perf.PerfTest",
        "-h",
        broker.amqp_url.rstrip("/"),
        "-u",
        queue,
        "-ad",
        "false",
        "-f",
        "persistent",
        *mode.options,
        "-C",
        str(mode.count // mode.producers),
        "-ew",
        "idle",
        "-z",
        "60",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout[-2000:] + done.stderr[-2000:]
    assert done.returncode == 0, said
    assert "receiving rate avg" in said
    after = counters(broker)
    moved = {key: after[key] - before[key] for key in after}
    assert moved["received"] == mode.count, said
    assert moved["delivered"] - moved["redelivered"] == mode.count or "-po" in mode.options, said
    if "-c" in mode.options:
        assert moved["received_confirm"] == moved["confirmed"] == mode.count
    if "-a" not in mode.options:
        assert moved["acknowledged"] == mode.count
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0
