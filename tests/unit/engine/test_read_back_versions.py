"""Nodes of different versions on one log, in memory: a version and its schema begin when all nodes know them."""

import logging
from pathlib import Path

import pytest

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.projections.machine.machine import MACHINE_VERSION, NewerHistory
from rewindmq.projections.machine.rules.versions import SCHEMAS
from rewindmq.schemas.events import MachineUpgraded, Tick
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.single_object import FramedDecoder, FramedEncoder
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Client
from tests.support.memory_nodes import Nodes, declare, publish, run, session, settled
from tests.support.next_version import NEXT, know_next
from tests.support.other_schema import EARLIER

pytestmark = pytest.mark.usefixtures("earlier_schema")


def nodes_know_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes that start from here on know the next machine version."""
    know_next(monkeypatch)
    for module in ("cluster.node", "cluster.partition", "runtime.metadata"):
        monkeypatch.setattr(f"rewindmq.engine.{module}.MACHINE_VERSION", NEXT)


def test_a_new_log_begins_under_the_newest_machine_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, before an owner is known: no client is refused a thing that older nodes would not know."""

    async def test(nodes: Nodes) -> None:
        broker = await nodes.start("a")
        assert {partition.machine.machine_version for partition in broker.partitions} == {MACHINE_VERSION}
        ends = [each.next_offset for each in nodes.history.queues]
        await nodes.start("b")  # appends nothing but the Tick by which it has caught up
        assert [each.next_offset for each in nodes.history.queues] == [end + 1 for end in ends]

    run(test, tmp_path, monkeypatch)


def test_a_machine_version_begins_when_every_node_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(nodes: Nodes) -> None:
        old = await nodes.start("a")
        nodes_know_next(monkeypatch)
        new = await nodes.start("b")
        nodes.history.assign({each.name: ["b"] for each in nodes.history.queues})
        await settled()
        nodes.node("b")._look_after()
        await settled()
        assert {partition.machine.machine_version for partition in new.partitions} == {MACHINE_VERSION}
        old.close()
        await settled()
        nodes.node("b")._look_after()
        await settled()
        assert {partition.machine.machine_version for partition in new.partitions} == {NEXT}

    run(test, tmp_path, monkeypatch)


def test_a_node_that_does_not_know_the_machine_version_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(nodes: Nodes) -> None:
        broker = await nodes.start("a")
        partition = broker.partitions[0]
        before = partition.machine.digest()
        encoder = FramedEncoder()
        record = encoder.encode(encoder.prefix(nodes.now_ms, BROKER), MachineUpgraded(NEXT))
        nodes.history.queues[0].put(b"", record)
        await settled()
        (failure,) = nodes.failures
        assert isinstance(failure, NewerHistory)
        assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == [str(failure)]
        assert partition.machine.digest() == before
        broker.close()
        with pytest.raises(NewerHistory):  # and it does not come back
            await nodes.start("a")

    run(test, tmp_path, monkeypatch)


def test_b73_a_partition_goes_over_to_the_newest_schema_after_its_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a node of an older program is alive, all is written under the schema that it knows, nothing is paused."""

    def schemas(nodes: Nodes) -> set[str]:
        topics = (*nodes.history.queues, nodes.history.metadata, nodes.history.nodes)
        return {value[2:10].hex() for topic in topics for value in topic.values}

    async def test(nodes: Nodes) -> None:
        monkeypatch.setitem(SCHEMAS, MACHINE_VERSION, EARLIER)
        monkeypatch.setitem(SCHEMAS, NEXT, envelope_fingerprint())
        await nodes.start("older")
        nodes_know_next(monkeypatch)
        broker = await nodes.start("newer", standbys=0)
        await declare(broker, session(broker))
        partition = broker.queues.partition_for("/", "q")
        publish(broker, session(broker), b"1", Client())
        await settled()
        assert partition.machine.machine_version == MACHINE_VERSION
        assert isinstance(partition, ReadBackPartition)
        assert not partition.can_pause
        assert schemas(nodes) == {EARLIER}
        nodes.brokers.pop("older").close()
        await settled()
        await nodes.node("newer").enter(partition)
        publish(broker, session(broker), b"2", Client())
        await settled()
        records = next(each for each in nodes.history.queues if each.name == partition.name).values
        upgraded = [FramedDecoder().decode(each)[2] for each in records].index(MachineUpgraded(NEXT))
        assert {each[2:10].hex() for each in records[: upgraded + 1]} == {EARLIER}
        assert {each[2:10].hex() for each in records[upgraded + 1 :]} == {envelope_fingerprint()}
        assert len(records) > upgraded + 1
        assert partition.can_pause

    run(test, tmp_path, monkeypatch)


def test_b73_what_follows_an_upgrade_at_once_has_the_newest_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has no field for what a queue that moves brings along."""

    async def test(nodes: Nodes) -> None:
        monkeypatch.setitem(SCHEMAS, MACHINE_VERSION, EARLIER)
        monkeypatch.setitem(SCHEMAS, NEXT, envelope_fingerprint())
        await nodes.start("older")
        nodes_know_next(monkeypatch)
        partition = (await nodes.start("newer")).partitions[0]
        nodes.brokers.pop("older").close()
        await settled()
        assert isinstance(partition, ReadBackPartition)
        nodes.node("newer")._upgrade(partition)
        partition.append(BROKER, Tick())
        await settled()
        assert partition.machine.machine_version == NEXT
        partition.append(BROKER, Tick())
        await settled()
        assert nodes.history.queues[0].values[-1][2:10].hex() == envelope_fingerprint()

    run(test, tmp_path, monkeypatch)
