"""Changes to many queues are made in parts: others get turns in between, and no batch for RocksDB has many queues."""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rocksdict import WriteBatch

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.definitions.document import export
from rewindmq.engine.definitions.load import Import
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.host.loop_share import Work, switch_threads
from rewindmq.engine.host.slices import CHANGED_TOGETHER
from rewindmq.engine.http.pieces import members
from rewindmq.engine.partition.sessions import Session
from rewindmq.projections.machine.serialization.changes import Dirty
from rewindmq.projections.store.projector import Projector
from rewindmq.schemas.metadata_events import ParameterSet
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Client, Harness

QUEUES = 5 * CHANGED_TOGETHER
USER = Actor("guest", 0)
Change = Callable[[Broker], Coroutine[Any, Any, None]]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that collects the number of queues in each batch."""
    counts = []

    class Counting(Projector):
        def _put_state(self, changes: WriteBatch, dirty: Dirty) -> None:
            counts.append(len(dirty.queues) + len(dirty.gone))
            super()._put_state(changes, dirty)

    monkeypatch.setattr("rewindmq.projections.store.store.Projector", Counting)
    return counts


@pytest.fixture(scope="module")
def many_queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with many queues in the vhost v, all of them in RocksDB."""
    data = tmp_path_factory.mktemp("many") / "data"
    with Harness(data, partitions=2) as harness:
        harness.broker.vhosts.create(USER, "v", "")
        harness.broker.access.users.set_permissions(USER, "v", USER.user, ".*", ".*", ".*")
        session = harness.session(vhost="v")
        for number in range(QUEUES):
            harness.declare(session, f"q{number}")
            harness.bind(session, "amq.fanout", f"q{number}")
        harness.broker.sessions.close(session)
    return data


@pytest.fixture
def h(many_queues: Path, tmp_path: Path, packed: list[int]) -> Iterator[Harness]:
    """A broker on a copy of that directory. Bystanders keep the loop busy, so the log's thread needs the interpreter as
    soon as in a broker that is shared."""
    switch_threads(shared=True)
    shutil.copytree(many_queues, tmp_path / "data")
    with Harness(tmp_path / "data", partitions=2) as harness:
        for partition in harness.broker.partitions:
            partition.write_all()
        packed.clear()
        yield harness
    switch_threads(shared=False)


def watched(h: Harness, change: Change, look: Callable[[Broker], int]) -> int:
    """Carry out the change; the largest difference that `look` saw between two turns of the loop."""
    broker: Broker = h.broker._broker
    seen = [look(broker)]

    async def bystander() -> None:
        while True:
            await asyncio.sleep(0)
            seen.append(look(broker))

    async def main() -> None:
        beside = asyncio.create_task(bystander())
        await asyncio.wait_for(change(broker), 60)
        beside.cancel()
        seen.append(look(broker))

    h.loop.run_until_complete(main())
    return max(abs(after - before) for before, after in pairwise(seen))


async def limit_all(broker: Broker) -> None:
    await broker.policies.set(USER, "v", "p", ".*", {"max-length": 5}, 0, "all")


async def clear_limit(broker: Broker) -> None:
    await broker.policies.clear(USER, "v", "p")


async def delete(broker: Broker) -> None:
    await broker.vhosts.delete(USER, "v")


async def import_again(broker: Broker) -> None:
    work = Work(broker.host.loop_share)
    document: dict[str, Any] = json.loads("".join([piece async for piece in members(work, await export(broker, work))]))
    for category in ("queues", "bindings"):
        document[category] = [item | {"vhost": "/"} for item in document[category]]
    await Import(broker, USER, document).carry_out()


async def part_owner(broker: Broker) -> None:
    await part(broker, list(broker.sessions.by_id.values())[-1])


def queues(broker: Broker, vhost: str) -> int:
    return len(broker.queues.all(vhost))


def limited(broker: Broker) -> int:
    return sum(queue.policy is not None for queue in broker.queues.all("v"))


def test_a_policy_comes_in_parts_and_goes_in_parts(h: Harness, packed: list[int]) -> None:
    assert watched(h, limit_all, limited) <= CHANGED_TOGETHER
    assert limited(h.broker) == QUEUES
    assert watched(h, clear_limit, limited) <= CHANGED_TOGETHER
    assert limited(h.broker) == 0
    assert max(packed) <= CHANGED_TOGETHER


def test_the_queues_of_a_vhost_go_in_parts(h: Harness, packed: list[int]) -> None:
    assert watched(h, delete, lambda broker: queues(broker, "v")) <= CHANGED_TOGETHER
    assert queues(h.broker, "v") == 0
    assert max(packed) <= CHANGED_TOGETHER


@pytest.fixture
def owner(h: Harness) -> Session:
    """A session with as many queues that go with it: half of them exclusive, the others with its consumer alone."""
    session = h.session(vhost="v")
    for number in range(QUEUES):
        exclusive = number % 2 == 0
        h.declare(session, f"own{number}", exclusive=exclusive, auto_delete=not exclusive, durable=not exclusive)
        h.bind(session, "amq.direct", f"own{number}")
        if not exclusive or number % 4 == 0:
            h.consume(session, f"own{number}", Client())
    h.declare(session, "shared")
    h.consume(session, "shared", Client())
    h.settle()
    return session


def own(broker: Broker) -> int:
    """Return the number of the session's queues that still exist, whether or not clients see them."""
    named = [name for partition in broker.partitions for _, name in partition.machine.by_name]
    return sum(name.startswith("own") for name in named)


async def part(broker: Broker, session: Session) -> None:
    broker.sessions.close(session)
    await broker.sessions.departures.over()


def test_the_queues_of_a_session_go_in_parts(h: Harness, owner: Session, packed: list[int]) -> None:
    for partition in h.broker.partitions:
        partition.write_all()
    packed.clear()
    assert watched(h, partial(part, session=owner), own) <= CHANGED_TOGETHER
    assert own(h.broker) == 0
    assert max(packed) <= CHANGED_TOGETHER
    h.settle()
    assert not any(bound.destination.startswith("own") for bound in h.broker.topology.queue_bindings())
    assert h.queue("shared", "v").consumer_count() == 0
    for partition in h.broker.partitions:
        assert not partition.machine.sessions
        partition.machine.validate()


def test_a_session_with_few_queues_ends_with_one_event(h: Harness) -> None:
    session = h.session()
    for number in range(CHANGED_TOGETHER):
        h.declare(session, f"own{number}", exclusive=True)
    before = [partition.next_offset for partition in h.broker.partitions]
    h.in_loop(lambda: h.broker.sessions.close(session))
    assert [partition.next_offset for partition in h.broker.partitions] == [offset + 1 for offset in before]
    assert own(h.broker) == 0


def test_nobody_meets_a_queue_whose_session_has_ended(h: Harness, owner: Session) -> None:
    async def story() -> None:
        broker: Broker = h.broker._broker
        broker.sessions.close(owner)
        left = own(broker)
        assert left > CHANGED_TOGETHER
        exclusive = [f"own{number}" for number in range(QUEUES) if number % 2 == 0]
        assert not {queue.name for queue in broker.queues.all("v")} & set(exclusive)
        *_, passive, anew, gone = [name for name in exclusive if broker.homes.queue("v", name) is not None]
        other = broker.sessions.open("guest", "v", "test", {})
        assert broker.queues.get("v", passive) is None
        with pytest.raises(NotFound):
            await broker.queues.declare(other, passive, True, True, False, False, ())
        queue = await broker.queues.declare(other, anew, False, True, False, False, ())
        assert await broker.queues.delete(other, gone, False, False) == 0
        assert own(broker) > 0
        await broker.sessions.departures.over()
        assert broker.queues.get("v", anew) is queue
        assert own(broker) == 1

    h.loop.run_until_complete(story())


def test_a_declaration_near_a_limit_waits_for_the_queues_that_go(h: Harness, owner: Session) -> None:
    limits = ParameterSet("v", "vhost-limits", "limits", json.dumps({"max-queues": QUEUES + 1}))
    h.broker.metadata.append_now(USER, limits)

    async def story() -> None:
        broker: Broker = h.broker._broker
        broker.sessions.close(owner)
        other = broker.sessions.open("guest", "v", "test", {})
        with pytest.raises(PreconditionFailed):
            await broker.queues.declare(other, "new", False, True, False, False, ())  # the fixture's queues stay
        assert own(broker) == 0

    h.loop.run_until_complete(story())


def test_a_broker_that_stops_meanwhile_ends_the_session(h: Harness, owner: Session) -> None:
    h.in_loop(lambda: h.broker.sessions.close(owner))
    assert own(h.broker) > 0
    h.restart()
    assert own(h.broker) == 0
    assert len(h.broker.queues.all("v")) == QUEUES + 1


def test_many_bindings_of_a_queue_go_in_parts(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    for number in range(20 * QUEUES):
        h.bind(session, "amq.direct", "q", str(number))

    def bindings(broker: Broker) -> int:
        return len(broker.topology.bindings_to("/", "queue", "q"))

    async def delete_queue(broker: Broker) -> None:
        await broker.queues.delete(session, "q", False, False)
        assert broker.router.route("/", "amq.direct", "5", None) == ()
        while bindings(broker):
            broker.turns.end()
            await asyncio.sleep(0)

    assert watched(h, delete_queue, bindings) < 20 * QUEUES // 2
    h.restart()
    assert bindings(h.broker) == 0


def test_queues_that_are_imported_come_in_parts(h: Harness, packed: list[int]) -> None:
    assert watched(h, import_again, lambda broker: queues(broker, "/")) <= CHANGED_TOGETHER
    assert queues(h.broker, "/") == QUEUES
    assert max(packed) <= CHANGED_TOGETHER


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (limit_all, lambda broker: QUEUES - limited(broker)),
        (delete, lambda broker: queues(broker, "v")),
        (part_owner, own),
    ],
    ids=["a policy", "a vhost", "a session"],
)
def test_what_a_crash_leaves_half_done_is_finished_at_the_next_start(
    h: Harness, request: pytest.FixtureRequest, tmp_path: Path, change: Change, left: Callable[[Broker], int]
) -> None:
    if change is part_owner:
        request.getfixturevalue("owner")

    async def half() -> "asyncio.Task[None]":
        task = asyncio.ensure_future(change(h.broker._broker))
        while left(h.broker) > QUEUES // 4:  # the log is a slice behind, and has the ends of all consumers by now
            await asyncio.sleep(0)
        assert left(h.broker) > 0  # here and now: the loop makes some more turns before it stops
        shutil.copytree(h.config.data, tmp_path / "left")  # one moment for both: the log is still being written
        return task

    task = h.loop.run_until_complete(half())
    shutil.copytree(tmp_path / "left", tmp_path / "without state")
    shutil.rmtree(tmp_path / "without state" / "state")
    digests = []
    for name in ("left", "without state"):
        h.config = replace(h.config, data=tmp_path / name)
        with h.killed_copy(tmp_path / f"{name}, started") as copy:
            assert left(copy.broker) == 0
            digests.append([partition.machine.digest() for partition in copy.broker.partitions])
    assert digests[0] == digests[1]
    h.loop.run_until_complete(task)


def test_a_vhost_that_is_deleted_goes_though_nobody_waits_for_it(h: Harness) -> None:
    async def given_up() -> None:
        task = asyncio.ensure_future(delete(h.broker._broker))
        while queues(h.broker, "v") == QUEUES:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queues(h.broker, "v") > 0
        await asyncio.wait_for(h.broker._broker.vhosts.until_deleted(), 60)

    h.loop.run_until_complete(given_up())
    assert queues(h.broker, "v") == 0


def test_a_vhost_of_the_same_name_comes_when_the_old_one_has_gone(h: Harness) -> None:
    async def both() -> None:
        broker: Broker = h.broker._broker
        going = asyncio.ensure_future(delete(broker))
        while queues(broker, "v") == QUEUES:
            await asyncio.sleep(0)
        with pytest.raises(NotFound):
            await delete(broker)
        assert queues(broker, "v") > 0
        await asyncio.wait_for(broker.vhosts.create(USER, "v", "anew"), 60)
        assert queues(broker, "v") == 0
        await going

    h.loop.run_until_complete(both())
    assert h.broker.topology.vhosts["v"].description == "anew"
