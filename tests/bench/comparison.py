"""The rows of `make bench`: for each group the peers in turn, and the median of the rounds.

    for group in GROUPS:  group.measure("rabbitmq", FULL)  ->  {"messages a second": 73497.0, ...}

A figure's name is its row in the table. A group has the same names for all its peers, but a peer may lack some.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.bench import bench_kafka, bench_memory, bench_queues, bench_spark_fold, bench_throughput
from tests.bench.peers import PEERS, Broker, start_rewindmq, switch

REWINDMQ = ("rewindmq", "compiled")
WITH_QUORUM_QUEUES = ("rabbitmq", "rabbitmq43", *REWINDMQ)
Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """The size of a measurement: seconds, rounds, messages and events."""

    seconds: int
    rounds: int
    messages: int
    events: int


FULL = Scale(seconds=8, rounds=3, messages=1_000_000, events=1_000_000)
QUICK = Scale(seconds=2, rounds=1, messages=2_000, events=2_000)


@dataclass(frozen=True)
class Group:
    """Rows that are measured together. `name`: what ROWS= of `make bench` says; `peers`: those that can do it."""

    name: str
    heading: str
    measure: Callable[[str, Scale], Figures]
    peers: tuple[str, ...] = tuple(PEERS)
    repeated: bool = False  # in rounds


@dataclass
class Results:
    """A group's figures: by row and peer; and why a peer has none."""

    group: Group
    rows: dict[str, Figures] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def measured(group: Group, peers: list[str], scale: Scale) -> Results:
    """A group's figures, of those of its peers that are named. If a run of a peer fails, it has no figures."""
    found: dict[str, dict[str, list[float]]] = {}
    results = Results(group)
    for number in range(scale.rounds if group.repeated else 1):
        for peer in peers:
            if peer not in group.peers or peer in results.failed:
                continue
            try:
                figures = group.measure(peer, scale)
            except Exception as error:  # a table with a hole says more than none after twenty minutes
                results.failed[peer] = f"{type(error).__name__}: {error}"
                print(f"{group.heading}, {PEERS[peer].title}: failed: {error}", flush=True)
                continue
            for row, value in figures.items():
                found.setdefault(row, {}).setdefault(peer, []).append(value)
            said = ", ".join(f"{row} {value:,.2f}" for row, value in figures.items())
            print(f"{group.heading}, {PEERS[peer].title}, round {number + 1}: {said}", flush=True)
    for row, by_peer in found.items():
        kept = {peer: values for peer, values in by_peer.items() if peer not in results.failed}
        results.rows[row] = {peer: statistics.median(values) for peer, values in kept.items()}
    return results


def _of_fresh_broker(measure: Callable[[Broker, Scale], Figures]) -> Callable[[str, Scale], Figures]:
    def of_peer(peer: str, scale: Scale) -> Figures:
        with PEERS[peer].fresh() as broker:
            return measure(broker, scale)

    return of_peer


def _throughput() -> Iterator[Group]:
    ways = {
        "auto-ack": bench_throughput.AUTO_ACK,
        "confirms (500 outstanding), manual acks (prefetch 200)": bench_throughput.ACKED,
    }
    for size, said in ((100, "100 bytes"), (1_000, "1 kB")):
        for way, options in ways.items():

            def measure(broker: Broker, scale: Scale, size: int = size, options: list[str] = options) -> Figures:
                return bench_throughput.throughput(broker, options, size, scale.seconds)

            heading = f"One producer, one consumer, {said}, {way}"
            yield Group("throughput", heading, _of_fresh_broker(measure), repeated=True)


def _archiving(peer: str, scale: Scale) -> Figures:
    """With an archiver beside the broker that always has work, and without one, in turn."""
    figures: Figures = {}
    for name, options in (("", []), (", archiving", ["--segment-age", "1s", "--archive-lag", "1s", "--archive"])):
        with PEERS[peer].home() as home:
            where = [str(home / "archive")] if options else []
            broker = start_rewindmq(home, *options, *where, build=PEERS[peer].build)
            try:
                found = bench_throughput.throughput(broker, bench_throughput.ACKED, 100, scale.seconds)
            finally:
                broker.stop()
        figures |= {f"{row}{name}": value for row, value in found.items()}
    return figures


def _million(peer: str, scale: Scale) -> Figures:
    with PEERS[peer].home() as home:
        return bench_memory.million(PEERS[peer], home, scale.messages)


def _quorum_queue(peer: str, scale: Scale) -> Figures:
    if peer not in REWINDMQ:
        with PEERS[peer].fresh() as broker:
            return bench_kafka.quorum_queue(broker, scale.seconds)
    with PEERS[peer].home() as home:
        return bench_kafka.on_kafka(home, PEERS[peer].build, scale.seconds)


def _spark(peer: str, scale: Scale) -> Figures:
    """In a process of its own, which runs the peer's build, as its workers do."""
    before = dict(os.environ)
    os.environ.update(switch(PEERS[peer].build))
    try:
        with PEERS[peer].home() as home, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_spark_here, home, scale.events).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _spark_here(home: Path, events: int) -> Figures:
    bench_spark_fold.write_histories(home, events)
    return bench_spark_fold.figures(home)


GROUPS = (
    *_throughput(),
    Group(
        "fan-out",
        "Fan-out: one publisher, 100 queues with a consumer each, auto-ack",
        _of_fresh_broker(lambda broker, scale: bench_queues.fan_out(broker, scale.seconds)),
    ),
    Group(
        "latency",
        "Confirm latency at 1,000 messages a second",
        _of_fresh_broker(lambda broker, scale: bench_throughput.confirm_latency(broker, scale.seconds)),
    ),
    Group(
        "queues",
        "100 queues, each with a publisher at 20 a second and a consumer (confirms, acks): from publish to delivery",
        _of_fresh_broker(lambda broker, scale: bench_queues.trickle(broker, scale.seconds)),
    ),
    Group(
        "archiving",
        "The archive beside the broker (a directory): one producer, one consumer, 100 bytes, confirms, manual acks",
        _archiving,
        REWINDMQ,
        repeated=True,
    ),
    Group("million", "A million ready messages of 100 bytes", _million),
    Group(
        "kafka",
        "Quorum queue, one node, confirms (500 outstanding), acks; RewindMQ's log is a Kafka of one node",
        _quorum_queue,
        WITH_QUORUM_QUEUES,
    ),
    Group(
        "kafka",
        "The same with RewindMQ's embedded log",
        _of_fresh_broker(lambda broker, scale: bench_kafka.quorum_queue(broker, scale.seconds)),
        REWINDMQ,
    ),
    Group("spark", "Spark over a million events in two partitions (driver, JVM and workers counted)", _spark, REWINDMQ),
)
