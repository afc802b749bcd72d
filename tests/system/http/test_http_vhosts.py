"""Virtual hosts: what they keep apart, and what is kept of them."""

import httpx2

from tests.support.http_clients import api_client
from tests.support.running import RunningBroker


def test_vhosts_keep_their_queues_apart(api: httpx2.Client, name: str) -> None:
    assert api.put(f"/vhosts/{name}").status_code == 201
    assert name in [each["name"] for each in api.get("/vhosts").json()]
    assert api.put(f"/queues/{name}/q", json={"durable": True}).status_code == 201
    assert api.get("/queues/%2F/q").status_code == 404
    assert api.delete(f"/vhosts/{name}").status_code == 204
    assert api.get(f"/queues/{name}").status_code == 404
    assert api.delete(f"/vhosts/{name}").status_code == 404


def test_a_vhosts_metadata(api: httpx2.Client, name: str) -> None:
    asked = {"description": "a test", "tags": "a, b,", "default_queue_type": "quorum"}
    assert api.put(f"/vhosts/{name}", json=asked).status_code == 201
    shown = api.get(f"/vhosts/{name}").json()
    metadata = {"description": "a test", "tags": ["a", "b"], "default_queue_type": "quorum"}
    assert shown == shown | metadata | {"metadata": metadata, "tracing": False, "messages": 0}
    assert api.put(f"/queues/{name}/q", json={"durable": True}).status_code == 201
    assert api.get(f"/queues/{name}/q").json()["type"] == "quorum"
    assert api.put(f"/vhosts/{name}", json={"tags": ["c"]}).status_code == 204, "what it does not say is taken away"
    shown = api.get(f"/vhosts/{name}").json()
    assert shown["metadata"] == {"description": "", "tags": ["c"]}
    assert shown["default_queue_type"] == "undefined"
    assert api.get(f"/queues/{name}/q").status_code == 200
    for wrong in (
        {"default_queue_type": "ring"},
        {"default_queue_type": ["quorum"]},
        {"tags": 5},
        {"description": 5},
        {"tracing": "loud"},
    ):
        assert api.put(f"/vhosts/{name}", json=wrong).status_code == 400, wrong
    assert api.get(f"/permissions/{name}/guest").status_code == 200, "who made it may use it"
    api.delete(f"/vhosts/{name}")


def test_a_vhost_is_running(api: httpx2.Client, name: str) -> None:
    node = api.get("/overview").json()["node"]
    assert api.post(f"/vhosts/%2F/start/{node}").status_code == 204
    assert api.post("/vhosts/%2F/start/elsewhere").status_code == 400
    assert api.post(f"/vhosts/nowhere/start/{node}").status_code == 404


def test_who_sees_which_vhost(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    api.put(f"/vhosts/{name}")
    for tag, sees in (("monitoring", True), ("policymaker", False), ("management", False)):
        api.put(f"/users/{name}", json={"password": "secret", "tags": tag})
        with api_client(broker, name, "secret") as other:
            assert (name in [each["name"] for each in other.get("/vhosts").json()]) == sees, tag
            for path in (f"/queues/{name}", f"/exchanges/{name}", f"/bindings/{name}", f"/policies/{name}"):
                answer = other.get(path)
                reason = "User not authorised to access virtual host"
                assert (answer.status_code, answer.json()["reason"]) == (401, reason), (tag, path)
            assert other.get(f"/vhost-limits/{name}").status_code == (200 if sees else 401)
            assert other.get(f"/consumers/{name}").status_code == (200 if sees else 401)
            refused = other.put(f"/policies/{name}/p", json={"pattern": "x", "definition": {"max-length": 1}})
            assert (refused.status_code, refused.json()["reason"]) == (401, "User not authorised to access object")
    api.delete(f"/users/{name}")
    api.delete(f"/vhosts/{name}")
