"""Measure the cost of the event exchange.

    python -m tests.bench.bench_event_exchange [--against CHECKOUT] [--rounds 5]

PerfTest sends messages through one queue, with confirms and acks. Each figure is in broker-CPU-microseconds a message,
and each kind starts a fresh broker:

    before      another checkout, such as that of the commit before the event exchange
    nobody      nobody is bound
    elsewhere   a queue is bound to policy.set
    acks        a queue that keeps the last 1,000 messages is bound to ack.bench: each message makes an event

The kinds run in turn, in a different order each round. Figures are medians, and the smallest.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from statistics import median

import httpx2

from tests.bench.peers import Broker, started
from tests.bench.perftest import perftest
from tests.support.ports import free_port

EVENTS = "amq.rewindmq.event"
BOUND = {"elsewhere": "policy.set", "acks": "ack.bench"}
DROPPED = re.compile(r"^rewindmq_events_(published|dropped)_total ([0-9.e+]+)$", re.M)


def start(home: Path, checkout: Path) -> Broker:
    """A broker of a checkout, with its defaults."""
    home.mkdir()
    port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "rewindmq", "start", "--data", str(home / "data")]
    command += ["--amqp-port", str(port), "--http-port", str(http_port)]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    return started("RewindMQ", command, port, home, http_port, env)


def run(home: Path, kind: str, checkout: Path, messages: int) -> tuple[float, dict[str, float]]:
    """Broker-CPU-microseconds a message, and the events that were published and dropped."""
    broker = start(home, checkout)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{broker.http_port}", auth=("guest", "guest"), timeout=60) as api:
            if kind in BOUND:
                api.put(
                    "/api/queues/%2F/events", json={"durable": True, "arguments": {"x-max-length": 1_000}}
                ).raise_for_status()
                binding = {"routing_key": BOUND[kind]}
                api.post(f"/api/bindings/%2F/e/{EVENTS}/q/events", json=binding).raise_for_status()
            counts = ["-C", str(messages), "-D", str(messages)]
            result = perftest(broker, ["-c", "500", "-q", "200", *counts])
            told = {name: float(value) for name, value in DROPPED.findall(api.get("/metrics").text)}
        return result.cpu_seconds / messages * 1e6, told
    finally:
        broker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the checkout of `before`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    asked = parser.parse_args()
    here = Path(__file__).parents[2]
    kinds = {"nobody": here, "elsewhere": here, "acks": here}
    if asked.against is not None:
        kinds = {"before": asked.against.absolute(), **kinds}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as home:
        for number in range(asked.rounds):
            names = list(kinds)
            for kind in names[number % len(names) :] + names[: number % len(names)]:
                cost, told = run(Path(home) / f"{number}-{kind}", kind, kinds[kind], asked.messages)
                found[kind].append(cost)
                print(f"{number} {kind:<10} {cost:8.2f} us a message, events {told}", flush=True)
    for kind, costs in found.items():
        print(f"{kind:<10} median {median(costs):8.2f}   smallest {min(costs):8.2f}")


if __name__ == "__main__":
    main()
