"""Definitions out and in: all of it or nothing, and a second time nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import httpx2
import pytest

from tests.support.definitions import CATEGORIES, RIGHTS, WHOLE
from tests.support.http_clients import api_client
from tests.support.running import RunningBroker


@pytest.fixture
def target(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker of its own, with nothing in it."""
    broker = RunningBroker(tmp_path / "target")
    yield broker
    broker.stop()


def guest(broker: RunningBroker) -> httpx2.Client:
    return api_client(broker, "guest", "guest")


def exported(api: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/definitions").json()
    return found


def names(document: dict[str, Any], category: str) -> list[str]:
    return [each["name"] for each in document[category]]


def ends(api: httpx2.Client) -> list[int]:
    return [each["next_offset"] for each in api.get("/overview").json()["log"]]


def test_a_whole_broker_goes_in_and_out(target: RunningBroker) -> None:
    with guest(target) as api:
        assert api.post("/definitions", json=WHOLE).status_code == 204
        found = exported(api)
        assert list(found)[4:] == list(CATEGORIES)
        assert names(found, "users") == ["boss", "guest", "moved"]
        assert found["users"][0]["limits"] == {"max-channels": 100}
        assert found["users"][2] == WHOLE["users"][1] | {"tags": ["management"], "limits": {}}
        metadata = WHOLE["vhosts"][0]["metadata"]
        assert found["vhosts"][1] == {"name": "v", **metadata, "metadata": metadata}
        mine = [each for each in found["permissions"] if each["vhost"] == "v"]
        assert mine == [{"user": name, "vhost": "v", **RIGHTS} for name in ("boss", "guest", "moved")], (
            "who made the vhost may use it"
        )
        for category in ("topic_permissions", "global_parameters", "policies", "exchanges"):
            assert found[category] == WHOLE[category], category
        assert sorted(found["parameters"], key=str) == sorted(WHOLE["parameters"], key=str)
        plain, limited = ({"x-queue-type": "quorum"}, {"x-max-length": 5, "x-queue-type": "classic"})
        assert found["queues"] == [
            WHOLE["queues"][0],
            WHOLE["queues"][1] | {"arguments": plain},
            WHOLE["queues"][2] | {"arguments": limited},
        ]
        assert found["bindings"] == [WHOLE["bindings"][1], WHOLE["bindings"][0]]
        assert api.get("/queues/v/q1").json()["policy"] == "p"
        before = ends(api)
        assert api.post("/definitions", json=found).status_code == 204
        assert (exported(api), ends(api)) == (found, before), "a second time nothing changes"
    with api_client(target, "moved", "test12") as api:
        assert api.get("/whoami").status_code == 200


def test_what_clients_declared_comes_back_without_a_change(target: RunningBroker) -> None:
    """JSON has fewer types than AMQP, and RabbitMQ doubles a binding with an int32."""
    deep = [float("-inf"), {"n": 2, "b": b"\xfe"}]
    odd = {"int": 1, "nan": float("nan"), "bytes": b"\xff", "deep": deep, "x-match": "any"}
    with guest(target) as api, amqp.Connection(f"127.0.0.1:{target.amqp_port}") as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, auto_delete=False, arguments=odd)
        channel.exchange_declare("x", "headers", durable=True, auto_delete=False, arguments={"n": float("inf")})
        channel.queue_bind("q", "x", arguments=odd)
        channel.queue_bind("q", "x", arguments={"int": 1})
        channel.exchange_bind("x", "amq.headers", arguments=odd)
        found = strictly(api.get("/definitions").text)
        assert [each["arguments"]["nan"] for each in (found["queues"][0], found["bindings"][0])] == ["NaN", "NaN"]
        before = ends(api)
        assert api.post("/definitions", json=found).status_code == 204
        assert (exported(api), ends(api)) == (found, before)
        channel.queue_delete("q")
        assert api.post("/definitions", json=found).status_code == 204, "a broker that does not have them takes them"
        assert strictly(api.get("/definitions").text) == found


def strictly(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_a_password_that_is_the_same_is_no_new_one(target: RunningBroker) -> None:
    user = {"name": "boss", "password": "secret", "tags": "administrator"}
    with guest(target) as api:
        kept = []
        for password in ("secret", "secret", "other"):
            assert api.post("/definitions", json={"users": [user | {"password": password}]}).status_code == 204
            kept.append(api.get("/users/boss").json()["password_hash"])
        assert kept[0] == kept[1] != kept[2]
        assert api.post("/definitions", json={"users": [user | {"password": ""}]}).status_code == 204
        assert api.get("/users/boss").json()["password_hash"] == ""


def test_what_one_broker_exports_another_imports(target: RunningBroker, tmp_path: Path) -> None:
    with guest(target) as api:
        assert api.post("/definitions", json=WHOLE).status_code == 204
        found = exported(api)
    other = RunningBroker(tmp_path / "other")
    try:
        with guest(other) as api:
            assert api.post("/all-configuration", json=found).status_code == 204
            assert exported(api) == found
        with api_client(other, "boss", "secret") as api:
            assert api.get("/all-configuration").json() == found, "its password came with it"
    finally:
        other.stop()


def test_one_vhost_goes_into_another(api: httpx2.Client, name: str) -> None:
    for vhost in (name, f"{name}2"):
        api.put(f"/vhosts/{vhost}")
    part = {key: WHOLE[key] for key in ("parameters", "policies", "queues", "exchanges", "bindings", "users")}
    assert api.post(f"/definitions/{name}", json=part).status_code == 204
    found = api.get(f"/definitions/{name}").json()
    assert list(found) == ["rabbit_version", "parameters", "policies", "queues", "exchanges", "bindings"]
    assert all("vhost" not in each for key in list(found)[1:] for each in found[key])
    assert names(found, "queues") == ["q1", "q2", "q3"]
    assert api.post(f"/definitions/{name}2", json=found).status_code == 204
    assert api.get(f"/definitions/{name}2").json() == found
    assert "boss" not in names({"users": api.get("/users").json()}, "users"), "users are not of a vhost"
    assert api.get("/definitions/nowhere").json() == {"error": "bad_request", "reason": "vhost_not_found"}
    assert api.post("/definitions/nowhere", json=found).status_code == 404
    refused = api.post("/definitions", json=found)
    assert refused.status_code == 400
    assert "these are definitions of a single virtual host" in refused.json()["reason"]
    for vhost in (name, f"{name}2"):
        api.delete(f"/vhosts/{vhost}")


def test_a_file_to_download(api: httpx2.Client) -> None:
    answer = api.get("/definitions", params={"download": "rabbit_1.json"})
    assert answer.headers["content-disposition"] == "attachment; filename=rabbit_1.json"
    assert "content-disposition" not in api.get("/definitions", params={"download": "a\r\nb"}).headers


def test_uploaded_by_a_form(api: httpx2.Client, name: str) -> None:
    document = json.dumps({"vhosts": [{"name": name, "metadata": {"description": "größer"}}]}, ensure_ascii=False)
    file = ("rabbit.json", b"\xef\xbb\xbf" + document.encode(), "application/json")
    assert api.post("/definitions", files={"file": file}).status_code == 204
    assert api.get(f"/vhosts/{name}").json()["description"] == "größer"
    queue = json.dumps({"queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}]})
    data = {"redirect": "../#/import-succeeded"}
    answer = api.post(f"/definitions/{name}", files={"file": ("x", queue)}, data=data)
    assert (answer.status_code, answer.headers["location"]) == (303, "../#/import-succeeded")
    assert api.get(f"/queues/{name}/q").status_code == 200
    api.delete(f"/vhosts/{name}")


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: form-data; name=f\r\n\r\n{}\r\n--x--\r\n",
            "the form has no field file",
        ),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n{]\r\n--x--\r\n",
            "not_json",
        ),
        ("multipart/form-data; boundary=x", b"--y\r\n", "the form is damaged"),
        ("multipart/form-data", b"{}", "the form is damaged"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n{}",
            "the form is damaged",
        ),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n{}\r\n--x\r\n"
            b"content-disposition: form-data; name=redirect\r\n\r\na\nb\r\n--x--\r\n",
            "redirect is not an address",
        ),
    ],
)
def test_a_form_that_is_none(api: httpx2.Client, content_type: str, body: bytes, reason: str) -> None:
    answer = api.post("/definitions", content=body, headers={"content-type": content_type})
    assert (answer.status_code, answer.json()) == (400, {"error": "bad_request", "reason": reason})


def changed(category: str, number: int, **values: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(WHOLE))
    document[category][number] |= values
    return document


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"users": {}}, "users must be a list"),
        ({"queues": ["q"]}, "queues must be a list of objects"),
        (changed("users", 0, tags=None), "user 'boss': tags_not_present"),
        (changed("users", 0, password_hash="AAAA"), "user 'boss': both_password_and_password_hash_are_provided"),
        (changed("users", 1, password_hash="!"), "user 'moved': not_base64: the password_hash"),
        (changed("users", 0, limits={"x": 1}), "user 'boss': Unrecognised terms [{<<\"x\">>,1}] in user-limits"),
        (changed("users", 0, name=""), "user '': a user's name cannot be empty"),
        (changed("vhosts", 0, default_queue_type="ring"), "vhost 'v': Unsupported default queue type 'ring'"),
        (changed("permissions", 0, user="nobody"), "permissions of 'nobody': user 'nobody' does not exist"),
        (
            changed("permissions", 0, vhost="w"),
            "permissions of 'boss': Please create virtual host \"w\" prior to importing definitions.",
        ),
        (changed("permissions", 0, read="("), "permissions of 'boss': invalid regular expression '('"),
        (changed("topic_permissions", 0, exchange=5), "topic permissions of 'moved': exchange must be a string"),
        (
            changed("parameters", 0, component="shovel"),
            "parameter 'limits': Validation failed\n\ncomponent shovel not found\n",
        ),
        (
            changed("parameters", 0, value={"max-queues": 2}),
            'Adding 3 queue(s) to virtual host "v" would exceed the limit of 2 queue(s).',
        ),
        (
            changed("policies", 0, definition={"x": 1}),
            "policy 'p': Validation failed\n\n[{<<\"x\">>,1}] are not recognised policy settings",
        ),
        (changed("queues", 0, vhost=None), "queue 'q1': no vhost is named"),
        (changed("queues", 0, arguments={"x-queue-type": "ring"}), "queue 'q1': invalid arg 'x-queue-type' for queue"),
        (
            changed("queues", 0, auto_delete=True),
            "queue 'q1': invalid property 'auto-delete' for queue 'q1' in vhost 'v'",
        ),
        (changed("queues", 0, durable="yes"), "queue 'q1': durable must be true or false"),
        (changed("exchanges", 0, type="ring"), "exchange 'x': unknown exchange type 'ring'"),
        (changed("bindings", 0, source="z"), "binding of 'z': there is no exchange 'z' in vhost 'v'"),
        (changed("bindings", 0, destination="z"), "binding of 'x': there is no queue 'z' in vhost 'v'"),
        (changed("bindings", 0, destination_type="cat"), "binding of 'x': destination_type 'cat' is neither"),
        (changed("bindings", 0, arguments={"x-match": "most"}), "binding of 'x': Invalid x-match field value"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_done(api: httpx2.Client, document: dict[str, Any], reason: str) -> None:
    before = exported(api)
    answer = api.post("/definitions", json=document)
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith(reason)
    assert exported(api) == before


def test_b53_all_that_is_wrong_is_said_at_once(api: httpx2.Client) -> None:
    shovels = [{"vhost": "v", "component": "shovel", "name": f"s{n}", "value": {}} for n in range(30)]
    document = changed("exchanges", 0, type="x-recent-history") | {"parameters": shovels}
    before = exported(api)
    answer = api.post("/definitions", json=document)
    assert answer.status_code == 400
    first, _, rest = answer.json()["reason"].partition("\n\nBesides:\n")
    assert first == "exchange 'x': unknown exchange type 'x-recent-history'"
    assert rest.splitlines() == [
        *(f"parameter 's{n}': Validation failed; component shovel not found" for n in range(19)),
        "... and 12 more",  # a binding of the exchange is one of them
    ]
    assert exported(api) == before


def test_only_an_administrator(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    api.put(f"/users/{name}", json={"password": "secret", "tags": "policymaker,monitoring"})
    with api_client(broker, name, "secret") as other:
        for method, path in (("GET", "/definitions"), ("POST", "/definitions"), ("GET", "/definitions/%2F")):
            answer = other.request(method, path)
            assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user")
    api.delete(f"/users/{name}")


def test_at_the_start_a_file_or_a_directory(tmp_path: Path) -> None:
    """There is no guest then: the definitions say who there is, also at the next start."""
    files = tmp_path / "definitions"
    files.mkdir()
    (files / "1.json").write_text(json.dumps({key: WHOLE[key] for key in ("users", "vhosts", "permissions")}))
    (files / "2.json").write_text(json.dumps({"queues": WHOLE["queues"]}))
    for _ in range(2):
        broker = RunningBroker(tmp_path / "data", "--load-definitions", str(files))
        try:
            with guest(broker) as api:
                assert api.get("/whoami").status_code == 401
            with api_client(broker, "boss", "secret") as api:
                assert names(exported(api), "queues") == ["q1", "q2", "q3"]
                assert [each["user"] for each in exported(api)["permissions"]] == ["boss", "moved"]
        finally:
            broker.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "rewindmq: definitions: {file}: Expecting property name"),
        (
            '{"queues":[{"name":"q","vhost":"w"}]}',
            "rewindmq: definitions: {file}: queue 'q': Please create virtual host \"w\" prior to importing "
            "definitions.",
        ),
    ],
)
def test_a_start_that_fails_says_why(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with pytest.raises(AssertionError) as failure:
        RunningBroker(tmp_path / "data", "--load-definitions", str(file))
    said = str(failure.value)
    assert said.startswith("the broker ended with 65")
    assert reason.format(file=file) in said
