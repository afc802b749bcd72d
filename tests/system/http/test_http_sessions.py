"""HTTP and CLI calls act under sessions of their own; refusals and readings of the past are in the history (B-28)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.forked import run
from tests.support.running import RunningBroker

POLICY = {"pattern": "^q$", "definition": {"max-length": 5}}


def events(broker: RunningBroker, *names: str) -> list[dict[str, Any]]:
    """The events of these kinds, in order of time."""
    done = run("events", "--data", str(broker.data), "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [each for each in found if each["event"] in names]


def sessions(broker: RunningBroker, product: str) -> list[dict[str, Any]]:
    """The sessions of clients that say they are this product."""
    opened = events(broker, "SessionOpened")
    return [each for each in opened if product in json.dumps(each["fields"].get("client_properties"))]


@pytest.fixture
def as_product(broker: RunningBroker, name: str) -> Iterator[httpx2.Client]:
    """A client with a product that no other test has."""
    agent = {"user-agent": f"{name}/1.0"}
    url = f"{broker.http_url}/api"
    with httpx2.Client(base_url=url, auth=("guest", "guest"), trust_env=False, headers=agent) as client:
        yield client


def test_b28_all_calls_of_a_client_act_under_one_session(
    broker: RunningBroker, as_product: httpx2.Client, name: str
) -> None:
    assert as_product.get("/queues").status_code == 200
    assert sessions(broker, name) == [], "a listing changes nothing"
    assert as_product.put(f"/policies/%2F/{name}", json=POLICY).status_code == 201
    assert as_product.put(f"/queues/%2F/{name}", json={"durable": True}).status_code == 201
    publish = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert as_product.post("/exchanges/%2F/amq.default/publish", json=publish).json() == {"routed": True}
    take = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert len(as_product.post(f"/queues/%2F/{name}/get", json=take).json()) == 1
    assert as_product.get(f"/queues/%2F/{name}/get").status_code == 405
    assert as_product.delete(f"/queues/%2F/{name}/contents").headers["x-messages-purged"] == "3"
    [opened] = sessions(broker, name)
    assert opened["user"] == "guest"
    assert opened["fields"]["protocol"] == "http"
    assert opened["fields"]["address"].startswith("127.0.0.1:")
    assert opened["fields"]["listener"] == broker.http_url.removeprefix("http://").replace("localhost", "127.0.0.1")
    kinds = ("PolicySet", "QueueDeclared", "Published", "Fetched", "Nacked", "Purged")
    of_session = [each["event"] for each in events(broker, *kinds) if each["session"] == opened["session"]]
    assert sorted(set(of_session)) == sorted(kinds)
    assert of_session.count("Published") == 3


def test_b28_the_command_line_says_what_it_is(broker: RunningBroker) -> None:
    assert run("set_policy", "cli", "^q$", '{"max-length":5}', REWINDMQ_URL=broker.http_url).returncode == 0
    opened = sessions(broker, "rewindmq-cli")[-1]
    policy = next(each for each in events(broker, "PolicySet") if each["fields"]["name"] == "cli")
    assert policy["session"] == opened["session"]


def test_b28_a_login_over_http_that_is_refused(broker: RunningBroker, name: str) -> None:
    for _ in range(5):
        assert httpx2.get(f"{broker.http_url}/api/queues", auth=(name, "x"), trust_env=False).status_code == 401
    assert httpx2.get(f"{broker.http_url}/metrics", auth=(name + "m", "x"), trust_env=False).status_code == 401
    assert httpx2.get(f"{broker.http_url}/api/queues", trust_env=False).status_code == 401  # a browser asks so at first
    refused = [each["fields"] for each in events(broker, "LoginRefused")]
    assert [(each["user"], each["protocol"], each["count"]) for each in refused if each["user"].startswith(name)] == [
        (name, "http", 1),
        (name + "m", "http", 1),
    ]
    assert "" not in [each["user"] for each in refused]


def test_b28_what_a_user_may_not_do_over_http(broker: RunningBroker, api: httpx2.Client, name: str) -> None:
    assert api.put(f"/users/{name}", json={"password": "p", "tags": "management"}).status_code == 201
    limited = {"configure": "^$", "write": "", "read": ""}
    assert api.put(f"/permissions/%2F/{name}", json=limited).status_code == 201
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "p"), trust_env=False) as client:
        assert client.put(f"/queues/%2F/{name}", json={"durable": True}).status_code == 401
        assert client.put(f"/policies/%2F/{name}", json=POLICY).status_code == 401
    refused = [each for each in events(broker, "AccessRefused") if each["user"] == name]
    assert [(each["fields"]["operation"], each["fields"]["kind"], each["fields"]["name"]) for each in refused] == [
        ("PUT /api/queues/{vhost}/{queue}", "queue", name),
        ("PUT /api/policies/{vhost}/{name}", "", f"/api/policies/%2F/{name}"),
    ]
    [opened] = [each for each in events(broker, "SessionOpened") if each["user"] == name]
    assert {each["session"] for each in refused} == {opened["session"]}


@pytest.mark.long
def test_b28_who_reads_the_past_over_http(broker: RunningBroker, api: httpx2.Client, queue: str) -> None:
    for _ in range(3):
        assert api.get(f"/queues/%2F/{queue}/at?time=-0s").status_code in (200, 404)
    dry = {"undo": "purge", "dry_run": True}
    assert api.post(f"/queues/%2F/{queue}/restore", json=dry).status_code in (200, 400, 404)
    assert api.get(f"/history/find/%2F/{queue}?body=ann@example.org").status_code == 200
    assert api.get(f"/history/outcomes/%2F/{queue}?tail=5").status_code == 200
    read = [each for each in events(broker, "PastRead") if each["fields"]["queue"] == queue]
    assert [(each["fields"]["way"], each["fields"]["request"]) for each in read] == [
        ("GET /api/queues/{vhost}/{queue}/at", "time=-0s"),
        ("POST /api/queues/{vhost}/{queue}/restore", "undo=purge&dry_run=True"),
        ("GET /api/history/find/{vhost}/{queue}", "body"),
        ("GET /api/history/outcomes/{vhost}/{queue}", "tail=5"),
    ]
    assert all(each["partition"].startswith("queues-") and each["session"] for each in read)
