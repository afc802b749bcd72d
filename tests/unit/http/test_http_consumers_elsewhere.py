"""Listings of consumers and bindings, exports of definitions, and the placement, at a node that folds nothing
(partition/consumer_counters.py, http/folds.py), on a shared log in memory."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster import partition_pausing
from rewindmq.engine.partition import consumer_counters
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.values import Actor, Argument
from tests.support.broker_harness import Client
from tests.support.counted_nodes import NAMES, http, paused, quick, story
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, on_nodes, run, session

__all__ = ["quick"]
ADMIN = Actor("guest", 0)


async def found(api: httpx2.AsyncClient, path: str) -> Any:
    answer = await api.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()


def consumers_known(broker: Broker, name: str) -> int:
    """Return the number of a queue's consumers by the counters that a node has of it; -1 if it has none."""
    table = broker.queues.partition_for("/", name).counted
    known = None if table is None else table.queues.get(("/", name))
    return -1 if known is None else len(known.consumers())


async def consume(owner: Broker, name: str, count: int, priority: int = -3) -> None:
    who = session(owner)
    arguments = (Argument("x-priority", "long", priority),)
    for number in range(count):
        subscription = Subscription(who, 1, f"{name}-{number}", prefetch=7, arguments=arguments)
        await owner.consumers.consume(name, subscription, Client(), lambda *_: None)


@on_nodes()
async def test_b57_consumers_bindings_and_definitions_are_listed_without_a_fold(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    await owner.exchanges.bind(session(owner), "amq.topic", "queue", NAMES[0], "a.#", ())
    await consume(owner, NAMES[0], 3)
    await eventually(lambda: consumers_known(other, NAMES[0]) == 3)
    await eventually(lambda: any(True for _ in other.topology.bindings_to("/", "queue", NAMES[0])))
    async with http(owner) as at_owner, http(other) as api:
        for path in ("consumers", "consumers/%2F"):
            listed, folded = await found(api, path), await found(at_owner, path)
            assert [each["consumer_tag"] for each in listed] == [f"{NAMES[0]}-{n}" for n in range(3)]
            assert all(0 <= each.pop("counters_age_ms") < 60_000 for each in listed)
            for each, expected in zip(listed, folded, strict=True):
                # only the node of the connection knows its name
                assert each.pop("channel_details")["node"] == expected.pop("channel_details")["node"] == "a"
                assert each == expected
        for path in (
            "bindings",
            "bindings/%2F",
            "exchanges/%2F/amq.default/bindings/source",
            "exchanges/%2F/amq.topic/bindings/source",
            "exchanges/%2F/amq.topic/bindings/destination",
            "definitions",
            "definitions/%2F",
            "all-configuration",
            "deprecated-features/used",
            "deprecated-features",
            "feature-flags",
            "extensions",
            "vhost-limits",
            "user-limits",
            "marks",
            "audits",
            "nodes",
        ):
            shown, folded = await found(api, path), await found(at_owner, path)
            if path != "nodes":
                assert shown == folded, path
            assert all(paused(other)), path
        assert [each["name"] for each in (await found(api, "definitions"))["queues"]] == sorted(NAMES)


@on_nodes()
async def test_b57_a_binding_of_one_queue_folds_its_partition_only(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    name = NAMES[1]
    await owner.exchanges.bind(session(owner), "amq.direct", "queue", name, "k", ())
    await eventually(lambda: any(True for _ in other.topology.bindings_to("/", "queue", name)))
    async with http(other) as api:
        assert await found(api, "bindings/%2F/e/amq.direct/e/amq.topic") == []
        assert all(paused(other))
        [binding] = await found(api, f"bindings/%2F/e/amq.direct/q/{name}")
        assert binding["routing_key"] == "k"
        assert paused(other) == [True, False]


def test_b57_a_queue_with_more_consumers_than_fit_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has no room for them all. A listing without the rest would be wrong."""
    monkeypatch.setattr(consumer_counters, "LIST_BYTES", 200)

    async def test(nodes: Nodes) -> None:
        owner, other = await story(nodes)
        await consume(owner, NAMES[0], 5)
        home = other.queues.partition_for("/", NAMES[0])
        await eventually(lambda: home.counted and home.counted.crowded)
        assert 0 < consumers_known(other, NAMES[0]) < 5
        async with http(other) as api:
            assert len(await found(api, "consumers")) == 5
            assert paused(other) == [False, True]

    run(test, tmp_path, monkeypatch)


@on_nodes()
async def test_b58_every_node_knows_owners_and_the_nodes_near_a_queue(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    await consume(owner, NAMES[1], 2)
    await eventually(lambda: consumers_known(other, NAMES[1]) == 2)
    address = nodes.brokers["a"].config.address
    async with http(owner) as at_owner, http(other) as api:
        for name in (*NAMES, "no-such-queue"):
            near = await found(api, f"placement/%2F/{name}")
            assert near == await found(at_owner, f"placement/%2F/{name}")
            assert near == {
                "vhost": "/",
                "queue": name,
                "partition": f"queues-{partition_of('/', name, 2)}",
                "owner": "a",
                "nodes": [{"name": "a", "address": address}],
            }
        placed = await found(api, "placement")
        assert [(each["owner"], each["folded_at"], each["folded_here"]) for each in placed] == [("a", ["a"], False)] * 2
        assert [(each["queues"], each["messages"], each["consumers_at"]) for each in placed] == [
            (1, 3, {}),
            (1, 3, {"a": 2}),
        ]
        owned = {each["name"]: each["owned_partitions"] for each in await found(api, "nodes")}
        assert owned == {"a": ["queues-0", "queues-1"], "b": []}
        queues = await found(api, "queues")
        assert [(each["node"], each["folded_at"]) for each in queues] == [("a", ["a"])] * 2
        assert (await api.get("placement/nowhere/q")).status_code == 404
    assert all(paused(other))

    nodes.history.assign({"queues-0": ["b"], "queues-1": ["a"]})
    partition_pausing.UNUSED_SECONDS = 0.0
    await eventually(lambda: owners(owner) == owners(other) == ["b", "a"])


def owners(broker: Broker) -> list[str | None]:
    return [broker.nodes.place(partition).owner for partition in broker.partitions]


@pytest.mark.parametrize("standbys", [None, 0, 1])
@on_nodes()
async def test_b58_every_node_names_the_same_standbys(nodes: Nodes, standbys: int | None) -> None:
    brokers = [await nodes.start(name, standbys) for name in "abc"]
    nodes.history.assign({"queues-0": ["b"], "queues-1": ["a"]})
    wanted = [None, "a"] if standbys is None else ["b", "a"]  # without --standbys only the owner knows itself
    await eventually(lambda: owners(brokers[0]) == wanted)
    if standbys is None:
        await eventually(lambda: [folded_at for _, folded_at in places(brokers[0])] == [("a", "b", "c")] * 2)
        return
    await eventually(lambda: len({str(places(broker)) for broker in brokers}) == 1)
    for owner, folded_at in places(brokers[0]):
        assert owner in folded_at
        assert len(folded_at) in ((1,) if standbys == 0 else (2, 3))


def places(broker: Broker) -> list[tuple[str | None, tuple[str, ...]]]:
    found = [broker.nodes.place(partition) for partition in broker.partitions]
    return [(place.owner, place.folded_at) for place in found]


@on_nodes()
async def test_b58_an_owner_that_is_gone_is_not_named(nodes: Nodes) -> None:
    _, other = await story(nodes)
    assert owners(other) == ["a", "a"]
    table = other.partitions[0].counted
    assert table is not None
    table.owner = "gone"
    assert owners(other) == [None, "a"]
