"""One run of PerfTest (com.rabbitmq:perf-test) against a broker: messages a second, and per broker-CPU-second."""

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import Broker

HERE = Path(__file__).parent
LIB = HERE / "target" / "lib"

# name -> PerfTest's options. One producer, one consumer, 100-byte persistent bodies.
WORKLOADS = {
    "auto-ack": ["-a"],
    "confirms 500, manual acks, prefetch 200": ["-c", "500", "-q", "200"],
}


@dataclass
class Result:
    """One run: what the consumer received, or without one what was sent. CPU seconds are the broker's."""

    messages: float
    seconds: float
    cpu_seconds: float
    output: str

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def per_cpu_second(self) -> float:
        return self.messages / self.cpu_seconds


def perftest(
    broker: Broker, options: list[str], producers: int = 1, consumers: int = 1, queue: str = "bench"
) -> Result:
    """Run PerfTest with `options` (which must end it: -z seconds, or -C messages)."""
    if not LIB.exists():
        subprocess.run(["mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), "package"], check=True)
    command = [
        "java",
        "-cp",
        f"{LIB}/*",
        "com.rabbitmq.perf.PerfTest",
        "-h",
        f"amqp://guest:guest@127.0.0.1:{broker.port}",
        "-x",
        str(producers),
        "-y",
        str(consumers),
        "-s",
        "100",
        "-f",
        "persistent",
        "-u",
        queue,
        "-ad",
        "false",
        *options,
    ]
    cpu, began = broker.cpu_seconds(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    cpu, seconds = broker.cpu_seconds() - cpu, time.monotonic() - began
    rate = re.search(rf"{'receiving' if consumers else 'sending'} rate avg: (\d+)", done.stdout)
    if done.returncode or not rate:
        raise RuntimeError(f"PerfTest failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    if "-z" in options:
        seconds = float(options[options.index("-z") + 1])
    return Result(int(rate[1]) * seconds, seconds, cpu, done.stdout)


def latency(result: Result, which: str) -> dict[str, float]:
    """`which`: confirm or consumer. Milliseconds at the min, the median and the 75th, 95th, 99th percentile."""
    found = re.findall(rf"{which} latency min/median/75th/95th/99th ([\d/]+) µs", result.output)
    if not found:
        raise RuntimeError(f"PerfTest said no {which} latency: {result.output[-1000:]}")
    return dict(zip(("min", "p50", "p75", "p95", "p99"), (int(x) / 1000 for x in found[-1].split("/")), strict=True))
