"""Listings of a node that folds nothing show the counters that the owner has published (partition/queue_counters.py),
on a shared log in memory."""

import asyncio
import json
from typing import Any

import httpx2
import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster import partition_pausing
from rewindmq.engine.partition.queue_counters import key_of
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Client
from tests.support.counted_nodes import NAMES, counted, http, own_all, paused, quick, story
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, declare, on_nodes, publish, session
from tests.support.queues import queue_of

__all__ = ["quick"]
ADMIN = Actor("guest", 0)


# What a node that folds shows in its own way
OWN = {"counters_age_ms", "message_stats", "ack_wait_avg_ms", "delivery_wait_avg_ms", "oldest_ready_age_ms"}


@on_nodes()
async def test_b50_listings_and_metrics_enter_no_partition(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    await owner.policies.set(ADMIN, "/", "p", ".*", {"max-length": 40}, 0, "queues")
    await eventually(lambda: all(queue_of(owner, name).policy for name in NAMES))
    await eventually(lambda: "p" in [name for _, name in other.topology.policies])
    async with http(owner) as at_owner, http(other) as api:
        paths = ("queues", "queues/%2F", "queues?page=1&sort=messages_ready", "queues?disable_stats=true")
        for path in (*paths, "queues?disable_stats=true&enable_queue_totals=true"):
            shown, folded = (await api.get(path)).json(), (await at_owner.get(path)).json()
            items = shown["items"] if "page" in path else shown
            whole = folded["items"] if "page" in path else folded
            assert [item["name"] for item in items] == sorted(NAMES)
            assert all(0 <= item["counters_age_ms"] < 60_000 for item in items)
            assert all("counters_age_ms" not in item for item in whole)
            for item, expected in zip(items, whole, strict=True):
                assert item.keys() - OWN == expected.keys() - OWN
                assert {key: item[key] for key in item.keys() - OWN} == {
                    key: expected[key] for key in expected.keys() - OWN
                }
        overview = (await api.get("overview")).json()
        assert overview["object_totals"]["queues"] == 2
        assert overview["queue_totals"]["messages_ready"] == 6
        assert overview["counters_age_ms"] >= 0
        assert (await at_owner.get("overview")).json()["counters_age_ms"] is None
        assert (await api.get("vhosts/%2F")).json()["messages"] == 6
        metrics = (await api.get("../metrics/per-object")).text
        assert f'rabbitmq_queue_messages_ready{{vhost="/",queue="{NAMES[0]}"}} 3' in metrics
        assert 'rewindmq_counters_age_seconds{partition="queues-0"}' in metrics
        assert "rabbitmq_queue_messages_ready 6" in (await api.get("../metrics")).text
        family = (await api.get(f"../metrics/detailed?family=queue_coarse_metrics&queue={NAMES[1]}")).text
        assert f'rabbitmq_detailed_queue_messages{{vhost="/",queue="{NAMES[1]}"}} 3' in family
        assert "rewindmq_counters_age_seconds" not in (await at_owner.get("../metrics")).text
    assert all(paused(other))


@on_nodes()
async def test_b50_one_queue_enters_its_partition_only(nodes: Nodes) -> None:
    _, other = await story(nodes)
    async with http(other) as api:
        for path in (
            "queues/nowhere/q",
            "queues/nowhere",
            "exchanges/%2F/no",
            "bindings-that-are-not",
            "policies/%2F/no",
        ):
            assert (await api.get(path)).status_code == 404, path
        assert all(paused(other))
        item = (await api.get(f"queues/%2F/{NAMES[1]}")).json()
        assert item["messages_ready"] == 3
        assert "counters_age_ms" not in item
        assert paused(other) == [True, False]
        mixed = (await api.get("queues")).json()
        assert {each["name"]: "counters_age_ms" in each for each in mixed} == {NAMES[0]: True, NAMES[1]: False}
        assert (await api.get("overview")).json()["queue_totals"]["messages"] == 6
        assert paused(other) == [True, False]
        assert "\nrabbitmq_queue_messages_published_total 6\n" in (await api.get("../metrics")).text
        assert (await api.get("consumers")).json() == []
        assert paused(other) == [True, False]
        assert (await api.get(f"queues/%2F/{NAMES[0]}")).json()["messages_ready"] == 3
        assert paused(other) == [False, False]
        assert "\nrabbitmq_queue_messages_published_total 6\n" in (await api.get("../metrics")).text


@on_nodes()
async def test_b50_metrics_of_deliveries_go_on_where_they_stood(nodes: Nodes) -> None:
    """Prometheus takes a counter that goes back for a restart, and one that jumps for a burst."""
    owner, other = await story(nodes)
    home, who = other.partitions[0], session(owner)
    await home.enter()
    await owner.consumers.fetch(who, 1, Client(), NAMES[0], True)

    async def fetched() -> float:
        async with http(other) as api:
            text = (await api.get("../metrics")).text
        [line] = [line for line in text.splitlines() if line.startswith("rabbitmq_queue_get_total ")]
        return float(line.split()[1])

    await eventually(lambda: other.queues.get("/", NAMES[0]) and queue_of(other, NAMES[0]).messages_ready == 2)
    assert await fetched() == 1
    partition_pausing.UNUSED_SECONDS = 0.0
    await eventually(lambda: not home.current)
    partition_pausing.UNUSED_SECONDS = 60.0
    await owner.consumers.fetch(who, 1, Client(), NAMES[0], True)
    await eventually(lambda: counted(other, NAMES[0]) == 1)
    assert await fetched() == 1
    await home.enter()
    assert await fetched() == 2


@on_nodes()
async def test_b50_users_see_counters_of_their_vhosts_only(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    await owner.vhosts.create(ADMIN, "mine", "")
    await owner.access.users.set(ADMIN, "bob", "guest", ("management",))
    for user in ("bob", "guest"):
        await owner.access.users.set_permissions(ADMIN, "mine", user, ".*", ".*", ".*")
    await declare(owner, owner.sessions.open("guest", "mine", "test", {}), "own")
    home = other.queues.partition_for("mine", "own")
    await eventually(lambda: home.counted is not None and ("mine", "own") in home.counted.queues)
    async with http(other, "bob") as api:
        assert [queue["name"] for queue in (await api.get("queues")).json()] == ["own"]
        assert (await api.get("queues/%2F")).status_code == 401
        assert (await api.get(f"queues/%2F/{NAMES[0]}")).status_code == 401
        assert (await api.get("overview")).json()["object_totals"]["queues"] == 1
        per_object = (await api.get("../metrics/per-object")).text
        assert 'queue="own"' in per_object
        assert f'queue="{NAMES[0]}"' not in per_object
    assert all(paused(other))


@on_nodes()
async def test_b50_a_queue_that_is_gone_and_one_that_is_declared_anew(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    gone, again = NAMES
    who = session(owner)
    for name in NAMES:
        await owner.queues.delete(who, name, False, False)
    await declare(owner, who, again)
    new = queue_of(owner, again).queue_id
    async with http(other) as api:

        async def ids() -> dict[str, int]:
            return {each["name"]: each["queue_id"] for each in (await api.get("queues")).json()}

        for _ in range(3_000):
            if await ids() == {again: new}:
                break
            await asyncio.sleep(0.01)
        assert await ids() == {again: new}
        assert counted(other, again) == 0
    home = next(each for each in nodes.history.counters if each.name == f"counters-{partition_of('/', gone, 2)}")
    records = [value for _, key, value in home.records.values() if key == key_of("/", gone)]
    assert records[-1] is None  # compaction removes what is before it
    assert all(paused(other))


@on_nodes()
async def test_b50_counters_of_an_owner_that_died_stay_and_grow_old(nodes: Nodes) -> None:
    _, other = await story(nodes)
    third = await nodes.start("c", standbys=0)  # it reads the counters from their beginning
    partition_pausing.UNUSED_SECONDS = 0.0
    own_all(nodes, "a")  # another node has changed that
    await eventually(lambda: all(paused(other)) and all(paused(third)))
    partition_pausing.UNUSED_SECONDS = 60.0
    await eventually(lambda: counted(third, NAMES[0]) == 3)
    nodes.log("a").cut(True)
    await asyncio.sleep(0.2)  # what is under way arrives
    table = other.partitions[0].counted
    assert table is not None
    before = table.rounds
    nodes.now_ms += 40_000
    await eventually(lambda: (other.partitions[0].counters_age_ms or 0) >= 40_000)
    async with http(other) as api:
        assert [each["messages_ready"] for each in (await api.get("queues")).json()] == [3, 3]
        assert (await api.get("overview")).json()["counters_age_ms"] >= 40_000
    assert table.rounds == before
    own_all(nodes, "c")
    await eventually(lambda: (other.partitions[0].counters_age_ms or 60_000) < 10_000)
    assert counted(other, NAMES[0]) == 3
    assert all(paused(other))
    nodes.log("a").cut(False)


@on_nodes()
async def test_b50_foreign_bytes_are_skipped_and_told_once(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    _, other = await story(nodes)
    topic = nodes.history.counters[0]
    junk: list[bytes | None] = [b"\xff\x00", b"[]", b"{}", json.dumps({"kind": "queue", "history": "x"}).encode(), None]
    for value in junk * 2:
        topic.put(nodes.now_ms, b"\xff", value)
    await eventually(lambda: other.partitions[0].counted and other.partitions[0].counted.skipped == 2 * len(junk))
    assert counted(other, NAMES[0]) == 3
    told = [
        record for record in caplog.records if "counters-0" in record.getMessage() and "skipped" in record.getMessage()
    ]
    assert len(told) == 2, "each of both nodes says so once"


@on_nodes()
async def test_b50_a_node_without_counters_folds_before_it_lists(nodes: Nodes) -> None:
    """The owner folds everything, and publishes nothing: it may be an older version."""
    owner, other = await nodes.start("a"), await nodes.start("b", standbys=0)
    own_all(nodes, "a")
    await eventually(lambda: all(partition.owned for partition in owner.partitions))
    await declare(owner, session(owner), NAMES[0])
    nodes.now_ms += 120_000  # this node may have been the owner before, and have published
    await eventually(lambda: all(paused(other)))
    partition_pausing.UNUSED_SECONDS = 60.0
    async with http(other) as api:
        assert [each["name"] for each in (await api.get("queues")).json()] == [NAMES[0]]
    assert paused(other) == [False, False]
    assert not nodes.log("a").counters, "a node that pauses nothing has no counters"


@on_nodes()
async def test_b50_rates_are_those_of_the_owners_rounds(nodes: Nodes) -> None:
    owner, other = await story(nodes)
    who = session(owner)

    async def rate(api: httpx2.AsyncClient) -> Any:
        [item] = [each for each in (await api.get("queues")).json() if each["name"] == NAMES[0]]
        return item["messages_details"]["rate"], item["message_stats"]["publish_details"]["rate"]

    async with http(other) as api:
        await eventually(lambda: _rests(other))
        assert await rate(api) == (0, 0)
        for _ in range(20):
            publish(owner, who, b"", Client(), NAMES[0])
        await eventually(lambda: counted(other, NAMES[0]) == 23)
        messages, published = await rate(api)
        assert messages == published
        assert 0 < messages < 20 / 0.05 * 2
        await eventually(lambda: _rests(other))
        assert await rate(api) == (0, 0)


def _rests(broker: Broker) -> bool:
    """Return True if the counters of the first queue have not changed for two rounds."""
    table = broker.partitions[0].counted
    return table is not None and table.queues["/", NAMES[0]].before is None
