"""B-53, B-54. A real RabbitMQ: its shovels and its federation as clients of ours, definitions both ways, our shovel."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.pika_clients import count
from tests.support.running import RunningBroker
from tests.support.shovels import Shovel, channel_at, emptied, fill, firsts, numbers_of
from tests.system.moving.conftest import Ours, Rabbit

pytestmark = pytest.mark.long

MANY = range(1_000)
SLOW = {"src-prefetch-count": 20, "reconnect-delay": 1}


def shovel(rabbit: Rabbit, name: str, source: tuple[str, str], destination: tuple[str, str], **more: Any) -> None:
    """A dynamic shovel of RabbitMQ's plugin. An end: the URI and the queue."""
    ends = {"src-uri": source[0], "src-queue": source[1], "dest-uri": destination[0], "dest-queue": destination[1]}
    protocols = {"src-protocol": "amqp091", "dest-protocol": "amqp091", "ack-mode": "on-confirm"}
    rabbit.api("PUT", f"/parameters/shovel/%2F/{name}", {"value": {**protocols, **ends, **more}})


def is_empty(channel: BlockingChannel, queue: str) -> bool:
    return count(channel, queue) == 0


def until_there(port: int, queue: str, number: int) -> None:
    with channel_at(port) as channel:
        until(lambda: count(channel, queue) >= number, f"{queue} does not get {number} messages")


def test_b53_rabbitmqs_shovel_moves_here_and_back(rabbit: Rabbit, ours: Ours) -> None:
    """Order, properties and headers stay, and its own header comes to them."""
    with channel_at(rabbit.port) as there:
        fill(there, "out", range(200), headers={"n": 1}, correlation_id="c", timestamp=1_700_000_000)
        there.queue_declare("back", durable=True)
    ends = {"src-delete-after": "queue-length", "dest-add-forward-headers": True}
    shovel(rabbit, "out", (rabbit.uri, "out"), (ours.uri, "in"), **ends)
    with channel_at(ours.port) as here:
        here.queue_declare("in", durable=True)
        until(lambda: count(here, "in") == 200, "not all came")
    shovel(rabbit, "back", (ours.uri, "in"), (rabbit.uri, "back"), **ends)
    with channel_at(rabbit.port) as there, channel_at(ours.port) as here:
        until(lambda: count(there, "back") == 200, "not all went back")
        found = emptied(there, "back")
        until(lambda: (count(there, "out"), count(here, "in")) == (0, 0), "some are left")
    assert numbers_of(found) == list(range(200))
    for _, properties, body in found:
        assert [each["shovel-name"] for each in properties.headers.pop("x-shovelled")] == ["back", "out"]
        assert (properties.headers, properties.correlation_id) == ({"n": 1}, "c")
        assert (properties.timestamp, properties.delivery_mode) == (1_700_000_000, 2)
        assert properties.message_id == body.decode()
    until(lambda: rabbit.api("GET", "/parameters/shovel") == [], "the shovels did not end")


def test_b53_b54_four_shovels_lose_nothing_when_either_side_is_killed(
    rabbit: Rabbit, ours: Ours, tmp_path: Path
) -> None:
    """RabbitMQ's plugin and our command, each in both directions, while both brokers are killed and come again."""
    with channel_at(rabbit.port) as there, channel_at(ours.port) as here:
        for channel, other, queues in ((there, here, ("p1", "c1")), (here, there, ("p2", "c2"))):
            for queue in queues:
                fill(channel, queue, MANY)
                other.queue_declare(queue, durable=True)
    shovel(rabbit, "p1", (rabbit.uri, "p1"), (ours.uri, "p1"), **SLOW)
    shovel(rabbit, "p2", (ours.uri, "p2"), (rabbit.uri, "p2"), **SLOW)
    uris = [f"amqp://127.0.0.1:{each.port}" for each in (rabbit, ours)]
    options = ("--prefetch-count", "20")
    commands = [Shovel(tmp_path, uris[0], "c1", uris[1], *options), Shovel(tmp_path, uris[1], "c2", uris[0], *options)]
    ends: dict[str, Ours | Rabbit] = {"p1": ours, "c1": ours, "p2": rabbit, "c2": rabbit}
    for queue, end in ends.items():
        until_there(end.port, queue, 50)
    ours.kill_and_start()
    for queue, end in ends.items():
        until_there(end.port, queue, 300)
    rabbit.kill_and_start()
    for queue, end in ends.items():
        until_there(end.port, queue, len(MANY))
        with channel_at(end.port) as channel, channel_at((rabbit if end is ours else ours).port) as source:
            until(is_empty, f"some are left in {queue}", source, queue)
            found = emptied(channel, queue)
        assert firsts(numbers_of(found)) == list(MANY), queue
    for name in ("p1", "p2"):
        rabbit.api("DELETE", f"/parameters/shovel/%2F/{name}")
    for each in commands:
        assert each.stop() == 0, each.said


def test_b53_rabbitmq_federates_an_exchange_and_a_queue_of_ours(rabbit: Rabbit, ours: Ours) -> None:
    """Ours is the upstream, and is killed in between."""
    with channel_at(ours.port) as here, channel_at(rabbit.port) as there:
        here.exchange_declare("fed.x", "topic", durable=True)
        there.exchange_declare("fed.x", "topic", durable=True)
        there.queue_declare("of fed.x", durable=True)
        there.queue_bind("of fed.x", "fed.x", "a.#")
        fill(here, "fed.q", range(100))
        there.queue_declare("fed.q", durable=True)
    value = {"uri": ours.uri, "reconnect-delay": 1, "expires": 3_600_000, "ack-mode": "on-confirm"}
    rabbit.api("PUT", "/parameters/federation-upstream/%2F/ours", {"value": value})
    definition = {"federation-upstream-set": "all"}
    rabbit.api("PUT", "/policies/%2F/fed", {"pattern": r"^fed\.", "definition": definition, "apply-to": "all"})

    def links(kind: str) -> list[str]:
        return [each["status"] for each in rabbit.api("GET", "/federation-links") if each["type"] == kind]

    until(lambda: links("exchange") == ["running"], "the exchange is not federated")
    with httpx2.Client(auth=("guest", "guest"), trust_env=False) as client:
        exchanges = client.get(f"{ours.process.http_url}/api/exchanges/%2F").json()
    assert "x-federation-upstream" in {each["type"] for each in exchanges}
    received: list[int] = []
    with channel_at(rabbit.port) as there:

        def take(channel: BlockingChannel, method: Any, _: object, body: bytes) -> None:
            received.append(int(body))
            channel.basic_ack(method.delivery_tag)

        def publish(numbers: range) -> None:
            with channel_at(ours.port) as here:
                for number in numbers:
                    here.basic_publish("fed.x", "a.b", b"%d" % number, pika.BasicProperties(delivery_mode=2))
                    here.basic_publish("fed.x", "other", b"0")

        there.basic_qos(prefetch_count=10)
        there.basic_consume("fed.q", take)
        until(lambda: links("queue") == ["running"], "the queue is not federated")
        publish(range(100))
        ours.kill_and_start()
        publish(range(100, 200))
        with channel_at(ours.port) as here:
            for number in range(100, 200):
                here.basic_publish("", "fed.q", b"%d" % number, pika.BasicProperties(delivery_mode=2))

        def all_came() -> bool:
            there.connection.process_data_events(time_limit=0.1)
            return len(set(received)) == 200

        until(all_came, "not all came")
    found: list[Any] = []
    with channel_at(rabbit.port) as there:  # without a prefetch

        def all_of_exchange_came() -> bool:
            found.extend(emptied(there, "of fed.x"))
            return len(set(numbers_of(found))) == 200

        until(all_of_exchange_came, "not all of the exchange came")
    assert firsts(numbers_of(found)) == list(range(200))
    assert firsts(received) == list(range(200))
    hop = found[0][1].headers["x-received-from"][0]
    assert hop["exchange"] == "fed.x"
    assert hop["redelivered"] is False
    rabbit.api("DELETE", "/policies/%2F/fed")
    rabbit.api("DELETE", "/parameters/federation-upstream/%2F/ours")


MOVED = "moved"  # a vhost
QUEUES: dict[str, dict[str, Any]] = {
    "classic": {"x-max-length": 10, "x-overflow": "reject-publish", "x-dead-letter-exchange": "letters"},
    "lazy": {"x-queue-mode": "lazy", "x-message-ttl": 60_000, "x-expires": 3_600_000},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 3},
    "urgent": {"x-max-priority": 5, "x-single-active-consumer": True},
    "log": {"x-queue-type": "stream", "x-max-age": "7D"},
}
PARTS = ("permissions", "topic_permissions", "policies", "queues", "exchanges", "bindings")


def furnish(rabbit: Rabbit) -> None:
    """A vhost with one of everything."""
    rabbit.api("PUT", f"/vhosts/{MOVED}", {"description": "to be moved", "tags": "a"})
    rabbit.api("PUT", "/users/ann", {"password": "secret of ann", "tags": "monitoring"})
    rabbit.api("PUT", f"/permissions/{MOVED}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    rabbit.api("PUT", f"/permissions/{MOVED}/ann", {"configure": "^x", "write": "", "read": "^y"})
    for name, arguments in QUEUES.items():
        rabbit.api("PUT", f"/queues/{MOVED}/{name}", {"durable": True, "arguments": arguments})
    for name, kind, arguments in (
        ("shop", "topic", {"alternate-exchange": "letters"}),
        ("letters", "fanout", {}),
        ("by header", "headers", {}),
        ("inside", "direct", {}),
    ):
        content = {"type": kind, "durable": True, "internal": name == "inside", "arguments": arguments}
        rabbit.api("PUT", f"/exchanges/{MOVED}/{name}", content)
    topics = {"exchange": "shop", "write": "^a", "read": "^b"}  # RabbitMQ 4.3 wants the exchange to be there
    rabbit.api("PUT", f"/topic-permissions/{MOVED}/ann", topics)
    bindings = f"/bindings/{MOVED}/e"
    rabbit.api("POST", f"{bindings}/shop/q/classic", {"routing_key": "a.#", "arguments": {"n": 1}})
    rabbit.api("POST", f"{bindings}/by header/q/quorum", {"routing_key": "", "arguments": {"x-match": "any", "k": "v"}})
    rabbit.api("POST", f"{bindings}/shop/e/inside", {"routing_key": "b.*"})
    for name, definition in (("ttl", {"message-ttl": 1_000}), ("length", {"max-length": 5})):
        content = {"pattern": "^q", "definition": definition, "priority": 2, "apply-to": "queues"}
        rabbit.api("PUT", f"/policies/{MOVED}/{name}", content)
    content = {"pattern": ".*", "definition": {"max-length": 1_000}, "priority": 0, "apply-to": "queues"}
    rabbit.api("PUT", f"/operator-policies/{MOVED}/most", content)
    rabbit.api("PUT", f"/vhost-limits/{MOVED}/max-queues", {"value": 100})


def of_moved(document: dict[str, Any]) -> dict[str, list[str]]:
    """The parts of a document that are in the vhost, in one order for all brokers.

    RabbitMQ 4.3 says the type of a queue also beside its arguments, and `internal` only of an internal exchange."""

    def alike(part: str, each: dict[str, Any]) -> str:
        without_type = {key: value for key, value in each.items() if (part, key) != ("queues", "type")}
        return json.dumps(without_type | ({"internal": False} | each if part == "exchanges" else {}), sort_keys=True)

    return {part: sorted(alike(part, each) for each in document[part] if each["vhost"] == MOVED) for part in PARTS}


def test_b53_definitions_go_both_ways(rabbit: Rabbit, ours: Ours, tmp_path: Path) -> None:
    """By RabbitMQ's management API and by rabbitmqctl, with its shovels and its federation, and back."""
    furnish(rabbit)
    url = {"REWINDMQ_URL": ours.process.http_url}
    file = tmp_path / "definitions.json"

    # rabbitmqctl leaves internal exchanges out, and writes operator policies as pairs. All else can be imported.
    file.write_text(rabbit.exported())
    done = run("import_definitions", str(file), **url)
    said = f"Error: binding of 'shop': there is no exchange 'inside' in vhost '{MOVED}'\n"
    assert (done.returncode, done.stderr) == (65, said)

    federated = {"pattern": "^x", "definition": {"federation-upstream-set": "all"}}
    rabbit.api("PUT", f"/policies/{MOVED}/fed", federated)
    rabbit.api("PUT", f"/parameters/federation-upstream/{MOVED}/ours", {"value": {"uri": ours.uri}})
    shovelled = {"src-uri": rabbit.uri, "src-queue": "classic", "dest-uri": ours.uri, "dest-queue": "classic"}
    rabbit.api("PUT", f"/parameters/shovel/{MOVED}/away", {"value": shovelled})
    document = rabbit.definitions()
    file.write_text(json.dumps(document))
    done = run("import_definitions", str(file), **url)
    assert done.returncode == 65
    for said in (
        "policy 'fed': Validation failed: [{<<\"federation-upstream-set\">>",
        "parameter 'ours': Validation failed; component federation-upstream not found",
        "parameter 'away': Validation failed; component shovel not found",
    ):
        assert said in done.stderr
    document["policies"] = [each for each in document["policies"] if each["name"] != "fed"]
    movers = ("shovel", "federation-upstream")
    document["parameters"] = [each for each in document["parameters"] if each["component"] not in movers]
    file.write_text(json.dumps(document))
    done = run("import_definitions", str(file), **url)
    assert (done.returncode, done.stderr) == (0, "")
    with httpx2.Client(base_url=f"{ours.process.http_url}/api", auth=("ann", "secret of ann"), trust_env=False) as ann:
        assert ann.get("/whoami").json()["name"] == "ann"

    back = tmp_path / "back.json"
    done = run("export_definitions", str(back), **url)
    assert (done.returncode, done.stderr) == (0, "")
    assert of_moved(json.loads(back.read_text())) == of_moved(document)
    rabbit.api("DELETE", f"/vhosts/{MOVED}")
    rabbit.api("DELETE", "/users/ann")
    rabbit.import_from(back.read_text())
    until(lambda: of_moved(rabbit.definitions()) == of_moved(document), "they are not as they were")
    again = {each["name"]: each["password_hash"] for each in rabbit.definitions()["users"]}
    assert again == {each["name"]: each["password_hash"] for each in document["users"]}


def test_b53_what_has_no_place_in_a_rabbitmq_is_named(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = start_broker()
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        api.put("/users/ann", json={"password": "secret", "tags": ""})
        api.put(
            "/queues/%2F/later",
            json={"durable": True, "arguments": {"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3"}},
        )
        api.put("/exchanges/%2F/hash", json={"durable": True, "type": "x-consistent-hash"})
    done = run("export_definitions", str(tmp_path / "out.json"), REWINDMQ_URL=broker.http_url)
    note = "Note for a RabbitMQ that is to import it:"
    assert done.stderr.splitlines() == [
        f"{note} no login there before they get a new password: users ann, guest",
        f"{note} refused there without the plugin of the type: exchanges hash (x-consistent-hash)",
        f"{note} x-semantics decides nothing there: queues later",
    ]
    done = run("export_definitions", "-q", str(tmp_path / "out.json"), REWINDMQ_URL=broker.http_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
