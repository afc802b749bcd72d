"""A node that heard nothing of the log for long, while it was on its way back to a partition that it had paused."""

import asyncio
from pathlib import Path

import pytest

from rewindmq.engine.cluster import modes
from rewindmq.engine.cluster.partition import ReadBackPartition
from tests.support.broker_harness import Client
from tests.support.memory_nodes import Nodes, publish, run, session, settled
from tests.unit.http.test_http_counters import NAMES, quick, story, until

__all__ = ["quick"]
LONG_SECONDS = 60.0


def test_b49_a_report_that_no_record_waits_for_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept over a pause it would confirm a later record, which is not in the log yet."""

    async def test(nodes: Nodes) -> None:
        _, other = await story(nodes)
        node, name = nodes.node("b"), other.partitions[0].name
        node._arrived_at -= LONG_SECONDS
        node.delivered(name, [7])
        assert node._held_reports == []

    run(test, tmp_path, monkeypatch)


def test_b49_confirms_go_on_after_a_silence_while_reports_are_outstanding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of Kafka dies when a node has just resumed a partition, and records of it are still reported.

    The reports are held until the node knows that it was not declared lost. The node is in doubt, too: it keeps what
    arrives until an own record has come back, and that one is behind the reports."""

    async def test(nodes: Nodes) -> None:
        _, other = await story(nodes)
        node, confirms, who = nodes.node("b"), Client(), session(other)
        partition = other.queues.partition_for("/", NAMES[0])
        assert isinstance(partition, ReadBackPartition)
        kafka = nodes.log("b").queues[partition.index]
        await partition.enter()  # it learns of the queue, and pauses again
        monkeypatch.setattr(modes, "UNUSED_SECONDS", 0.0)
        await until(lambda: not partition.current)
        monkeypatch.setattr(modes, "UNUSED_SECONDS", 60.0)

        send = kafka.send
        monkeypatch.setattr(kafka, "send", lambda: None)  # the log takes nothing for now
        await until(lambda: not kafka.under_way and not kafka._sending)
        for body in (b"1", b"2"):
            assert publish(other, who, body, confirms, NAMES[0]) == 1
        await node._modes.enter(partition)
        assert partition.current
        assert len(partition._reported) == 2, "both records have to be reported"
        publish(other, who, b"3", confirms, NAMES[0])  # and this one has to come back

        node._arrived_at -= LONG_SECONDS
        kafka.land(1)
        nodes.log("b")._delivered(kafka)  # a report is the first that is heard
        node.arrived([])  # and then records of other partitions
        assert partition.in_doubt
        await settled()
        send()
        await until(lambda: len(confirms.confirms) == 3)
        assert not partition.in_doubt
        await asyncio.wait_for(other.certainty.wait(), modes.AGAIN_SECONDS * 40)

    run(test, tmp_path, monkeypatch)
