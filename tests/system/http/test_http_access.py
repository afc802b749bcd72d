"""Who may ask what: authentication, users, tags, permissions, vhosts."""

import base64
import socket
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.http_clients import api_client
from tests.support.running import RunningBroker


@pytest.fixture
def user(api: httpx2.Client, name: str) -> Iterator[str]:
    """A user with the password `secret` and the tag management, without permissions."""
    assert api.put(f"/users/{name}", json={"password": "secret", "tags": "management"}).status_code == 201
    yield name
    api.delete(f"/users/{name}")


def test_without_or_with_wrong_credentials(broker: RunningBroker) -> None:
    for headers in (
        {},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic Z3Vlc3Q="},
        {"authorization": "Bearer x"},
    ):
        answer = httpx2.get(f"{broker.http_url}/api/whoami", headers=headers)
        assert answer.status_code == 401
        assert answer.json() == {"error": "not_authorized", "reason": "Login failed"}
        assert answer.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"', "clients compare it"
    with api_client(broker, "guest", "wrong") as wrong:
        assert wrong.get("/whoami").json() == {"error": "not_authorized", "reason": "Login failed"}
    with api_client(broker, "nobody", "secret") as nobody:
        assert nobody.get("/overview").status_code == 401


def test_whoami(api: httpx2.Client, broker: RunningBroker, user: str) -> None:
    assert api.get("/whoami").json()["tags"] == ["administrator"]
    with api_client(broker, user, "secret") as other:
        assert other.get("/whoami").json() == {"name": user, "tags": ["management"], "is_internal_user": True}


def test_without_a_management_tag_nobody_gets_in(api: httpx2.Client, broker: RunningBroker, user: str) -> None:
    assert api.put(f"/users/{user}", json={"keep_password": True, "tags": []}).status_code == 204
    with api_client(broker, user, "secret") as other:
        assert other.get("/whoami").json() == {"error": "not_authorised", "reason": "Not management user"}


def test_only_administrators_change_users_vhosts_and_permissions(
    api: httpx2.Client, broker: RunningBroker, user: str
) -> None:
    api.put(f"/permissions/%2F/{user}", json={"configure": ".*", "write": ".*", "read": ".*"})
    policy = {"pattern": "^never$", "definition": {"max-length": 1}}
    with api_client(broker, user, "secret") as other:
        for method, path, content in (
            ("GET", "/users", None),
            ("PUT", "/users/x", {"tags": ""}),
            ("PUT", "/vhosts/x", {}),
            ("GET", "/permissions", None),
            ("PUT", "/permissions/%2F/guest", {}),
            ("PUT", "/operator-policies/%2F/x", policy),
            ("DELETE", "/users/guest", None),
            ("DELETE", "/vhosts/%2F", None),
            ("GET", "/vhosts/%2F", None),
            ("GET", "/topic-permissions", None),
            ("PUT", "/vhost-limits/%2F/max-queues", {"value": 1}),
            ("DELETE", "/user-limits/guest/all", None),
            ("PUT", "/topic-permissions/%2F/guest", {}),
            ("POST", "/users/bulk-delete", {"users": []}),
        ):
            answer = other.request(method, path, json=content)
            assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user"), (method, path)
        unauthorised: tuple[tuple[str, str, object], ...] = (
            ("PUT", "/policies/%2F/x", policy),
            ("GET", "/parameters", None),
            ("GET", "/global-parameters", None),
            ("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {}}),
        )
        for verb, target, body in unauthorised:
            answer = other.request(verb, target, json=body)
            told = answer.status_code, answer.json()["reason"]
            assert told == (401, "User not authorised to access object"), target
        assert other.get("/nodes").json()["reason"] == "Not monitor user"
        api.put(f"/users/{user}", json={"keep_password": True, "tags": "policymaker"})
        assert other.put("/policies/%2F/x", json=policy).status_code == 201
    api.delete("/policies/%2F/x")


def test_permissions_hold_over_http_as_over_amqp(
    api: httpx2.Client, broker: RunningBroker, user: str, queue: str
) -> None:
    with api_client(broker, user, "secret") as other:
        assert other.get("/queues").json() == []
        refused = other.get("/queues/%2F")
        assert (refused.status_code, refused.json()["reason"]) == (401, "User not authorised to access virtual host")
        assert (
            api.put(f"/permissions/%2F/{user}", json={"configure": "^u", "write": "^u", "read": "^u"}).status_code
            == 201
        )
        assert other.put("/queues/%2F/u1", json={"durable": True}).status_code == 201
        refused = other.put("/queues/%2F/v1", json={"durable": True})
        assert refused.status_code == 401
        assert f"'v1' in vhost '/' refused for user '{user}'" in refused.json()["reason"]
        assert other.delete(f"/queues/%2F/{queue}/contents").status_code == 401
        look = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        assert other.post(f"/queues/%2F/{queue}/get", json=look).status_code == 401
        assert other.get(f"/queues/%2F/{queue}/at", params={"offset": "1"}).status_code == 401
        api.put(f"/permissions/%2F/{user}", json={"configure": "^u", "write": "^u", "read": ""})
        assert other.get(f"/queues/%2F/{queue}/at", params={"offset": "1"}).status_code == 401, "empty: nothing"
        api.put(f"/permissions/%2F/{user}", json={"configure": "^u", "write": "^u", "read": "^u"})
        shown = api.get(f"/permissions/%2F/{user}").json()
        assert shown == {"user": user, "vhost": "/", "configure": "^u", "write": "^u", "read": "^u"}
        assert shown in api.get("/vhosts/%2F/permissions").json()
        assert api.get(f"/users/{user}/permissions").json() == [shown]
        assert api.delete(f"/permissions/%2F/{user}").status_code == 204
        assert other.get("/queues/%2F").status_code == 401
    assert api.delete(f"/permissions/%2F/{user}").status_code == 404


def test_bad_users_and_permissions(api: httpx2.Client, user: str) -> None:
    assert api.put("/users/x", json={"password": "y"}).json()["reason"] == "tags_not_present"
    assert api.put("/users/x", json={"tags": 5}).status_code == 400
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.put("/permissions/%2F/nobody", json=rights).json()["reason"] == "vhost_or_user_not_found"
    assert api.put(f"/permissions/nowhere/{user}", json=rights).json()["reason"] == "vhost_or_user_not_found"
    assert api.put(f"/permissions/%2F/{user}", json=rights | {"read": "("}).status_code == 400
    assert (
        api.put(f"/permissions/%2F/{user}", json={"read": ""}).json()["reason"]
        == "[{key_missing,configure},{key_missing,write}]"
    )


def test_a_changed_password_counts_at_once(api: httpx2.Client, broker: RunningBroker, user: str) -> None:
    with api_client(broker, user, "secret") as before, api_client(broker, user, "other") as after:
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (200, 401)
        api.put(f"/users/{user}", json={"password": "other", "tags": "management"})
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (401, 200)
        api.put(f"/users/{user}", json={"tags": "management"})
        assert after.get("/whoami").status_code == 401
        assert api.get(f"/users/{user}").json()["password_hash"] == ""


def test_a_hash_moves_with_its_user(api: httpx2.Client, broker: RunningBroker, user: str) -> None:
    """RabbitMQ's goes in and out as it is, ours under its own name."""
    ours = api.get(f"/users/{user}").json()
    assert (ours["name"], ours["tags"], ours["limits"]) == (user, ["management"], {})
    assert base64.b64decode(ours["password_hash"])[:10] == b"$argon2id$"
    assert ours["hashing_algorithm"] == "argon2id"
    moved = api.get("/auth/hash_password/hidden").json()["ok"]
    assert api.put(f"/users/{user}", json={"password_hash": moved, "tags": "management"}).status_code == 204
    shown = api.get(f"/users/{user}").json()
    assert (shown["password_hash"], shown["hashing_algorithm"]) == (moved, "rabbit_password_hashing_sha256")
    with api_client(broker, user, "secret") as before, api_client(broker, user, "hidden") as after:
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (401, 200)
        del ours["hashing_algorithm"]  # as tools pass it on
        assert api.put(f"/users/{user}", json=ours).status_code == 204
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (200, 401)
    both = {"password": "x", "password_hash": moved, "tags": ""}
    assert api.put(f"/users/{user}", json=both).json()["reason"] == "both_password_and_password_hash_are_provided"
    assert api.put(f"/users/{user}", json={"password_hash": "?", "tags": ""}).status_code == 400


def test_a_new_user_comes_with_permissions_and_limits(api: httpx2.Client, name: str) -> None:
    rights = {"configure": "^a", "write": "^b", "read": "^c"}
    new = {"password": "x", "tags": " monitoring , ,management", "limits": {"max-channels": 2}}
    wrong = api.put(f"/users/{name}", json=new | {"permissions": {"nowhere": rights}})
    assert (wrong.status_code, wrong.json()["reason"]) == (400, "vhost 'nowhere' of the permissions does not exist")
    assert api.put(f"/users/{name}", json=new | {"limits": {"max-x": 1}}).status_code == 400
    assert api.get(f"/users/{name}").status_code == 404, "nothing of it was done"
    assert name not in api.get("/users/without-permissions").text
    assert api.put(f"/users/{name}", json=new | {"permissions": {"/": rights}}).status_code == 201
    shown = api.get(f"/users/{name}").json()
    assert (shown["tags"], shown["limits"]) == (["monitoring", "management"], {"max-channels": 2})
    assert api.get(f"/users/{name}/permissions").json() == [{"user": name, "vhost": "/", **rights}]
    assert api.put(f"/users/{name}2", json={"administrator": "true"}).status_code == 201
    assert api.get(f"/users/{name}2").json()["tags"] == ["administrator"]
    without = [each["name"] for each in api.get("/users/without-permissions").json()]
    assert f"{name}2" in without
    assert name not in without
    assert api.post("/users/bulk-delete", json={"users": [name, f"{name}2", "nobody"]}).status_code == 204
    assert api.get(f"/users/{name}").status_code == 404
    assert api.post("/users/bulk-delete", json={"users": name}).status_code == 400


def test_topic_permissions(api: httpx2.Client, user: str) -> None:
    first = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    path = f"/topic-permissions/%2F/{user}"
    assert api.get(path).status_code == 404
    assert api.put(path, json=first).status_code == 201
    assert api.put(path, json=first | {"exchange": "x"}).status_code == 204
    shown = [{"user": user, "vhost": "/", **first}, {"user": user, "vhost": "/", **first, "exchange": "x"}]
    assert api.get(path).json() == api.get(f"/users/{user}/topic-permissions").json() == shown
    assert [each for each in api.get("/topic-permissions").json() if each["user"] == user] == shown
    assert [each for each in api.get("/vhosts/%2F/topic-permissions").json() if each["user"] == user] == shown
    assert api.delete(f"{path}/x").status_code == 204
    assert api.delete(f"{path}/x").status_code == 404
    assert api.get(path).json() == shown[:1]
    assert api.put(path, json=first | {"read": "("}).status_code == 400
    assert api.put("/topic-permissions/%2F/nobody", json=first).json()["reason"] == "vhost_or_user_not_found"
    assert api.put(path, json={"exchange": "x"}).json()["reason"] == "[{key_missing,write},{key_missing,read}]"
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


@pytest.mark.parametrize("change", ["deleted", "another password", "no tags"])
def test_rights_that_end_while_a_body_is_sent(broker: RunningBroker, api: httpx2.Client, change: str) -> None:
    """A request that is held open does not keep the rights of its login."""
    api.put("/users/thief", json={"password": "secret", "tags": "administrator"}).raise_for_status()
    body = b'{"password": "x", "tags": "administrator"}'
    login = base64.b64encode(b"thief:secret").decode()
    head = (
        f"PUT /api/users/heir HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {login}\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # the handler waits for the body
        if change == "deleted":
            api.delete("/users/thief").raise_for_status()
        else:
            password, tags = ("other", "administrator") if change == "another password" else ("secret", "")
            api.put("/users/thief", json={"password": password, "tags": tags}).raise_for_status()
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
    assert api.get("/users/heir").status_code == 404
    api.delete("/users/thief")
