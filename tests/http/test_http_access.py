"""Who may ask what: authentication, users, tags, permissions, vhosts."""

from collections.abc import Iterator

import httpx
import pytest

from tests.running import RunningBroker


@pytest.fixture
def user(api: httpx.Client, name: str) -> Iterator[str]:
    """A user with the password `secret` and the tag management, without permissions."""
    assert api.put(f"/users/{name}", json={"password": "secret", "tags": "management"}).status_code == 201
    yield name
    api.delete(f"/users/{name}")


def as_user(broker: RunningBroker, user: str, password: str = "secret") -> httpx.Client:
    return httpx.Client(base_url=f"{broker.http_url}/api", auth=(user, password), trust_env=False)


def test_without_or_with_wrong_credentials(broker: RunningBroker) -> None:
    for headers in (
        {},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic Z3Vlc3Q="},
        {"authorization": "Bearer x"},
    ):
        answer = httpx.get(f"{broker.http_url}/api/whoami", headers=headers)
        assert answer.status_code == 401
        assert answer.json() == {"error": "not_authorized", "reason": "Login failed"}
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
    with as_user(broker, "guest", "wrong") as wrong:
        assert wrong.get("/whoami").json() == {"error": "not_authorized", "reason": "Login failed"}
    with as_user(broker, "nobody") as nobody:
        assert nobody.get("/overview").status_code == 401


def test_whoami(api: httpx.Client, broker: RunningBroker, user: str) -> None:
    assert api.get("/whoami").json()["tags"] == ["administrator"]
    with as_user(broker, user) as other:
        assert other.get("/whoami").json() | {"is_internal_user": False} == {
            "name": user, "tags": ["management"], "is_internal_user": False,
        }  # fmt: skip


def test_without_a_management_tag_nobody_gets_in(api: httpx.Client, broker: RunningBroker, user: str) -> None:
    assert api.put(f"/users/{user}", json={"keep_password": True, "tags": []}).status_code == 204
    with as_user(broker, user) as other:
        assert other.get("/whoami").json() == {"error": "not_authorised", "reason": "Not management user"}


def test_only_administrators_change_users_vhosts_permissions_and_operator_policies(
    api: httpx.Client, broker: RunningBroker, user: str
) -> None:
    api.put(f"/permissions/%2F/{user}", json={"configure": ".*", "write": ".*", "read": ".*"})
    policy = {"pattern": "^never$", "definition": {"max-length": 1}}
    with as_user(broker, user) as other:
        for method, path, content in (
            ("GET", "/users", None), ("PUT", "/users/x", {"tags": ""}), ("PUT", "/vhosts/x", {}),
            ("GET", "/permissions", None), ("PUT", "/permissions/%2F/guest", {}),
            ("PUT", "/operator-policies/%2F/x", policy), ("DELETE", "/users/guest", None),
            ("DELETE", "/vhosts/%2F", None),
        ):  # fmt: skip
            answer = other.request(method, path, json=content)
            assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user"), (method, path)
        assert other.put("/policies/%2F/x", json=policy).json()["reason"] == "Not policymaker user"
        assert other.get("/nodes").json()["reason"] == "Not monitor user"
        api.put(f"/users/{user}", json={"keep_password": True, "tags": "policymaker"})
        assert other.put("/policies/%2F/x", json=policy).status_code == 201
    api.delete("/policies/%2F/x")


def test_permissions_hold_over_http_as_over_amqp(
    api: httpx.Client, broker: RunningBroker, user: str, queue: str
) -> None:
    with as_user(broker, user) as other:
        assert other.get("/queues").json() == []
        refused = other.get("/queues/%2F")
        assert (refused.status_code, refused.json()["reason"]) == (401, "User not authorised to access virtual host")
        assert (
            api.put(f"/permissions/%2F/{user}", json={"configure": "^u", "write": "^u", "read": "^u"}).status_code
            == 201
        )
        assert other.put("/queues/%2F/u1", json={}).status_code == 201
        refused = other.put("/queues/%2F/v1", json={})
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


def test_bad_users_and_permissions(api: httpx.Client, user: str) -> None:
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


def test_password_hashes_are_not_shown_and_a_changed_password_counts_at_once(
    api: httpx.Client, broker: RunningBroker, user: str
) -> None:
    assert api.get(f"/users/{user}").json() == {
        "name": user,
        "tags": ["management"],
        "has_password": True,
        "limits": {},
    }
    assert "argon2" not in api.get("/users").text
    with as_user(broker, user) as before, as_user(broker, user, "other") as after:
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (200, 401)
        api.put(f"/users/{user}", json={"password": "other", "tags": "management"})
        assert (before.get("/whoami").status_code, after.get("/whoami").status_code) == (401, 200)
        api.put(f"/users/{user}", json={"tags": "management"})
        assert after.get("/whoami").status_code == 401


def test_vhosts_keep_their_queues_apart(api: httpx.Client, name: str) -> None:
    assert api.put(f"/vhosts/{name}", json={"description": "a test"}).status_code == 201
    assert api.put(f"/vhosts/{name}").status_code == 204
    assert api.get(f"/vhosts/{name}").json()["description"] == "a test"
    assert name in [each["name"] for each in api.get("/vhosts").json()]
    assert api.put(f"/queues/{name}/q", json={}).status_code == 201
    assert api.get("/queues/%2F/q").status_code == 404
    assert api.delete(f"/vhosts/{name}").status_code == 204
    assert api.get(f"/queues/{name}").status_code == 404
    assert api.delete(f"/vhosts/{name}").status_code == 404
