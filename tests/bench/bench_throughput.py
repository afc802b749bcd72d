"""Messages a second through one classic queue, and confirm latency: `make bench ROWS="throughput latency"`.

One producer, one consumer, persistent bodies, a durable queue. Each figure is of one run against a fresh broker.
"""

from tests.bench.peers import Broker
from tests.bench.perftest import latency, perftest

AUTO_ACK = ["-a"]
ACKED = ["-c", "500", "-q", "200"]
AT_A_RATE = ["-r", "1000", "-c", "100", "-q", "200"]


def throughput(broker: Broker, options: list[str], size: int, seconds: float) -> dict[str, float]:
    """`size`: bytes of a body."""
    result = perftest(broker, [*options, "-z", str(seconds)], size=size)
    return {"messages a second": result.per_second, "a broker-CPU-second": result.per_cpu_second}


def confirm_latency(broker: Broker, seconds: float) -> dict[str, float]:
    """Milliseconds, at a thousand messages a second."""
    found = latency(perftest(broker, [*AT_A_RATE, "-z", str(seconds)]), "confirm")
    return {f"{name}, ms": found[name] for name in ("p50", "p95", "p99")}
