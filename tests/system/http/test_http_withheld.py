"""Users who look back without contents, and masks of policies, wherever messages are shown (B-82)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.http_clients import api_client, find, history_answer, publish, put_queue
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

CARD = '{"card":"4111","sum":7}'
USERS = {  # name: tags
    "fates": ["management", "without-contents"],
    "reader": ["management"],
    "trusted": ["management", "unmasked"],
    "both": ["management", "unmasked", "without-contents"],
}
HIDDEN = {"x-withheld": "headers, body"}


@pytest.fixture(scope="module")
def clients(broker: RunningBroker) -> Iterator[dict[str, httpx2.Client]]:
    with api_client(broker) as api:
        for name, tags in USERS.items():
            api.put(f"/users/{name}", json={"password": name, "tags": tags}).raise_for_status()
            api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": "", "read": ".*"}).raise_for_status()
    found = {name: api_client(broker, name, name) for name in USERS}
    yield found
    for client in found.values():
        client.close()


@pytest.fixture(scope="module")
def message(broker: RunningBroker) -> str:
    """A message in the queue `orders`, whose policy has masks, and its name in the history."""
    put_queue(broker, "orders")
    with api_client(broker) as api:
        policy = {"pattern": "^orders$", "definition": {"mask": ["header.token", "$.card"]}, "apply-to": "queues"}
        api.put("/policies/%2F/masks", json=policy).raise_for_status()
        publish(api, "orders", CARD, headers={"token": "abc", "n": 1}, message_id="m1")
        (found,) = find(api, "%2F/orders", message_id="m1")
    return str(found["message"])


def looks(client: httpx2.Client, message: str) -> list[dict[str, Any]]:
    """The message, from everywhere where a user can look at it."""
    at = client.get("/queues/%2F/orders/at", params={"time": "0s"})
    peeked = client.get("/queues/%2F/orders/peek/1")
    assert (at.status_code, peeked.status_code) == (200, 200), at.text + peeked.text
    return [
        *find(client, "%2F/orders", message_id="m1"),
        history_answer(client, f"biography/%2F/{message}", queue="orders")["message"],
        *at.json()["message_details"],
        peeked.json(),
    ]


def contents(shown: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    assert [(each["payload_bytes"], each["routing_key"]) for each in shown] == [(len(CARD), "orders")] * 4
    assert {each["properties"]["message_id"] for each in shown} == {"m1"}
    return [(each["properties"]["headers"], each["payload"]) for each in shown]


@pytest.mark.parametrize("user", ["fates", "both"])
def test_b82_neither_bodies_nor_headers(clients: dict[str, httpx2.Client], message: str, user: str) -> None:
    assert contents(looks(clients[user], message)) == [(HIDDEN, "")] * 4
    outcomes = history_answer(clients[user], "outcomes/%2F/orders")["rows"]
    assert [(row["outcome"], row["size"]) for row in outcomes] == [("published", len(CARD))]


def test_b82_masks_are_for_all_but_those_who_may_see(
    api: httpx2.Client, clients: dict[str, httpx2.Client], message: str
) -> None:
    masked = {"token": "(masked)", "n": 1, "x-withheld": "headers, body"}, '{"card":"(masked)","sum":7}'
    assert contents(looks(clients["reader"], message)) == [masked] * 4
    assert contents(looks(api, message)) == [masked] * 4  # an administrator
    assert contents(looks(clients["trusted"], message)) == [({"token": "abc", "n": 1}, CARD)] * 4
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    shown = [
        client.post("/queues/%2F/orders/get", json=got).json() for client in (clients["reader"], clients["trusted"])
    ]
    assert [(each["properties"]["headers"], each["payload"]) for (each,) in shown] == [
        masked,
        ({"token": "abc", "n": 1}, CARD),
    ]
    cut = clients["reader"].post("/queues/%2F/orders/get", json=got | {"truncate": 14}).json()
    assert [each["payload"] for each in cut] == ['{"card":"(mask']


@pytest.mark.parametrize(
    ("user", "query", "why"),
    [
        ("fates", {"header": "n=1"}, "a user with the tag without-contents searches neither by header nor by body"),
        ("both", {"body": "4111"}, "a user with the tag without-contents searches neither by header nor by body"),
        ("reader", {"header": "token=abc"}, "a policy masks the header 'token': only users with the tag unmasked"),
        ("reader", {"body": "sum"}, "a policy masks bodies: only users with the tag unmasked search by body"),
    ],
)
def test_b82_a_search_cannot_probe(
    clients: dict[str, httpx2.Client], message: str, user: str, query: dict[str, str], why: str
) -> None:
    refused = clients[user].get("/history/find/%2F/orders", params=query)
    assert refused.status_code == 401
    assert why in refused.json()["reason"]
    assert len(find(clients["trusted"], "%2F/orders", **query)) == 1


def test_b82_masks_of_an_exchange_hold_in_every_queue(
    api: httpx2.Client, channel: BlockingChannel, clients: dict[str, httpx2.Client]
) -> None:
    """A copy in another queue has the masks of that queue's policies, and of the exchange's."""
    policy = {"pattern": "^shop$", "definition": {"mask": ["header.token", "$.card"]}, "apply-to": "exchanges"}
    api.put("/policies/%2F/shop", json=policy).raise_for_status()
    channel.exchange_declare("shop", "fanout")
    for queue in ("copies", "more"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "shop")
    properties = pika.BasicProperties(headers={"token": "xyz"}, message_id="m2")
    channel.basic_publish("shop", "key", CARD.encode(), properties)
    for queue in ("copies", "more"):
        (shown,) = find(clients["reader"], f"%2F/{queue}", message_id="m2")
        assert shown["properties"]["headers"]["token"] == "(masked)"
        assert shown["payload"] == '{"card":"(masked)","sum":7}'
        for query in ({"header": "token=xyz"}, {"body": "4111"}):  # what is masked is not compared
            assert find(clients["reader"], f"%2F/{queue}", **query) == []
            assert len(find(clients["trusted"], f"%2F/{queue}", **query)) == 1
        assert len(find(clients["reader"], f"%2F/{queue}", body="sum")) == 1
    everywhere = api.get("/history/find/%2F", params={"header": "token=xyz"})  # an administrator
    assert everywhere.status_code == 401


def test_b82_no_message_is_delivered(broker: RunningBroker, clients: dict[str, httpx2.Client], message: str) -> None:
    text = "user 'fates' has the tag without-contents, and gets no messages"
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    refused = clients["fates"].post("/queues/%2F/orders/get", json=got)
    assert (refused.status_code, text in refused.json()["reason"]) == (401, True), refused.text
    connection = connect(broker, "fates", "fates")
    for ask in (
        lambda channel: channel.basic_get("orders"),
        lambda channel: channel.basic_consume("orders", lambda *delivery: None),
    ):
        with pytest.raises(ChannelClosedByBroker) as closed:
            ask(connection.channel())  # type: ignore[no-untyped-call]
        assert (closed.value.reply_code, text in closed.value.reply_text) == (403, True)
    connection.close()


def test_b82_traces_are_in_headers(api: httpx2.Client, clients: dict[str, httpx2.Client], message: str) -> None:
    traces = "/history/traces/%2F/orders?since=2026-01-01T00:00:00Z"
    assert clients["reader"].get(traces).status_code == 200
    policy = {"pattern": "^traced$", "definition": {"mask": ["header.traceparent"]}, "apply-to": "exchanges"}
    api.put("/policies/%2F/traced", json=policy).raise_for_status()
    for user in ("fates", "reader"):
        refused = clients[user].get(traces)
        assert refused.status_code == 401
        assert refused.json()["reason"] == "traces are in headers, which are withheld from this user"
    assert clients["trusted"].get(traces).status_code == 200
    api.delete("/policies/%2F/traced").raise_for_status()


@pytest.mark.parametrize("mask", ["header.token", [], ["token"], ["$card"], ["$.a[0]"], ["header."], [1], ["$."]])
def test_b82_a_mask_that_is_none(api: httpx2.Client, mask: object) -> None:
    policy = {"pattern": "^none$", "definition": {"mask": mask}}
    refused = api.put("/policies/%2F/none", json=policy)
    assert refused.status_code == 400
    assert 'is not a valid mask: it must be a list such as ["header.token", "$.card", "$"]' in json.dumps(
        refused.json()["reason"], ensure_ascii=False
    ).replace('\\"', '"')


def test_b82_an_operator_masks(api: httpx2.Client, clients: dict[str, httpx2.Client]) -> None:
    api.put("/queues/%2F/safe", json={"durable": True}).raise_for_status()
    policy = {"pattern": "^safe$", "definition": {"mask": ["$"]}, "apply-to": "queues"}
    api.put("/operator-policies/%2F/safe", json=policy).raise_for_status()
    publish(api, "safe", "secret")
    shown = clients["reader"].get("/queues/%2F/safe/peek/1").json()
    assert (shown["payload"], shown["properties"]["headers"]) == ("(masked)", {"x-withheld": "body"})
