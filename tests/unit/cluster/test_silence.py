"""A node that heard nothing of the log for long, while it was on its way back to a partition that it had paused."""

import asyncio

import pytest

from rewindmq.engine.cluster import partition_pausing
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.projections.machine.machine import MACHINE_VERSION, NewerHistory
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Client
from tests.support.counted_nodes import NAMES, quick, story
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, on_nodes, publish, session, settled

__all__ = ["quick"]
LONG_SECONDS = 60.0


@on_nodes()
async def test_b49_a_report_that_no_record_waits_for_is_not_kept(nodes: Nodes) -> None:
    """Kept over a pause it would confirm a later record, which is not in the log yet."""
    _, other = await story(nodes)
    node, name = nodes.node("b"), other.partitions[0].name
    node.arrived_at -= LONG_SECONDS
    node.delivered(name, [7])
    assert node._held_reports == []


class Story:
    """Node `b` has paused a partition whose queue it knows. From then on the log takes nothing of it for the partition,
    until `send`. Two messages wait for their reports, and the partition is current again."""

    def __init__(self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = nodes
        self.monkeypatch = monkeypatch
        self.confirms = Client()

    async def begin(self) -> None:
        _, self.other = await story(self.nodes)
        self.node, self.who = self.nodes.node("b"), session(self.other)
        partition = self.other.queues.partition_for("/", NAMES[0])
        assert isinstance(partition, ReadBackPartition)
        self.partition = partition
        self.kafka = self.nodes.log("b").queues[partition.index]
        await partition.enter()  # it learns of the queue, and pauses again
        self.monkeypatch.setattr(partition_pausing, "UNUSED_SECONDS", 0.0)
        await eventually(lambda: not partition.current)
        self.monkeypatch.setattr(partition_pausing, "UNUSED_SECONDS", 60.0)
        self.send = self.kafka.send
        self.monkeypatch.setattr(self.kafka, "send", lambda: None)
        await eventually(lambda: not self.kafka.under_way and not self.kafka._sending)
        self.publish(b"1")
        self.publish(b"2")
        await self.node._paused.enter(partition)
        assert partition.current
        assert partition.own_records.unreported == 2, "both records have to be reported"

    def publish(self, body: bytes) -> None:
        assert publish(self.other, self.who, body, self.confirms, NAMES[0]) == 1


@on_nodes()
async def test_b49_confirms_go_on_after_a_silence_while_reports_are_outstanding(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of Kafka dies when a node has just resumed a partition, and records of it are still reported.

    The reports are held until the node knows that it was not declared lost. The node is in doubt, too: it keeps what
    arrives until an own record has come back, and that one is behind the reports."""
    on = Story(nodes, monkeypatch)
    await on.begin()
    on.publish(b"3")  # this one has to come back
    on.node.arrived_at -= LONG_SECONDS
    on.kafka.land(1)
    nodes.log("b")._delivered(on.kafka)  # a report is the first that is heard
    on.node.arrived([])  # and then records of other partitions
    assert on.partition.in_doubt
    await settled()
    on.send()
    await eventually(lambda: len(on.confirms.confirms) == 3)
    await eventually(lambda: not on.partition.in_doubt)
    await asyncio.wait_for(on.other.certainty.wait(), partition_pausing.AGAIN_SECONDS * 40)


@on_nodes()
async def test_b49_a_fold_that_fails_behind_a_report_stops_the_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of a newer version arrives while reports are outstanding. It is folded with the last report."""
    on = Story(nodes, monkeypatch)
    await on.begin()
    encoder = Encoder()
    newer = encoder.encode(encoder.prefix(nodes.now_ms, BROKER), MachineUpgraded(MACHINE_VERSION + 1))
    on.kafka.history.put(b"", newer)
    await eventually(lambda: on.partition._kept)
    assert not on.node._broken
    on.send()
    await eventually(lambda: on.node._broken)
    assert any(isinstance(failure, NewerHistory) for failure in nodes.failures)
