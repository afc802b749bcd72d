"""Policies and operator policies over the management API (S-013, S-014, S-017, S-019, S-163, S-167)."""

import httpx2
import pika
import pytest
from pika.exceptions import NackError

from tests.support.running import RunningBroker

POLICY = {"pattern": "^one-meg$", "definition": {"max-length-bytes": 1048576}, "apply-to": "queues"}


def test_a_policy_is_set_shown_changed_and_cleared_s019(api: httpx2.Client) -> None:
    assert api.put("/policies/%2F/my-pol", json=POLICY).status_code == 201
    assert api.put("/policies/%2F/my-pol", json=POLICY | {"priority": 3}).status_code == 204
    shown = api.get("/policies/%2F/my-pol").json()
    assert shown == {"vhost": "/", "name": "my-pol", "priority": 3, **POLICY}
    assert shown in api.get("/policies").json()
    assert shown in api.get("/policies/%2F").json()
    assert api.delete("/policies/%2F/my-pol").status_code == 204
    assert api.delete("/policies/%2F/my-pol").status_code == 404


def test_two_messages_then_every_publish_is_nacked_s017_s018(api: httpx2.Client, broker: RunningBroker) -> None:
    definition = {"max-length": 2, "overflow": "reject-publish"}
    api.put("/policies/%2F/my-pol", json={"pattern": "^two-messages$", "definition": definition, "apply-to": "queues"})
    api.put("/queues/%2F/two-messages", json={"durable": True})
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in (b"1", b"2"):
            channel.basic_publish("", "two-messages", body)
        for _ in range(3):
            with pytest.raises(NackError):
                channel.basic_publish("", "two-messages", b"3")
    shown = api.get("/queues/%2F/two-messages").json()
    assert (shown["messages_ready"], shown["policy"], shown["effective_policy_definition"]) == (2, "my-pol", definition)
    assert api.delete("/policies/%2F/my-pol").status_code == 204
    assert api.get("/queues/%2F/two-messages").json()["policy"] is None


def test_one_meg_drops_from_the_head_s014_s016(api: httpx2.Client) -> None:
    api.put("/policies/%2F/my-pol", json=POLICY)
    api.put("/queues/%2F/one-meg", json={"durable": True})
    for number in range(5):
        content = {
            "properties": {},
            "routing_key": "one-meg",
            "payload": str(number) * 300_000,
            "payload_encoding": "string",
        }
        assert api.post("/exchanges/%2F/amq.default/publish", json=content).json() == {"routed": True}
    shown = api.get("/queues/%2F/one-meg").json()
    assert (shown["messages_ready"], shown["message_bytes_ready"]) == (3, 900_000)
    assert shown["outcomes"]["maxlen"] == 2
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1}
    assert api.post("/queues/%2F/one-meg/get", json=asked).json()[0]["payload"] == "2"
    api.delete("/policies/%2F/my-pol")


def test_the_highest_priority_applies_and_operators_limit_it_s163_s167(api: httpx2.Client, name: str) -> None:
    api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-max-length": 100}})
    for policy, length, priority in (("low", 10, 1), ("high", 20, 5)):
        content = {"pattern": f"^{name}$", "definition": {"max-length": length}, "priority": priority}
        assert api.put(f"/policies/%2F/{policy}", json=content).status_code == 201
    content = {"pattern": f"^{name}$", "definition": {"max-length": 15}}
    assert api.put("/operator-policies/%2F/op", json=content).status_code == 201
    shown = api.get(f"/queues/%2F/{name}").json()
    assert (shown["policy"], shown["operator_policy"]) == ("high", "op")
    assert shown["effective_policy_definition"] == {"max-length": 15}
    assert api.get("/operator-policies/%2F/op").json()["definition"] == {"max-length": 15}
    assert api.delete("/operator-policies/%2F/op").status_code == 204
    assert api.get(f"/queues/%2F/{name}").json()["effective_policy_definition"] == {"max-length": 20}
    for policy in ("low", "high"):
        api.delete(f"/policies/%2F/{policy}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"pattern": "(", "definition": {"max-length": 1}}, "pattern should be regular expression but is invalid"),
        ({"pattern": "a{99999999999}", "definition": {"max-length": 1}}, "number too big in {} quantifier"),
        ({"pattern": "(" * 10_000, "definition": {"max-length": 1}}, "it has 10000 characters, more than 4096"),
        ({"pattern": "(" * 300, "definition": {"max-length": 1}}, "parentheses are too deeply nested"),
        (
            {"pattern": "^(.|.|.|.)*X", "definition": {"max-length": 1}},
            "it takes too many steps to find nothing in names",
        ),
        ({"pattern": "x", "definition": {"nokey": 1}}, '[{<<"nokey">>,1}] are not recognised policy settings'),
        ({"pattern": "x", "definition": {}}, "no policy provided"),
        ({"pattern": "x"}, "[{key_missing,definition}]"),
        ({"pattern": "x", "definition": [1]}, "definition must be a JSON object"),
        ({"pattern": "x", "definition": {"max-length": "a"}}, '<<"a">> is not a valid maximum length'),
        ({"pattern": "x", "definition": {"max-length": -1}}, "-1 is not a valid maximum length"),
        ({"pattern": "x", "definition": {"overflow": "foo"}}, '<<"foo">> is not a valid overflow value'),
        ({"pattern": "x", "definition": {"max-length": 1}, "priority": "a"}, 'a number, actually was <<"a">>'),
        ({"pattern": "x", "definition": {"max-length": 1}, "apply-to": "zz"}, "apply-to 'zz' unrecognised"),
        ({"pattern": 5, "definition": {"max-length": 1}}, "not_string: pattern 5"),
    ],
)
def test_a_bad_policy_is_refused_with_rabbitmqs_reason_s013(
    api: httpx2.Client, content: dict[str, object], reason: str
) -> None:
    answer = api.put("/policies/%2F/bad", json=content)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]
    assert api.get("/policies/%2F/bad").status_code == 404


def test_operator_policies_take_fewer_keys_s167(api: httpx2.Client) -> None:
    content = {"pattern": "x", "definition": {"dead-letter-exchange": "x"}}
    answer = api.put("/operator-policies/%2F/bad", json=content)
    assert answer.json()["reason"].endswith(
        '[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings\n'
    )


def test_a_policy_in_an_unknown_vhost(api: httpx2.Client) -> None:
    answer = api.put("/policies/nowhere/p", json=POLICY)
    assert (answer.status_code, answer.json()) == (404, {"error": "not_found", "reason": "vhost_not_found"})
