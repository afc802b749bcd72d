"""A node finishes changes that were left half done, some names in each look. Histories: tests/simulation (nodes)."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.loose_ends import LOOKS_BEFORE_REPAIR
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.schemas.metadata_events import PolicySet, VhostDeleted
from rewindmq.schemas.values import BROKER, Actor
from tests.support.async_tests import run_by
from tests.support.failpoints import armed
from tests.support.memory_nodes import Nodes, declare, run, session, settled

QUEUES = 20
A_LOOK = 3


class Looking:
    """A node's heartbeat, by hand; which names each look was at."""

    def __init__(self, nodes: Nodes, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = nodes
        self.broker = broker
        self.looks: list[list[str]] = []
        self.node: ClusterKeeper = nodes.node("a")
        monkeypatch.setattr("rewindmq.engine.cluster.loose_ends.NAMES_A_LOOK", A_LOOK)
        assert self.node._timer is not None
        self.node._timer.cancel()  # a real second counts for nothing here

    def note(self, names: dict[tuple[str, str], None]) -> None:
        self.looks[-1] += [name for _, name in names]

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.looks.append([])
            with armed("repair.before_look", self.note):
                self.node._look_after()
            await settled()

    async def until_quiet(self) -> None:
        """Every name was looked at since the last change, and nothing looked half done."""
        for _ in range(100):
            await self.look()
            if not self.looks[-1]:
                return
        raise AssertionError(f"it looks for ever: {self.looks[-5:]}")

    def assign(self, *owners: str) -> None:
        self.nodes.history.assign({each.name: list(owners) for each in self.nodes.history.queues})


def looking(test: Callable[[Looking], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test` at a node with `QUEUES` queues, all of them bound, and nothing half done."""

    async def with_queues(nodes: Nodes) -> None:
        broker = await nodes.start("a")
        who = session(broker)
        for number in range(QUEUES):
            await declare(broker, who, f"q{number}")
            await broker.exchanges.bind(who, "amq.fanout", "queue", f"q{number}", "", ())
        by_hand = Looking(nodes, broker, monkeypatch)
        await by_hand.until_quiet()
        by_hand.looks.clear()
        await test(by_hand)

    run(with_queues, tmp_path, monkeypatch)


on_looking = run_by(looking, "tmp_path", "monkeypatch", given=1)  # test(by_hand)


def limits(broker: Broker) -> list[int | None]:
    return [queue.settings.max_length for queue in broker.queues.all()]


def set_half(broker: Broker, name: str, limit: int) -> Awaitable[int]:
    """The node that set this policy died before it was applied."""
    return broker.metadata.ask(BROKER, PolicySet("/", name, "^q", f'{{"max-length":{limit}}}', limit, "all"))


@on_looking
async def test_a_look_is_at_a_few_names_and_goes_on_where_the_last_one_ended(by_hand: Looking) -> None:
    by_hand.broker.router.queues_changed()
    await by_hand.until_quiet()
    assert max(map(len, by_hand.looks)) == A_LOOK
    seen = [name for look in by_hand.looks for name in look]
    assert set(seen) == {f"q{number}" for number in range(QUEUES)}
    assert len(seen) == 2 * QUEUES, "once as a queue, once as what is bound, and no more in a round"


@on_looking
async def test_all_of_it_is_mended_and_a_look_stays_short(by_hand: Looking, caplog: pytest.LogCaptureFixture) -> None:
    await set_half(by_hand.broker, "p", 7)
    with caplog.at_level(logging.CRITICAL, "rewindmq.engine.cluster.loose_ends"):
        await by_hand.until_quiet()
    assert limits(by_hand.broker) == [7] * QUEUES
    assert max(map(len, by_hand.looks)) <= (LOOKS_BEFORE_REPAIR + 1) * A_LOOK  # the last sees that it is mended


@on_looking
async def test_what_is_half_done_behind_a_round_is_found_by_the_next_one(by_hand: Looking) -> None:
    by_hand.broker.router.queues_changed()
    await by_hand.look(3)
    await set_half(by_hand.broker, "p", 7)
    await by_hand.until_quiet()
    assert limits(by_hand.broker) == [7] * QUEUES


@on_looking
async def test_it_is_mended_when_it_has_stood_so_for_some_looks_and_not_before(by_hand: Looking) -> None:
    await set_half(by_hand.broker, "p", 7)
    await by_hand.look(LOOKS_BEFORE_REPAIR - 1)
    assert limits(by_hand.broker) == [None] * QUEUES
    await by_hand.broker.effective_policies.apply(BROKER)  # it was only under way
    events = [partition.machine.next_offset for partition in by_hand.broker.partitions]
    await by_hand.until_quiet()
    assert [partition.machine.next_offset for partition in by_hand.broker.partitions] == events
    await set_half(by_hand.broker, "p", 8)
    await by_hand.look(LOOKS_BEFORE_REPAIR)
    assert limits(by_hand.broker).count(8) == A_LOOK


@on_looking
async def test_who_gets_the_duties_in_the_middle_of_a_round_looks_at_everything(by_hand: Looking) -> None:
    await by_hand.broker.vhosts.create(Actor("guest", 0), "v", "")
    await by_hand.broker.access.users.set_permissions(Actor("guest", 0), "v", "guest", ".*", ".*", ".*")
    for number in range(QUEUES):
        await declare(by_hand.broker, by_hand.broker.sessions.open("guest", "v", "test", {}), f"of-v-{number}")
    await by_hand.until_quiet()
    by_hand.assign()
    await settled()
    await by_hand.broker.metadata.ask(BROKER, VhostDeleted("v"))
    await by_hand.look(2)
    by_hand.assign("a")
    await settled()
    await by_hand.until_quiet()
    assert [queue.name for queue in by_hand.broker.queues.all() if queue.vhost == "v"] == []
