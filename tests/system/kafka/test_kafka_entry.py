"""A node begins with the state that another one has left in Kafka (B-65), and believes it only if the history does.

How much a node copies and when is in tests/unit/cluster/test_state_offers.py.
"""

import hashlib
import io
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from rewindmq.engine.cluster import snapshot_import
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.engine.log.kafka.states import END, KafkaStates
from rewindmq.engine.log.kafka.topics import KafkaTopics
from rewindmq.engine.log.shared_contract import WritingStopped
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.events import CheckpointAsked, Tick
from tests.support.deadlines import until
from tests.support.hasty_trims import DIE
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.copied_states import EACH, HELD, body, drained, fill, verify
from tests.support.kafka.entering_nodes import LEAST_EVENTS, EnteringNode
from tests.support.kafka.left_states import BEGAN, LEFT, keyed_event, last_matches, produce
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

OWNS = re.compile(r"(queues-\d+): (its duties are this node's now)")
FOLDED = re.compile(r"(queues-\d+): \d+ events folded on top of the state at offset (\d+);")
REFUSED = re.compile(r"(queues-\d+): the state that another node has left cannot be used: (.*)")


@pytest.fixture
def nodes(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, kafka, timeout=NEVER, program=EnteringNode) as nodes:
        yield nodes


def left(nodes: Nodes, node: RunningBroker) -> dict[str, str]:
    """Let every node take a snapshot, and wait until those of the owner, which is this node, are in Kafka."""
    before = last_matches(node, LEFT)
    until(lambda: last_matches(node, OWNS).keys() == {"queues-0", "queues-1"}, "the node does not own both")
    nodes.digests()
    until(
        lambda: all(last_matches(node, LEFT).get(name) != before.get(name) for name in ("queues-0", "queues-1")),
        "the owner has left no state",
    )
    return last_matches(node, LEFT)


def filled(nodes: Nodes) -> RunningBroker:
    north = nodes.start("north")
    with connect(north) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        fill(channel)
    return north


def states_of(nodes: Nodes) -> tuple[KafkaClients, KafkaTopics, KafkaStates]:
    clients = KafkaClients(nodes.kafka.bootstrap)
    topics = KafkaTopics(clients, nodes.prefix)
    return clients, topics, KafkaStates(clients, topics, 2)


def records_of(nodes: Nodes, number: int) -> list[Message]:
    clients, topics, _ = states_of(nodes)
    partition = KafkaPartition(clients, topics.states, number, "states")
    return [each for batch in partition.batches(partition.start_offset, partition.next_offset) for each in batch]


def test_b65_a_new_node_begins_with_the_state_that_an_owner_has_left(nodes: Nodes) -> None:
    """The owner may be gone by then. What was published since is folded."""
    at = left(nodes, filled(nodes))
    with connect(nodes.running["north"]) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "classic", body("classic", EACH))
    nodes.kill("north")
    south = nodes.start("south")
    assert last_matches(south, BEGAN) == at
    assert last_matches(south, FOLDED) == at
    assert not (nodes.directory / "south" / "entering").exists()
    assert {path.stem.lstrip("0") for path in (nodes.directory / "south" / "snapshots").glob("queues-*/*")} == {
        *at.values()
    }
    nodes.digests()
    north = nodes.start("north")  # it was killed before it had written its state
    assert last_matches(north, BEGAN).keys() == at.keys()
    nodes.stop("north")
    assert not last_matches(nodes.start("north"), BEGAN), "its own state is as new"
    nodes.digests()
    nodes.stop("north")
    for queue, published in (("classic", EACH + 1), ("quorum", EACH)):
        expected = [(body(queue, number), number < HELD) for number in range(published)]
        assert sorted(drained(south, queue, len(expected))) == sorted(expected)
    assert [got for got, _ in drained(south, "dead", EACH - 5)] == [body("short", n) for n in range(EACH - 5)]
    nodes.stop("south")
    assert verify(nodes, "south").returncode == 0


@pytest.mark.rare
def test_a_node_that_dies_as_it_begins_begins_again(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = left(nodes, filled(nodes))
    file = tmp_path / "die"
    monkeypatch.setenv(DIE, str(file))
    for step in ("fetched", "written", "discarded", "entered"):
        file.write_text(f"{step} process")
        with pytest.raises(AssertionError, match="the broker ended with -9"):
            nodes.start("south")
        assert not file.exists(), step
    south = nodes.start("south")
    assert last_matches(south, BEGAN).keys() == {"queues-1"}, "it had begun with the other one before it died"
    assert last_matches(south, FOLDED) == at
    nodes.digests()


@pytest.mark.rare
def test_an_owner_that_dies_as_it_copies_leaves_the_state_of_before(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "die"
    monkeypatch.setenv(DIE, str(file))
    north = filled(nodes)
    at = left(nodes, north)
    pieces = len(records_of(nodes, 0)) - 1
    file.write_text("sending process")
    produce(nodes, 0, [keyed_event(CheckpointAsked())], "queues")
    assert north.process.wait(60) == -9
    nodes.kill("north")
    assert len(records_of(nodes, 0)) >= 2 * pieces + 1, "the pieces are there, and no last record"
    south = nodes.start("south")
    assert last_matches(south, BEGAN) == at
    nodes.digests()


def test_a_copy_that_the_history_does_not_confirm_is_not_used(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a whole one, with sums that are right: then the fold begins at the log's beginning."""
    monkeypatch.setattr(snapshot_import, "LEAST_EVENTS", LEAST_EVENTS)
    left(nodes, filled(nodes))
    produce(nodes, 0, [keyed_event(Tick())] * 3, "queues")
    true = records_of(nodes, 0)
    said = json.loads(true[-1].value() or b"")
    pieces = [each.value() or b"" for each in true[:-1]]
    other = [each.value() or b"" for each in records_of(nodes, 1)[:-1]]
    foreign = json.loads(records_of(nodes, 1)[-1].value() or b"")
    middle = len(pieces) // 2
    damaged = [*pieces[:middle], bytes(255 - byte for byte in pieces[middle]), *pieces[middle + 1 :]]
    early, late = said | {"claim": said["claim"] + 1}, said | {"claim": 10**9}
    ahead = said | {"offset": said["offset"] + 1, "claim": said["claim"] + 2}
    for name, given, end, why in (
        ("changed", damaged, said, "not a readable snapshot|damaged"),
        ("early", pieces, early, "no claim of its digest"),
        ("late", pieces, late, "and the log ends at"),
        ("other", other, said, "it is the state of queues-1"),
        ("ahead", pieces, ahead, "it is the state of queues-0 at offset"),
    ):
        whole = b"".join(given)
        sums = {"pieces": len(given), "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
        copy = uuid.uuid4().hex
        named = [(json.dumps([copy, each]).encode(), piece) for each, piece in enumerate(given)]
        produce(nodes, 0, [*named, (json.dumps([copy, END]).encode(), json.dumps(end | sums).encode())])
        begun = applied_with_copy(nodes, 0, tmp_path / name)
        assert begun == 0, name
        assert re.search(why, caplog.records[-1].message), name
        assert not (tmp_path / name / "entering").exists()
    assert applied_with_copy(nodes, 1, tmp_path / "true") == foreign["offset"]
    monkeypatch.setattr(snapshot_import, "LEAST_EVENTS", foreign["offset"] + 1)
    assert applied_with_copy(nodes, 1, tmp_path / "saves too little") == 0


def applied_with_copy(nodes: Nodes, number: int, data: Path) -> int:
    """The offset of the state of a new data directory that begins with what Kafka has of a partition."""
    data.mkdir()
    store = StateStore.open(data / "state")
    try:
        log = KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix).queues[number]
        snapshot_import.begin_with_copy(log, number, states_of(nodes)[2], store, data)
        return store.applied_offset(log.name)
    finally:
        store.close()


def test_copies_that_are_not_whole_do_not_count_and_old_ones_go(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        nodes.start("north")  # makes the topics
        clients, topics, states = states_of(nodes)
        assert states.newest(0, 0, tmp_path) is None
        content = bytes(range(256)) * 4_000  # two pieces
        states.write(0, 100, 101, io.BytesIO(content), lambda: False)
        copied = states.newest(0, 100, tmp_path)
        assert copied is not None
        assert (copied.offset, copied.claim, copied.path.read_bytes()) == (100, 101, content)
        copied.path.unlink()
        assert states.newest(0, 101, tmp_path) is None, "an old one is of no use"
        with pytest.raises(WritingStopped):
            states.write(0, 300, 301, io.BytesIO(content), lambda: True)

        def key(copy: str, number: int) -> bytes:
            return json.dumps([copy, number]).encode()

        produce(nodes, 0, [(b"nonsense", b""), (key("a", 0), b"1"), (key("b", 0), b"2"), (key("c", 0), b"3")])
        produce(nodes, 0, [(key("c", 2), b"3"), (key("c", END), b"{}"), (key("b", END), b"no json"), (b"[1]", b"")])
        produce(nodes, 0, [(key("d", 0), b"4"), (key("d", END), b"[" * 100_000)])
        copied = states.newest(0, 0, tmp_path)
        assert copied is not None
        assert copied.offset == 100
        copied.path.unlink()
        states.write(0, 200, 202, io.BytesIO(content), lambda: False)
        assert KafkaPartition(clients, topics.states, 0, "states").start_offset == 3 + 10, "the copy of before is gone"
        copied = states.newest(0, 0, tmp_path)
        assert copied is not None
        assert (copied.offset, copied.claim) == (200, 202)
        assert states.newest(1, 0, tmp_path) is None
        assert states.newest(2, 0, tmp_path) is None, "there is no such partition"
        assert sorted(path.name for path in tmp_path.glob("*.part")) == [copied.path.name]
