"""Nodes of RewindMQ on one Kafka and one prefix, as processes of their own, and questions to them.

with Nodes(directory, kafka, "prefix") as nodes:
    north = nodes.start("north"); south = nodes.start("south")
    nodes.digests()         asks every node that runs for its digests, folds the topics plainly, and compares all
"""

import itertools
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, Message

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.replay import beginning, fold
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.events import CheckpointAsked, Checkpointed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import BROKER
from tests.support.deadlines import SECONDS
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.producers import ordered_producer
from tests.support.running import RunningBroker

PREFIXES = itertools.count(1)
NEVER = 600  # seconds: a node timeout that no test waits for


def noted(at: list[int], error: KafkaError | None, message: Message) -> None:
    """A callback for a delivery report, which notes the offset."""
    offset = message.offset()
    if error is None:
        assert offset is not None
        at.append(offset)


class Nodes:
    """The nodes of a test.

    Each node's data directory is found by its name: a node that is started again goes on where it was. All are stopped
    at the end, and must end cleanly, unless they were ended before. `standbys`: as the option of `start`. `program`:
    what runs. `lines`: other ways to the same Kafka (a proxy's), by node."""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaCluster,
        prefix: str = "",
        timeout: int = 3,
        standbys: str = "all",
        program: type[RunningBroker] = RunningBroker,
        lines: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.kafka = kafka
        self.prefix = prefix or f"nodes-{next(PREFIXES)}"
        self.timeout = timeout
        self.standbys = standbys
        self.program = program
        self.lines = lines or {}
        self.running: dict[str, RunningBroker] = {}
        self.ended: list[RunningBroker] = []
        self.quarantined: dict[str, QuarantineReport] = {}  # by partition, as the last plain fold found them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name in list(self.running):
            if kind is None:
                self.stop(name)
            else:
                self.kill(name)
        if kind is None:
            self.check_errors()

    def start(self, name: str, bootstrap: str = "", data: str = "") -> RunningBroker:
        """Start a node. `bootstrap`: another way to the same Kafka (a proxy's)."""
        node = self.program(self.directory / (data or name), *self.options(name, bootstrap))
        self.running[name] = node
        return node

    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (
            "--kafka",
            bootstrap or self.lines.get(name) or self.kafka.bootstrap,
            "--kafka-prefix",
            self.prefix,
            "--node",
            name,
            "--node-timeout",
            str(self.timeout),
            *(() if self.standbys == "all" else ("--standbys", self.standbys)),
        )

    def stop(self, name: str) -> None:
        node = self.running.pop(name)
        self.ended.append(node)
        code = node.stop()
        assert code == 0, f"{name} ended with {code}: {''.join(node.errors)}"

    def kill(self, name: str) -> None:
        node = self.running.pop(name)
        self.ended.append(node)
        node.kill()

    def pause(self, name: str) -> None:
        self.running[name].process.send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.running[name].process.send_signal(signal.SIGCONT)

    def check_errors(self) -> None:
        """Check that no node has met a defect of its own."""
        for node in (*self.ended, *self.running.values()):
            assert "Traceback" not in "".join(node.errors), "".join(node.errors)

    def last_words(self) -> str:
        """Return the last log lines of the nodes that have ended by themselves."""
        ended = {name: node for name, node in self.running.items() if node.process.poll() is not None}
        return "".join(f"\n{name} ended: {''.join(node.errors[-30:])}" for name, node in ended.items())

    def partitions(self) -> Sequence[Any]:
        """The queue partitions, to read."""
        return KafkaLogReader(self.kafka.bootstrap, self.prefix).queues

    # -- agreement of all nodes ---------------------------------------------------------------------------------

    def digests(self) -> dict[str, str]:
        """By partition: the digest of the state that all running nodes have at one offset, if they fold the partition.

        A plain fold of the topic has it, too."""
        partitions = self.partitions()
        encoder = encoder_under(schema_of(1))  # a node of an older program may be among them
        producer = ordered_producer(self.kafka.bootstrap)
        agreed = {}
        for number, partition in enumerate(partitions):
            at: list[int] = []
            producer.produce(
                f"{self.prefix}.queues",
                encoder.encode(encoder.prefix(0, BROKER), CheckpointAsked()),
                partition=number,
                on_delivery=partial(noted, at),
            )
            assert producer.flush(SECONDS) == 0
            (asked,) = at
            claims: dict[str, str] = {}
            deadline = time.monotonic() + SECONDS
            while not claims or (self.standbys == "all" and claims.keys() != self.running.keys()):
                assert time.monotonic() < deadline, f"{partition.name}: only {sorted(claims)} claim what they believe"
                time.sleep(0.05)
                claims = self._claims(partition, asked)
            machine = beginning(partition)
            self.quarantined[partition.name] = fold(machine, partition, asked + 1)
            assert machine.next_offset == asked + 1
            machine.validate()
            claims["a plain fold"] = machine.digest()
            assert len(set(claims.values())) == 1, f"{partition.name} at {asked}: {claims}"
            agreed[partition.name] = machine.digest()
        return agreed

    def _claims(self, partition: Any, asked: int) -> dict[str, str]:
        decode = SharedDecoder().decode
        found = {}
        for block in partition.read(asked + 1):
            for record in block.records:
                event = decode(record)[2]
                if isinstance(event, Checkpointed) and event.offset == asked:
                    found[event.node] = event.digest
        return found

    def quarantined_kinds(self) -> Counter[str]:
        """Count the events that the last plain fold has quarantined, by event and reason (with N for each number)."""
        found = (each for report in self.quarantined.values() for each in report.newest())
        return Counter(f"{each.event_type}, {re.sub('[0-9]+', 'N', each.reason)}" for each in found)


def owned(node: RunningBroker) -> dict[str, bool]:
    """Return, for each partition, True if the node owns it."""
    with api_client(node) as client:
        text = client.get("../metrics").text
    lines = [line for line in text.splitlines() if line.startswith("rewindmq_partition_owned{")]
    return {line.split('"')[1]: line.endswith(" 1") or line.endswith(" 1.0") for line in lines}


def modes(node: RunningBroker) -> dict[str, str]:
    """The mode of each partition at a node. To ask for metrics changes none."""
    with api_client(node) as client:
        text = client.get("../metrics").text
    lines = [line for line in text.splitlines() if line.startswith("rewindmq_partition_mode{")]
    labels = [
        dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(",")) for line in lines
    ]
    return {label["partition"].strip('"'): label["mode"].strip('"') for label in labels}


def repartition_state(node: RunningBroker) -> dict[str, Any]:
    with api_client(node) as client:
        found: dict[str, Any] = client.get("/repartition").raise_for_status().json()
    return found


def ask_repartition(node: RunningBroker, partitions: int) -> dict[str, Any]:
    with api_client(node) as client:
        answer = client.post("/repartition", json={"partitions": partitions})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
    return found
