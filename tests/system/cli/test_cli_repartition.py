"""`rewindmq repartition`, on a broker with a log of its own (B-76, B-77)."""

from pathlib import Path

import httpx2
import pytest

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.commands import cli, repartition_state, require_failure
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import put_queue
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

NAMES = [f"orders-{number}" for number in range(6)]
MOVING = [name for name in NAMES if partition_of("/", name, 2) != partition_of("/", name, 5)]


def publish(broker: RunningBroker) -> None:
    """Three persistent messages into each queue."""
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        for name in NAMES:
            for number in range(3):
                wish = {"properties": {"delivery_mode": 2}, "routing_key": name, "payload": f"m{number}"}
                wish["payload_encoding"] = "string"
                api.post("/exchanges/%2F/amq.default/publish", json=wish).raise_for_status()


def payloads(broker: RunningBroker, name: str) -> list[str]:
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        wish = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
        return [each["payload"] for each in api.post(f"/queues/%2F/{name}/get", json=wish).raise_for_status().json()]


def statuses_of_a_watcher(broker: RunningBroker) -> list[int]:
    """A user with the tag monitoring looks at the state, and asks for partitions."""
    url = f"{broker.http_url}/api"
    user = {"password": "watching", "tags": "monitoring"}
    with httpx2.Client(base_url=url, auth=("guest", "guest"), trust_env=False) as api:
        api.put("/users/watcher", json=user).raise_for_status()
    with httpx2.Client(base_url=url, auth=("watcher", "watching"), trust_env=False) as api:
        answers = [api.get("/repartition"), api.post("/repartition", json={"partitions": 5})]
    return [each.status_code for each in answers]


def test_b76_b77_the_course_of_a_repartition(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    for name in NAMES:
        put_queue(broker, name)
    publish(broker)
    assert repartition_state(broker)["phase"] == "never asked for"
    require_failure(
        cli(broker, "repartition", "2"), 65, "Error: queues are placed by 2 partitions, and their number only grows"
    )
    require_failure(cli(broker, "repartition", "2000"), 65, "Error: a log has 1 to 1024 partitions")
    assert statuses_of_a_watcher(broker) == [200, 401]
    asked = cli(broker, "repartition", "5")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "waits for nodes" in asked.stdout
    require_failure(cli(broker, "repartition", "6"), 65, "Error: a repartition to 5 partitions is under way")
    assert (repartition_state(broker)["waits_for"], repartition_state(broker)["partitions"]) == (
        "rewindmq@localhost",
        2,
    )
    assert broker.stop() == 0
    broker = RunningBroker(tmp_path / "data", "--partitions", "2")
    until(lambda: repartition_state(broker)["phase"] == "done", "the queues do not move")
    assert [payloads(broker, name) for name in NAMES] == [["m0", "m1", "m2"]] * len(NAMES)
    found = repartition_state(broker)
    assert (found["partitions"], found["placed_by"], found["moved"], found["staying"]) == (5, 5, len(MOVING), 0)
    assert broker.stop() == 0
    assert "Traceback" not in "".join(broker.errors)
    verified = run("verify", "--data", str(tmp_path / "data"))
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stdout
