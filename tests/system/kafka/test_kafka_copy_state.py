"""A new node begins with the state of one that runs (S-122), and folds only what came since.

What is sent and what is taken is in tests/unit/cluster/test_state_copy.py, how the command fails in
tests/system/cli/test_cli_copy_state.py.
"""

import random
import shutil
import threading
from pathlib import Path

import pytest

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.replay import recover
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.store import StateStore
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.copied_states import EACH, HELD, PERSISTENT, body, drained, fill, verify
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


class Publishing:
    """Somebody who publishes to both partitions, as long as it is copied."""

    def __init__(self, node: RunningBroker) -> None:
        self.confirmed = 0
        self._node = node
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        until(lambda: self.confirmed >= 10, "nothing is confirmed")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _publish(self) -> None:
        with connect(self._node) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self._end.is_set():
                for queue in ("classic", "quorum"):
                    channel.basic_publish("", queue, body(queue, EACH + self.confirmed), PERSISTENT)
                self.confirmed += 1


def copy(node: RunningBroker, data: Path) -> str:
    done = run("copy_state", "--data", str(data), REWINDMQ_URL=node.http_url)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def to_fold(nodes: Nodes, data: Path) -> dict[str, tuple[int, int]]:
    """By partition: the number of events that a start with this data directory folds, and the offset before them."""
    log = KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix)
    shutil.copytree(data / "state", data.with_name("looked at"))
    store = StateStore.open(data.with_name("looked at"))
    try:
        recovered = {partition.name: recover(partition, store) for partition in log.queues}
    finally:
        store.close()
        shutil.rmtree(data.with_name("looked at"))
    return {name: (recovery.replayed, recovery.stored_offset) for name, recovery in recovered.items()}


def offsets(node: RunningBroker) -> dict[str, int]:
    with api_client(node) as client:
        log = client.get("/overview").json()["log"]
    return {each["partition"]: each["next_offset"] for each in log if each["partition"].startswith("queues")}


def stream_read(node: RunningBroker) -> list[bytes]:
    with connect(node) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        found = []
        for method, _, got in channel.consume("stream", arguments={"x-stream-offset": "first"}):
            channel.basic_ack(method.delivery_tag)
            found.append(got)
            if len(found) == EACH:
                return found
    raise AssertionError(found)


def test_s122_a_new_node_begins_with_a_copy_of_a_running_one(kafka: KafkaCluster, tmp_path: Path) -> None:
    assert {partition_of("/", queue, 2) for queue in ("classic", "quorum")} == {0, 1}
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        holder = connect(north)
        channel = holder.channel()
        channel.confirm_delivery()
        fill(channel)
        nodes.digests()  # which every node takes a snapshot for
        before = offsets(north)
        with Publishing(north) as publishing:
            said = copy(north, tmp_path / "south")
            at_copy = publishing.confirmed
            until(lambda: publishing.confirmed > at_copy, "it does not go on")
        assert "Copied the state of node north: " in said
        assert not (tmp_path / "north" / "copying").exists()
        assert list((tmp_path / "south" / "snapshots").glob("*/*.snapshot"))
        verified = verify(nodes, "south")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        after = offsets(north)

        for partition, (events, offset) in to_fold(nodes, tmp_path / "south").items():
            assert before[partition] < offset, "what was folded when it was asked for is in it"
            assert offset + events >= after[partition]
            assert events <= after[partition] - before[partition]
        south = nodes.start("south")
        nodes.digests()

        nodes.stop("north")
        for queue in ("classic", "quorum"):
            first = [(body(queue, number), number < HELD) for number in range(EACH + publishing.confirmed)]
            assert sorted(drained(south, queue, len(first))) == sorted(first)
        assert [got for got, _ in drained(south, "dead", EACH - 5)] == [body("short", n) for n in range(EACH - 5)]
        for queue, kept in (("short", range(EACH - 5, EACH)), ("urgent", range(EACH))):
            assert [got for got, _ in drained(south, queue, len(kept))] == [body(queue, number) for number in kept]
        assert stream_read(south) == [body("stream", number) for number in range(EACH)]
        nodes.digests()
        nodes.stop("south")
        assert verify(nodes, "south").returncode == 0


def test_a_node_that_lost_its_disk_comes_back_by_its_name(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        with connect(south) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            fill(channel)
        until(lambda: offsets(north) == offsets(south), "north lags behind")
        nodes.kill("south")
        copy(north, tmp_path / "another disk")
        assert all(offset > 0 for _, offset in to_fold(nodes, tmp_path / "another disk").values())
        nodes.start("south", data="another disk")
        nodes.digests()
        refused = run("copy_state", "-q", "--data", str(tmp_path / "south"), REWINDMQ_URL=north.http_url)
        assert refused.returncode == 78, "it is a node's already"


@pytest.mark.rare
def test_one_copy_at_a_time_and_nothing_is_left_when_nobody_takes_it(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Also when the node stops, or was killed, while it is copied."""
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        copying = tmp_path / "north" / "copying"
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("large", durable=True)
            for number in range(40):  # more than sockets hold
                channel.basic_publish("", "large", random.Random(number).randbytes(1_000_000), PERSISTENT)
        with api_client(north) as client, client.stream("GET", "/state") as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/x-tar"
            refused = run("copy_state", "-q", "--data", str(tmp_path / "south"), REWINDMQ_URL=north.http_url)
            assert (refused.returncode, refused.stderr) == (69, f"Error: another copy is under way in {copying}\n")
        until(lambda: not copying.exists(), "the copy that nobody takes is still there")
        with api_client(north) as client, client.stream("GET", "/state"):
            nodes.kill("north")
        assert copying.exists()
        north = nodes.start("north")
        assert not copying.exists()
        with api_client(north) as client, client.stream("GET", "/state"):
            nodes.stop("north")
        assert not copying.exists()
        north = nodes.start("north")
        copy(north, tmp_path / "south")
        nodes.start("south")
        nodes.digests()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["north", "south"]
