"""B-73. Nodes go over to the next version one by one, back and forward again, under load, on a Kafka of three."""

import asyncio
from pathlib import Path

import pytest

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.faults import Totals, Trial
from tests.support.kafka.nodes import Nodes
from tests.support.next_version import NEXT, NextVersion, finalize_under_load
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

NAMES = ("north", "south", "west")
FOLDED = """
import sys
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.replay import beginning, fold

for partition in KafkaLogReader(sys.argv[1], sys.argv[2]).queues:
    machine = beginning(partition)
    report = fold(machine, partition)
    machine.validate()
    print(machine.machine_version, report.newest())
"""


def purge_with_a_note(node: RunningBroker) -> tuple[int, str]:
    """Use what only the next version has: the status, and the reason of a refusal."""
    with api_client(node) as client:
        client.put("/queues/%2F/brief", json={"durable": True})
        answer = client.delete("/queues/%2F/brief/contents", params={"note": "a bad batch"})
        return answer.status_code, answer.json()["reason"] if answer.content else ""


async def change_one_by_one(trial: Trial, program: type[RunningBroker]) -> None:
    """Stop a node, start it with the other program, and go on when all is well."""
    nodes = trial.nodes
    nodes.program = program
    for name in NAMES:
        await asyncio.to_thread(nodes.stop, name)
        trial.serve()
        await trial.progress()
        await asyncio.to_thread(nodes.start, name)
        trial.serve()
        await trial.progress()
        # Each program folds what the other one writes.
        await asyncio.to_thread(nodes.digests)
        said = "".join(line for node in nodes.running.values() for line in node.errors)
        assert "no released schema" not in said, said
        assert ("run `rewindmq finalize_upgrade`" in "".join(nodes.running[name].errors)) == (
            program is not RunningBroker
        )


@pytest.mark.rare(standbys=["all"])  # minutes; nodes that pause partitions meet more
@pytest.mark.parametrize("standbys", ["all", "0"])
def test_b73_nodes_go_forth_and_back_and_the_upgrade_is_finalized(
    kafka3: KafkaCluster, tmp_path: Path, standbys: str
) -> None:
    following = NextVersion.made(tmp_path / "next")

    async def forth_and_back(trial: Trial) -> None:
        if standbys == "all":  # back, too: on a busy machine that takes longer than pytest allows
            for program in (following.broker, RunningBroker):
                await change_one_by_one(trial, program)
        await change_one_by_one(trial, following.broker)

    totals = Totals()
    with Nodes(tmp_path, kafka3, standbys=standbys) as nodes:
        for name in NAMES:
            nodes.start(name)
        asyncio.run(Trial(nodes, 7).run(forth_and_back, totals))
        for name in NAMES:
            status, reason = purge_with_a_note(nodes.running[name])
            assert (status, reason.endswith("after `rewindmq finalize_upgrade`")) == (400, True), reason
        finalize_under_load(following, nodes.running["north"], nodes.running["west"])
        for name in NAMES:
            assert purge_with_a_note(nodes.running[name])[0] == 204
            with api_client(nodes.running[name]) as client:
                assert client.get("/overview").json()["machine_version"] == NEXT
        assert not any(
            "was declared lost" in line for node in (*nodes.ended, *nodes.running.values()) for line in node.errors
        )
        folded = following.run("-c", FOLDED, kafka3.bootstrap, nodes.prefix)
        assert folded.stdout.splitlines() == [f"{NEXT} []"] * len(nodes.partitions()), folded.stderr
        nodes.stop("west")
        nodes.program = RunningBroker
        with pytest.raises(AssertionError, match="ended with 78") as ended:
            nodes.start("west")
        assert f"machine version {NEXT}" in str(ended.value)
        nodes.program = following.broker
        nodes.start("west")
    print(totals)


def test_b73_nothing_is_finalized_while_a_node_is_older(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The refusal names it."""
    following = NextVersion.made(tmp_path / "next")
    with Nodes(tmp_path, kafka) as nodes:
        nodes.start("north")
        nodes.program = following.broker
        south = nodes.start("south")
        refused = following.run("-m", "rewindmq", "--url", south.http_url, "finalize_upgrade")
        assert refused.returncode != 0
        assert refused.stderr.splitlines()[-1].endswith(
            f"machine version {NEXT} is not known to north: upgrade or stop what is older first"
        ), refused.stderr
        with api_client(south) as client:
            assert client.post("/upgrade/finalize").status_code == 409
            assert client.get("/overview").json()["machine_version"] == MACHINE_VERSION
        with api_client(nodes.running["north"]) as client:  # it knows no more than the history follows
            same = {"before": MACHINE_VERSION, "after": MACHINE_VERSION}
            assert client.post("/upgrade/finalize").json() == same
        nodes.stop("north")
        with api_client(south) as client:
            assert client.post("/upgrade/finalize").json() == {"before": MACHINE_VERSION, "after": NEXT}
        nodes.start("north")
