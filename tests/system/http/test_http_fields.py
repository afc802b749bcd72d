"""Every GET answer of the management API beside a real RabbitMQ 3.10.8's, field by field, in a rich state.

test_http_shapes.py asks whether a field is in any item of a list. Here each item is compared with its twin of the same
name, so that a field cannot hide which only one state has: a connection with a name, a consumer that holds messages, a
stream, an exclusive queue, a policy, a limit. A field has to be there, with the same JSON type, and with the same value
unless it is in `VARIES`. Fields that we leave out are in `ABSENT`, and those that differ in `DIFFERENT`, by the reason.
"""

import json
import re
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

# Of each run, or of each broker: the type is compared, the value is not.
VARIES = re.compile(
    r"\b(?:peer_port|connected_at|recv_\w+|send_\w+|rate|uptime|os_pid|mem_\w+|fd_\w+|sockets_\w+|disk_free|context_switches"
    r"|connection_(?:closed|created)|log_files|db_dir|config_files|enabled_plugins|ip_address|cluster_name|version"
    r"|(?:management|product|rabbitmq|rabbit)_version|product_name)$|^cluster-name\b"
)
DIFFERENT = {
    "a node has its own parts, and an exchange of events in each virtual host": (
        r"\.(?:applications|contexts|auth_mechanisms|listeners)\[\] lacks",
        r"socket_opts",
        r"object_totals\.exchanges$",
        r"^extensions",
        r"global.parameters.* lacks .*internal_cluster_id",
    ),
    "there are no samples of rates over time": (r"sample_retention_policies",),
    "passwords are kept as argon2id": (r"users.*\.(?:password_hash|hashing_algorithm)$",),
    "the digest in a properties_key is our own": (r"properties_key$",),
    "3.13 leaves the virtual host out of definitions of one": (
        r"^definitions of one.*\.(?:parameters|policies)\[\] lacks",
    ),
    "3.10.8 shows null in a list and an empty text by itself": (r"^connections\.answer\.(?:ssl|peer_cert)_\w+$",),
    "a listing reads the first message of each queue only if columns=head_message_timestamp asks for it": (
        r"^queues\.answer\[\]\.head_message_timestamp$",
    ),
    "publishes are not counted by virtual host": (r"^vhosts\.answer(?:\[\])?\.message_stats$",),
    "a publish counts when it comes, at RabbitMQ that of a transaction when it is committed": (
        r"^overview\.answer\.message_stats\.publish$",
    ),
    "a consumer of a stream is active": (r"^(?:consumers|queues|channels)\.answer.*\.active of a stream$",),
}
OTHERWISE = re.compile("|".join(each for some in DIFFERENT.values() for each in some))

# RabbitMQ's own list of paths (/api/index.html), each with the places that are asked for here. None: not ours.
PATHS: dict[str, str | None] = {
    "overview": "overview",
    "cluster-name": "cluster-name",
    "nodes": "nodes",
    "nodes/name": "nodes/{node}",
    "extensions": "extensions",
    "definitions": "definitions all-configuration",
    "definitions/vhost": "definitions/%2F definitions/v",
    "connections": "connections",
    "vhosts/vhost/connections": "vhosts/%2F/connections vhosts/v/connections",
    "connections/name": "connections/{orders} connections/{plain} connections/{other}",
    "connections/username/username": "connections/username/guest connections/username/ann",
    "connections/name/channels": "connections/{orders}/channels connections/{plain}/channels",
    "channels": "channels",
    "vhosts/vhost/channels": "vhosts/%2F/channels vhosts/v/channels",
    "channels/channel": " ".join(f"channels/{{orders}}%20({n})" for n in (1, 2, 3)) + " channels/{plain}%20(1)",
    "consumers": "consumers",
    "consumers/vhost": "consumers/%2F consumers/v",
    "exchanges": "exchanges",
    "exchanges/vhost": "exchanges/%2F exchanges/v",
    "exchanges/vhost/name": "exchanges/%2F/t exchanges/%2F/h exchanges/%2F/i exchanges/%2F/amq.default",
    "exchanges/vhost/name/bindings/source": "exchanges/%2F/t/bindings/source exchanges/%2F/h/bindings/source",
    "exchanges/vhost/name/bindings/destination": "exchanges/%2F/t/bindings/destination",
    "queues": "queues",
    "queues/vhost": "queues/%2F queues/v",
    "queues/vhost/name": " ".join(
        f"queues/%2F/{name}" for name in ("cq", "qq", "ex", "st", "pq", "sac", "ttl", "dead", "gone", "idle")
    ),
    "queues/vhost/name/bindings": "queues/%2F/cq/bindings queues/%2F/st/bindings",
    "bindings": "bindings",
    "bindings/vhost": "bindings/%2F bindings/v",
    "bindings/vhost/e/exchange/q/queue": "bindings/%2F/e/t/q/cq bindings/%2F/e/h/q/cq bindings/%2F/e/amq.default/q/cq",
    "bindings/vhost/e/exchange/q/queue/props": "bindings/%2F/e/t/q/cq/a.*",
    "bindings/vhost/e/source/e/destination": "bindings/%2F/e/amq.fanout/e/t",
    "bindings/vhost/e/source/e/destination/props": "bindings/%2F/e/amq.fanout/e/t/k",
    "vhosts": "vhosts",
    "vhosts/name": "vhosts/%2F vhosts/v",
    "vhosts/name/permissions": "vhosts/%2F/permissions vhosts/v/permissions",
    "vhosts/name/topic-permissions": "vhosts/%2F/topic-permissions vhosts/v/topic-permissions",
    "users/": "users",
    "users/without-permissions": "users/without-permissions",
    "users/name": "users/guest users/ann users/bare",
    "users/user/permissions": "users/ann/permissions users/bare/permissions",
    "users/user/topic-permissions": "users/ann/topic-permissions users/bare/topic-permissions",
    "user-limits": "user-limits",
    "user-limits/user": "user-limits/ann user-limits/bare",
    "whoami": "whoami",
    "permissions": "permissions",
    "permissions/vhost/user": "permissions/%2F/ann permissions/v/bare",
    "topic-permissions": "topic-permissions",
    "topic-permissions/vhost/user": "topic-permissions/%2F/ann topic-permissions/%2F/bare",
    "parameters": "parameters",
    "parameters/component": "parameters/vhost-limits parameters/operator_policy",
    "parameters/component/vhost": "parameters/vhost-limits/%2F parameters/vhost-limits/v",
    "parameters/component/vhost/name": "parameters/vhost-limits/%2F/limits parameters/operator_policy/%2F/op",
    "global-parameters": "global-parameters",
    "global-parameters/name": "global-parameters/region",
    "policies/vhost": "policies policies/%2F policies/v",
    "policies/vhost/name": "policies/%2F/p policies/%2F/none",
    "operator-policies": "operator-policies",
    "operator-policies/vhost": "operator-policies/%2F operator-policies/v",
    "operator-policies/vhost/name": "operator-policies/%2F/op",
    "aliveness-test/vhost": "aliveness-test/v",
    "health/checks/alarms": "health/checks/alarms",
    "health/checks/local-alarms": "health/checks/local-alarms",
    "health/checks/certificate-expiration/within/unit": "health/checks/certificate-expiration/1/months",
    "health/checks/port-listener/port": "health/checks/port-listener/{amqp}",
    "health/checks/protocol-listener/protocol": "health/checks/protocol-listener/amqp",
    "health/checks/virtual-hosts": "health/checks/virtual-hosts",
    "health/checks/node-is-mirror-sync-critical": "health/checks/node-is-mirror-sync-critical",
    "health/checks/node-is-quorum-critical": "health/checks/node-is-quorum-critical",
    "vhost-limits": "vhost-limits",
    "vhost-limits/vhost": "vhost-limits/%2F vhost-limits/v",
    "auth": "auth",
    "federation-links": None,
    "auth/attempts/node": None,
    "auth/attempts/node/source": None,
}
# Fields that name an item among the others of its list.
NAMES = (
    *("vhost", "name", "user", "component", "source", "destination", "destination_type", "routing_key", "arguments"),
    *("exchange", "consumer_tag", "queue", "number", "user_provided_name", "protocol"),
)


class Side:
    """One broker in the rich state."""

    def __init__(self, amqp_port: int, http_port: int) -> None:
        self.amqp_port = amqp_port
        self.http_port = http_port
        self.api = httpx2.Client(
            base_url=f"http://127.0.0.1:{http_port}/api/", auth=("guest", "guest"), trust_env=False, timeout=60
        )
        self.configure()
        self.connections = {
            "orders": self.connect(connection_name="orders"),
            "plain": self.connect(),
            "other": self.connect("ann", "v", connection_name="other"),
        }
        self.work()
        self.until_known()

    def put(self, path: str, **content: object) -> None:
        answer = self.api.put(path, json=content)
        assert answer.is_success, f"{path}: {answer.text}"

    def configure(self) -> None:
        self.put("vhosts/v", description="the other one", tags="production,north")
        self.put("users/ann", password="secret", tags="monitoring,policymaker")
        self.put("users/bare", password_hash="", tags="")
        for vhost in ("%2F", "v"):
            self.put(f"permissions/{vhost}/ann", configure="", write=".*", read=".*")
        self.put("permissions/v/ann", configure=".*", write=".*", read=".*")
        self.put("topic-permissions/%2F/ann", exchange="amq.topic", write="^a", read="^b")
        self.put("vhost-limits/%2F/max-connections", value=100)
        self.put("vhost-limits/%2F/max-queues", value=1000)
        self.put("user-limits/ann/max-channels", value=50)
        self.put("global-parameters/region", value={"name": "north"})
        policy: dict[str, Any] = {"pattern": "^(cq|ttl)$", "apply-to": "queues", "priority": 2}
        self.put("policies/%2F/p", **policy, definition={"max-length": 50, "dead-letter-exchange": "amq.fanout"})
        self.put("policies/v/all", pattern=".*", definition={"alternate-exchange": "amq.fanout"})
        self.put("operator-policies/%2F/op", **policy, definition={"max-length": 40})

    def connect(self, user: str = "guest", vhost: str = "/", **properties: str) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, "guest" if user == "guest" else "secret")
        parameters = pika.ConnectionParameters("127.0.0.1", self.amqp_port, vhost, credentials, heartbeat=0)
        parameters.client_properties = properties or None
        return pika.BlockingConnection(parameters)

    def work(self) -> None:
        channel = self.connections["orders"].channel()
        durable = {
            "cq": {"x-max-length": 100},
            "qq": {"x-queue-type": "quorum", "x-delivery-limit": 7},
            "st": {"x-queue-type": "stream", "x-max-age": "1D"},
            "pq": {"x-max-priority": 5},
            "sac": {"x-single-active-consumer": True},
            "ttl": {
                "x-message-ttl": 1,
                "x-expires": 3_600_000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "dead",
            },
            "dead": {},
            "idle": {},
        }
        for name, arguments in durable.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_declare("ex", exclusive=True)
        channel.queue_declare("gone", auto_delete=True)
        channel.exchange_declare("t", "topic", durable=True)
        channel.exchange_declare("h", "headers", arguments={"alternate-exchange": "amq.fanout"})
        channel.exchange_declare("i", "fanout", auto_delete=True, internal=True)
        channel.queue_bind("cq", "t", "a.*")
        channel.queue_bind("cq", "t", "a.*", arguments={"x": 1})
        channel.queue_bind("cq", "h", "", arguments={"x-match": "any", "n": 7, "deep": {"list": [1, "two"]}})
        channel.queue_bind("st", "t", "b.#")
        channel.queue_bind("dead", "amq.fanout")
        channel.exchange_bind("t", "amq.fanout", "k")
        channel.exchange_bind("i", "t", "#", arguments={"why": "not"})
        self.publish(channel)
        self.consume(channel)
        held = self.connections["orders"].channel()  # 2
        held.basic_get("cq")
        held.basic_get("pq")
        committed = self.connections["orders"].channel()  # 3
        committed.tx_select()
        committed.basic_publish("", "cq", b"uncommitted")
        elsewhere = self.connections["other"].channel()
        elsewhere.queue_declare("q", durable=True)
        elsewhere.basic_publish("", "q", b"x")

    def publish(self, channel: Any) -> None:
        channel.confirm_delivery()
        headers = {"a": 1, "deep": {"list": [7, "x", None, True]}}
        properties = pika.BasicProperties("text/plain", delivery_mode=2, timestamp=1_700_000_000, headers=headers)
        for name in ("cq", "qq", "st", "pq", "sac", "ttl", "ex"):
            for _ in range(5):
                channel.basic_publish("", name, b"x" * 10, properties)
        channel.basic_publish("t", "a.b", b"routed", properties)

    def consume(self, channel: Any) -> None:
        def ignore(*_: object) -> None:
            """Hold the message."""

        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("cq", ignore, consumer_tag="holds", arguments={"x-priority": 3})
        channel.basic_consume("qq", lambda to, method, *_: to.basic_ack(method.delivery_tag), consumer_tag="acks")
        channel.basic_consume("ex", ignore, auto_ack=True, consumer_tag="auto")
        channel.basic_consume("st", ignore, consumer_tag="stream", arguments={"x-stream-offset": "first"})
        channel.basic_consume("pq", ignore, exclusive=True, consumer_tag="alone")
        channel.basic_consume("sac", ignore, consumer_tag="active")
        other = self.connections["plain"].channel()
        other.basic_qos(prefetch_count=3, global_qos=True)
        other.basic_consume("sac", ignore, consumer_tag="waits")

    def until_known(self, seconds: float = 90) -> None:
        """RabbitMQ tells its statistics late, in no order: wait until its answers stay as they are."""
        deadline, same, before = time.monotonic() + seconds, 0, ""
        while same < 12:
            assert time.monotonic() < deadline, "the statistics do not come to rest"
            for connection in self.connections.values():
                connection.process_data_events(0.2)
            rows = [self.api.get(path).json() for path in ("queues", "channels", "connections", "consumers", "vhosts")]
            now = json.dumps([sorted(str(shape_of(each)) for each in row) for row in rows])
            known = all("client_properties" in each for each in rows[2]) and len(rows[2]) == len(self.connections)
            same, before = same + 1 if known and now == before else 0, now

    def answers(self) -> dict[str, Any]:
        """The answers by path, with a name of the test in the place of each name that a run or a broker makes up."""
        names = self.client_names()
        node = self.api.get("overview").json()["node"]
        places = {name: quote(value) for name, value in names.items()}
        found = {}
        for path in (path for paths in PATHS.values() for path in (paths or "").split()):
            answer = self.api.get(path.format(node=node, amqp=self.amqp_port, **places))
            text = answer.text
            for name, value in (*names.items(), ("node", node)):
                text = text.replace(value, name)
            for port in (self.http_port, self.amqp_port):
                text = re.sub(rf"\b{port}\b", "5672", text)
            found[path] = {"status": answer.status_code, "answer": json.loads(text) if text else None}
        return found

    def client_names(self) -> dict[str, str]:
        rows = self.api.get("connections").json()
        return {each["client_properties"].get("connection_name", "plain"): each["name"] for each in rows}

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.api.close()


def shape_of(value: Any) -> object:
    if isinstance(value, dict):
        return {name: shape_of(each) for name, each in sorted(value.items())}
    return [shape_of(each) for each in value] if isinstance(value, list) else type(value).__name__


@pytest.fixture(scope="module")
def sides(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Side, Side]]:
    broker = RunningBroker(tmp_path_factory.mktemp("ours"))
    peer = start_management(Path(tmp_path_factory.mktemp("rabbitmq")))
    try:
        theirs, ours = Side(peer.port, peer.http_port), Side(broker.amqp_port, broker.http_port)
        yield theirs, ours
        theirs.close()
        ours.close()
    finally:
        peer.stop()
        broker.stop()


KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    type(None): "null",
    dict: "object",
    list: "list",
}


class Comparison:
    """Collects the differences of answers. `at` in them: the path's first word and the fields down to the value."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def compare(self, path: str, at: str, theirs: Any, ours: Any) -> None:
        if PATTERN.search(at) or OTHERWISE.search(at):
            return
        kinds = KINDS.get(type(theirs), "list"), KINDS.get(type(ours), "list")
        if kinds[0] != kinds[1]:
            self.wrong.append(f"{path}: {at} is {kinds[1]} {ours!r}, not {theirs!r}"[:300])
        elif isinstance(theirs, dict):
            for name, value in theirs.items():
                inner = f"{at}.{name}"
                if name == "active" and "x-stream-offset" in theirs["arguments"]:
                    inner += " of a stream"
                if name in ours:
                    self.compare(path, inner, value, ours[name])
                elif not (PATTERN.search(inner) or OTHERWISE.search(inner)):
                    self.wrong.append(f"{path}: {inner} is missing: {value!r}"[:300])
        elif isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
            twins = {identity(each): each for each in ours}
            for each in theirs:
                key = identity(each)
                if key in twins:
                    self.compare(path, f"{at}[]", each, twins[key])
                elif not OTHERWISE.search(f"{at}[] lacks {key}"):
                    self.wrong.append(f"{path}: {at}[] lacks {key}"[:300])
        elif theirs != ours and not VARIES.search(at):
            self.wrong.append(f"{path}: {at} is {ours!r}, not {theirs!r}"[:300])


def kind_of(path: str) -> str:
    """The things that a path is about."""
    first, *rest = path.split("/")
    if first == "definitions" and rest:
        return "definitions of one"
    return rest[-1] if rest and rest[-1] in PATHS else first


def identity(item: Any) -> str:
    return json.dumps([item.get(name) for name in NAMES], sort_keys=True) if isinstance(item, dict) else str(item)


def test_every_field_is_rabbitmqs(sides: tuple[Side, Side]) -> None:
    theirs, ours = (side.answers() for side in sides)
    found = Comparison()
    for path, expected in theirs.items():
        found.compare(path, kind_of(path), expected, ours[path])
    assert not found.wrong, f"\n{len(found.wrong)}:\n" + "\n".join(found.wrong)


def test_every_path_that_rabbitmq_lists_is_asked_for(sides: tuple[Side, Side]) -> None:
    page = httpx2.get(f"http://127.0.0.1:{sides[0].http_port}/api/index.html", auth=("guest", "guest")).text
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    gets = [re.sub("<[^>]*>", "", row[4]).split() for row in rows if len(row) > 4 and row[0].strip() == "X"]
    assert {each[0].removeprefix("/api/") for each in gets} == PATHS.keys()
