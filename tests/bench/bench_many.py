"""Many queues and many connections over three nodes on one Kafka: starts, memory, listings, the way into a partition.

    python -m tests.bench.bench_many [--queues 20000] [--connections 1000] [--standbys 0] [--build compiled]
    python -m tests.bench.bench_many --queues 100000 --connections 10000 --backlog 200000       some minutes

8 partitions. One node declares the queues. Then it stops, and three nodes start: that one with its state, the others
with the history. Memory is resident memory. A connection has a channel. To enter a partition is a passive declaration
at a node that has paused it: at once, and after so many messages (`--backlog`) were published and consumed elsewhere.
Listings come last: the first one may make the node fold everything.
"""

import argparse
import contextlib
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pika

from rewindmq.projections.rules.partition_hash import partition_of
from tests.bench.bench_bystander import definitions
from tests.bench.bench_kafka import kafka
from tests.bench.bench_nodes import PARTITIONS, folded_by, settled
from tests.bench.peers import Broker, start_rewindmq
from tests.bench.perftest import perftest
from tests.support.amqp_wire import HEADER, connection_open, method, start_ok, tune_ok

NODES = 3
IMPORTED = 10_000  # queues in a request
OPENED, CHANNEL_OPENED = b"\x00\x0a\x00\x29", b"\x00\x14\x00\x0b"  # methods as they are in a frame
ANSWER_SECONDS = 600.0


class Clock:
    """Prints how long things took, and the CPU seconds of the nodes that run all the while or begin meanwhile.

    CPU says more than time on a busy machine: 10 times as many queues should cost 10 times as much."""

    def __init__(self) -> None:
        self.nodes: list[Broker] = []

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.nodes)

    @contextlib.contextmanager
    def time(self, what: str) -> Iterator[None]:
        began, used = time.perf_counter(), self.cpu_seconds()
        yield
        took, cpu = time.perf_counter() - began, self.cpu_seconds() - used
        print(f"{what:<75} {took:>9.3f} s {cpu:>9.2f} CPU-s", flush=True)


def declare(node: Broker, queues: int) -> None:
    with api(node) as client:
        for first in range(0, queues, IMPORTED):
            client.post("/definitions", content=definitions(min(IMPORTED, queues - first), first)).raise_for_status()


def api(node: Broker) -> httpx2.Client:
    url = f"http://127.0.0.1:{node.http_port}/api"
    return httpx2.Client(base_url=url, auth=("guest", "guest"), trust_env=False, timeout=ANSWER_SECONDS)


def connect(node: Broker) -> socket.socket:
    """A connection with a channel, and without heartbeats."""
    opened = socket.create_connection(("127.0.0.1", node.port), ANSWER_SECONDS)
    opened.sendall(HEADER + start_ok() + tune_ok(heartbeat=0) + connection_open())
    until(opened, OPENED)
    opened.sendall(method(1, "Channel.Open"))
    until(opened, CHANNEL_OPENED)
    return opened


def until(opened: socket.socket, answer: bytes) -> None:
    read = b""
    while answer not in read:
        more = opened.recv(65_536)
        if not more:
            raise RuntimeError(f"the broker closed the connection: {read!r}")
        read += more


def enter(node: Broker, queue: str, clock: Clock, what: str) -> None:
    """Time the first question for a queue at a node that has paused its partition."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port)) as connection:
        channel = connection.channel()
        with clock.time(what):
            channel.queue_declare(queue, passive=True)


def memory(nodes: list[Broker], when: str) -> None:
    print(f"resident memory of the nodes, MB, {when}: {[round(node.rss_bytes() / 1e6) for node in nodes]}", flush=True)


def bench(home: Path, queues: int, connections: int, backlog: int, standbys: str, build: str) -> None:
    clock = Clock()
    with kafka(home / "kafka") as (running, _):
        common = ["--kafka", running.bootstrap, "--partitions", str(PARTITIONS), "--standbys", standbys]

        def start(number: int) -> Broker:
            name = f"node{number}"
            return start_rewindmq(home / name, *common, "--node", name, build=build, seconds=ANSWER_SECONDS)

        first = start(0)
        clock.nodes = [first]
        try:
            with clock.time(f"{queues:,} queues are declared, by an import of definitions"):
                declare(first, queues)
            memory([first], "of the node that declared them")
        finally:
            first.stop()
        nodes: list[Broker] = []
        clock.nodes = nodes
        opened: list[socket.socket] = []
        try:
            for number in range(NODES):
                with clock.time(f"node {number} starts {'anew' if number else 'with its state'}"):
                    nodes.append(start(number))
            owned = settled(nodes, standbys)
            memory(nodes, "after the start")
            with clock.time(f"{connections:,} connections are opened, one after the other"):
                opened += [connect(nodes[number % NODES]) for number in range(connections)]
            memory(nodes, f"with {connections:,} connections")
            look_in(nodes, owned, queues, backlog, clock)
            listings(nodes[0], clock)
            memory(nodes, "at the end")
        finally:
            for each in opened:
                each.close()
            for node in nodes:
                node.stop()


def look_in(nodes: list[Broker], owned: list[list[int]], queues: int, backlog: int, clock: Clock) -> None:
    """Enter two partitions of node 1 at node 0, one of them after it has gone on meanwhile."""
    paused = [number for number in owned[1] if number not in folded_by(nodes[0])]
    if len(paused) < 2:
        print(f"node 0 folds all but {paused} of node 1's partitions: it enters none")
        return
    at_once, later = (queue_of(queues, partition) for partition in paused[:2])
    enter(nodes[0], at_once, clock, "a partition is entered at once")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", nodes[1].port)) as connection:
        connection.channel().queue_bind(later, "amq.direct", later)
    exchange = ["-p", "-e", "amq.direct", "-k", later]
    perftest(nodes[1], [*exchange, "-c", "500", "-q", "500", "-D", str(backlog)], queue=later)
    enter(nodes[0], later, clock, f"a partition is entered after {backlog:,} messages")


def queue_of(queues: int, partition: int) -> str:
    return next(name for n in range(queues) if partition_of("/", name := f"q{n}", PARTITIONS) == partition)


def listings(node: Broker, clock: Clock) -> None:
    with api(node) as client:
        for query in ("?page=1&page_size=100", "?columns=name,messages", "", ""):
            with clock.time(f"GET /api/queues{query}"):
                answer = client.get(f"/queues{query}").raise_for_status()
            print(f"    {len(answer.content):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--standbys", default="0")
    parser.add_argument("--build", default="", choices=["pure", "compiled"])
    asked = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as home:
        bench(Path(home), asked.queues, asked.connections, asked.backlog, asked.standbys, asked.build)


if __name__ == "__main__":
    main()
