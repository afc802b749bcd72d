"""RewindMQ on Kafka: PerfTest against a node (Kafka beside it on the same machine), the same on the embedded log, and
Debian's RabbitMQ with a quorum queue, in turn in one run.

    python -m tests.bench.bench_kafka [--seconds 15] [--rounds 3]
    python -m tests.bench.bench_kafka --delay-ms 10        only a node whose Kafka is that far away, in each direction

Confirms (500 outstanding) and manual acks, 100-byte persistent bodies: with a prefetch of 200, and with one of 500, as
many as may be unconfirmed (on Kafka an ack comes back as late as a confirm, so with 200 the consumer falls behind and
the queue grows); then latency of confirms at 1,000 messages a second; then two nodes, each with a publisher and a
consumer. What the consumer received is counted, and what was sent is told beside it. CPU seconds are those of the
RewindMQ (RabbitMQ) process; Kafka's are told beside them. Each broker has run for some seconds before it is measured.
"""

import argparse
import contextlib
import re
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.peers import Broker, start_rabbitmq, start_rewindmq
from tests.bench.perftest import Result, latency, perftest
from tests.support.kafka.cluster import KafkaCluster

OPTIONS = ["-c", "500", "--quorum-queue"]
WARM_SECONDS = "8"


@contextlib.contextmanager
def kafka(home: Path) -> Iterator[tuple[KafkaCluster, Broker]]:
    """One Kafka node and its CPU time. It compiles with C1 only: in runs this short C2 takes more than it gives."""
    with KafkaCluster(home, 1) as cluster:
        yield cluster, Broker("Kafka", 0, cluster.processes[1], home)


@contextlib.contextmanager
def nodes(home: Path, bootstrap: str, count: int, *options: str) -> Iterator[list[Broker]]:
    started: list[Broker] = []
    try:
        for number in range(count):
            started.append(
                start_rewindmq(
                    home / f"node{number}",
                    "--kafka",
                    bootstrap,
                    "--kafka-prefix",
                    home.name,
                    "--node",
                    f"node{number}@bench",
                    *options,
                )
            )
        yield started
    finally:
        for node in started:
            node.stop()


def warm(broker: Broker) -> None:
    perftest(broker, [*OPTIONS, "-q", "500", "-z", WARM_SECONDS], queue="warm")


def on_kafka(home: Path, options: list[str]) -> tuple[Result, float]:
    """The result, and Kafka's CPU seconds."""
    with kafka(home / "kafka") as (cluster, server), nodes(home, cluster.bootstrap, 1) as [node]:
        warm(node)
        before = server.cpu_seconds()
        return perftest(node, options), server.cpu_seconds() - before


def far_from_kafka(home: Path, options: list[str], seconds: float) -> Result:
    """The line to Kafka is a proxy in this process, whose CPU time is not the node's."""
    with kafka(home / "kafka") as (cluster, _), cluster.proxied() as line:
        line.delay_seconds = seconds
        with nodes(home, line.bootstrap, 1) as [node]:
            warm(node)
            return perftest(node, options)


def on_rabbitmq(home: Path, options: list[str]) -> tuple[Result, float]:
    broker = start_rabbitmq(home)
    try:
        warm(broker)
        return perftest(broker, options), 0.0
    finally:
        broker.stop()


def embedded(home: Path, options: list[str]) -> tuple[Result, float]:
    broker = start_rewindmq(home)
    try:
        warm(broker)
        return perftest(broker, options), 0.0
    finally:
        broker.stop()


def on_two_nodes(home: Path, options: list[str], count: int) -> float:
    """Messages a second of two pairs of clients in all, on `count` nodes."""
    with kafka(home / "kafka") as (cluster, _), nodes(home, cluster.bootstrap, count) as brokers:
        results: list[Result] = []
        threads = [
            threading.Thread(
                target=lambda pair=pair: results.append(perftest(brokers[pair % count], options, queue=f"bench-{pair}"))
            )
            for pair in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(result.per_second for result in results)


Run = Callable[[Path, list[str]], tuple[Result, float]]
PEERS: dict[str, Run] = {"RabbitMQ quorum": on_rabbitmq, "RewindMQ embedded": embedded, "RewindMQ on Kafka": on_kafka}


def throughput(peers: dict[str, Run], options: list[str], prefetch: str, rounds: int) -> None:
    wall: dict[str, list[float]] = {name: [] for name in peers}
    cpu: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, run in peers.items():
            with tempfile.TemporaryDirectory() as home:
                result, kafkas = run(Path(home), options)
            wall[name].append(result.per_second)
            cpu[name].append(result.per_cpu_second)
            sent = re.search(r"sending rate avg: (\d+)", result.output)
            beside = f", Kafka {kafkas / result.messages * 1e6:.1f} us a message" if kafkas else ""
            print(
                f"prefetch {prefetch}: {name:20} {result.per_second:9,.0f} msg/s (sent {sent[1] if sent else '?'})"
                f" {result.per_cpu_second:9,.0f} msg/CPU-s{beside}",
                flush=True,
            )
    if len(peers) == len(PEERS):
        ours = "RewindMQ on Kafka"
        for what, measured in (("on the wall", wall), ("per CPU second", cpu)):
            middle = {name: statistics.median(values) for name, values in measured.items()}
            print(
                f"RewindMQ on Kafka {what}: {middle[ours] / middle['RabbitMQ quorum']:.2f} x RabbitMQ quorum,"
                f" {middle[ours] / middle['RewindMQ embedded']:.2f} x embedded",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PEERS)
    parser.add_argument("--delay-ms", type=float)
    arguments = parser.parse_args()
    peers = {name: run for name, run in PEERS.items() if arguments.only in (None, name)}
    timed = ["-z", str(arguments.seconds)]
    if arguments.delay_ms is not None:
        for most in ("500", "5000"):
            with tempfile.TemporaryDirectory() as home:
                options = ["-c", most, "-q", most, "--quorum-queue", *timed]
                result = far_from_kafka(Path(home), options, arguments.delay_ms / 1000)
            print(
                f"Kafka {arguments.delay_ms} ms away, {most} unconfirmed, prefetch {most}: {result.per_second:,.0f}"
                f" msg/s, confirm latency, ms: {latency(result, 'confirm')}",
                flush=True,
            )
        return
    for prefetch in ("200", "500"):
        throughput(peers, [*OPTIONS, "-q", prefetch, *timed], prefetch, arguments.rounds)
    for name, run in peers.items():
        with tempfile.TemporaryDirectory() as home:
            result, _ = run(Path(home), ["-c", "100", "-q", "200", "--quorum-queue", "--rate", "1000", *timed])
        print(f"{name:20} confirm latency at 1,000/s, ms: {latency(result, 'confirm')}", flush=True)
    if not arguments.only:
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as home:
                rate = on_two_nodes(Path(home), [*OPTIONS, "-q", "500", *timed], count)
                print(f"two pairs of clients on {count} node(s): {rate:,.0f} msg/s", flush=True)


if __name__ == "__main__":
    main()
