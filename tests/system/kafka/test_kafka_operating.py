"""Operating nodes on a Kafka of three brokers, with two replicas of each partition: who holds a queue is told from
Kafka's own metadata, leaders move, and what is left to Kafka's own tool is written as that tool takes it.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster, java
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

PREFIX = "operating"
QUEUE = "orders"
REASSIGN = Path(__file__).with_name("Reassign.java")
SCRIPT = r"cat > reassignment.json <<'END'\n(.*)\nEND\n(kafka-reassign-partitions\.sh .*)\n\Z"


@pytest.fixture(scope="module")
def nodes(kafka3: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningBroker]]:
    directory = tmp_path_factory.mktemp("operating")
    options = ("--kafka", kafka3.bootstrap, "--kafka-prefix", PREFIX, "--kafka-replication", "2", "--node")
    running = {name: RunningBroker(directory / name, *options, name) for name in ("north", "south")}
    with api_client(running["north"]) as north:
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 5, "x-queue-leader-locator": "balanced"}
        assert north.put(f"/queues/%2F/{QUEUE}", json={"durable": True, "arguments": arguments}).status_code == 201
    yield running
    for node in running.values():
        assert node.stop() == 0, "".join(node.errors)
        assert "Traceback" not in "".join(node.errors), "".join(node.errors)


@pytest.fixture
def north(nodes: dict[str, RunningBroker]) -> RunningBroker:
    return nodes["north"]


def command(node: RunningBroker, *words: str) -> "subprocess.CompletedProcess[str]":
    return run(*words, REWINDMQ_URL=node.http_url)


def shown(node: RunningBroker, what: str) -> Any:
    with api_client(node) as client:
        answer = client.get(what)
        assert answer.status_code == 200, answer.text
        return answer.json()


def queue_of(node: RunningBroker, queue: str = QUEUE) -> dict[str, Any]:
    found: dict[str, Any] = shown(node, f"/queues/%2F/{queue}")
    return found


def broker_of(kafka: KafkaCluster, address: str) -> int:
    """The number of a Kafka broker."""
    return kafka.bootstrap.split(",").index(address) + 1


def carry_out(kafka: KafkaCluster, script: str, directory: Path) -> None:
    """As an operator pipes it to a shell."""
    found = re.search(SCRIPT, script, re.S)
    assert found, script
    assert found[2] == (
        f"kafka-reassign-partitions.sh --bootstrap-server {kafka.bootstrap} --reassignment-json-file reassignment.json"
        " --execute"
    )
    (directory / "reassignment.json").write_text(found[1])
    subprocess.run(java(str(REASSIGN), kafka.bootstrap, str(directory / "reassignment.json")), check=True, timeout=60)


def test_every_node_lists_all_and_members_are_kafkas(nodes: dict[str, RunningBroker], kafka3: KafkaCluster) -> None:
    """S-118, S-119 (the queue is declared with a locator)."""
    brokers = set(kafka3.bootstrap.split(","))
    for name, node in nodes.items():
        listed = {item["name"]: item for item in shown(node, "/nodes")}
        assert {item["name"]: item["address"] for item in listed.values()} == {
            "north": f"127.0.0.1:{nodes['north'].amqp_port}",
            "south": f"127.0.0.1:{nodes['south'].amqp_port}",
        }
        assert all(item["running"] for item in listed.values())
        until(queue_of, f"{name} has no queue", node)
        item = queue_of(node)
        assert len(item["members"]) == 2
        assert {item["leader"]} < set(item["members"]) < brokers
        assert sorted(item["online"]) == sorted(item["members"])
        assert item["node"] == name
        assert shown(node, "/overview")["cluster_name"] == PREFIX
        states = {row["Node Name"]: row["Raft State"] for row in shown(node, f"/queues/quorum/%2F/{QUEUE}/status")}
        assert states == {each: "leader" if each == item["leader"] else "follower" for each in item["members"]}
    until(lambda: sorted(owned(nodes)) == ["queues-0", "queues-1"], "each partition has one owner")
    lines = command(nodes["south"], "cluster_status").stdout.splitlines()
    at = lines.index("Running Nodes")
    assert lines[at + 2 : at + 4] == ["north", "south"]
    assert command(nodes["south"], "status").stdout.count("Node name: south") == 1


def owned(nodes: dict[str, RunningBroker]) -> list[str]:
    found = []
    for name, node in nodes.items():
        found += shown(node, f"/nodes/{name}")["owned_partitions"]
    return found


def test_a_member_is_added_and_leads(north: RunningBroker, kafka3: KafkaCluster, tmp_path: Path) -> None:
    """S-120."""
    [missing] = set(kafka3.bootstrap.split(",")) - set(queue_of(north)["members"])
    planned = command(north, "add_member", QUEUE, missing)
    assert planned.returncode == 69
    assert planned.stderr.startswith("Error: not done: members are replicas of Kafka's partitions")
    carry_out(kafka3, planned.stdout, tmp_path)
    done = command(north, "add_member", QUEUE, str(broker_of(kafka3, missing)), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # it is one already
    planned = command(north, "transfer_leadership", QUEUE, missing)
    assert planned.returncode == 69
    carry_out(kafka3, planned.stdout, tmp_path)
    wanted = {each: int(each == missing) for each in kafka3.bootstrap.split(",")}
    until(lambda: balanced(north) == wanted, "it does not lead")  # brokers learn of a change one after the other
    until(lambda: queue_of(north)["leader"] == missing and len(queue_of(north)["members"]) == 3, "it is not listed")
    refused = command(north, "transfer_leadership", QUEUE, missing)
    assert (refused.returncode, refused.stderr) == (69, "Error: The target node is already the leader of this queue\n")


def balanced(node: RunningBroker) -> dict[str, int]:
    done = command(node, "rebalance", "quorum", "--formatter=json")
    assert done.returncode == 0, done.stderr
    return {row["Node name"]: row["Number of quorum queues"] for row in json.loads(done.stdout)}


def test_members_are_removed(north: RunningBroker, kafka3: KafkaCluster) -> None:
    """S-120, S-130."""
    leader = queue_of(north)["leader"]
    planned = command(north, "delete_member", QUEUE, leader)
    assert planned.returncode == 69
    [partition] = reassignment(planned.stdout)["partitions"]
    assert broker_of(kafka3, leader) not in partition["replicas"]
    planned = command(north, "shrink", str(broker_of(kafka3, leader)))
    plan = reassignment(planned.stdout)["partitions"]
    assert {"topic": partition["topic"], "partition": partition["partition"], "replicas": partition["replicas"]} in plan
    assert all(broker_of(kafka3, leader) not in each["replicas"] for each in plan)


def test_partitions_with_two_members_grow_by_the_third(north: RunningBroker, kafka3: KafkaCluster) -> None:
    """The queue's own has three, which is not even; each of the two others that it needs lacks one broker.
    S-120, S-130."""
    grown = []
    for broker in kafka3.bootstrap.split(","):
        planned = command(north, "grow", broker, "even", "--queue-pattern", f"^{QUEUE}$")
        assert planned.returncode == (69 if "{" in planned.stdout else 0)
        if planned.returncode:
            grown += reassignment(planned.stdout)["partitions"]
    assert sorted(each["topic"] for each in grown) == [f"{PREFIX}.metadata", f"{PREFIX}.nodes"]
    assert all(sorted(each["replicas"]) == [1, 2, 3] for each in grown)


def reassignment(script: str) -> Any:
    found = re.search(r"^{.*}$", script, re.M)
    assert found, script
    return json.loads(found[0])


def test_words_that_mean_nothing(north: RunningBroker) -> None:
    refused = command(north, "add_member", QUEUE, "nowhere:1")
    assert refused.returncode == 64
    assert "node 'nowhere:1' is not a member of the cluster; Kafka's brokers are 127.0.0.1:" in refused.stderr
    assert command(north, "shrink", "77").returncode == 64
    assert command(north, "add_member", "nosuch", "1").returncode == 65


@pytest.mark.rare
def test_a_broker_that_is_needed_is_critical_and_leaders_come_back(north: RunningBroker, kafka3: KafkaCluster) -> None:
    """In the partition that still has two replicas. S-121."""
    other = next(f"q{n}" for n in range(9) if partition_of("/", f"q{n}", 2) != partition_of("/", QUEUE, 2))
    with api_client(north) as client:
        assert (
            client.put(
                f"/queues/%2F/{other}", json={"durable": True, "arguments": {"x-queue-type": "quorum"}}
            ).status_code
            == 201
        )
    leader, members = (queue_of(north, other)[key] for key in ("leader", "members"))
    assert leader == members[0]  # the preferred one
    assert command(north, "check_if_node_is_quorum_critical").returncode == 0
    assert command(north, "check_if_node_is_quorum_critical", leader).returncode == 0
    kafka3.kill(broker_of(kafka3, leader))
    until(lambda: queue_of(north, other)["online"] == [members[1]], "the dead one is still in sync")
    refused = command(north, "check_if_node_is_quorum_critical", members[1])
    assert refused.returncode == 69
    assert f"queue '{other}' in vhost '/' will become unavailable if node {members[1]} stops" in refused.stderr
    kafka3.start_node(broker_of(kafka3, leader))
    kafka3.wait_in_sync()
    assert queue_of(north, other)["leader"] == members[1]
    done = command(north, "transfer_leadership", other, leader)
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: queue_of(north, other)["leader"] == leader, "the preferred leader does not lead")
