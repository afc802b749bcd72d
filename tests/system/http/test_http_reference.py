"""The reference of the HTTP API (B-52): every operation of a broker at work answers as /api/openapi.json says."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any
from urllib.parse import quote

import httpx2
import pika
import pytest
from jsonschema import Draft202012Validator

from tests.support.reference_document import Reference
from tests.support.running import RunningBroker

ARGUMENTS = {"x-max-length": 100, "x-dead-letter-exchange": "amq.fanout"}
RESTORED = {"time": "mark:mark", "only": "all", "to": "back", "name": "once", "dry_run": False}
# What stands for the names in paths. A path's own come first.
NAMES = {
    "vhost": "/",
    "queue": "work",
    "exchange": "topics",
    "kind": "q",
    "destination": "work",
    "user": "guest",
    "partition": "queues-0",
    "position": "1",
    "component": "operator_policy",
    "file": "_00000000000000000000.seal",
    "limit": "vm_memory_high_watermark",
    "password": "secret",
    "port": "1",
    "protocol": "amqp",
    "within": "1",
    "unit": "weeks",
    "subject": "nobody",
}
NAMES_OF = {
    "/api/marks/{name}": {"name": "mark"},
    "/api/policies/{vhost}/{name}": {"name": "policy"},
    "/api/policies/{vhost}/{name}/effects": {"name": "policy"},
    "/api/operator-policies/{vhost}/{name}": {"name": "operator"},
    "/api/operator-policies/{vhost}/{name}/effects": {"name": "operator"},
    "/api/parameters/{component}/{vhost}/{name}": {"name": "parameter"},
    "/api/global-parameters/{name}": {"name": "global"},
    "/api/vhost-limits/{vhost}/{name}": {"name": "max-queues"},
    "/api/user-limits/{user}/{name}": {"name": "max-channels"},
    "/api/feature-flags/{name}/enable": {"name": "quorum_queue"},
    "/api/queues/quorum/{vhost}/{queue}/status": {"queue": "quorum"},
    "/api/queues/quorum/{vhost}/{queue}/leader": {"queue": "quorum"},
    "/api/queues/quorum/{vhost}/{queue}/replicas/add": {"queue": "quorum"},
    "/api/queues/quorum/{vhost}/{queue}/replicas/delete": {"queue": "quorum"},
    "/api/followers/{name}": {"name": "follower"},
    "/api/followers/{name}/fetch": {"name": "follower"},
    "/api/users/{user}": {"user": "another"},
    "/api/permissions/{vhost}/{user}": {"user": "plain"},
    "/api/topic-permissions/{vhost}/{user}": {"user": "plain"},
    "/api/topic-permissions/{vhost}/{user}/{exchange}": {"user": "another"},
    "/api/user-limits/{user}": {"user": "plain"},
}
CHANGED = {  # names of things that a change makes, or takes away
    "/api/vhosts/{vhost}": {"vhost": "spare"},
    "/api/queues/{vhost}/{queue}": {"queue": "spare"},
    "/api/exchanges/{vhost}/{exchange}": {"exchange": "spare"},
    "/api/connections/username/{user}": {"user": "plain"},
}
PATTERNS = {"configure": "", "write": ".*", "read": ".*"}
POLICY = {"pattern": "^spare", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
MEMBER = {"node": "1"}
BODIES: dict[tuple[str, str], Any] = {
    ("PUT", "/api/nodes/{node}/limits/{limit}"): {"value": "0.5"},
    ("PUT", "/api/nodes/{node}/log-level"): {"level": "info"},
    ("PUT", "/api/cluster-name"): {"name": "cluster"},
    ("PUT", "/api/vhosts/{vhost}"): {
        "description": "d",
        "tags": ["a"],
        "default_queue_type": "quorum",
        "tracing": True,
    },
    ("PUT", "/api/vhost-limits/{vhost}/{name}"): {"value": 100},
    ("PUT", "/api/user-limits/{user}/{name}"): {"value": 100},
    ("POST", "/api/users/bulk-delete"): {"users": ["nosuch"]},
    ("PUT", "/api/users/{user}"): {"password": "p", "tags": "monitoring,policymaker", "permissions": {"/": PATTERNS}},
    ("PUT", "/api/permissions/{vhost}/{user}"): PATTERNS,
    ("PUT", "/api/topic-permissions/{vhost}/{user}"): {"exchange": "topics", "write": ".*", "read": ".*"},
    ("POST", "/api/definitions"): {"queues": [{"name": "imported", "vhost": "/", "durable": True}]},
    ("POST", "/api/definitions/{vhost}"): {"queues": [{"name": "imported", "durable": True}]},
    ("POST", "/api/all-configuration"): {"queues": []},
    ("PUT", "/api/parameters/{component}/{vhost}/{name}"): {"value": POLICY},
    ("PUT", "/api/global-parameters/{name}"): {"value": {"any": [1]}},
    ("PUT", "/api/marks/{name}"): {"note": "before"},
    ("PUT", "/api/queues/{vhost}/{queue}"): {"durable": True, "auto_delete": False, "arguments": {"x-expires": 60_000}},
    ("POST", "/api/queues/{vhost}/{queue}/get"): {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"},
    ("POST", "/api/queues/{vhost}/{queue}/actions"): {"action": "sync"},
    ("POST", "/api/queues/{vhost}/{queue}/restore"): RESTORED,
    ("POST", "/api/vhosts/{vhost}/restore-unrouted"): {"exchange": "amq.topic", "since": "-1h"},
    ("POST", "/api/queues/{vhost}/{queue}/messages/remove"): {"messages": [999_999], "reason": "why"},
    ("POST", "/api/queues/{vhost}/{queue}/messages/move"): {"messages": [999_999], "to": "back"},
    ("PUT", "/api/queues/{vhost}/{queue}/pause"): {"reason": "why"},
    ("POST", "/api/queues/quorum/{vhost}/{queue}/leader"): MEMBER,
    ("POST", "/api/queues/quorum/{vhost}/{queue}/replicas/add"): MEMBER,
    ("DELETE", "/api/queues/quorum/{vhost}/{queue}/replicas/delete"): MEMBER,
    ("POST", "/api/queues/quorum/replicas/on/{node}/grow"): {
        "strategy": "all",
        "queue_pattern": ".*",
        "vhost_pattern": ".*",
    },
    ("POST", "/api/rebalance/queues"): {"queue_pattern": ".*"},
    ("DELETE", "/api/subjects/{subject}"): {"reason": "asked"},
    ("PUT", "/api/exchanges/{vhost}/{exchange}"): {"type": "direct", "durable": True, "arguments": {}},
    ("POST", "/api/exchanges/{vhost}/{exchange}/publish"): {
        "properties": {"headers": {"a": 1}},
        "routing_key": "a.b",
        "payload": "text",
        "payload_encoding": "string",
    },
    ("POST", "/api/bindings/{vhost}/e/{exchange}/{kind}/{destination}"): {"routing_key": "made", "arguments": {"x": 1}},
    ("PUT", "/api/policies/{vhost}/{name}"): POLICY,
    ("PUT", "/api/operator-policies/{vhost}/{name}"): {"pattern": "^spare", "definition": {"max-length": 9}},
    ("PUT", "/api/followers/{name}"): {"instance": "copy", "root": None, "lineage": [], "ends": {}, "newer": []},
    ("POST", "/api/followers/{name}/fetch"): {"token": "none", "at": {"queues-0": [0, 0, 0, ""]}, "most": 1},
    ("POST", "/api/leader/keys"): {"ids": ["none"]},
    ("POST", "/api/repartition"): {"partitions": 3},
    ("POST", "/api/login"): {"username": "guest", "password": "guest"},
}
TRIED = {"pattern": "^work$", "definition": '{"max-length": 1}', "priority": "1", "apply-to": "queues", "limit": "5"}
QUERIES: dict[str, list[dict[str, Any]]] = {
    "/api/overview": [{}, {"disable_stats": "true", "enable_queue_totals": "true"}, {"columns": "log"}],
    "/api/queues": [{}, {"disable_stats": "true"}, {"disable_stats": "true", "enable_queue_totals": "true"}],
    "/api/queues/{vhost}/{queue}/at": [{"time": "-0s", "count": "5"}, {"offset": "4", "first": "1", "truncate": "3"}],
    "/api/history/find/{vhost}": [{"message_id": "m-1"}, {"body": "text", "limit": "2"}],
    "/api/history/find/{vhost}/{queue}": [{"header": "a=1", "since": "2020-01-01T00:00:00Z", "truncate": "2"}],
    "/api/history/outcomes/{vhost}/{queue}": [{"tail": "50"}],
    "/api/history/diff/{vhost}/{queue}": [{"from": "-1h", "to": "-0s", "limit": "3"}],
    "/api/history/depth/{vhost}/{queue}": [{"from": "-1h", "points": "5"}],
    "/api/history/what-if/{vhost}/{queue}": [{"policy": '{"max-length": 1}', "from": "-1h"}],
    "/api/history/traces/{vhost}": [{"since": "2020-01-01T00:00:00Z"}],
    "/api/history/traces/{vhost}/{queue}": [{"since": "2020-01-01T00:00:00Z"}],
    "/api/policies/{vhost}/{name}/effects": [TRIED, {"clear": "true"}],
    "/api/operator-policies/{vhost}/{name}/effects": [TRIED, {"clear": "true"}],
    "/api/quarantine": [{"partition": "queues-0", "count": "5"}],
    "/api/seals/{partition}/check": [{"next": "0"}],
    "/api/live/queues": [{"page": "1"}],
    "/api/live/queues/{vhost}": [{"page": "1"}],
    "/api/definitions": [{"download": "all.json"}],
    "/metrics/detailed": [{"family": ["queue_metrics", "vhost_status"], "vhost": "/", "queue": "work"}],
}
# Operations that refuse here, with the only status that fits a log in the data directory.
REFUSED = {
    ("GET", "/api/state"): 400,
    ("GET", "/api/leader/files/{partition}/{file}"): 404,
    ("POST", "/api/followers/{name}/fetch"): 409,
    ("POST", "/api/repartition"): 400,  # a follower copies the log
    ("DELETE", "/api/queues/{vhost}/{queue}/restore"): 404,
    ("DELETE", "/api/queues/{vhost}/{queue}/messages/{id}"): 404,
    ("POST", "/api/queues/quorum/{vhost}/{queue}/leader"): 501,
    ("POST", "/api/queues/quorum/{vhost}/{queue}/replicas/add"): 501,
    ("DELETE", "/api/queues/quorum/{vhost}/{queue}/replicas/delete"): 501,
    ("POST", "/api/queues/quorum/replicas/on/{node}/grow"): 501,
    ("DELETE", "/api/queues/quorum/replicas/on/{node}/shrink"): 501,
    ("GET", "/api/health/checks/port-listener/{port}"): 503,
    ("DELETE", "/api/subjects/{subject}"): 404,
}
# A wrong login takes the hash of a password, and it is one rule for each kind of route.
WITH_LOGIN = ("/api/overview", "/api/live/overview", "/api/definitions", "/metrics", "/metrics/per-object")
# Further names for a path: things that have other fields.
OTHERS = {
    "/api/queues/{vhost}/{queue}": [{"queue": name} for name in ("levels", "mine", "stream")],
    "/api/exchanges/{vhost}/{exchange}": [{"exchange": "later"}],
    "/api/history/depth/{vhost}/{queue}": [{"queue": "back"}],
}
# Optional fields that no answer has here. A field that is in none of these has to be seen.
WITH_NODES = {  # of sessions and partitions of other nodes
    "ChannelDetails.session_id",
    "ListedConsumer.counters_age_ms",
    "Queue.counters_age_ms",
    "QueueWithConsumers.counters_age_ms",
}
OF_DELAYED_RETRY = {
    f"{view}.{name}" for view in ("Queue", "QueueWithConsumers") for name in ("next_delayed_at", "last_delayed_at")
}
OF_HEALTH = {"Failed.alarms", "Failed.expired", "Failed.protocols", "Failed.queues", "Passed.port"}
BAD_BYTES = {"Properties.undecodable"}
OF_UNROUTED = {"BiographyMessage.unrouted", "FoundMessage.unrouted"}
NOT_OF_QUESTIONS = WITH_NODES | OF_DELAYED_RETRY | OF_HEALTH | BAD_BYTES | OF_UNROUTED
NOT_OF_CHANGES = BAD_BYTES | {"ByKafka.command", "ByKafka.partitions", "ByKafka.reassignment"}
CLOSING = ("/api/nodes/{node}/app/stop", "/api/nodes/{node}/listeners/suspend")


class World:
    """A broker at work: clients that publish and consume, and one of each thing that an operator makes."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.api = httpx2.Client(base_url=broker.http_url, auth=("guest", "guest"), trust_env=False)
        named = {"connection_name": "world"}
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(broker.host, broker.amqp_port, client_properties=named)
        )
        self._make()
        self._publish()
        self.reference = Reference(self.api.get("/api/openapi.json").json())

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):  # the last test closed it from the other side
            self.connection.close()
        self.api.close()

    def reconnect(self) -> None:
        """Connects again, after the broker closed all connections."""
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(self.broker.host, self.broker.amqp_port))
        vars(self).pop("connection_name", None)

    def _make(self) -> None:
        channel = self.connection.channel()
        channel.exchange_declare("topics", "topic", durable=True)
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_declare("work", durable=True, arguments=ARGUMENTS)
        for name, kind in (("quorum", "quorum"), ("stream", "stream"), ("back", "classic")):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare(
            "levels", durable=True, arguments={"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3"}
        )
        channel.queue_bind("work", "topics", "a.#", arguments={"x": 1})
        channel.queue_bind("quorum", "amq.fanout")
        for path, body in (
            ("users/plain", {"password": "plain", "tags": ""}),
            ("users/another", {"password": "another", "tags": "monitoring"}),
            ("permissions/%2F/plain", PATTERNS),
            ("topic-permissions/%2F/plain", {"exchange": "topics", "write": ".*", "read": ".*"}),
            ("topic-permissions/%2F/another", {"exchange": "topics", "write": ".*", "read": ".*"}),
            ("policies/%2F/policy", {"pattern": "^work$", "definition": {"message-ttl": 100_000}}),
            ("operator-policies/%2F/operator", {"pattern": "^work$", "definition": {"max-length": 500}}),
            ("parameters/operator_policy/%2F/parameter", {"value": POLICY}),
            ("global-parameters/global", {"value": 1}),
            ("vhost-limits/%2F/max-queues", {"value": 50}),
            ("user-limits/plain/max-channels", {"value": 50}),
            ("marks/mark", {"note": "n"}),
            ("vhosts/typed", {"default_queue_type": "quorum"}),
        ):
            assert self.api.put(f"/api/{path}", json=body).is_success, path

    def _publish(self) -> None:
        channel = self.connection.channel()
        channel.confirm_delivery()
        headers = {"a": 1, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        properties = pika.BasicProperties(
            *("text/plain", "utf-8", headers, 2, 3, "c-1", "reply", "60000", "m-1", 1_700_000_000, "kind", "guest"),
            *("app", "cluster"),
        )
        for queue in ("work", "quorum", "stream", "levels"):
            for body in (b"text", b"\xff\xfe"):
                channel.basic_publish("", queue, body, properties)
        channel.basic_publish("topics", "a.b", b"x" * 200)
        channel.basic_publish("", "back", b"purged")
        channel.queue_purge("back")
        channel.basic_publish("later", "k", b"", pika.BasicProperties(headers={"x-delay": 50_000}))
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("quorum", lambda *message: None, consumer_tag="one", arguments={"x-priority": 1})
        method, _, _ = channel.basic_get("work")
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.basic_get("work")  # it stays with the client
        self.connection.process_data_events(0.1)

    def names(self, path: str, changing: bool) -> dict[str, str]:
        """Return the values for the names in a path. `changing`: those for an operation that changes something."""
        found = NAMES | {"node": self.node, "id": "999999", "message": self.message, "key": self.key}
        if path.startswith("/api/connections/{name}"):
            found["name"] = self.connection_name
        if path.startswith("/api/channels/"):
            found["name"] = f"{self.connection_name} (2)"
        return found | NAMES_OF.get(path, {}) | (CHANGED.get(path, {}) if changing else {})

    @cached_property
    def node(self) -> str:
        return str(self.api.get("/api/overview").json()["node"])

    @cached_property
    def message(self) -> str:
        (found, *_) = self.api.get("/api/history/find/%2F/work", params={"body": "text"}).json()["messages"]
        return str(found["message"])

    @cached_property
    def key(self) -> str:
        (found, *_) = self.api.get("/api/bindings/%2F/e/topics/q/work").json()
        return str(found["properties_key"])

    @cached_property
    def connection_name(self) -> str:
        (found,) = self.api.get("/api/connections").json()
        return str(found["name"])

    def address(self, path: str, names: dict[str, str]) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: quote(names[found[1]], safe=""), path)

    def faults(self, method: str, address: str, operation: dict[str, Any], **request: Any) -> tuple[int, list[str]]:
        """The status of an answer, and what is wrong with it."""
        with self.api.stream(method, address, **request) as answer:
            if answer.headers.get("content-type") == "text/event-stream":
                text = next(answer.iter_bytes())
            else:
                text = answer.read()
            told = f"{method} {answer.request.url}: {answer.status_code}: "
            return answer.status_code, [
                told + each for each in self.reference.faults_of_answer(operation, answer, text)
            ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    archive = tmp_path_factory.mktemp("archive")
    options = ("--archive", f"file://{archive}", "--keep-history", "400d", "--keep-bodies", "30d")
    broker = RunningBroker(tmp_path_factory.mktemp("broker"), *options)
    found = World(broker)
    yield found
    found.close()
    assert broker.stop() == 0, "".join(broker.errors)


def unwanted(method: str, path: str, status: int) -> list[str]:
    """A refusal where an answer was expected."""
    wanted = REFUSED.get((method, path))
    fits = status == wanted if wanted is not None else status < 400
    return [] if fits else [f"{method} {path}: status {status}"]


def test_b52_the_document_is_sound(world: World) -> None:
    """No login is needed. Each schema is one, each reference leads somewhere, and names are unique."""
    open_to_all = httpx2.get(f"{world.broker.http_url}/api/openapi.json", trust_env=False)
    assert open_to_all.status_code == 200
    document = open_to_all.json()
    assert document["openapi"].startswith("3.1.")
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))):
        assert world.reference.resolved({"$ref": reference})
    operations = [each for _, _, each in world.reference.operations()]
    assert len({each["operationId"] for each in operations}) == len(operations) > 180
    for _, path, each in world.reference.operations():
        named = {world.reference.resolved(one)["name"] for one in each.get("parameters", ())}
        assert set(re.findall(r"\{(\w+)\}", path)) <= named, path


def test_b52_every_question_is_answered_as_the_document_says(world: World) -> None:
    found: list[str] = []
    for method, path, operation in world.reference.operations():
        if method != "GET":
            continue
        addresses = [world.address(path, world.names(path, False) | others) for others in [{}, *OTHERS.get(path, ())]]
        queries = [*QUERIES.get(path, [{}])]
        if any(world.reference.resolved(each)["name"] == "page" for each in operation.get("parameters", ())):
            queries.append({"page": "1", "page_size": "3", "sort": "name"})
        for address, query in product(addresses, queries):
            status, faults = world.faults(method, address, operation, params=query)
            required = "columns" not in query
            found += [each for each in faults if required or "required" not in each]
            found += unwanted(method, path, status)
    assert not found, "\n".join(found)
    questions = [each for method, _, each in world.reference.operations() if method == "GET"]
    assert world.reference.never_seen(questions) == NOT_OF_QUESTIONS


@pytest.mark.long
def test_b52_every_error_is_as_the_document_says(world: World) -> None:
    """Names that do not exist, users that lack the tag, an unknown login."""
    found: list[str] = []
    for method, path, operation in world.reference.operations():
        body = {"json": BODIES[method, path]} if (method, path) in BODIES else {}
        if "{" in path:
            names = dict.fromkeys(NAMES, "nosuch") | {
                "id": "x",
                "name": "no such",
                "message": "x",
                "key": "x",
                "node": "x",
            }
            address = world.address(path, names)
            changes_nothing = method == "GET" or path.count("{") > 1
            if changes_nothing:
                found += world.faults(method, address, operation, **body)[1]
        address = world.address(path, world.names(path, True))
        if path in WITH_LOGIN:
            status, faults = world.faults(method, address, operation, auth=("guest", "wrong"), **body)
            found += faults + ([f"{method} {path}: a wrong password has {status}"] if status != 401 else [])
        if "x-user-tag" in operation:
            status, faults = world.faults(method, address, operation, auth=("plain", "plain"), **body)
            found += faults + ([f"{method} {path}: a user without tags has {status}"] if status != 401 else [])
    assert not found, "\n".join(found)


def test_b52_every_change_is_answered_as_the_document_says(world: World) -> None:
    """The last test: it deletes. Things are made, changed, then deleted. Some answers are like those to questions."""
    order = {"PUT": 0, "POST": 1, "DELETE": 2}
    changes = [each for each in world.reference.operations() if each[0] in order]
    found: list[str] = []
    for method, path, operation in sorted(changes, key=lambda each: (order[each[0]], -len(each[1]))):
        request: dict[str, Any] = {}
        if (method, path) in BODIES:
            request["json"] = BODIES[method, path]
            found += [
                f"{method} {path}: body {each}" for each in world.reference.faults_of_body(operation, request["json"])
            ]
        elif "requestBody" in operation:
            found.append(f"{method} {path}: no body is tried")
        names = world.names(path, True)
        status, faults = world.faults(method, world.address(path, names), operation, **request)
        found += faults + unwanted(method, path, status)
        if path in CLOSING:
            assert world.api.post(f"/api/nodes/{world.node}/app/start").status_code == 204
            world.reconnect()
    assert not found, "\n".join(found)
    assert world.reference.never_seen(each for _, _, each in changes) == NOT_OF_CHANGES
