"""The management API beside a real RabbitMQ 3.10.8: the same clients, the same queues, the same questions. Every path
answers with the same status, and every key that RabbitMQ's answer has is there, with a value of the same type.

What is left out is in `ABSENT`, by the reason.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pika
import pytest

from tests.support.absent_fields import PATTERN
from tests.support.management_peer import INSTALLED, NOT_INSTALLED, start_management
from tests.support.needs import require
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

require(INSTALLED, NOT_INSTALLED)


# Objects whose keys are data.
DATA = {
    "arguments",
    "client_properties",
    "effective_policy_definition",
    "socket_opts",
    "headers",
    "definition",
    "cluster_state",
}

PATHS = """\
/overview /cluster-name /nodes /nodes/{node} /extensions /connections /connections/{connection}
/connections/username/guest /connections/{connection}/channels /channels /channels/{channel} /consumers /consumers/%2F
/exchanges /exchanges/%2F /exchanges/%2F/t /exchanges/%2F/amq.default /exchanges/%2F/t/bindings/source
/exchanges/%2F/t/bindings/destination /queues /queues/%2F /queues/%2F/cq /queues/%2F/qq /queues/%2F/ex
/queues/%2F/cq/bindings /bindings /bindings/%2F /bindings/%2F/e/t/q/cq /bindings/%2F/e/t/q/cq/{key}
/bindings/%2F/e/t/e/nosuch /vhosts /vhosts/%2F/connections /vhosts/%2F/channels /feature-flags /whoami
/aliveness-test/%2F /aliveness-test/nosuch /healthchecks/node /healthchecks/node/{node} /health/checks/alarms
/health/checks/local-alarms /health/checks/certificate-expiration/1/months
/health/checks/certificate-expiration/1/moons /health/checks/certificate-expiration/x/weeks
/health/checks/port-listener/{amqp} /health/checks/port-listener/1 /health/checks/port-listener/x
/health/checks/protocol-listener/amqp091 /health/checks/protocol-listener/http_api
/health/checks/protocol-listener/mqtt /health/checks/virtual-hosts /health/checks/node-is-mirror-sync-critical
/health/checks/node-is-quorum-critical /auth /queues?page=1 /connections?page=1 /channels?page=1 /exchanges?page=1
/queues?page=1&page_size=2&name=Q&use_regex=true&sort=name&sort_reverse=true /queues?page=9 /queues?page=0
/queues?page=1&page_size=501 /queues?page=x /queues?page=1&name=nosuch /queues?sort=message_stats.publish_details.rate
/queues?columns=name,message_stats.publish_details.rate,consumer_details /queues?disable_stats=true
/queues?disable_stats=true&enable_queue_totals=true /overview?disable_stats=true /overview?columns=queue_totals
/connections/nosuch /channels/nosuch /queues/%2F/nosuch /queues/nosuch /exchanges/%2F/nosuch /nosuch
/operator-policies /policies /policies/%2F /policies/%2F/p /permissions /users /vhosts/%2F
"""
ACTIONS = ("sync", "cancel_sync", "nosuch")


class Side:
    """One broker with a client at work, and the paths' answers."""

    def __init__(self, amqp_port: int, http_port: int) -> None:
        self.amqp_port = amqp_port
        self.api = httpx2.Client(
            base_url=f"http://127.0.0.1:{http_port}/api", auth=("guest", "guest"), trust_env=False, timeout=60
        )
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
        self.work()
        self.until_known()

    def work(self) -> None:
        channel = self.connection.channel()
        channel.queue_declare("cq", durable=True, arguments={"x-max-length": 100})
        channel.queue_declare("qq", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("ex", exclusive=True)
        channel.exchange_declare("t", "topic", durable=True)
        channel.queue_bind("cq", "t", "a.*", arguments={"x": 1})
        channel.queue_bind("qq", "t", "b.#")
        channel.exchange_bind("t", "amq.fanout", "k")
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, timestamp=1_700_000_000, headers={"a": 1})
        for queue in ("cq", "qq"):
            for _ in range(6):
                channel.basic_publish("", queue, b"x" * 10, properties)
        policy = {"pattern": "^cq$", "definition": {"max-length": 50}, "apply-to": "queues"}
        self.api.put("/policies/%2F/p", json=policy).raise_for_status()
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume("cq", lambda *message: None, consumer_tag="one")
        channel.basic_consume("qq", lambda taker, method, *_: taker.basic_ack(method.delivery_tag), consumer_tag="two")
        other = self.connection.channel()
        method, _, _ = other.basic_get("cq")
        other.basic_nack(method.delivery_tag)
        other.basic_get("cq", auto_ack=True)

    def until_known(self, seconds: float = 60) -> None:
        """RabbitMQ tells its statistics late, in no order."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.connection.process_data_events(0.3)
            queues = [self.api.get(f"/queues/%2F/{name}").json() for name in ("cq", "qq")]
            depth = self.api.get("/overview").json().get("queue_totals", {}).get("messages")
            channels, connections = self.api.get("/channels").json(), self.api.get("/connections").json()
            stats = [each.get("message_stats", {}) for each in queues]
            known = [stats[0].get("publish"), stats[1].get("ack"), *(each.get("messages") for each in queues), depth]
            told = any("client_properties" in each for each in connections)
            if told and [*known, sum("message_stats" in each for each in channels)] == [6, 6, 5, 0, 5, 2]:
                return
        raise AssertionError("the statistics did not come")

    def names(self) -> dict[str, str]:
        (connection,) = [each["name"] for each in self.api.get("/connections").json() if "client_properties" in each]
        (key,) = [each["properties_key"] for each in self.api.get("/bindings/%2F/e/t/q/cq").json()]
        return {
            "node": quote(self.api.get("/overview").json()["node"]),
            "connection": quote(connection),
            "channel": quote(f"{connection} (1)"),
            "amqp": str(self.amqp_port),
            "key": quote(key, safe="~%"),
        }

    def answers(self) -> dict[str, httpx2.Response]:
        names = self.names()
        found = {path: self.api.get(path.format(**names)) for path in PATHS.split()}
        for action in ACTIONS:
            path = "/queues/%2F/cq/actions"
            found[f"POST {path} {action}"] = self.api.post(path, json={"action": action})
        for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
            content = {"count": 1, "ackmode": mode, "encoding": "auto", "truncate": 3}
            found[f"POST /queues/%2F/cq/get {mode}"] = self.api.post("/queues/%2F/cq/get", json=content)
        found["DELETE /reset"] = self.api.delete("/reset")
        found["DELETE /reset/node"] = self.api.delete(f"/reset/{names['node']}")
        return found

    def close(self) -> None:
        self.connection.close()
        self.api.close()


@pytest.fixture(scope="module")
def answers(
    broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, httpx2.Response], dict[str, httpx2.Response]]]:
    peer = start_management(Path(tmp_path_factory.mktemp("rabbitmq")))
    sides = []
    try:
        for amqp_port, http_port in ((peer.port, peer.http_port), (broker.amqp_port, broker.http_port)):
            sides.append(Side(amqp_port, http_port))
        yield sides[0].answers(), sides[1].answers()
        for side in sides:
            side.close()
    finally:
        peer.stop()


def shape(value: Any, at: str, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """JSON types by place; items of a list are one place."""
    if isinstance(value, dict):
        found.setdefault(at, set()).add("object")
        if at.rsplit(".", 1)[-1] not in DATA:
            for name, inner in value.items():
                shape(inner, f"{at}.{name}", found)
    elif isinstance(value, list):
        found.setdefault(at, set()).add("list")
        for inner in value:
            shape(inner, f"{at}[]", found)
    else:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
        found.setdefault(at, set()).add(kinds[type(value)])
    return found


def test_every_path_answers_as_rabbitmq_does(
    answers: tuple[dict[str, httpx2.Response], dict[str, httpx2.Response]],
) -> None:
    theirs, ours = answers
    wrong = []
    for path, expected in theirs.items():
        answer = ours[path]
        if answer.status_code != expected.status_code:
            wrong.append(f"{path}: {answer.status_code} {answer.text[:200]}, not {expected.status_code}")
        if not expected.content or not answer.content:
            if bool(expected.content) != bool(answer.content):
                wrong.append(f"{path}: {answer.text!r}, not {expected.text!r}")
            continue
        there = path.split("?")[0].replace("/api", "").strip("/") + " "
        known = shape(answer.json(), there, {})
        for at, kinds in shape(expected.json(), there, {}).items():
            if PATTERN.search(at):
                continue
            if at not in known:
                wrong.append(f"{path}: {at} is missing ({kinds})")
            elif not kinds <= known[at] | {"null"} and not known[at] <= kinds | {"null"}:
                wrong.append(f"{path}: {at} is {known[at]}, not {kinds}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_numbers_are_rabbitmqs(answers: tuple[dict[str, httpx2.Response], dict[str, httpx2.Response]]) -> None:
    """The message counts of the node, its queues and its channels equal RabbitMQ's: published, delivered, acked ..."""
    theirs, ours = (side for side in answers)
    for path in ("/queues/%2F/cq", "/queues/%2F/qq", "/channels/{channel}"):
        expected, found = theirs[path].json()["message_stats"], ours[path].json()["message_stats"]
        assert {name: found[name] for name in expected if not name.endswith("_details")} == {
            name: value for name, value in expected.items() if not name.endswith("_details")
        }, path
    for path in ("/queues/%2F/cq", "/queues/%2F/qq"):
        for name in ("messages", "messages_ready", "messages_unacknowledged", "message_bytes", "message_bytes_ready"):
            assert ours[path].json()[name] == theirs[path].json()[name], (path, name)
    expected, found = theirs["/overview"].json(), ours["/overview"].json()
    assert found["object_totals"] == expected["object_totals"] | {"exchanges": found["object_totals"]["exchanges"]}
    assert found["queue_totals"]["messages"] == expected["queue_totals"]["messages"]
