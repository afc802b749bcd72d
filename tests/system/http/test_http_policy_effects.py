"""The API predicts the immediate effects of a policy on all queues concerned: GET /api/policies/.../effects (B-45)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.http_clients import publish
from tests.support.running import RunningBroker

SHORT = {"max-length": 2}


@pytest.fixture(autouse=True)
def no_policies(api: httpx2.Client) -> Iterator[None]:
    yield
    for kind in ("policies", "operator-policies"):
        for each in api.get(f"/{kind}").json():
            api.delete(f"/{kind}/%2F/{each['name']}")
    for each in api.get("/queues?columns=name").json():
        api.delete(f"/queues/%2F/{each['name']}")


def declare(api: httpx2.Client, name: str, messages: int, **arguments: object) -> None:
    given = {each.replace("_", "-"): value for each, value in arguments.items()}
    assert api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": given}).is_success
    for number in range(messages):
        publish(api, name, f"m{number}")


def effects(api: httpx2.Client, name: str = "tried", kind: str = "policies", **query: str) -> dict[str, Any]:
    answer = api.get(f"/{kind}/%2F/{name}/effects", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert (found["complete"], found["not_seen"]) == (True, [])
    return found


def outcomes(api: httpx2.Client, name: str) -> dict[str, int]:
    found: dict[str, int] = api.get(f"/queues/%2F/{name}").json()["outcomes"]
    return found


@pytest.mark.long
def test_b45_it_says_what_then_happens(api: httpx2.Client) -> None:
    declare(api, "orders.a", 5)
    declare(api, "orders.b", 9, x_dead_letter_exchange="amq.fanout")
    declare(api, "orders.refusing", 4, x_overflow="reject-publish")
    declare(api, "orders.quorum", 4, x_queue_type="quorum", x_overflow="reject-publish")
    declare(api, "orders.empty", 0)
    declare(api, "other", 9)
    asked = {"pattern": "^orders", "definition": json.dumps(SHORT), "apply-to": "queues"}
    found = effects(api, **asked)
    assert (found["matched"], found["matched_now"], found["changed"]) == (5, 0, 5)
    rule = "policy tried.max-length"
    assert found["removed"] == [{"outcome": "maxlen", "rule": rule, "messages": 10}]
    assert (found["dead_lettered"], found["refusing"]) == (7, 2)
    worst = [(each["name"], sum(one["messages"] for one in each["removed"])) for each in found["queues"]]
    assert worst[:2] == [("orders.b", 7), ("orders.a", 3)]
    by_name = {each["name"]: each for each in found["queues"]}
    assert by_name["orders.b"]["messages"] == 9
    assert (by_name["orders.b"]["before"], by_name["orders.b"]["after"]) == (None, "tried")
    assert {name for name, each in by_name.items() if each["refuses"]} == {"orders.refusing", "orders.quorum"}
    assert [each["name"] for each in effects(api, **asked, limit="1")["queues"]] == ["orders.b"]
    assert outcomes(api, "orders.b")["maxlen"] == 0, "nothing was set"

    content = {"pattern": "^orders", "definition": SHORT, "apply-to": "queues"}
    assert api.put("/policies/%2F/tried", json=content).is_success
    for name, each in by_name.items():
        done = outcomes(api, name)
        assert done["maxlen"] == sum(one["messages"] for one in each["removed"]), name
        assert done["dead_lettered"] == each["dead_lettered"], name
        before = done["refused"]
        content = {"properties": {}, "routing_key": name, "payload": "one more", "payload_encoding": "string"}
        api.post("/exchanges/%2F/amq.default/publish", json=content)
        assert (outcomes(api, name)["refused"] > before) == each["refuses"], name
    again = effects(api, **asked)
    assert (again["matched"], again["matched_now"], again["changed"]) == (5, 5, 0)


def test_b45_queues_no_longer_matched_and_a_policy_that_is_cleared(api: httpx2.Client) -> None:
    for name in ("near", "far"):
        declare(api, name, 4)
    for name, pattern, limit, priority in (("narrow", ".*", 9, 5), ("wide", ".*", 3, 0)):
        content = {"pattern": pattern, "definition": {"max-length": limit}, "priority": priority}
        assert api.put(f"/policies/%2F/{name}", json=content).is_success
    narrow = json.dumps({"max-length": 9})
    found = effects(api, "narrow", pattern="^near$", definition=narrow, priority="5")
    assert (found["matched_now"], found["matched"], found["changed"]) == (2, 1, 1)
    [far] = found["queues"]
    assert (far["name"], far["before"], far["after"]) == ("far", "narrow", "wide")
    assert far["removed"] == [{"outcome": "maxlen", "rule": "policy wide.max-length", "messages": 1}]
    lower = effects(api, "narrow", pattern=".*", definition=narrow, priority="-1")
    assert (lower["matched"], lower["changed"]) == (0, 2)
    cleared = effects(api, "narrow", clear="true")
    assert (cleared["matched_now"], cleared["matched"]) == (2, 0)
    assert cleared["removed"] == [{"outcome": "maxlen", "rule": "policy wide.max-length", "messages": 2}]
    assert api.delete("/policies/%2F/narrow").is_success
    assert [outcomes(api, name)["maxlen"] for name in ("near", "far")] == [1, 1]


def test_b45_an_operator_policy_and_a_policy_that_fits_no_type(api: httpx2.Client) -> None:
    declare(api, "one", 4)
    asked = {"pattern": "one", "definition": '{"max-length": 1}'}
    found = effects(api, kind="operator-policies", **asked)
    assert found["removed"] == [{"outcome": "maxlen", "rule": "operator policy tried.max-length", "messages": 3}]
    assert effects(api, **asked, **{"apply-to": "quorum_queues"})["changed"] == 0
    assert effects(api, pattern="one", definition='{"delivery-limit": 1}')["changed"] == 0  # not for a classic queue
    assert effects(api, pattern="one", definition='{"message-ttl": 1}')["removed"] == []  # for new messages alone


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "give pattern and definition, or clear=true"),
        ({"pattern": "a"}, "give pattern and definition, or clear=true"),
        ({"pattern": "a", "definition": "[]"}, "definition is not a JSON object"),
        ({"pattern": "a", "definition": "{}"}, "Validation failed"),
        ({"pattern": "(", "definition": '{"max-length": 1}'}, "Validation failed"),
        ({"pattern": "a", "definition": '{"max-lenght": 1}'}, "max-lenght"),
        ({"pattern": "a", "definition": '{"max-length": 1}', "apply-to": "cats"}, "Validation failed"),
        ({"pattern": "a", "definition": '{"max-length": 1}', "priority": "high"}, "priority should be a number"),
        ({"pattern": "a", "definition": '{"max-length": 1}', "priority": "9" * 5_000}, "priority should be a number"),
        ({"pattern": "a", "definition": '{"max-length": 1}', "limit": "501"}, "limit is at most 500"),
    ],
)
def test_b45_questions_that_make_no_sense(api: httpx2.Client, query: dict[str, str], reason: str) -> None:
    for kind in ("policies", "operator-policies"):
        answer = api.get(f"/{kind}/%2F/tried/effects", params=query)
        assert answer.status_code == 400, answer.text
        assert reason in answer.json()["reason"]
        assert api.get(f"/{kind}/%2F/tried/effects?clear=true").status_code == 404


def test_b45_only_those_who_may_set_a_policy_may_ask(broker: RunningBroker, api: httpx2.Client) -> None:
    asked = {"pattern": "a", "definition": '{"max-length": 1}'}
    for name, tags in (("looker", "monitoring"), ("maker", "policymaker")):
        assert api.put(f"/users/{name}", json={"password": name, "tags": tags}).is_success
        granted = {"configure": ".*", "write": ".*", "read": ".*"}
        assert api.put(f"/permissions/%2F/{name}", json=granted).is_success
    found = {}
    for name in ("looker", "maker"):
        with httpx2.Client(base_url=api.base_url, auth=(name, name), trust_env=False) as client:
            for kind in ("policies", "operator-policies"):
                found[name, kind] = client.get(f"/{kind}/%2F/tried/effects", params=asked).status_code
    assert found == {
        ("looker", "policies"): 401,
        ("looker", "operator-policies"): 401,
        ("maker", "policies"): 200,
        ("maker", "operator-policies"): 401,
    }
