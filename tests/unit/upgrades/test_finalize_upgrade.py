"""B-73. An operator finalizes an upgrade: nodes on one log in memory, and a broker on files."""

import logging
from pathlib import Path

import pytest

from rewindmq.engine.cluster import partition_pausing
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.placement.request import ask_for
from rewindmq.engine.upgrades.finalize import OlderNodes, finalize
from rewindmq.engine.upgrades.since_version import require
from rewindmq.projections.machine.machine import MACHINE_VERSION, NewerHistory
from rewindmq.projections.topology.fold_image import image_of, restored
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.values import BROKER, Actor
from tests.support.broker_harness import Harness
from tests.support.counted_nodes import own_all, paused, quick
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, declare, on_nodes, session, settled
from tests.support.next_version import NEXT, know_next

__all__ = ["quick"]

ANN = Actor("ann", 7)


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is one that knows the next version."""
    know_next(monkeypatch)


def test_b73_nothing_upgrades_by_itself_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Harness(tmp_path) as h:
        h.declare(h.session(), "old")
    know_next(monkeypatch)
    with Harness(tmp_path) as h:
        broker = h.broker
        assert {each.machine.machine_version for each in broker.partitions} == {MACHINE_VERSION}
        assert h.loop.run_until_complete(finalize(broker, ANN)) == MACHINE_VERSION
        h.settle()
        assert broker.topology.machine_version == NEXT
        assert {each.machine.machine_version for each in broker.partitions} == {NEXT}
        assert h.loop.run_until_complete(finalize(broker, ANN)) == NEXT
        h.declare(h.session(), "new")
        h.settle()
        h.restart()
        assert (h.queue("old").version, h.queue("new").version) == (MACHINE_VERSION, NEXT)
        h.loop.run_until_complete(ask_for(h.broker.repartition, ANN, 3))
        h.restart()
        assert [each.machine.machine_version for each in h.broker.partitions] == [NEXT] * 3


@pytest.mark.usefixtures("following")
def test_b73_a_history_that_begins_is_final(tmp_path: Path) -> None:
    with Harness(tmp_path) as h:
        assert {each.machine.machine_version for each in h.broker.partitions} == {NEXT}
        assert h.broker.topology.machine_version == NEXT


@on_nodes()
async def test_b73_nodes_follow_when_an_operator_says_so(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while an older one is alive. A node that has paused a partition follows, too."""
    await nodes.start("older")
    know_next(monkeypatch)
    new = await nodes.start("newer", standbys=0)
    other = await nodes.start("other", standbys=0)
    await declare(new, session(new))
    with pytest.raises(OlderNodes, match=f"machine version {NEXT} is not known to older: upgrade or stop"):
        await finalize(new, ANN)
    nodes.brokers.pop("older").close()
    await settled()
    own_all(nodes, "newer")
    assert {each.machine.machine_version for each in new.partitions} == {MACHINE_VERSION}
    with monkeypatch.context() as soon:
        soon.setattr(partition_pausing, "UNUSED_SECONDS", 0.0)
        await eventually(lambda: all(paused(other)))
    assert await finalize(new, ANN) == MACHINE_VERSION
    await settled()
    for broker in (new, other):
        assert broker.topology.machine_version == NEXT
        assert {each.machine.machine_version for each in broker.partitions} == {NEXT}


@on_nodes()
async def test_b73_what_a_node_that_died_had_finalized_is_finished(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata log has the event, and no partition has it."""
    await nodes.start("a")
    nodes.brokers.pop("a").close()
    know_next(monkeypatch)
    encoder = Encoder()
    record = encoder.encode(encoder.prefix(nodes.now_ms, ANN), MachineUpgraded(NEXT))
    nodes.history.metadata.put(b"", record)
    broker = await nodes.start("b")
    await eventually(lambda: all(each.machine.machine_version == NEXT for each in broker.partitions))


@pytest.mark.usefixtures("following")
@on_nodes()
async def test_b73_a_log_that_begins_is_final_before_clients_come(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    assert broker.topology.machine_version == NEXT
    assert {partition.machine.machine_version for partition in broker.partitions} == {NEXT}
    ends = [each.next_offset for each in nodes.history.queues]
    await nodes.start("b")  # appends nothing but the Tick by which it has caught up
    assert [each.next_offset for each in nodes.history.queues] == [end + 1 for end in ends]


@pytest.mark.parametrize("log", ["metadata", "queues"])
@on_nodes()
async def test_a_node_that_does_not_know_the_machine_version_ends(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, log: str
) -> None:
    broker = await nodes.start("a")
    partition = broker.partitions[0]
    before = partition.machine.digest()
    encoder = Encoder()
    record = encoder.encode(encoder.prefix(nodes.now_ms, BROKER), MachineUpgraded(NEXT))
    (nodes.history.metadata if log == "metadata" else nodes.history.queues[0]).put(b"", record)
    await settled()
    (failure,) = nodes.failures
    assert isinstance(failure, NewerHistory)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == [str(failure)]
    assert partition.machine.digest() == before
    broker.close()
    with pytest.raises(NewerHistory):  # and it does not come back
        await nodes.start("a")


@pytest.mark.usefixtures("following")
def test_b73_the_topology_keeps_the_version() -> None:
    """In its image and its digest. It only rises."""
    fold = MetadataFold()
    before = fold.topology.digest()
    for offset, version in enumerate((NEXT, 1)):
        assert fold.apply(offset, offset, ANN, MachineUpgraded(version)) == ""
    assert fold.topology.machine_version == NEXT
    assert fold.topology.digest() != before
    again = restored(image_of(fold).pieces())
    assert (again.topology.machine_version, again.topology.digest()) == (NEXT, fold.topology.digest())
    with pytest.raises(NewerHistory, match=f"the metadata log goes on from offset 2 under machine version {NEXT + 1}"):
        fold.apply(2, 2, ANN, MachineUpgraded(NEXT + 1))


def test_b73_a_refusal_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.upgrades.since_version.SINCE_VERSION", {"new": NEXT})
    require("new", NEXT)
    require("old", 1)
    with pytest.raises(PreconditionFailed, match=r"new needs machine version .* after `rewindmq finalize_upgrade`"):
        require("new", MACHINE_VERSION)
