"""More nodes on one Kafka: what a message costs a node, by what the node does for it, and what N nodes would carry.

    python -m tests.bench.bench_nodes [--nodes 1 2 4] [--standbys 0 1 all] [--seconds 10] [--build compiled]

Each cluster has 8 partitions with a queue each, and begins with nodes that have not used any. PerfTest publishes
(confirms, 500 outstanding) and consumes (manual acks, prefetch 500) 100-byte persistent messages of quorum queues:

    together    publisher and consumer at the owner of the queue's partition
    apart       the consumer at the owner, the publisher at another node
    spread      at each node a publisher and a consumer of a queue that the node owns
    sessions    clients that connect and go, at one node

CPU is that of a node's whole process, and of its threads that run Python, which share one core. Kafka has one node. The
last table is calculated (node_model.py) from the first ones.
"""

import argparse
import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import httpx2
import pika

from rewindmq.engine.cluster.partition_pausing import UNUSED_SECONDS
from rewindmq.projections.rules.partition_hash import partition_of
from tests.bench.bench_kafka import kafka
from tests.bench.node_model import Cluster, Costs, capacity
from tests.bench.peers import Broker, start_rewindmq
from tests.bench.perftest import Result, perftest
from tests.support.processes import TICKS

PARTITIONS = 8
PUBLISH, CONSUME = ["-c", "500"], ["-q", "500"]
STEADY_SECONDS = 3.0
WAIT_SECONDS = 90.0
SESSIONS = 300
ALL = "all"
WARM, TOGETHER, APART, SPREAD = "warm", "together", "apart", "spread"
BOTH, APPENDS, PUBLISHES = "publishes, folds, consumes", "publishes, only appends", "publishes, folds"
CONSUMES, FOLDS, NEITHER = "folds, consumes", "only folds", "neither"
SHARE, KAFKA = "its own pair", "Kafka"
ALONE = (APPENDS, PUBLISHES)  # roles whose messages are those that were published, and not those that arrived


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds of a node: of all its threads, and of those that run Python."""

    whole: float
    python: float

    def since(self, before: "Used") -> "Used":
        return Used(self.whole - before.whole, self.python - before.python)


@dataclass(frozen=True, slots=True)
class Row:
    """A node's role in a run, and its CPU: microseconds a message, and the share of a core over the whole run."""

    nodes: int
    standbys: str
    case: str
    role: str
    rate: float  # messages a second, of all nodes
    whole_us: float
    python_us: float
    core: float


class Bench:
    """Running nodes with their queues: a queue in each partition."""

    def __init__(self, server: Broker, nodes: list[Broker], standbys: str, queues: list[str]) -> None:
        self.server = server
        self.nodes = nodes
        self.standbys = standbys
        self.queues = queues
        self.owned = settled(nodes, standbys)

    def run(self, case: str, pairs: dict[int, tuple[int, int]], seconds: int) -> list[Row]:
        """Publish and consume. `pairs`: by partition, the numbers of the publisher's node and of the consumer's."""
        sent: list[Result] = []
        received: list[Result] = []
        threads = []

        def load(node: int, queue: str, options: list[str], ends: tuple[int, int]) -> None:
            producers, consumers = ends
            timed = ["-p", "-e", "amq.direct", "-k", queue, "-z", str(seconds), *options]
            # PerfTest looks whether the queue is there, which makes a node fold its partition. So one that only
            # publishes names a queue of its node, and publishes by the routing key of the other.
            named = queue if consumers else self.queues[self.owned[node][-1]]
            result = perftest(self.nodes[node], timed, producers, consumers, named)
            (received if consumers else sent).append(result)

        for partition, (publisher, consumer) in pairs.items():
            queue = self.queues[partition]
            if publisher == consumer:
                plans = [(publisher, queue, [*PUBLISH, *CONSUME], (1, 1))]
            else:
                plans = [(consumer, queue, CONSUME, (0, 1)), (publisher, queue, PUBLISH, (1, 0))]
            threads += [threading.Thread(target=load, args=plan) for plan in plans]
        used, servers, began = [used_by(node) for node in self.nodes], self.server.cpu_seconds(), time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        spent = [used_by(node).since(before) for node, before in zip(self.nodes, used, strict=True)]
        if len(received) + len(sent) != len(threads):
            raise RuntimeError("a run of PerfTest failed")
        messages = sum(result.messages for result in received)
        published = sum(result.messages for result in sent)
        rows = []
        for number, each in enumerate(spent):
            role = self._role(number, pairs)
            rows.append(self._row(case, role, messages, published if role in ALONE else messages, seconds, took, each))
        kafkas = self.server.cpu_seconds() - servers
        return [*rows, self._row(case, KAFKA, messages, messages, seconds, took, Used(kafkas, 0.0))]

    def _row(self, case: str, role: str, messages: float, of_node: float, seconds: int, took: float, used: Used) -> Row:
        whole, python = used.whole * 1e6 / of_node, used.python * 1e6 / of_node
        return Row(len(self.nodes), self.standbys, case, role, messages / seconds, whole, python, used.whole / took)

    def _role(self, number: int, pairs: dict[int, tuple[int, int]]) -> str:
        """Return the node's role for the messages of one pair of clients, or SHARE if there are several pairs."""
        if len(pairs) > 1:
            return SHARE
        [(partition, (publisher, consumer))] = pairs.items()
        folds = partition in folded_by(self.nodes[number])
        if number == publisher == consumer:
            return BOTH
        if number == consumer:
            return CONSUMES
        if number == publisher:
            return PUBLISHES if folds else APPENDS
        return FOLDS if folds else NEITHER

    def sessions(self) -> float:
        """Microseconds of Python at another node for each connection that opens and closes at the first one."""
        before = [used_by(node) for node in self.nodes]
        for _ in range(SESSIONS):
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.nodes[0].port)).close()
        time.sleep(1.0)
        spent = [used_by(node).since(each) for node, each in zip(self.nodes, before, strict=True)]
        return mean(each.python for each in spent[1:]) * 1e6 / SESSIONS


# -- nodes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster(home: Path, count: int, standbys: str, build: str) -> Iterator[Bench]:
    """Nodes that know all queues, and have used none: the first node has declared them before they all started."""
    queues = [queue_in(partition) for partition in range(PARTITIONS)]
    with kafka(home / "kafka") as (running, server):
        common = ["--kafka", running.bootstrap, "--partitions", str(PARTITIONS)]
        common += [] if standbys == ALL else ["--standbys", standbys]

        def start(number: int) -> Broker:
            return start_rewindmq(home / f"node{number}", *common, "--node", f"node{number}", build=build)

        first = start(0)
        try:
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", first.port)) as connection:
                channel = connection.channel()
                for queue in queues:
                    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
                    channel.queue_bind(queue, "amq.direct", queue)
        finally:
            first.stop()
        nodes: list[Broker] = []
        try:
            for number in range(count):
                nodes.append(start(number))
            yield Bench(server, nodes, standbys, queues)
        finally:
            for node in nodes:
                node.stop()


def queue_in(partition: int) -> str:
    """A name that lies in this partition."""
    return next(
        name for number in range(10_000) if partition_of("/", name := f"bench-{number}", PARTITIONS) == partition
    )


def settled(nodes: list[Broker], standbys: str) -> list[list[int]]:
    """Wait until each partition has one owner, and all nodes have paused what they do not need.

    The first node owned all partitions, and pauses those of others a minute later. Returns the partitions of each."""
    needed = STEADY_SECONDS + (UNUSED_SECONDS if standbys != ALL and len(nodes) > 1 else 0)
    before: list[set[int]] = []
    since, deadline = time.monotonic(), time.monotonic() + needed + WAIT_SECONDS
    while True:
        owned = [owned_by(node) for node in nodes]
        if owned != before or sorted(number for each in owned for number in each) != list(range(PARTITIONS)):
            before, since = owned, time.monotonic()
        elif time.monotonic() - since >= needed:
            return [sorted(each) for each in owned]
        if time.monotonic() > deadline:
            raise RuntimeError(f"the nodes do not come to rest: {owned}")
        time.sleep(0.5)


def gauges(node: Broker, name: str) -> dict[int, str]:
    """The labels of the samples of a gauge that are 1, by the number of the partition."""
    text = httpx2.get(f"http://127.0.0.1:{node.http_port}/metrics", auth=("guest", "guest"), trust_env=False).text
    found = re.findall(rf'^{name}{{partition="queues-(\d+)"([^}}]*)}} 1(?:\.0)?$', text, re.MULTILINE)
    return {int(number): labels for number, labels in found}


def owned_by(node: Broker) -> set[int]:
    return set(gauges(node, "rewindmq_partition_owned"))


def folded_by(node: Broker) -> set[int]:
    return {number for number, labels in gauges(node, "rewindmq_partition_mode").items() if "fold" in labels}


def used_by(node: Broker) -> Used:
    """The CPU of a node so far. Threads of Kafka's and RocksDB's C code have names of their own."""
    whole = python = 0
    name = ""
    for task in sorted(Path(f"/proc/{node.process.pid}/task").iterdir(), key=lambda task: int(task.name)):
        with contextlib.suppress(OSError):
            comm, fields = (task / "comm").read_text(), (task / "stat").read_text().rsplit(")", 1)[1].split()
            name = name or comm
            ticks = int(fields[11]) + int(fields[12])
            whole += ticks
            python += ticks if comm == name else 0
    return Used(whole / TICKS, python / TICKS)


# -- the runs ---------------------------------------------------------------------------------------------------------


def measured(count: int, standbys: str, seconds: int, build: str) -> tuple[list[Row], float]:
    """The rows of a cluster, and the cost of a session at another node (0 with one node)."""
    with tempfile.TemporaryDirectory() as home, cluster(Path(home), count, standbys, build) as bench:
        first = [partitions[0] for partitions in bench.owned]
        bench.run(WARM, {first[0]: (0, 0)}, min(5, seconds))
        rows = bench.run(TOGETHER, {first[0]: (0, 0)}, seconds)
        if count > 1:
            rows += bench.run(APART, {first[1]: (0, 1)}, seconds)
            rows += bench.run(SPREAD, {partition: (at, at) for at, partition in enumerate(first)}, seconds)
        return rows, bench.sessions() if count > 1 else 0.0


def costs_of(rows: list[Row], sessions: list[float]) -> Costs:
    """The costs of the model: of Python's threads, as these share one core. They are means of what was measured."""

    def of(role: str, case: str) -> float:
        found = [row.python_us for row in rows if row.role == role and row.case == case]
        if not found:
            raise RuntimeError(f"no node of these clusters {role}: measure 1 2 4 nodes with standbys 0 1 all")
        return mean(found)

    folders = [(1 + sum(row.role == FOLDS for row in run), kafkas.whole_us) for run, kafkas in runs_of(rows)]
    write, read = line_through(folders)
    idle, beat = line_through([(row.nodes, row.core * 1e6) for row in rows if row.role == NEITHER])
    return Costs(
        of(BOTH, TOGETHER),
        of(APPENDS, APART),
        of(CONSUMES, APART),
        of(FOLDS, TOGETHER),
        write,
        read,
        idle,
        beat,
        mean(sessions),
    )


def runs_of(rows: list[Row]) -> Iterator[tuple[list[Row], Row]]:
    """The rows of each run with one pair of clients at the owner, and Kafka's."""
    run: list[Row] = []
    for row in rows:
        if row.role == KAFKA:
            if row.case == TOGETHER:
                yield run, row
            run = []
        else:
            run.append(row)


def line_through(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Least squares: the value at 0, and the slope, which is not below 0."""
    x, y = mean(point[0] for point in points), mean(point[1] for point in points)
    spread = sum((point[0] - x) ** 2 for point in points)
    slope = max(0.0, sum((point[0] - x) * (point[1] - y) for point in points) / spread) if spread else 0.0
    return y - slope * x, slope


# -- tables -----------------------------------------------------------------------------------------------------------


def shown(row: Row, busiest: float) -> str:
    share = f"{row.core / busiest:6.1%}" if row.role == NEITHER else ""
    cells = (row.nodes, row.standbys, row.case, row.role, f"{row.rate:,.0f}", f"{row.whole_us:.1f}")
    return f"| {' | '.join(map(str, cells))} | {row.python_us:.1f} | {row.core * 1000:.0f} | {share} |"


COLUMNS = (
    "nodes",
    "standbys",
    "case",
    "the node",
    "messages/s",
    "CPU us a message",
    "of it Python",
    "CPU ms in a second",
    "of the busiest node",
)


def print_rows(rows: list[Row]) -> None:
    busiest = max(row.rate * row.whole_us / 1e6 for row in rows if row.role == BOTH)
    for row in rows:
        print(shown(row, busiest), flush=True)


def print_model(costs: Costs) -> None:
    print(f"\n{costs}\n\n| nodes | standbys | apart | messages/s | what is full |\n| --- | --- | --- | --- | --- |")
    for standbys in (None, 1, 0):
        for apart in (0.0, 1.0):
            for nodes in (1, 2, 4, 8, 16, 32, 64):
                rate, full = capacity(costs, Cluster(nodes, standbys, 2 * nodes, apart if nodes > 1 else 0.0))
                said = ALL if standbys is None else standbys
                print(f"| {nodes} | {said} | {apart:.0%} | {rate:,.0f} | {full} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2, 4], choices=range(1, PARTITIONS + 1))
    parser.add_argument("--standbys", nargs="*", default=["0", "1", ALL])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--build", default="", choices=["pure", "compiled"])
    parser.add_argument("--model", action="store_true", help="calculate larger clusters from the figures")
    asked = parser.parse_args()
    rows: list[Row] = []
    sessions = []
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for count in asked.nodes:
        for standbys in asked.standbys if count > 1 else asked.standbys[:1]:
            found, session = measured(count, standbys, asked.seconds, asked.build)
            print_rows(found)
            rows += found
            if session:
                sessions.append(session)
    if asked.model:
        print_model(costs_of(rows, sessions))


if __name__ == "__main__":
    main()
