"""Publishes that no queue takes are in the history, with their bodies (B-80)."""

import uuid
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from rewindmq.engine.cli.main import rewindmq
from tests.support.commands import metadata_events
from tests.support.http_clients import api_client, find, history_answer
from tests.support.metrics import metrics
from tests.support.running import RunningBroker


@pytest.fixture
def key() -> str:
    """A routing key that no queue has, and no other test uses."""
    return f"nobody-{uuid.uuid4().hex[:8]}"


def lost(api: httpx2.Client, key: str) -> list[dict[str, Any]]:
    """The unrouted messages with this routing key, the oldest first."""
    return [each for each in reversed(find(api, "%2F", unrouted="true")) if each["routing_key"] == key]


def how(messages: list[dict[str, Any]]) -> list[tuple[str, bool, bool]]:
    return [(each["payload"], each["unrouted"]["alternate"], each["unrouted"]["returned"]) for each in messages]


def test_b80_a_dropped_message_is_found_with_its_body(api: httpx2.Client, channel: BlockingChannel, key: str) -> None:
    for exchange in ("", "amq.topic", "amq.headers"):
        properties = pika.BasicProperties(message_id=f"{key}-{exchange}", headers={"n": 1}, delivery_mode=2)
        channel.basic_publish(exchange, key, f"to {exchange}".encode(), properties)
    found = lost(api, key)
    assert how(found) == [("to ", False, False), ("to amq.topic", False, False), ("to amq.headers", False, False)]
    assert [(each["exchange"], each["queues"], each["user"]) for each in found] == [
        ("", [], "guest"),
        ("amq.topic", [], "guest"),
        ("amq.headers", [], "guest"),
    ]
    assert find(api, "%2F", message_id=f"{key}-") == [found[0]]
    assert found[0]["properties"] == {"message_id": f"{key}-", "headers": {"n": 1}, "delivery_mode": 2}


def test_b80_a_mandatory_message_was_returned(api: httpx2.Client, channel: BlockingChannel, key: str) -> None:
    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish("amq.direct", key, b"back", mandatory=True)
    assert [each.body for each in returned.value.messages] == [b"back"]
    assert how(lost(api, key)) == [("back", False, True)]


def test_b80_an_alternate_exchange_was_asked(api: httpx2.Client, channel: BlockingChannel, key: str) -> None:
    channel.exchange_declare(f"{key}-ae", "direct")
    channel.exchange_declare(key, "direct", arguments={"alternate-exchange": f"{key}-ae"})
    channel.basic_publish(key, key, b"asked")
    channel.exchange_declare(f"{key}-next", "direct")
    channel.exchange_bind(f"{key}-next", key, key)  # now the first exchange matches, and its alternate is not asked
    channel.basic_publish(key, key, b"not asked")
    assert how(lost(api, key)) == [("asked", True, False), ("not asked", False, False)]
    channel.queue_declare(key)
    channel.queue_bind(key, f"{key}-ae", key)
    channel.exchange_unbind(f"{key}-next", key, key)
    channel.basic_publish(key, key, b"routed")
    assert len(lost(api, key)) == 2
    assert channel.queue_declare(key, passive=True).method.message_count == 1


def test_b80_a_transaction_loses_what_it_commits(
    api: httpx2.Client, connection: pika.BlockingConnection, key: str
) -> None:
    channel = connection.channel()
    channel.tx_select()
    channel.basic_publish("", key, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", key, b"committed")
    channel.queue_declare(f"{key}-gone")
    channel.basic_publish("", f"{key}-gone", b"its queue goes")
    channel.queue_delete(f"{key}-gone")
    channel.tx_commit()
    assert how(lost(api, key)) == [("committed", False, False)]
    assert how(lost(api, f"{key}-gone")) == [("its queue goes", False, False)]


def test_b80_refused_publishes_are_no_events(api: httpx2.Client, connection: pika.BlockingConnection, key: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
        channel.basic_publish(f"no-{key}", key, b"x")
    assert lost(api, key) == []


def test_b80_the_http_api_publishes_too(api: httpx2.Client, key: str) -> None:
    content = {"properties": {}, "routing_key": key, "payload": "by hand", "payload_encoding": "string"}
    assert api.post("/exchanges/%2F/amq.topic/publish", json=content).json() == {"routed": False}
    assert how(lost(api, key)) == [("by hand", False, True)]


def test_b80_a_binding_that_comes_later_takes_the_next(api: httpx2.Client, channel: BlockingChannel, key: str) -> None:
    channel.basic_publish("amq.topic", key, b"early")
    channel.queue_declare(key)
    channel.queue_bind(key, "amq.topic", key)
    channel.basic_publish("amq.topic", key, b"in time")
    channel.queue_delete(key)
    channel.basic_publish("amq.topic", key, b"late")
    assert how(lost(api, key)) == [("early", False, False), ("late", False, False)]


def test_b80_only_administrators_find_them(
    api: httpx2.Client, broker: RunningBroker, channel: BlockingChannel, key: str
) -> None:
    channel.basic_publish("", key, b"secret")
    api.put(f"/users/{key}", json={"password": "p", "tags": "monitoring"}).raise_for_status()
    api.put(f"/permissions/%2F/{key}", json={"configure": ".*", "write": ".*", "read": ".*"}).raise_for_status()
    with api_client(broker, key, "p") as other:
        assert other.get("/history/find/%2F", params={"unrouted": "true"}).status_code == 401
        refused = other.get("/history/find/%2F/some", params={"unrouted": "true"})
        assert (refused.status_code, refused.json()["reason"]) != (200, "")


@pytest.mark.long
def test_b80_they_survive_a_kill_once_they_are_confirmed(tmp_path: Path, key: str) -> None:
    broker = RunningBroker(tmp_path)
    channel = pika.BlockingConnection(pika.URLParameters(broker.amqp_url)).channel()
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("amq.topic", key, str(number).encode(), pika.BasicProperties(delivery_mode=2))
    broker.kill()
    again = RunningBroker(tmp_path)
    with api_client(again) as api:
        assert [each["payload"] for each in lost(api, key)] == [str(number) for number in range(50)]
    assert again.stop() == 0


def test_b80_a_policy_has_them_counted(
    api: httpx2.Client, broker: RunningBroker, channel: BlockingChannel, key: str
) -> None:
    channel.exchange_declare(key, "topic")
    policy = {"pattern": f"^{key}$", "apply-to": "exchanges", "definition": {"unrouted": "count"}}
    api.put(f"/policies/%2F/{key}", json=policy).raise_for_status()
    for number in range(5):
        channel.basic_publish(key, "sensor", b"x", pika.BasicProperties(message_id=f"{key}-{number}"))
    channel.basic_publish(key, "other", b"x")
    assert lost(api, "sensor") == []
    counted: list[dict[str, Any]] = [
        {**each} for each in metadata_events(broker.data, "UnroutedCounted") if each["exchange"] == key
    ]
    assert [(each["routing_key"], each["count"], each["message_ids"]) for each in counted] == [
        ("sensor", 1, [f"{key}-0"]),  # the rest of it is told within a minute
        ("other", 1, []),
    ]
    api.delete(f"/policies/%2F/{key}").raise_for_status()
    channel.basic_publish(key, key, b"kept again")
    assert how(lost(api, key)) == [("kept again", False, False)]


def test_b80_a_policy_says_keep_or_count(api: httpx2.Client, key: str) -> None:
    policy = {"pattern": "^x$", "apply-to": "exchanges", "definition": {"unrouted": "forget"}}
    refused = api.put(f"/policies/%2F/{key}", json=policy)
    assert (refused.status_code, "it must be either keep or count" in refused.json()["reason"]) == (400, True)


def test_b80_the_metrics_count_them_by_exchange(
    api: httpx2.Client, broker: RunningBroker, channel: BlockingChannel, key: str
) -> None:
    channel.exchange_declare(key, "topic")
    for number in range(3):
        channel.basic_publish(key, str(number), b"x")
    (sample,) = [
        each for each in metrics(broker)["rewindmq_unrouted_messages"].samples if each.labels["exchange"] == key
    ]
    assert (sample.labels["vhost"], sample.value) == ("/", 3)


def restore_unrouted(api: httpx2.Client, exchange: str, **content: object) -> dict[str, Any]:
    answer = api.post("/vhosts/%2F/restore-unrouted", json={"exchange": exchange, "since": "-1h", **content})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_b80_a_forgotten_binding_is_added_and_its_messages_come_back_once(
    api: httpx2.Client, channel: BlockingChannel, key: str
) -> None:
    channel.exchange_declare(key, "topic")
    for number in range(3):
        properties = pika.BasicProperties(message_id=f"{key}-{number}", headers={"n": number}, delivery_mode=2)
        channel.basic_publish(key, "order.new", str(number).encode(), properties)
    channel.basic_publish(key, "other", b"x")
    channel.queue_declare(key)
    channel.queue_bind(key, key, "order.*")
    routes = [
        {"routing_key": "order.new", "queues": [key], "messages": 3},
        {"routing_key": "other", "queues": [], "messages": 1},
    ]
    assert restore_unrouted(api, key, dry_run=True) == {
        **{"exchange": key, "messages": 4, "nowhere": 1, "routes": routes, "dry_run": True}
    }
    assert channel.queue_declare(key, passive=True).method.message_count == 0
    done = restore_unrouted(api, key)
    assert [done[each] for each in ("restored", "duplicates", "refused", "nowhere")] == [3, 0, 0, 1]
    for number in range(3):
        method, properties, body = channel.basic_get(key, auto_ack=True)
        assert (method.exchange, method.routing_key, body) == (key, "order.new", str(number).encode())
        assert (properties.message_id, properties.headers["n"]) == (f"{key}-{number}", number)
        assert set(properties.headers["x-restored"]) == {"partition", "id", "at"}
    again = restore_unrouted(api, key, since="-2h")
    assert [again[each] for each in ("restored", "duplicates", "nowhere")] == [0, 3, 1]
    assert channel.queue_declare(key, passive=True).method.message_count == 0
    assert how(lost(api, "other")) == [("x", False, False)]  # it made no second event
    *copies, first = find(api, "%2F", message_id=f"{key}-0")  # the second copy is one that the queue dropped
    assert [(each["origin"]["reason"], each["origin"]["message_id"]) for each in copies] == [
        ("restored", first["message_id"])
    ] * 2
    life = history_answer(api, f"biography/%2F/{first['message']}")["rows"]
    assert [(each["queue"], each["outcome"]) for each in life] == [
        (None, "unrouted"),
        (key, "published"),
        (key, "delivered"),
        (key, "duplicate"),
    ]
    channel.queue_declare(f"{key}-late")
    channel.queue_bind(f"{key}-late", key, "#")
    assert restore_unrouted(api, key, routing_key="other")["restored"] == 1
    assert channel.basic_get(f"{key}-late", auto_ack=True)[2] == b"x"


def test_b80_messages_are_routed_again_by_headers_and_copies(
    api: httpx2.Client, channel: BlockingChannel, key: str
) -> None:
    channel.exchange_declare(key, "headers")
    channel.exchange_declare(f"{key}-cc", "direct")
    channel.basic_publish(key, "k", b"eu", pika.BasicProperties(headers={"region": "eu"}))
    channel.basic_publish(key, "k", b"us", pika.BasicProperties(headers={"region": "us"}))
    channel.basic_publish(f"{key}-cc", "k", b"copy", pika.BasicProperties(headers={"CC": [key]}))
    channel.queue_declare(key)
    channel.queue_bind(key, key, arguments={"x-match": "all", "region": "eu"})
    channel.queue_bind(key, f"{key}-cc", key)
    assert restore_unrouted(api, key)["restored"] == restore_unrouted(api, f"{key}-cc")["restored"] == 1
    assert [channel.basic_get(key, auto_ack=True)[2] for _ in range(2)] == [b"eu", b"copy"]


def test_b80_only_administrators_restore_them(api: httpx2.Client, broker: RunningBroker, key: str) -> None:
    api.put(f"/users/{key}", json={"password": "p", "tags": "monitoring"}).raise_for_status()
    api.put(f"/permissions/%2F/{key}", json={"configure": ".*", "write": ".*", "read": ".*"}).raise_for_status()
    content = {"exchange": "amq.topic", "since": "-1h"}
    with api_client(broker, key, "p") as other:
        assert other.post("/vhosts/%2F/restore-unrouted", json=content).status_code == 401
    missing = api.post("/vhosts/%2F/restore-unrouted", json={**content, "exchange": f"no-{key}"})
    assert (missing.status_code, missing.json()["reason"]) == (404, f"no exchange 'no-{key}' in vhost '/'")


def test_b80_the_command_restores_them(broker: RunningBroker, channel: BlockingChannel, key: str) -> None:
    channel.exchange_declare(key, "direct")
    channel.basic_publish(key, "k", b"x")
    channel.queue_declare(key)
    channel.queue_bind(key, key, "k")
    url = ["--url", broker.http_url]
    for more, begin in (["--dry-run"], "Would route 1"), ([], "Routed 1"):
        done = CliRunner().invoke(
            rewindmq,
            ["restore", "--unrouted", "--exchange", key, "--since", "1h", "--reason", "forgotten", *more, *url],
        )
        assert done.exit_code == 0, done.output
        assert begin in done.output
        assert key in done.output.splitlines()[-1]
    shown = CliRunner().invoke(rewindmq, ["history", key, *url])
    assert "forgotten" in shown.output
    wrong = CliRunner().invoke(rewindmq, ["restore", "--unrouted", *url])
    assert (
        str(wrong.exception)
        == "--unrouted takes --exchange NAME and --since TIME, perhaps --until, --key and --dry-run"
    )


def test_b80_exchanges_that_are_gone_are_not_counted_for_ever(
    api: httpx2.Client, broker: RunningBroker, channel: BlockingChannel, key: str
) -> None:
    for number in range(100):
        channel.exchange_declare(f"{key}-{number}", "fanout")
        channel.basic_publish(f"{key}-{number}", "", b"x")
        channel.exchange_delete(f"{key}-{number}")
    samples = metrics(broker)["rewindmq_unrouted_messages"].samples
    assert len(samples) <= 2 * len(api.get("/exchanges").json()) + 2
