"""The nodes that are near a queue, on a log in memory."""

from pathlib import Path

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.http.resources.overview import node_items
from rewindmq.engine.http.resources.queues import queue_item
from tests.support.memory_nodes import Nodes, declare, run, session, settled
from tests.support.queues import queue_of

OWNERS = {"queues-0": ["b"], "queues-1": ["a"]}


def places(broker: Broker) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The owner of each partition, and who folds it, as a node knows them."""
    found = {partition.name: broker.keeper.place(partition) for partition in broker.partitions}
    return {name: (place.owner, place.folded_at) for name, place in found.items()}


async def three(nodes: Nodes, standbys: int | None) -> list[Broker]:
    brokers = [await nodes.start(name, standbys) for name in "abc"]
    nodes.history.assign(OWNERS)
    await settled()
    for broker in brokers:
        broker.keeper._look_after()  # type: ignore[attr-defined]  # as a heartbeat does
    return brokers


def test_b49_every_node_names_the_owner_and_who_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(nodes: Nodes) -> None:
        brokers = await three(nodes, None)
        for broker in brokers:
            assert places(broker) == {"queues-0": ("b", ("a", "b", "c")), "queues-1": ("a", ("a", "b", "c"))}
            assert {item["name"]: item["owned_partitions"] for item in node_items(broker)} == {
                "a": ["queues-1"],
                "b": ["queues-0"],
                "c": [],
            }

    run(test, tmp_path, monkeypatch)


@pytest.mark.parametrize("standbys", [0, 1])
def test_b49_every_node_names_the_owner_and_its_standbys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standbys: int
) -> None:
    async def test(nodes: Nodes) -> None:
        brokers = await three(nodes, standbys)
        found = places(brokers[0])
        assert [place[0] for place in found.values()] == ["b", "a"]
        assert all(places(broker) == found for broker in brokers)
        for owner, folded_at in found.values():
            assert owner in folded_at
            assert len(folded_at) == 1 if standbys == 0 else len(folded_at) in (2, 3)

    run(test, tmp_path, monkeypatch)


def test_b49_a_queue_names_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(nodes: Nodes) -> None:
        brokers = await three(nodes, None)
        await declare(brokers[2], session(brokers[2]))
        await settled()
        for broker in brokers:
            partition = broker.queues.partition_for("/", "q")
            item = queue_item(broker, partition, queue_of(broker, "q"), head=False)
            assert (item["node"], item["folded_at"]) == (OWNERS[partition.name][0], ["a", "b", "c"])

    run(test, tmp_path, monkeypatch)
