"""Messages found by what is in them: GET /api/history/find/{vhost}[/{queue}] (B-29)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_clients import find, publish
from tests.support.moments import now
from tests.support.processes import children_of
from tests.support.running import RunningBroker


def payloads(found: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in found]


def test_b29_a_message_is_found_by_each_key_also_when_it_is_gone(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, '{"order": 4711}', message_id=f"{queue}-4711", correlation_id=f"{queue}-c")
    publish(api, queue, '{"order": 4712}', headers={"customer": queue, "n": 3})
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    place = f"%2F/{queue}"
    first = find(api, place, message_id=f"{queue}-4711")
    assert payloads(first) == ['{"order": 4711}']
    found = first[0]
    assert found["message"] == f"{found['partition']}:{found['message_id']}"
    assert (found["queues"], found["user"], found["origin"]) == ([queue], "guest", None)
    assert (found["exchange"], found["routing_key"], found["payload_bytes"]) == ("", queue, 15)
    assert found["properties"]["message_id"] == f"{queue}-4711"
    assert find(api, "%2F", message_id=f"{queue}-4711") == first
    assert find(api, "%2F", correlation_id=f"{queue}-c") == first
    assert payloads(find(api, place, header=f"customer={queue}")) == ['{"order": 4712}']
    assert payloads(find(api, place, header="n=3")) == ['{"order": 4712}']
    assert payloads(find(api, place, body='"order"')) == ['{"order": 4712}', '{"order": 4711}']  # the newest first
    assert payloads(find(api, place, body="order", truncate="3")) == ['{"o', '{"o']
    assert find(api, place, body="order", correlation_id="other") == []
    assert api.delete(f"/queues/%2F/{queue}").status_code == 204
    assert find(api, place, message_id=f"{queue}-4711") == first


def test_b29_times_and_limits_cut_a_search_and_next_goes_on(api: httpx2.Client, queue: str) -> None:
    for number in range(5):
        publish(api, queue, f"m{number}")
    between = now()
    for number in range(5, 10):
        publish(api, queue, f"m{number}")
    place = f"%2F/{queue}"
    assert payloads(find(api, place, body="m", since=between)) == ["m9", "m8", "m7", "m6", "m5"]
    assert payloads(find(api, place, body="m", until=between)) == ["m4", "m3", "m2", "m1", "m0"]
    page = api.get(f"/history/find/{place}", params={"body": "m", "limit": "3"}).json()
    assert payloads(page["messages"]) == ["m9", "m8", "m7"]
    rest = find(api, place, body="m", limit="3", next=page["next"])
    assert payloads(rest) == ["m6", "m5", "m4", "m3", "m2", "m1", "m0"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "say what to find: message_id, correlation_id, header, body or unrouted"),
        ({"header": "customer"}, "header is NAME=VALUE"),
        ({"body": ""}, "body has from 1 to 4096 bytes"),
        ({"body": "x" * 5_000}, "body has from 1 to 4096 bytes"),
        ({"body": "x", "since": "yesterday"}, "since: 'yesterday' is not a time"),
        ({"body": "x", "limit": "0"}, "limit is from 1 to 1000"),
        ({"body": "x", "limit": "1001"}, "limit is from 1 to 1000"),
        ({"body": "x", "truncate": "70000"}, "truncate is at most 65536"),
        ({"body": "x", "next": "queues-0:1"}, "next is not from an answer to a search"),
        ({"body": "x", "next": "../..:1-2"}, "next is not from an answer to a search"),
    ],
)
def test_b29_searches_that_make_no_sense(api: httpx2.Client, queue: str, query: dict[str, str], reason: str) -> None:
    answer = api.get(f"/history/find/%2F/{queue}", params=query)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert answer.json()["reason"].startswith(reason)


def test_b29_a_reader_of_a_queue_searches_its_past_and_nothing_else(
    api: httpx2.Client, broker: RunningBroker, name: str
) -> None:
    mine, other, fan = f"{name}-mine", f"{name}-other", f"{name}-fan"
    api.put(f"/queues/%2F/{mine}", json={"durable": True})
    publish(api, mine, "of the queue before")
    api.delete(f"/queues/%2F/{mine}")
    for queue in (mine, other):
        api.put(f"/queues/%2F/{queue}", json={"durable": True})
    api.put(f"/exchanges/%2F/{fan}", json={"durable": True, "type": "fanout"})
    for queue in (mine, other):
        api.post(f"/bindings/%2F/e/{fan}/q/{queue}", json={})
    content = {"properties": {}, "routing_key": "", "payload": "of the fan", "payload_encoding": "string"}
    api.post(f"/exchanges/%2F/{fan}/publish", json=content)
    publish(api, other, "of the other")
    api.put(f"/users/{name}", json={"password": "x", "tags": "management"})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": "", "read": f"{name}-mine"})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "x"), trust_env=False) as reader:
        found = find(reader, f"%2F/{mine}", body="of the")
        assert [(each["payload"], each["queues"]) for each in found] == [("of the fan", [mine])]
        everything = f"queues-0:0-{10**9},queues-1:0-{10**9},queues-2:0-9,metadata-0:0-9"
        assert find(reader, f"%2F/{mine}", body="of the", next=everything) == found
        refused = reader.get(f"/history/find/%2F/{other}", params={"body": "x"})
        assert refused.status_code == 401
        assert reader.get(f"/history/find/%2F/{name}-gone", params={"body": "x"}).status_code in (401, 404)
        whole = reader.get("/history/find/%2F", params={"body": "x"})
        assert whole.status_code == 401
        assert whole.json()["reason"] == "only administrators search all queues of a virtual host: name a queue"


def test_b29_the_process_that_searches_gives_way_to_the_broker(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    find(api, f"%2F/{queue}", body="x")
    niceness = {os.getpriority(os.PRIO_PROCESS, child) for child in children_of(broker.process.pid)}
    own = os.getpriority(os.PRIO_PROCESS, broker.process.pid)
    assert min(19, own + 10) in niceness


def test_b29_a_body_under_a_key_is_found_until_the_subject_is_erased(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = start_broker(tmp_path, "--subject-header", "x-subject")
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        api.put("/queues/%2F/q", json={"durable": True})
        publish(api, "q", "order 4711 of alice", headers={"x-subject": "alice"})
        publish(api, "q", "order 4711 of nobody")
        assert payloads(find(api, "%2F/q", body="4711")) == ["order 4711 of nobody", "order 4711 of alice"]
        assert api.delete("/subjects/alice").is_success
        assert payloads(find(api, "%2F/q", body="4711")) == ["order 4711 of nobody"]
        assert payloads(find(api, "%2F/q", header="x-subject=alice")) == [""]
