"""Members, leaders and nodes over HTTP, on one node with an embedded log."""

import socket
from pathlib import Path

import httpx2

from rewindmq.engine.config import Config
from tests.support.running import RunningBroker


def test_nodes_tell_where_they_are(api: httpx2.Client, broker: RunningBroker) -> None:
    [node] = api.get("/nodes").json()
    assert node["address"] == f"127.0.0.1:{broker.amqp_port}"
    assert (node["running"], node["owned_partitions"]) == (True, ["queues-0", "queues-1"])
    overview = api.get("/overview").json()
    assert overview["cluster_name"] == node["name"]
    assert [each["leader"] for each in overview["log"]] == [node["name"], node["name"]]


def test_a_node_that_listens_everywhere_is_found_by_its_name(tmp_path: Path) -> None:
    assert Config(tmp_path, host="0.0.0.0", amqp_port=7).address == f"{socket.gethostname()}:7"


def test_quorum_status(api: httpx2.Client, name: str) -> None:
    api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-queue-type": "quorum"}})
    [row] = api.get(f"/queues/quorum/%2F/{name}/status").json()
    shown = api.get(f"/queues/%2F/{name}").json()
    assert shown["members"] == shown["online"] == [shown["leader"]] == [row["Node Name"]] == [shown["node"]]
    assert api.get("/queues/quorum/%2F/nosuch/status").status_code == 404


def test_a_classic_queue_has_no_members(api: httpx2.Client, queue: str) -> None:
    assert "members" not in api.get(f"/queues/%2F/{queue}").json()
    answer = api.get(f"/queues/quorum/%2F/{queue}/status")
    assert (answer.status_code, answer.json()["reason"]) == (503, "Cannot get quorum status of a classic queue")


def test_members_cannot_change(api: httpx2.Client, name: str) -> None:
    api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-queue-type": "quorum"}})
    replicas = f"/queues/quorum/%2F/{name}/replicas"
    everywhere = {"strategy": "all", "queue_pattern": ".*", "vhost_pattern": ".*"}
    answers = (
        api.post(f"{replicas}/add", json={"node": "other"}),
        api.request("DELETE", f"{replicas}/delete", json={"node": "other"}),
        api.post("/queues/quorum/replicas/on/other/grow", json=everywhere),
        api.delete("/queues/quorum/replicas/on/other/shrink"),
        api.post(f"/queues/quorum/%2F/{name}/leader", json={"node": "other"}),
    )
    assert {(answer.status_code, answer.json()["error"]) for answer in answers} == {(501, "not_implemented")}
    assert api.post("/rebalance/queues").status_code == 200


def test_only_an_administrator_moves_them(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    assert api.put(f"/users/{name}", json={"password": "p", "tags": "monitoring"}).status_code == 201
    assert api.post("/rebalance/queues", auth=(name, "p")).status_code == 401
    assert api.delete("/queues/quorum/replicas/on/other/shrink", auth=(name, "p")).status_code == 401


def test_health_check(api: httpx2.Client) -> None:
    answer = {"status": "ok", "reason": "single node cluster"}
    assert api.get("/health/checks/node-is-quorum-critical").json() == answer
    assert api.get("/health/checks/ready-to-serve-clients").json() == {"status": "ok"}
