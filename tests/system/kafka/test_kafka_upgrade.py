"""B-73. Nodes of the program before the newest schema are upgraded one by one, under load, on a Kafka of three.

The older program comes from git, so this test runs where the history is: by hand, or in `make soak`.
"""

import asyncio
from pathlib import Path

import pika
import pytest

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes, connect
from tests.support.needs import require
from tests.support.older_program import NoHistory, install, older_broker
from tests.support.running import RunningBroker

pytestmark = pytest.mark.rare

NAMES = ("north", "south", "west")


def declare_deduplicating(node: RunningBroker) -> None:
    """Use what only the newer program has."""
    connection = connect(node)
    channel = connection.channel()
    channel.exchange_declare("once", "x-message-deduplication", durable=True, arguments={"x-cache-size": 10})
    channel.queue_declare("once", durable=True)
    channel.queue_bind("once", "once")
    channel.confirm_delivery()
    for _ in range(2):
        properties = pika.BasicProperties(headers={"x-deduplication-header": "1"})
        channel.basic_publish("once", "", b"1", properties, mandatory=True)
    assert channel.queue_declare("once", passive=True).method.message_count == 1
    channel.queue_delete("once")
    connection.close()


async def upgrade_one_by_one(trial: Trial) -> None:
    """Stop a node, start it with the newer program, and go on when all is well."""
    nodes = trial.nodes
    for name in NAMES:
        await asyncio.to_thread(nodes.stop, name)
        trial.serve()
        await trial.progress()
        await asyncio.to_thread(nodes.start, name)
        trial.serve()
        await trial.progress()
        # Older nodes fold what newer ones write, and the other way round.
        await asyncio.to_thread(nodes.digests)
        said = [line for node in nodes.running.values() for line in node.errors]
        assert not any("no released schema" in line for line in said), "".join(said)
        if name != NAMES[-1]:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not known to all nodes yet"):
                await asyncio.to_thread(declare_deduplicating, nodes.running[name])


@pytest.mark.parametrize("standbys", ["all", "0"])
def test_b73_nodes_are_upgraded_one_by_one_under_load(kafka3: KafkaCluster, tmp_path: Path, standbys: str) -> None:
    try:
        older = older_broker(install(tmp_path))
    except NoHistory as error:
        require(False, f"the older program comes from git: {error}")
        raise
    totals = Totals()
    with Nodes(tmp_path, kafka3, standbys=standbys, program=older) as nodes:
        for name in NAMES:
            nodes.start(name)
        nodes.program = RunningBroker
        asyncio.run(Trial(nodes, 7).run(upgrade_one_by_one, totals))
        assert not any(
            "was declared lost" in line for node in (*nodes.ended, *nodes.running.values()) for line in node.errors
        )
        declare_deduplicating(nodes.running["south"])
        nodes.digests()
        nodes.stop("west")
        nodes.program = older
        with pytest.raises(AssertionError, match="ended with 78") as ended:
            nodes.start("west")
        assert f"machine version {MACHINE_VERSION}" in str(ended.value)
    print(totals)
