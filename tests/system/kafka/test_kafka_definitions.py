"""Definitions, users and limits of nodes that share a Kafka: what one node imports, all have, and at a start every node
may import the same."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pika.exceptions
import pytest

from tests.support.deadlines import until
from tests.support.definitions import WHOLE
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.pika_clients import connect


def exported(node: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = node.get("/definitions").json()
    return found


def test_what_one_node_imports_all_have(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        with api_client(north) as here, api_client(south) as there:
            answer = here.post("/definitions", json=WHOLE)
            assert answer.status_code == 204, answer.text
            found = exported(here)
            assert [each["name"] for each in found["queues"]] == ["q1", "q2", "q3"]
            until(lambda: exported(there) == found, "the other node has not what was imported")
            assert there.post("/definitions", json=found).status_code == 204
            assert exported(here) == exported(there) == found
            limit = there.put("/vhost-limits/v/max-connections", json={"value": 0})
            assert limit.status_code == 204
            until(lambda: here.get("/vhost-limits/v").json()[0]["value"].get("max-connections") == 0, "no limit")
        for node in (north, south):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(node, "moved", "wrong", "v")
            with pytest.raises(pika.exceptions.AMQPConnectionError, match="connection limit"):
                connect(node, "moved", "test12", "v")
        nodes.digests()


def test_every_node_may_import_the_same_at_its_start(kafka: KafkaCluster, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(WHOLE))

    class Loading(Nodes):
        def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
            return (*super().options(name, bootstrap), "--load-definitions", str(file))

    with Loading(tmp_path, kafka, timeout=NEVER) as nodes:
        for name in ("north", "south"):
            node = nodes.start(name)
            connect(node, "moved", "test12", "v").close()
            with httpx2.Client(base_url=f"{node.http_url}/api", auth=("boss", "secret"), trust_env=False) as client:
                assert [each["name"] for each in exported(client)["users"]] == ["boss", "moved"], "and no guest"
        nodes.digests()
