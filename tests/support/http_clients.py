"""httpx2 as a client of the management API, as tests use it."""

from typing import Any

import httpx2

from tests.support.deadlines import SECONDS
from tests.support.running import RunningBroker


def api_client(broker: RunningBroker, user: str = "guest", password: str = "guest") -> httpx2.Client:
    """A client of the broker's /api, as this user."""
    url = f"{broker.http_url}/api"
    return httpx2.Client(base_url=url, auth=(user, password), trust_env=False, timeout=SECONDS)


def publish(api: httpx2.Client, queue: str, payload: str, *, encoding: str = "string", **properties: Any) -> None:
    """Publish through the default exchange. `properties`: of the message."""
    content = {"properties": properties, "routing_key": queue, "payload": payload, "payload_encoding": encoding}
    answer = api.post("/exchanges/%2F/amq.default/publish", json=content)
    assert answer.json() == {"routed": True}


def publish_to(broker: RunningBroker, queue: str, payload: str, **properties: Any) -> None:
    """Publish with a client of its own."""
    with api_client(broker) as api:
        publish(api, queue, payload, **properties)


def find(api: httpx2.Client, where: str, **query: str) -> list[dict[str, Any]]:
    """Search the history. Returns the messages of all its answers."""
    found: list[dict[str, Any]] = []
    while True:
        answer = api.get(f"/history/find/{where}", params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["messages"]
        assert (page["next"] is None) == (page["left"] == 0)
        if page["next"] is None:
            return found
        query["next"] = page["next"]


def history_answer(api: httpx2.Client, where: str, **query: str) -> dict[str, Any]:
    """Ask for a part of the history, and return the answer, which is complete."""
    answer = api.get(f"/history/{where}", params=query)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    assert content["complete"]
    return content


def take(api: httpx2.Client, queue: str, ackmode: str) -> None:
    """Take one message, which must be there."""
    content = {"count": 1, "ackmode": ackmode, "encoding": "auto"}
    assert len(api.post(f"/queues/%2F/{queue}/get", json=content).json()) == 1


def put_queue(broker: RunningBroker, name: str, messages: int = 0) -> None:
    """Declare a durable queue, with this number of messages."""
    with api_client(broker) as api:
        api.put(f"/queues/%2F/{name}", json={"durable": True}).raise_for_status()
        for number in range(messages):
            publish(api, name, f"m{number}")
