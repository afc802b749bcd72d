"""X-Reason, and a broker that wants a reason (B-78). tests/system/cli/test_cli_reasons.py has every act."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.config import ACTS
from rewindmq.engine.http.app import ROUTES
from rewindmq.engine.http.call import MOST_REASON_BYTES
from rewindmq.engine.http.reference.operation import operation_of
from tests.support.broker_harness import Harness
from tests.support.http_clients import api_client, publish
from tests.support.next_version import KNOWING
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

Start = Callable[..., RunningBroker]
NOT_YET = (
    "a reason needs machine version 2, and the history follows 1: it can be used after `rewindmq finalize_upgrade`"
)
# Each act without a reason: method, path, and the content or None
CALLS: tuple[tuple[str, str, str, object], ...] = (
    ("purge", "DELETE", "/queues/%2F/orders/contents", None),
    ("policies", "PUT", "/policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}),
    ("policies", "PUT", "/operator-policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}),
    ("policies", "DELETE", "/policies/%2F/p", None),
    ("policies", "DELETE", "/operator-policies/%2F/p", None),
    ("users", "PUT", "/users/bob", {"password": "x", "tags": ""}),
    ("users", "PUT", "/user-limits/bob/max-channels", {"value": 9}),
    ("users", "DELETE", "/user-limits/bob/max-channels", None),
    ("permissions", "PUT", "/permissions/%2F/bob", {"configure": "", "write": "", "read": ""}),
    ("permissions", "PUT", "/topic-permissions/%2F/bob", {"exchange": "amq.topic", "write": "", "read": ""}),
    ("permissions", "DELETE", "/topic-permissions/%2F/bob", None),
    ("permissions", "DELETE", "/permissions/%2F/bob", None),
    ("users", "DELETE", "/users/bob", None),
    ("users", "POST", "/users/bulk-delete", {"users": ["nobody"]}),
    ("restore", "POST", "/queues/%2F/orders/restore", {"undo": "purge"}),
    ("move", "POST", "/queues/%2F/orders/messages/move", {"messages": [1], "to": "orders"}),
    ("move", "POST", "/queues/%2F/orders/messages/remove", {"messages": [1]}),
    ("pause", "PUT", "/queues/%2F/orders/pause", {}),
    ("pause", "PUT", "/queues/%2F/orders/resume", None),
    ("import", "POST", "/definitions", {"vhosts": [{"name": "made"}]}),
    ("import", "POST", "/definitions/made", {"queues": []}),
    ("close_connection", "DELETE", "/connections/username/nobody", None),
    ("erase", "DELETE", "/subjects/ann", None),
    ("delete", "DELETE", "/queues/%2F/orders", None),
    ("delete", "DELETE", "/exchanges/%2F/made", None),
    ("delete", "DELETE", "/vhosts/made", None),
)


def asked(api: httpx2.Client, method: str, path: str, content: object, **headers: str) -> httpx2.Response:
    more: dict[str, Any] = {} if content is None else {"json": content}
    return api.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}, **more)


def wanted(act: str) -> str:
    return f"this broker wants a reason ({act}): say why with --reason TEXT, or in the header X-Reason"


def outcomes(api: httpx2.Client, queue: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/history/outcomes/%2F/{queue}?tail=1000").json()["rows"]
    return rows


def test_b78_a_reason_is_bounded_and_has_one_line(api: httpx2.Client, queue: str) -> None:
    purge = f"/queues/%2F/{queue}/contents"
    publish(api, queue, "x")
    long = api.delete(purge, headers={"x-reason": "x" * (MOST_REASON_BYTES + 1)})
    assert (long.status_code, long.json()["reason"]) == (400, f"X-Reason has at most {MOST_REASON_BYTES} bytes")
    control = api.delete(purge, headers={b"x-reason": "a\x85b".encode()})
    assert (control.status_code, control.json()["reason"]) == (400, "X-Reason has a control character")
    longest = "é" * (MOST_REASON_BYTES // 2)
    assert api.delete(purge, headers={b"x-reason": longest.encode()}).status_code == 204
    assert [row["why"] for row in outcomes(api, queue)] == [None, longest]


def test_b78_each_event_has_its_own_reason(api: httpx2.Client, queue: str) -> None:
    """The session of the client is one. A reason is that of its call, and not of the next one."""
    for body, why in (("a", "first"), ("b", ""), ("c", "third")):
        publish(api, queue, body)
        api.delete(f"/queues/%2F/{queue}/contents", headers={"x-reason": why})
    assert [row["why"] for row in outcomes(api, queue) if row["outcome"] == "purged"] == ["first", None, "third"]
    for body, why in (("d", "fourth"), ("e", "fifth")):
        publish(api, queue, body)
        last = outcomes(api, queue)[-1]["message_id"]
        api.delete(f"/queues/%2F/{queue}/messages/{last}?reason={why}")
    rows = [row for row in outcomes(api, queue) if row["outcome"] == "removed"]
    assert [(row["reason"], row["why"]) for row in rows] == [("fourth", "fourth"), ("fifth", "fifth")]


def test_b78_what_an_act_leads_to_has_its_reason(api: httpx2.Client, queue: str) -> None:
    """A policy reaches queues, and ends messages there."""
    for body in ("a", "b"):
        publish(api, queue, body)
    content = {"pattern": f"^{queue}$", "definition": {"max-length": 1}}
    made = api.put(f"/policies/%2F/{queue}", json=content, headers={"x-reason": "disk is full"})
    assert made.status_code == 201
    (dropped,) = [row for row in outcomes(api, queue) if row["outcome"] == "maxlen"]
    assert (dropped["event"], dropped["user"], dropped["why"]) == ("PolicyApplied", "guest", "disk is full")


def headers_of(channel: BlockingChannel, queue: str) -> Iterator[dict[str, Any]]:
    """The headers of the messages of a queue, as they come."""
    for method, properties, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=20):
        assert method is not None, "no message came"
        yield properties.headers


def test_b78_events_as_messages_say_why(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    heard = channel.queue_declare("", exclusive=True).method.queue
    for key in ("queue.purged", "policy.set", "connection.closed"):
        channel.queue_bind(heard, "amq.rewindmq.event", key)
    api.delete(f"/queues/%2F/{queue}/contents", headers={"x-reason": "test data"})
    content = {"pattern": "none", "definition": {"max-length": 1}}
    api.put("/policies/%2F/told", json=content, headers={"x-reason": "a limit"})
    api.put("/policies/%2F/told", json={**content, "priority": 1})
    told = headers_of(channel, heard)
    assert [next(told).get("why") for _ in range(3)] == ["test data", "a limit", None]
    name, reason = f"closed-{queue}", "too many connections"
    other = connect(broker, client_properties={"connection_name": name})
    (each,) = [each for each in api.get("/connections").json() if each.get("user_provided_name") == name]
    assert api.delete(f"/connections/{each['name']}", headers={"x-reason": reason}).status_code == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=reason):
        other.process_data_events(time_limit=20)
    end = next(told)
    assert (end["name"], end["user"], end["why"]) == (each["name"], "guest", f"closed by guest: {reason}")


@pytest.mark.long
def test_b78_a_broker_wants_a_reason(start_broker: Start, tmp_path: Path) -> None:
    """Without VERBS it wants one for each act that can have one, and AMQP is as ever."""
    assert {act for act, *_ in CALLS} == set(ACTS)
    declared = {found.act for each in ROUTES.values() for way in each.values() if (found := operation_of(way))}
    assert declared == {*ACTS, None}
    broker = start_broker(tmp_path / "data", "--require-reason", "--subject-header", "customer")
    with api_client(broker) as api:
        for path in ("/queues/%2F/orders", "/exchanges/%2F/made"):
            assert api.put(path, json={"type": "direct"} if "exchanges" in path else {}).status_code == 201
        publish(api, "orders", "x", headers={"customer": "ann"})
        for act, method, path, content in CALLS:
            refused = asked(api, method, path, content)
            assert refused.status_code == 403, (path, refused.status_code, refused.text)
            assert refused.json() == {"error": "reason_required", "reason": wanted(act)}
            done = asked(api, method, path, content, x_reason="because")
            assert done.status_code in (200, 201, 204), (path, done.text)
        assert api.put("/queues/%2F/orders", json={}).status_code == 201  # no act of the list
        assert api.put("/queues/%2F/orders/pause", json={"reason": "as in 0.2"}).status_code == 204
        publish(api, "orders", "y")
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_purge("orders")
        channel.queue_delete("orders")
        connection.close()
        dry = api.post("/queues/%2F/orders/restore", json={"undo": "delete", "dry_run": True})
        assert dry.status_code == 200, dry.text


@pytest.mark.long
def test_b78_amqp_is_refused_where_the_option_names_the_act(start_broker: Start, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data", "--require-reason", "purge")
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_purge("orders")
    assert refused.value.reply_code == 403
    assert refused.value.reply_text == (
        "ACCESS_REFUSED - this broker wants a reason, which queue.purge cannot carry: give one by the HTTP API or the"
        " command line (--reason)"
    )
    connection.channel().queue_delete("orders")
    connection.close()


@pytest.mark.long
def test_b73_b78_a_history_of_version_1_has_no_reasons_yet(
    start_broker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that wrote it could not read them. Fields that it knows get them all the same."""
    with monkeypatch.context() as older:
        for module in KNOWING:
            older.setattr(f"rewindmq.{module}.MACHINE_VERSION", 1)
        with Harness(tmp_path / "data") as h:
            h.declare(h.session(), "orders")
    broker = start_broker(tmp_path / "data")
    connection = connect(broker)
    with api_client(broker) as api:
        publish(api, "orders", "x")
        for method, path, content in (
            ("DELETE", "/queues/%2F/orders/contents", None),
            ("PUT", "/users/bob", {"password": "x", "tags": ""}),
        ):
            refused = asked(api, method, path, content, x_reason="because")
            assert (refused.status_code, refused.json()["reason"]) == (400, NOT_YET)
        assert asked(api, "PUT", "/queues/%2F/orders/pause", None, x_reason="because").status_code == 204
        (each,) = api.get("/connections").json()
        assert asked(api, "DELETE", f"/connections/{each['name']}", None, x_reason="because").status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="because"):
            connection.process_data_events(time_limit=20)
        assert api.post("/upgrade/finalize").status_code == 200
        assert asked(api, "DELETE", "/queues/%2F/orders/contents", None, x_reason="because").status_code == 204
        assert outcomes(api, "orders")[-1]["why"] == "because"
