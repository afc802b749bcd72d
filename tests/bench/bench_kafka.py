"""RewindMQ on Kafka, with PerfTest against a node.

    make bench ROWS=kafka                                         beside the embedded log and RabbitMQ's quorum queue
    python -m tests.bench.bench_kafka --nodes 2                   two pairs of clients on one node, then on two
    python -m tests.bench.bench_kafka --delay-ms 10               a node whose Kafka is that far away, in each direction

Confirms (500 outstanding) and manual acks, 100-byte persistent bodies, a quorum queue: with a prefetch of 200, and with
one of 500, as many as may be unconfirmed (on Kafka an ack comes back as late as a confirm, so with 200 the consumer
falls behind and the queue grows); then latency of confirms at 1,000 messages a second. What the consumer received is
counted. CPU seconds are those of the RewindMQ (RabbitMQ) process; Kafka's are told beside them. Kafka has one node, on
the same machine. Each broker has run for some seconds before it is measured.
"""

import argparse
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pika

from tests.bench.peers import Broker, start_rewindmq
from tests.bench.perftest import Result, latency, perftest
from tests.support.kafka.cluster import KafkaCluster

ACKED = ["-c", "500", "--quorum-queue"]
AT_A_RATE = ["-c", "100", "-q", "200", "--quorum-queue", "--rate", "1000"]
WARM_SECONDS = 8


@contextlib.contextmanager
def kafka(home: Path) -> Iterator[tuple[KafkaCluster, Broker]]:
    """One Kafka node and its CPU time. It compiles with C1 only: in runs this short C2 takes more than it gives."""
    with KafkaCluster(home, 1) as cluster:
        yield cluster, Broker("Kafka", 0, cluster.processes[1], home)


@contextlib.contextmanager
def nodes(home: Path, bootstrap: str, count: int, build: str = "") -> Iterator[list[Broker]]:
    started: list[Broker] = []
    common = ["--kafka", bootstrap, "--kafka-prefix", home.name]
    try:
        for number in range(count):
            name = f"node{number}"
            started.append(start_rewindmq(home / name, *common, "--node", f"{name}@bench", build=build))
        yield started
    finally:
        for node in started:
            node.stop()


def quorum_queue(broker: Broker, seconds: float, server: Broker | None = None) -> dict[str, float]:
    """Throughput and latency of a broker that has just started. `server`: the Kafka below it."""
    warm(broker, min(WARM_SECONDS, seconds))
    figures = {}
    for prefetch in ("200", "500"):
        before = server.cpu_seconds() if server else 0.0
        result = _perftest(broker, [*ACKED, "-q", prefetch], seconds)
        figures[f"prefetch {prefetch}, messages a second"] = result.per_second
        figures[f"prefetch {prefetch}, a broker-CPU-second"] = result.per_cpu_second
        if server:
            kafkas = (server.cpu_seconds() - before) / result.messages
            figures[f"prefetch {prefetch}, Kafka's own CPU, us a message"] = kafkas * 1e6
    found = latency(_perftest(broker, AT_A_RATE, seconds), "confirm")
    return figures | {f"confirm latency at 1,000 a second, {name}, ms": found[name] for name in ("p50", "p99")}


def on_kafka(home: Path, build: str, seconds: float) -> dict[str, float]:
    """`quorum_queue` of a node."""
    with kafka(home / "kafka") as (cluster, server), nodes(home, cluster.bootstrap, 1, build) as [node]:
        return quorum_queue(node, seconds, server)


def warm(broker: Broker, seconds: float = WARM_SECONDS) -> None:
    _perftest(broker, [*ACKED, "-q", "500"], seconds)


def _perftest(broker: Broker, options: list[str], seconds: float) -> Result:
    """A run with a queue of its own, which is deleted with what the consumer left in it."""
    result = perftest(broker, [*options, "-z", str(seconds)])
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        connection.channel().queue_delete("bench")
    return result


def far_from_kafka(home: Path, options: list[str], seconds: float) -> Result:
    """The line to Kafka is a proxy in this process, whose CPU time is not the node's."""
    with kafka(home / "kafka") as (cluster, _), cluster.proxied() as line:
        line.delay_seconds = seconds
        with nodes(home, line.bootstrap, 1) as [node]:
            warm(node)
            return perftest(node, options)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=15)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--nodes", type=int, choices=[2])
    what.add_argument("--delay-ms", type=float)
    arguments = parser.parse_args()
    timed = ["-z", str(arguments.seconds)]
    if arguments.nodes:
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as home:
                rate = on_two_nodes(Path(home), [*ACKED, "-q", "500", *timed], count)
            print(f"two pairs of clients on {count} node(s): {rate:,.0f} msg/s", flush=True)
        return
    for most in ("500", "5000"):
        with tempfile.TemporaryDirectory() as home:
            options = ["-c", most, "-q", most, "--quorum-queue", *timed]
            result = far_from_kafka(Path(home), options, arguments.delay_ms / 1000)
        print(
            f"Kafka {arguments.delay_ms} ms away, {most} unconfirmed, prefetch {most}: {result.per_second:,.0f}"
            f" msg/s, confirm latency, ms: {latency(result, 'confirm')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
