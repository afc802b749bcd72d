"""Rounds of faults, chosen at random: nodes and Kafka's brokers are killed, stand still and are cut off.

    python -m tests.support.kafka.fault_rounds 0 200 --standbys 0        seeds 0 to 199; the first that fails ends it

Three nodes on three of Kafka's. After each round the account of faults.py: nothing that was confirmed is lost, and what
comes again has the redelivered flag. With `--standbys N` consumers are at one node and publishers at the others, and
each node pauses soon what it does not need. About twenty seconds a round.
"""

import argparse
import asyncio
import logging
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka import faults
from tests.support.kafka.cluster import FAST, KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.pausing_nodes import PausingNode
from tests.support.kafka.proxy import Proxies

Fault = Callable[[Trial], Awaitable[None]]
ALL = "all"
LINES = 30  # the last ones of each node's log, when a round has failed
NAMES = ("north", "south", "west")
FAULTS: list[Fault] = [
    faults.kill_a_node,
    faults.kill_a_node_and_start_it_at_once,
    faults.kill_a_kafka_node,
    faults.kill_each_kafka_node,
    faults.restart_everything,
    faults.restart_kafka,
    faults.slow_kafka,
    faults.stand_still,
    faults.cut_a_node_off,
]


@contextmanager
def three_nodes(directory: Path, kafka: KafkaCluster, standbys: str) -> Iterator[tuple[Nodes, Proxies]]:
    """North, south and west. North has a line to Kafka that can be cut."""
    with (
        kafka.proxied() as line,
        Nodes(directory, kafka, "", 3, standbys, PausingNode, {"north": line.bootstrap}) as nodes,
    ):
        for name in NAMES:
            nodes.start(name)
        yield nodes, line
        nodes.stop("north")  # while there is a line


def go_through(nodes: Nodes, line: Proxies, chosen: Iterable[tuple[int, Fault]], totals: Totals) -> None:
    """A trial for each seed and fault."""
    apart = nodes.standbys != ALL
    for seed, fault in chosen:
        print(seed, fault.__name__, flush=True)
        try:
            asyncio.run(Trial(nodes, seed, apart, line).run(fault, totals))
        except BaseException:
            for name, node in nodes.running.items():
                print(name, *list(node.errors)[-LINES:], sep="\n", flush=True)
            raise
    if apart:
        assert pauses(nodes), "no node has paused a partition"


def pauses(nodes: Nodes) -> int:
    """Return the number of times that any node has paused a partition."""
    return sum(node.pauses for node in (*nodes.ended, *nodes.running.values()) if isinstance(node, PausingNode))


def at_random(first: int, end: int) -> Iterator[tuple[int, Fault]]:
    """The fault of each seed."""
    for seed in range(first, end):
        yield seed, random.Random(seed).choice(FAULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--standbys", default=ALL)
    asked = parser.parse_args()
    totals = Totals()
    for name in ("aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections break, as they should
    with tempfile.TemporaryDirectory() as home:
        kafka = KafkaCluster(Path(home) / "kafka", nodes=3, settings=FAST)
        try:
            with kafka, three_nodes(Path(home), kafka, asked.standbys) as (nodes, line):
                go_through(nodes, line, at_random(asked.first, asked.end), totals)
                print(f"{pauses(nodes)} pauses of partitions")
        finally:
            print(totals)


if __name__ == "__main__":
    main()
