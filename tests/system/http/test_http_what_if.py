"""A policy can be tried on the history of a queue: GET /api/history/what-if/... and `rewindmq what_if` (B-34)."""

import json
from typing import Any

import httpx2
import pytest

from tests.support.http_clients import publish, take
from tests.support.moments import now
from tests.support.running import RunningBroker

SHORT = '{"max-length": 2}'


def asked(api: httpx2.Client, queue: str, **query: str) -> dict[str, Any]:
    answer = api.get(f"/history/what-if/%2F/{queue}", params=query)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    assert (content["complete"], content["stopped"], content["left"]) == (True, None, 0)
    return content


@pytest.mark.long
def test_b34_a_limit_would_have_dropped_the_oldest(api: httpx2.Client, queue: str) -> None:
    for number in range(5):
        publish(api, queue, f"m{number}")
    take(api, queue, "ack_requeue_false")
    found = asked(api, queue, policy=SHORT)
    assert (found["before"]["greatest_depth"], found["before"]["depth"]) == (5, 4)
    assert (found["after"]["greatest_depth"], found["after"]["depth"]) == (2, 1)
    assert found["before"]["outcomes"] == [{"outcome": "delivered", "rule": None, "messages": 1}]
    dropped = {"outcome": "maxlen", "rule": "policy what-if.max-length", "messages": 3}
    assert dropped in found["after"]["outcomes"]
    assert sum(each["messages"] for each in found["summary"]) == len(found["rows"]) + found["more"]
    assert [row["message_id"] for row in found["rows"]] == sorted(row["message_id"] for row in found["rows"])
    assert any("Consumers act as they did" in line for line in found["limits"])
    few = asked(api, queue, policy=SHORT, limit="1")
    assert few["rows"] == found["rows"][:1]
    assert few["more"] == len(found["rows"]) - 1
    live = api.get(f"/queues/%2F/{queue}").json()
    assert live["policy"] in (None, "")  # nothing was set


def test_b34_a_policy_holds_from_a_moment_to_another(api: httpx2.Client, queue: str) -> None:
    for number in range(3):
        publish(api, queue, f"old{number}")
    start = now()
    publish(api, queue, "new")
    api.put(f"/marks/{queue}", json={})
    publish(api, queue, "newest")
    found = asked(api, queue, operator_policy=SHORT, **{"from": start, "to": f"mark:{queue}"})
    assert (found["before"]["depth"], found["after"]["depth"]) == (4, 2)
    nothing = asked(api, queue, policy=SHORT, **{"from": f"mark:{queue}", "to": f"mark:{queue}"})
    assert (nothing["before"]["depth"], nothing["after"]["depth"]) == (4, 2)  # it drops two messages at once
    assert [row["after"] for row in nothing["rows"]] == ["maxlen", "maxlen"]


def test_b34_an_empty_definition_is_no_policy(api: httpx2.Client, queue: str) -> None:
    content = {"pattern": f"^{queue}$", "definition": {"max-length": 1}, "apply-to": "queues"}
    assert api.put(f"/policies/%2F/{queue}", json=content).is_success
    publish(api, queue, "a")
    publish(api, queue, "b")
    found = asked(api, queue, policy="{}")
    assert (found["before"]["depth"], found["after"]["depth"]) == (1, 2)
    [row] = found["rows"]
    assert (row["before"], row["before_rule"], row["after"]) == ("maxlen", f"policy {queue}.max-length", "ready")
    assert api.delete(f"/policies/%2F/{queue}").is_success


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "say what to try: policy, operator_policy, or both"),
        ({"policy": ""}, 'policy is not a JSON object such as {"max-length": 1000}: it is empty'),
        ({"policy": "{"}, 'policy is not a JSON object such as {"max-length": 1000}: not_json'),
        ({"policy": "[1]"}, 'policy is not a JSON object such as {"max-length": 1000}: not_json'),
        ({"operator_policy": "[" * 5_000}, 'operator_policy is not a JSON object such as {"max-length": 1000}'),
        ({"policy": '{"max-length": 1e999}'}, "policy is not a JSON object"),
        ({"policy": '{"max-length": 99999999999999999999}'}, "policy is not a JSON object"),
        ({"policy": '{"dead-letter-exchange": "\\ud800"}'}, "policy is not a JSON object"),
        ({"policy": '{"max-lenght": 3}'}, 'Validation failed\n\n[{<<"max-lenght">>,3}] are not recognised'),
        ({"policy": '{"max-length": -1}'}, "Validation failed\n\n-1 is not a valid"),
        ({"operator_policy": '{"dead-letter-exchange": "x"}'}, 'Validation failed\n\n[{<<"dead-letter-exchange">>'),
        ({"policy": SHORT, "limit": "10001"}, "limit is at most 10000"),
        ({"policy": SHORT, "from": "noon"}, "'noon' is not a time"),
        ({"policy": SHORT, "from": "mark:never"}, "there is no mark 'never'"),
        ({"policy": SHORT, "from": "-0s", "to": "-1m"}, "queues-"),
    ],
)
def test_b34_questions_that_make_no_sense(api: httpx2.Client, queue: str, query: dict[str, str], reason: str) -> None:
    answer = api.get(f"/history/what-if/%2F/{queue}", params=query)
    assert answer.status_code == 400, answer.text
    assert answer.json()["reason"].startswith(reason)


def test_b34_a_policy_that_put_refuses_is_refused_in_the_same_words(api: httpx2.Client, queue: str) -> None:
    for definition in ({"max-lenght": 3}, {"max-length": -1}, {"overflow": "spill"}, {"message-ttl": "soon"}):
        put = api.put(f"/policies/%2F/{queue}", json={"pattern": queue, "definition": definition})
        tried = api.get(f"/history/what-if/%2F/{queue}", params={"policy": json.dumps(definition)})
        assert (tried.status_code, tried.json()["reason"]) == (put.status_code, put.json()["reason"])


def test_b34_a_reader_of_a_queue_asks_about_its_own_queue(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    mine, other = f"{name}-mine", f"{name}-other"
    for queue in (mine, other):
        api.put(f"/queues/%2F/{queue}", json={"durable": True})
    publish(api, mine, "of an earlier queue")
    api.delete(f"/queues/%2F/{mine}")
    assert asked(api, mine, policy="{}")["before"]["greatest_depth"] == 1  # an administrator's
    api.put(f"/users/{name}", json={"password": "x", "tags": "management"})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": "", "read": mine})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "x"), trust_env=False) as reader:
        gone = reader.get(f"/history/what-if/%2F/{mine}", params={"policy": SHORT})
        assert (gone.status_code, "only administrators" in gone.json()["reason"]) == (404, True)
        api.put(f"/queues/%2F/{mine}", json={"durable": True})
        assert asked(reader, mine, policy=SHORT)["before"]["greatest_depth"] == 0
        assert reader.get(f"/history/what-if/%2F/{other}", params={"policy": SHORT}).status_code == 401
    never = api.get(f"/history/what-if/%2F/{name}-never", params={"policy": SHORT})
    assert never.status_code == 404
