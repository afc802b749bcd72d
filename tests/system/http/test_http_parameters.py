"""Runtime parameters, global parameters, and limits."""

import httpx2
import pytest

LIMITS = "/parameters/vhost-limits/%2F/limits"


def test_limits_of_a_vhost(api: httpx2.Client, name: str) -> None:
    api.put(f"/vhosts/{name}")
    assert api.get(f"/vhost-limits/{name}").json() == []
    assert api.put(f"/vhost-limits/{name}/max-queues", json={"value": 1}).status_code == 204
    assert api.put(f"/vhost-limits/{name}/max-connections", json={"value": 5}).status_code == 204
    shown = {"vhost": name, "value": {"max-connections": 5, "max-queues": 1}}
    assert api.get(f"/vhost-limits/{name}").json() == [shown]
    assert shown in api.get("/vhost-limits").json()
    value = {"vhost": name, "component": "vhost-limits", "name": "limits", "value": shown["value"]}
    assert api.get(f"/parameters/vhost-limits/{name}").json() == [value]
    assert api.put(f"/queues/{name}/q", json={"durable": True}).status_code == 201
    refused = api.put(f"/queues/{name}/r", json={"durable": True})
    assert refused.status_code == 400
    assert refused.json()["reason"] == f"cannot declare queue 'r': queue limit in vhost '{name}' (1) is reached"
    assert api.delete(f"/vhost-limits/{name}/max-queues").status_code == 204
    assert api.delete(f"/vhost-limits/{name}/max-queues").status_code == 204
    assert api.put(f"/queues/{name}/r", json={"durable": True}).status_code == 201
    wrong = api.put(f"/vhost-limits/{name}/max-pets", json={"value": 1})
    assert wrong.json()["reason"] == 'Validation failed\n\nUnrecognised terms [{<<"max-pets">>,1}] in limits\n'
    assert api.put(f"/vhost-limits/{name}/max-queues", json={}).json()["reason"] == "[{key_missing,value}]"
    assert api.put("/vhost-limits/nowhere/max-queues", json={"value": 1}).status_code == 404
    api.delete(f"/vhosts/{name}")


def test_limits_of_a_user(api: httpx2.Client, name: str) -> None:
    api.put(f"/users/{name}", json={"password": "secret", "tags": ""})
    assert api.get(f"/user-limits/{name}").json() == []
    assert api.put(f"/user-limits/{name}/max-channels", json={"value": 5}).status_code == 204
    assert api.put(f"/user-limits/{name}/max-connections", json={"value": 2}).status_code == 204
    shown = {"user": name, "value": {"max-channels": 5, "max-connections": 2}}
    assert api.get(f"/user-limits/{name}").json() == [shown]
    assert shown in api.get("/user-limits").json()
    assert api.get(f"/users/{name}").json()["limits"] == shown["value"]
    wrong = api.put(f"/user-limits/{name}/max-channels", json={"value": "many"})
    assert wrong.json()["reason"] == 'max-channels should be a number, actually was <<"many">>'
    assert api.delete(f"/user-limits/{name}/max-channels").status_code == 204
    assert api.get(f"/user-limits/{name}").json() == [{"user": name, "value": {"max-connections": 2}}]
    assert api.delete(f"/user-limits/{name}/all").status_code == 204
    assert api.get(f"/user-limits/{name}").json() == []
    assert api.get("/user-limits/nobody").status_code == 404
    assert api.put("/user-limits/nobody/max-channels", json={"value": 5}).status_code == 404
    api.delete(f"/users/{name}")


def test_a_parameter_is_set_shown_and_cleared(api: httpx2.Client) -> None:
    assert api.get(LIMITS).status_code == 404
    assert api.put(LIMITS, json={"value": {"max-queues": 1000}}).status_code == 201
    assert api.put(LIMITS, json={"value": {"max-queues": 2000}}).status_code == 204
    shown = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 2000}}
    assert api.get(LIMITS).json() == shown
    assert shown in api.get("/parameters").json()
    assert api.get("/parameters/vhost-limits").json() == [shown]
    assert api.get("/parameters/shovel").json() == []
    assert api.get("/parameters/vhost-limits/nowhere").status_code == 404
    assert api.delete(LIMITS).status_code == 204
    assert api.delete(LIMITS).status_code == 404


def test_an_operator_policy_is_a_parameter_too(api: httpx2.Client, name: str) -> None:
    value = {"pattern": "^never$", "definition": {"max-length": 1}, "priority": 2, "apply-to": "queues"}
    path = f"/parameters/operator_policy/%2F/{name}"
    assert api.put(path, json={"value": value}).status_code == 201
    assert api.get(path).json() == {"vhost": "/", "component": "operator_policy", "name": name, "value": value}
    assert api.get(f"/operator-policies/%2F/{name}").json() == {"vhost": "/", "name": name, **value}
    assert api.delete(path).status_code == 204
    assert api.get(f"/operator-policies/%2F/{name}").status_code == 404


@pytest.mark.parametrize(
    ("component", "value", "reason"),
    [
        ("policy", {}, "policies may not be set using this method"),
        ("shovel", {"src-uri": "amqp://"}, "Validation failed\n\ncomponent shovel not found\n"),
        ("federation-upstream", {}, "Validation failed\n\ncomponent federation-upstream not found\n"),
        (
            "vhost-limits",
            {"max-queues": "1"},
            "Validation failed\n\ncomponent vhost-limits has the parameter limits only, not x\n",
        ),
        ("operator_policy", 5, "Validation failed\n\nx not a list 5\n"),
        (
            "operator_policy",
            {"pattern": "", "priority": 0, "more": 1},
            'Validation failed\n\nUnrecognised terms [{<<"more">>,1}] in x\nKey "definition" not found in x\n',
        ),
        (
            "operator_policy",
            {"pattern": "(", "priority": 0, "definition": {"max-length": 1}},
            "Validation failed\n\npattern should be regular expression but is invalid:"
            ' {"missing closing parenthesis",1}\n',
        ),
    ],
)
def test_what_is_no_parameter_is_refused(api: httpx2.Client, component: str, value: object, reason: str) -> None:
    answer = api.put(f"/parameters/{component}/%2F/x", json={"value": value})
    assert (answer.status_code, answer.json()) == (400, {"error": "bad_request", "reason": reason})


def test_global_parameters(api: httpx2.Client, name: str) -> None:
    path = f"/global-parameters/{name}"
    assert api.get(path).status_code == 404
    for value, status in (({"a": [1, None]}, 201), ("text", 204), (5, 204)):
        assert api.put(path, json={"value": value}).status_code == status
        assert api.get(path).json() == {"name": name, "value": value}
    assert {"name": name, "value": 5} in api.get("/global-parameters").json()
    assert api.put(path, json={}).json()["reason"] == "[{key_missing,value}]"
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
