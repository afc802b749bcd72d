"""Many queues, and queues with more rules, RewindMQ and Debian's RabbitMQ in turn in one run.

    python -m tests.bench.bench_queues [--seconds 10] [--only rewindmq]

- fan-out: one publisher to a fanout exchange, 100 queues, a consumer each (auto-ack): deliveries a second.
- trickle: 100 publishers at 20 messages a second, each with a queue and a consumer of its own (confirms, manual acks):
  what 2,000 messages a second cost, and their latency.
- a plain queue, one with x-max-priority, one with a single active consumer (confirms, manual acks): messages a second.
"""

import argparse
import tempfile
from pathlib import Path

from tests.bench.peers import Broker, running
from tests.bench.perftest import latency, perftest

QUEUES = 100
PATTERN = ["--queue-pattern", "bench-%d", "--queue-pattern-from", "1", "--queue-pattern-to", str(QUEUES)]
ACKED = ["-c", "500", "-q", "500"]
KINDS = {
    "plain": [],
    "x-max-priority 10": ["-qa", "x-max-priority=10", "-mp", "priority=5"],
    "single active consumer": ["-qa", "x-single-active-consumer=true"],
}


def fan_out(broker: Broker, timed: list[str]) -> None:
    result = perftest(broker, ["-a", "-e", "bench", "-t", "fanout", *PATTERN, *timed], consumers=QUEUES, queue="")
    print(
        f"fan-out to {QUEUES:4}      {broker.name:18} {result.per_second:9,.0f} deliveries/s"
        f" {result.per_cpu_second:9,.0f} a CPU second",
        flush=True,
    )


def trickle(broker: Broker, timed: list[str]) -> None:
    options = [*ACKED, "--rate", "20", *PATTERN, *timed]
    result = perftest(broker, options, producers=QUEUES, consumers=QUEUES, queue="")
    print(
        f"{QUEUES} queues at 20/s   {broker.name:18} {result.per_second:9,.0f} msg/s"
        f" {result.per_cpu_second:9,.0f} msg/CPU-s, latency in ms {latency(result, 'consumer')}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--only", choices=["rabbitmq", "rewindmq"])
    arguments = parser.parse_args()
    timed = ["-z", str(arguments.seconds)]
    for name in [arguments.only] if arguments.only else ["rabbitmq", "rewindmq"]:
        for work in (fan_out, trickle):
            with tempfile.TemporaryDirectory() as tmp, running(name, Path(tmp) / name) as broker:
                work(broker, timed)
        plain = 0.0
        for kind, options in KINDS.items():
            with tempfile.TemporaryDirectory() as tmp, running(name, Path(tmp) / name) as broker:
                perftest(broker, [*ACKED, *options, "-z", "5"], queue=f"warm-{kind}")
                result = perftest(broker, [*ACKED, *options, *timed], queue=kind)
            plain = plain or result.per_second
            print(
                f"{kind:22} {broker.name:18} {result.per_second:9,.0f} msg/s {result.per_cpu_second:9,.0f} msg/CPU-s,"
                f" {result.per_second / plain:.2f} of plain",
                flush=True,
            )


if __name__ == "__main__":
    main()
