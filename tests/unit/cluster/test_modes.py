"""Changes of a partition's mode (engine/cluster/partition_pausing.py), on a shared log in memory."""

import asyncio

import pytest

from rewindmq.engine.cluster.partition import ReadBackPartition
from tests.support.counted_nodes import quick, story
from tests.support.memory_nodes import Nodes, on_nodes

__all__ = ["quick"]


@pytest.mark.timeout(60)
@on_nodes()
async def test_b49_a_partition_is_entered_in_the_moment_in_which_its_pause_ends(nodes: Nodes) -> None:
    """The task of the pause is done, and its callbacks are still to come: to await it once more is no wait."""
    _, other = await story(nodes)
    partition = other.partitions[0]
    assert isinstance(partition, ReadBackPartition)
    modes = nodes.node("b")._paused
    await partition.enter()
    assert partition.can_pause
    modes._begin(partition, modes._pause(partition))
    pause = modes._work[partition]
    while not pause.done():
        await asyncio.sleep(0)
    assert modes._work[partition] is pause, "nothing has heard of the end yet"
    await partition.enter()
    assert partition.current
    await asyncio.sleep(0)
    assert modes._work == {}
