"""A node whose RocksDB is lost, damaged, or refuses writes: Kafka has everything, and the node has it again.

The other node serves all the time. At the end the digests of both are those of a plain fold of the topics.
"""

import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.two_nodes import PERSISTENT, catch_up, counts, take
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

COUNT = 600
BODIES = [
    b"%d " % number + random.Random(number).randbytes(20_000) for number in range(COUNT)
]  # RocksDB must not compress them
SMALL_BYTES = 100_000  # no file may grow beyond: less than a file with bodies, more than RocksDB's small ones
# What happens goes to RocksDB at once, and it writes a file for each 8 MB.
AT_ONCE = """
import sys
from rewindmq.engine.cli.main import main
from rewindmq.engine.partition import partition
from rewindmq.projections.store import projector
partition.PREPARE_EVENTS = 20
projector.FRESH_BYTES = 65536
main(["start", *sys.argv[1:]])
"""


@pytest.fixture
def nodes(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(RunningBroker, "program", ("-c", AT_ONCE))
    with Nodes(tmp_path, kafka) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes


def publish(node: RunningBroker, first: int, end: int, queue: str = "kept") -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for body in BODIES[first:end]:
            channel.basic_publish("", queue, body, PERSISTENT)


def judge(nodes: Nodes, count: int) -> None:
    """North has every message, with its body, as south has; and the folds are the same."""
    with connect(nodes.running["north"]) as connection:
        channel = connection.channel()
        catch_up(channel)
        assert counts(channel, "kept") == (count, 0)
        assert [body for body, _, _ in take(channel, "kept", count)] == BODIES[:count]
    nodes.digests()


def tables(data: Path) -> list[Path]:
    found = sorted((data / "state").glob("*.sst"))
    assert found, "RocksDB never flushed: the test says nothing of it"
    return found


def lose_everything(data: Path) -> None:
    shutil.rmtree(data / "state")


def lose_a_table(data: Path) -> None:
    tables(data)[0].unlink()


def lose_the_manifest(data: Path) -> None:
    for path in (data / "state").glob("MANIFEST-*"):
        path.unlink()


def lose_current(data: Path) -> None:
    (data / "state" / "CURRENT").unlink()


def damage_tables(data: Path) -> None:
    """A byte in every kibibyte is another one."""
    for path in tables(data):
        content = bytearray(path.read_bytes())
        for at in range(512, len(content) - 1, 1024):
            content[at] ^= 0xFF
        path.write_bytes(content)


def cut_tables(data: Path) -> None:
    for path in tables(data):
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size // 2)


def refusal_of(nodes: Nodes, name: str) -> str:
    """Start a node. Returns what it said if it did not start."""
    try:
        nodes.start(name)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.rare(end=["stopped"])
@pytest.mark.rare(damage=[lose_everything, lose_a_table, lose_the_manifest, lose_current, cut_tables])
@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize(
    "damage",
    [lose_everything, lose_a_table, lose_the_manifest, lose_current, damage_tables, cut_tables],
    ids=lambda damage: damage.__name__,
)
def test_a_node_comes_back_from_a_damaged_state(nodes: Nodes, damage: Callable[[Path], None], end: str) -> None:
    """It starts, or it says which directory to delete, and starts without it."""
    publish(nodes.running["south"], 0, 500)
    data = nodes.running["north"].data
    with connect(nodes.running["north"]) as connection:
        catch_up(connection.channel())
    if end == "stopped":
        nodes.stop("north")
    else:
        nodes.kill("north")
    damage(data)
    publish(nodes.running["south"], 500, COUNT)
    refusal = refusal_of(nodes, "north")
    if refusal:
        assert "the broker ended with 65" in refusal
        assert f"{data / 'state'}: " in refusal
        assert "delete the directory, it is rebuilt from the log" in refusal
        assert "Traceback" not in refusal
        shutil.rmtree(data / "state")
        nodes.start("north")
    judge(nodes, COUNT)


def limit_files(node: RunningBroker, limit: int) -> None:
    hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (limit, hard))


@pytest.mark.rare(end=["killed"])
@pytest.mark.parametrize("end", ["room again", "killed"])
def test_a_node_whose_store_takes_no_writes_blocks_publishers_and_mends(nodes: Nodes, end: str) -> None:
    north, south = nodes.running["north"], nodes.running["south"]
    publish(south, 0, 20)
    limit_files(north, SMALL_BYTES)
    publish(south, 20, COUNT)  # south goes on
    with api_client(north) as client:
        until(lambda: client.get("/overview").json()["publishing_blocked"] is not None, "north does not see it")
        reason = client.get("/overview").json()["publishing_blocked"]
    assert "the state can't be written" in reason
    with connect(north) as connection:  # it serves consumers, from memory and from the log
        assert connection.channel().basic_get("kept", auto_ack=False)[2] == BODIES[0]
    if end == "killed":
        nodes.kill("north")
        nodes.start("north")
    else:
        limit_files(north, resource.RLIM_INFINITY)
        with api_client(north) as client:
            until(lambda: client.get("/overview").json()["publishing_blocked"] is None, "north does not go on")
        until(lambda: "repaired after a failed write" in "".join(north.errors), "the log does not say so")
    judge(nodes, COUNT)
    nodes.stop("north")
    nodes.start("north")
    nodes.digests()


@pytest.mark.rare
@pytest.mark.parametrize("compacted", [False, True])
def test_bodies_that_a_node_cannot_read_come_from_the_log(nodes: Nodes, compacted: bool) -> None:
    """Nobody sees it until they are read, or until RocksDB compacts its files: then the node makes its store anew."""
    publish(nodes.running["south"], 0, COUNT)
    with connect(nodes.running["north"]) as connection:
        catch_up(connection.channel())
    nodes.stop("north")
    damage_bodies(nodes.ended[-1].data)
    north = nodes.start("north")
    if compacted:
        for _ in range(20):
            publish(nodes.running["south"], 0, 200, "more")
            if "the state was made anew" in "".join(north.errors):
                break
        until(lambda: "the state was made anew" in "".join(north.errors), "RocksDB compacted nothing")
        with api_client(north) as client:
            until(lambda: client.get("/overview").json()["publishing_blocked"] is None, "north does not go on")
        publish(north, 0, 20, "more")
    judge(nodes, COUNT)
    said = "".join(north.errors)
    assert ("is missing in the state store, read from the log" if compacted else "is read from the log") in said
    nodes.stop("north")
    nodes.start("north")
    nodes.digests()


def damage_bodies(data: Path) -> None:
    """Bytes in the middle of some bodies are others."""
    damaged = 0
    for path in tables(data):
        content = bytearray(path.read_bytes())
        for body in BODIES[100:110]:
            at = content.find(body)
            if at >= 0:
                content[at + 10_000] ^= 0xFF
                damaged += 1
        path.write_bytes(content)
    assert damaged
