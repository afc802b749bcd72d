"""One run of PerfTest (com.rabbitmq:perf-test) against a broker: messages a second, and per broker-CPU-second."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.bench.peers import Broker

HERE = Path(__file__).parent
LIB = HERE / "target" / "lib"
POM = HERE / "pom.xml"
COUNTED = ("-C", "-D")  # messages to publish, or to consume: PerfTest ends after them


@dataclass
class Result:
    """One run: what the consumer received, or without one what was sent. CPU seconds are the broker's."""

    messages: float
    per_second: float
    cpu_seconds: float
    output: str

    @property
    def per_cpu_second(self) -> float:
        return self.messages / self.cpu_seconds


def perftest(
    broker: Broker, options: list[str], producers: int = 1, consumers: int = 1, queue: str = "bench", size: int = 100
) -> Result:
    """Run PerfTest with `options` (which must end it: -z seconds, or one of COUNTED). `size`: bytes of a body."""
    if not LIB.exists():
        subprocess.run(["mvn", "-B", "-q", "-f", str(POM), "package"], check=True)
    command = [
        "java",
        "-cp",
        f"{LIB}/*",
        "com.rabbitmq.perf.PerfTest",
        "-h",
        f"amqp://guest:guest@127.0.0.1:{broker.port}",
    ]
    command += ["-x", str(producers), "-y", str(consumers), "-s", str(size), "-f", "persistent", "-u", queue]
    command += ["-ad", "false", *options]
    cpu = broker.cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    cpu = broker.cpu_seconds() - cpu
    rate = re.search(rf"{'receiving' if consumers else 'sending'} rate avg: (\d+)", done.stdout)
    if done.returncode or not rate:
        raise RuntimeError(f"PerfTest failed: {_reason(done.stdout + done.stderr)}")
    per_second = float(rate[1])
    counted = next((int(options[options.index(each) + 1]) for each in COUNTED if each in options), None)
    messages = counted if counted is not None else per_second * float(options[options.index("-z") + 1])
    return Result(messages, per_second, cpu, done.stdout)


def _reason(output: str) -> str:
    """The lines of PerfTest's output that say why it failed, without Java's lists of calls."""
    lines = [line for line in output.splitlines() if not line.startswith("\tat ")]
    said = [line for line in lines if "ERROR" in line or "Exception" in line]
    return "\n".join(list(dict.fromkeys(said or lines))[-5:])


def latency(result: Result, which: str) -> dict[str, float]:
    """`which`: confirm or consumer. Milliseconds at the min, the median and the 75th, 95th, 99th percentile."""
    found = re.findall(rf"{which} latency min/median/75th/95th/99th ([\d/]+) µs", result.output)
    if not found:
        raise RuntimeError(f"PerfTest said no {which} latency: {result.output[-1000:]}")
    return dict(zip(("min", "p50", "p75", "p95", "p99"), (int(x) / 1000 for x in found[-1].split("/")), strict=True))


def version() -> str:
    """PerfTest's, as the POM names it."""
    names = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = ElementTree.parse(POM).find("m:dependencies/m:dependency/m:version", names)
    assert found is not None
    return str(found.text)
