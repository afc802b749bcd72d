"""Many queues, and queues with more rules.

    make bench ROWS="fan-out queues"                                         the first two, beside other brokers
    python -m tests.bench.bench_queues [--seconds 10] [--only rewindmq]      the third, RewindMQ and Debian's RabbitMQ

- fan-out: one publisher to a fanout exchange, 100 queues, a consumer each (auto-ack): deliveries a second.
- trickle: 100 publishers at 20 messages a second, each with a queue and a consumer of its own (confirms, manual acks):
  what 2,000 messages a second cost, and their latency.
- a plain queue, one with x-max-priority, one with a single active consumer (confirms, manual acks): messages a second.
"""

import argparse

from tests.bench.peers import PEERS, Broker
from tests.bench.perftest import latency, perftest

QUEUES = 100
PATTERN = ["--queue-pattern", "bench-%d", "--queue-pattern-from", "1", "--queue-pattern-to", str(QUEUES)]
ACKED = ["-c", "500", "-q", "500"]
KINDS = {
    "plain": [],
    "x-max-priority 10": ["-qa", "x-max-priority=10", "-mp", "priority=5"],
    "single active consumer": ["-qa", "x-single-active-consumer=true"],
}


def fan_out(broker: Broker, seconds: float) -> dict[str, float]:
    options = ["-a", "-e", "bench", "-t", "fanout", *PATTERN, "-z", str(seconds)]
    result = perftest(broker, options, consumers=QUEUES, queue="")
    return {"deliveries a second": result.per_second, "a broker-CPU-second": result.per_cpu_second}


def trickle(broker: Broker, seconds: float) -> dict[str, float]:
    """Latency: from the publish until the consumer has the message."""
    options = [*ACKED, "--rate", "20", *PATTERN, "-z", str(seconds)]
    result = perftest(broker, options, producers=QUEUES, consumers=QUEUES, queue="")
    found = latency(result, "consumer")
    return {
        "p50, ms": found["p50"],
        "p95, ms": found["p95"],
        "p99, ms": found["p99"],
        "messages a broker-CPU-second": result.per_cpu_second,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--only", choices=["rabbitmq", "rewindmq"])
    arguments = parser.parse_args()
    timed = ["-z", str(arguments.seconds)]
    for name in [arguments.only] if arguments.only else ["rabbitmq", "rewindmq"]:
        plain = 0.0
        for kind, options in KINDS.items():
            with PEERS[name].fresh() as broker:
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
