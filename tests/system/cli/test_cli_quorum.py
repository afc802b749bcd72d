"""rabbitmq-queues' commands on one node, whose log is in its data directory: there is one of everything."""

import json

import httpx2
import pytest

from tests.support.commands import Cli
from tests.support.running import RunningBroker

NODE = "rewindmq@localhost"


@pytest.fixture(scope="module", autouse=True)
def queues(broker: RunningBroker) -> None:
    with httpx2.Client(base_url=f"{broker.http_url}/api/queues/%2F", auth=("guest", "guest"), trust_env=False) as api:
        assert api.put("/qq", json={"durable": True, "arguments": {"x-queue-type": "quorum"}}).status_code == 201
        assert api.put("/cq", json={"durable": True, "arguments": {"x-queue-type": "classic"}}).status_code == 201


def test_the_node_leads_and_is_the_only_member(cli: Cli) -> None:
    shown = cli("quorum_status", "qq", "--formatter=json")
    [row] = json.loads(shown.stdout)
    assert (row["Node Name"], row["Raft State"], row["Membership"]) == (NODE, "leader", "voter")
    assert row["Last Applied"] == row["Commit Index"] >= 0
    assert cli("quorum_status", "qq", "--silent").stdout.startswith("┌───")
    shown = cli("list_queues", "name", "leader", "members", "online", "--silent")
    assert shown.stdout.splitlines() == ["cq\t\t\t", f"qq\t{NODE}\t[{NODE}]\t[{NODE}]"]


def test_what_is_no_quorum_queue_is_refused(cli: Cli) -> None:
    shown = cli("quorum_status", "cq")
    assert (shown.returncode, shown.stderr) == (69, "Error: Cannot get quorum status of a classic queue\n")
    shown = cli("quorum_status", "nosuch")
    assert (shown.returncode, shown.stderr) == (65, "Error: queue 'nosuch' was not found in virtual host '/'\n")
    shown = cli("reclaim_quorum_memory", "cq")
    assert (shown.returncode, shown.stderr) == (69, "Error: This operation is not applicable to classic queues\n")
    assert cli("reclaim_quorum_memory", "nosuch").returncode == 65
    assert cli("reclaim_quorum_memory", "qq").returncode == 0
    assert cli("add_member", "cq", "other").stderr == "Error: Cannot add members to a classic queue\n"


@pytest.mark.parametrize(
    "words",
    [
        ("add_member", "qq", "other"),
        ("delete_member", "qq", NODE),
        ("grow", "other", "all"),
        ("shrink", NODE),
        ("transfer_leadership", "qq", NODE),
    ],
)
def test_members_are_kafkas(cli: Cli, words: tuple[str, ...]) -> None:
    shown = cli(*words)
    assert shown.returncode == 69
    assert shown.stderr.startswith("Error: the log is in this node's data directory, and there is one of everything: ")
    assert shown.stderr.count("\n") == 1


def test_there_is_nothing_to_rebalance(cli: Cli) -> None:
    """S-121."""
    shown = cli("rebalance", "quorum", "--formatter=json")
    assert json.loads(shown.stdout) == [{"Node name": NODE, "Number of quorum queues": 1}]
    shown = cli("rebalance", "quorum", "--queue-pattern", "^other", "--formatter=json")
    assert json.loads(shown.stdout) == [{"Node name": NODE, "Number of quorum queues": 0}]
    shown = cli("rebalance", "all", "--queue-pattern", "(")
    assert (shown.returncode, shown.stderr.count("\n")) == (64, 1)
    assert cli("rebalance", "streams").returncode == 64
    assert cli("grow", "other", "odd").returncode == 64


def test_b58_a_single_node_owns_every_partition(cli: Cli) -> None:
    shown = cli("rebalance", "owners", "--formatter=json")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)
    assert {(row["Owner"], row["Folded at"]) for row in rows} == {(NODE, NODE)}
    assert [row["Partition"] for row in rows] == ["queues-0", "queues-1"]


def test_a_single_node_is_not_critical(cli: Cli) -> None:
    shown = cli("check_if_node_is_quorum_critical", "--quiet")
    assert shown.returncode == 0
    assert shown.stdout == (
        f"Node {NODE} seems to be the only one in a single node cluster, the check does not apply\n"
    )
    assert cli("check_if_node_is_quorum_critical", "--silent").stdout == ""


def test_cluster_status(cli: Cli, broker: RunningBroker) -> None:
    shown = cli("cluster_status")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == f"Cluster status of node {NODE} ..."
    assert lines[lines.index("Running Nodes") + 2] == NODE
    assert f"queues-0: leader {NODE}, members {NODE}, online {NODE}" in lines
    [report] = json.loads(cli("cluster_status", "--formatter=json").stdout)
    assert report["running_nodes"] == report["disk_nodes"] == [NODE]
    assert report["listeners"] == {NODE: f"127.0.0.1:{broker.amqp_port}"}
