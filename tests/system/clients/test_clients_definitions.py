"""Definitions between RewindMQ and a real RabbitMQ (Debian's 3.10.8, with its management plugin), both ways."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from tests.clients.brokers import running
from tests.support.debian_unstable import NotInstalled
from tests.support.definitions import CATEGORIES, WHOLE
from tests.support.needs import require
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

SECONDS = 60


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[tuple[httpx2.Client, int]]:
    try:
        with running("3.13") as broker, api(broker.http_port) as client:
            yield client, broker.port
    except NotInstalled as missing:
        require(False, f"no RabbitMQ to exchange definitions with: {missing}")


@pytest.fixture
def rewindmq(tmp_path: Path) -> Iterator[tuple[httpx2.Client, int]]:
    broker = RunningBroker(tmp_path / "data")
    with api(broker.http_port) as client:
        yield client, broker.amqp_port
    assert broker.stop() == 0


def api(port: int) -> httpx2.Client:
    return httpx2.Client(
        base_url=f"http://127.0.0.1:{port}/api", auth=("guest", "guest"), trust_env=False, timeout=SECONDS
    )


def definitions(client: httpx2.Client) -> dict[str, list[dict[str, Any]]]:
    """By category, what both brokers say of it."""
    found = client.get("/definitions").json()
    found["vhosts"] = [{"name": each["name"]} for each in found["vhosts"]]  # 3.10 exports no more of them
    return {category: sorted(map(in_order, found[category]), key=str) for category in CATEGORIES}


def in_order(item: dict[str, Any]) -> dict[str, Any]:
    value = item.get("value")
    return dict(sorted(item.items())) | ({"value": in_order(value)} if isinstance(value, dict) else {})


def log_in(port: int, user: str, password: str, vhost: str) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost, pika.PlainCredentials(user, password))
    pika.BlockingConnection(parameters).close()


def test_from_rabbitmq_to_rewindmq_and_back(
    rabbitmq: tuple[httpx2.Client, int], rewindmq: tuple[httpx2.Client, int]
) -> None:
    """Every queue, exchange, binding, policy, parameter, user and hash arrives; users log in with their old passwords;
    and what comes back changes nothing."""
    (theirs, their_port), (ours, our_port) = rabbitmq, rewindmq
    users = [{"name": "boss", "password": "secret", "tags": ["administrator"]}, *WHOLE["users"][1:]]
    assert theirs.post("/definitions", json=WHOLE | {"users": users}).status_code == 204
    there = definitions(theirs)
    export = theirs.get("/definitions").json()
    answer = ours.post("/definitions", json=export)
    assert answer.status_code == 204, answer.text
    here = definitions(ours)
    assert here == there
    for port in (their_port, our_port):
        log_in(port, "boss", "secret", "v")
        log_in(port, "moved", "test12", "v")
    answer = theirs.post("/definitions", json=ours.get("/definitions").json())
    assert answer.status_code == 204, answer.text
    assert definitions(theirs) == there


def test_a_user_made_here_is_taken_there_and_needs_a_new_password(
    rabbitmq: tuple[httpx2.Client, int], rewindmq: tuple[httpx2.Client, int]
) -> None:
    (theirs, their_port), (ours, our_port) = rabbitmq, rewindmq
    ours.put("/users/new", json={"password": "secret", "tags": "monitoring"}).raise_for_status()
    ours.put("/permissions/%2F/new", json={"configure": "", "write": "", "read": ""}).raise_for_status()
    log_in(our_port, "new", "secret", "/")
    export = ours.get("/definitions").json()
    export["users"] = [each for each in export["users"] if each["name"] == "new"]  # not its guest
    answer = theirs.post("/definitions", json=export)
    assert answer.status_code == 204, answer.text
    shown = theirs.get("/users/new").json()
    assert (shown["hashing_algorithm"], shown["tags"]) == ("argon2id", ["monitoring"])
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        log_in(their_port, "new", "secret", "/")
    theirs.put("/users/new", json={"password": "secret", "tags": "monitoring"}).raise_for_status()
    log_in(their_port, "new", "secret", "/")
    back = theirs.get("/definitions").json()
    answer = ours.post("/definitions", json={"users": [each for each in back["users"] if each["name"] == "new"]})
    assert answer.status_code == 204, answer.text
    log_in(our_port, "new", "secret", "/")


def test_one_vhost_from_rabbitmq(rabbitmq: tuple[httpx2.Client, int], rewindmq: tuple[httpx2.Client, int]) -> None:
    (theirs, _), (ours, _) = rabbitmq, rewindmq
    theirs.put("/vhosts/part").raise_for_status()
    part = {key: WHOLE[key] for key in ("policies", "queues", "exchanges", "bindings")}
    assert theirs.post("/definitions/part", json=part).status_code == 204
    ours.put("/vhosts/part").raise_for_status()
    answer = ours.post("/definitions/part", json=theirs.get("/definitions/part").json())
    assert answer.status_code == 204, answer.text
    here, there = (client.get("/definitions/part").json() for client in (ours, theirs))
    for category in ("policies", "queues", "exchanges", "bindings"):
        told = [{key: each[key] for key in each if key != "vhost"} for each in there[category]]  # 3.10 says it twice
        assert sorted(map(in_order, here[category]), key=str) == sorted(map(in_order, told), key=str)
