"""A partition that goes on after a long pause begins with a copy of its owner's state (B-71), on a log in memory."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster import resumption, snapshot_export, snapshot_import
from rewindmq.engine.cluster.refusing_queues import MOST_REFUSING
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections import replay
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.events import CheckpointAsked, QueueRefuses
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Client
from tests.support.counted_nodes import NAMES, quick, story
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, on_nodes, publish, run, session

__all__ = ["quick"]

NAME = NAMES[0]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_import, "LEAST_EVENTS", 10)
    monkeypatch.setattr(snapshot_export, "BYTES_AN_EVENT", 1_000_000)


async def missed(nodes: Nodes) -> tuple[Partition, Partition]:
    """The partition at its owner, and at a node that has missed twenty events and more. A copy has most of them."""
    nodes.copies = True
    owner, other = await story(nodes)
    who, home = session(owner), owner.queues.partition_for("/", NAME)
    for number in range(20):
        publish(owner, who, b"gone %d" % number, Client(), NAME)
    await owner.queues.purge(who, NAME)
    publish(owner, who, b"before", Client(), NAME)
    home.append(BROKER, CheckpointAsked())
    await eventually(lambda: home.index in nodes.history.copies)
    publish(owner, who, b"after", Client(), NAME)
    await home.folded()
    return home, other.queues.partition_for("/", NAME)


def bodies(partition: Partition) -> list[bytes]:
    queue = partition.machine.queue("/", NAME)
    assert queue is not None
    return [partition.message(queue.queue_id, view.message_id).body for view in queue.messages()]


async def require_equal(home: Partition, away: Partition) -> None:
    """Both nodes have the same state, with the bodies."""
    assert away.current
    await eventually(lambda: away.machine.next_offset == home.machine.next_offset)
    assert away.machine.digest() == home.machine.digest()
    assert bodies(away) == [b"before", b"after"]


@on_nodes()
async def test_b71_a_partition_that_was_paused_for_long_begins_with_a_copy(nodes: Nodes, tmp_path: Path) -> None:
    home, away = await missed(nodes)
    machine, began = away.machine, away.next_offset
    nodes.history.queues[home.index].kept_from = began + 1  # no longer followed from where it was paused
    who = session(nodes.brokers["b"])
    confirms = Client()
    await asyncio.gather(away.enter(), away.enter())
    assert away.machine is not machine, "it begins with another state"
    await require_equal(home, away)
    publish(nodes.brokers["b"], who, b"from here", confirms, NAME)
    await eventually(lambda: confirms.confirms == [(1, False)])
    assert bodies(home)[-1] == bodies(away)[-1] == b"from here"
    nodes.brokers["b"].close()
    store = StateStore.open(tmp_path / "b" / "state")
    assert store.applied_offset(away.name) == away.next_offset
    assert store.load(away.name).digest() == away.machine.digest()
    store.close()


@pytest.mark.parametrize("harm", ["the copy is damaged", "it has missed little"])
@on_nodes()
async def test_b71_else_it_goes_on_with_its_own_state(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    home, away = await missed(nodes)
    machine = away.machine
    if harm == "it has missed little":
        monkeypatch.setattr(snapshot_import, "LEAST_EVENTS", 1_000)
    else:
        offset, claim, content = nodes.history.copies[home.index]
        nodes.history.copies[home.index] = offset, claim, content[: len(content) // 2]
    await away.enter()
    assert away.machine is machine
    await require_equal(home, away)


def failing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """RocksDB fails when it has dropped what it has of a partition. `meanwhile` is called then, in the thread."""

    def begin(self: StateStore, base: Any, decoder: Any) -> None:
        self.discard(base.partition)
        meanwhile()
        raise RuntimeError("IO error: no space left on device")

    monkeypatch.setattr(StateStore, "begin", begin)


@on_nodes()
async def test_a_node_stops_when_rocksdb_fails_on_the_way(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state in memory is not written, because it is older than the stored state of the partition."""
    _, away = await missed(nodes)
    failing(nodes, monkeypatch, lambda: None)
    with pytest.raises(RuntimeError, match="no space"):
        await away.enter()
    assert [str(error) for error in nodes.failures] == ["IO error: no space left on device"]
    nodes.brokers["b"].close()
    store = StateStore.open(tmp_path / "b" / "state")
    assert not store.holds(away.name)
    store.close()


@pytest.mark.parametrize("lasts", [False, True])
@on_nodes()
async def test_an_error_of_the_log_counts_when_it_lasts(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    home, away = await missed(nodes)
    left = [1, 2]

    def failing(log: Any, store: StateStore) -> Any:
        if lasts or left:
            left[:1] = []
            raise LogError("a leader moves")
        return replay.recover(log, store)

    monkeypatch.setattr("rewindmq.engine.cluster.resumption.recover", failing)
    monkeypatch.setattr(resumption, "LASTING_SECONDS", 0.1 if lasts else 60)
    if lasts:
        with pytest.raises(LogError, match="a leader moves"):
            await away.enter()
        assert [str(error) for error in nodes.failures] == ["a leader moves"]
    else:
        await away.enter()
        await require_equal(home, away)


def test_a_node_may_stop_while_a_partition_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def meanwhile() -> None:
        begun.set()
        go_on.wait(20)

    async def test(nodes: Nodes) -> None:
        _, away = await missed(nodes)
        failing(nodes, monkeypatch, meanwhile)
        monkeypatch.setattr(resumption, "STOP_SECONDS", 0.01)
        entering = asyncio.ensure_future(away.enter())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        node = nodes.node("b")
        broker: Broker = nodes.brokers["b"]
        assert node._resumption.busy == {away}
        broker.close()
        go_on.set()
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await entering
        store = StateStore.open(tmp_path / "b" / "state")
        assert not store.holds(away.name)
        assert store.applied_offset(broker.partitions[1 - away.index].name) > 0
        store.close()

    run(test, tmp_path, monkeypatch)


@on_nodes()
async def test_b71_a_node_that_noted_many_refusing_queues_folds_their_partition(nodes: Nodes) -> None:
    """It does not fold a paused partition by itself otherwise, and must not keep them for ever."""
    _, other = await story(nodes)
    refusing, away = nodes.node("b")._refusing, other.partitions[0]
    for number in range(MOST_REFUSING + 1):
        refusing.note(QueueRefuses("/", f"q {number}", away.name, away.next_offset))
    assert refusing.crowded() == [away.name]
    publish(nodes.brokers["a"], session(nodes.brokers["a"]), b"one more", Client(), NAMES[away.index])
    await eventually(lambda: away.current and not refusing.crowded())
