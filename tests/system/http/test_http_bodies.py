"""Bodies of requests: how large they may be, how large ones are read, and what the broker holds for them."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.bodies import (
    MAX_BODY_BYTES,
    MAX_DEFINITIONS_BYTES,
    MAX_VALUES,
    PARSED_HERE,
    BadBody,
    definitions_from,
    json_object,
)
from rewindmq.engine.rewind.worker import WorkerPool
from tests.support.broker_harness import Harness
from tests.support.running import RunningBroker

AUTH = ("guest", "guest")


def test_a_length_above_the_limit_is_refused_before_the_body_comes(broker: RunningBroker) -> None:
    head = (
        f"POST /api/definitions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        f"Content-Length: {MAX_DEFINITIONS_BYTES + 1}\r\n\r\n"
    )
    with socket.create_connection((broker.host, broker.http_port), timeout=10) as sock:
        sock.sendall(head.encode())
        answer = b""
        while part := sock.recv(65_536):  # and the connection is closed
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"Exceeded HTTP request body size limit (20000000 bytes)" in answer


def test_a_body_that_does_not_tell_its_length_is_cut_at_the_limit(api: httpx2.Client) -> None:
    answer = api.post("/definitions", content=iter([b" " * 1_000_000] * 21))
    assert answer.status_code == 413


def test_large_bodies_are_read(api: httpx2.Client, queue: str) -> None:
    payload = "é,\\" * 1_000_000
    content = {"properties": {}, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
    assert PARSED_HERE < len(json.dumps(content)) < MAX_BODY_BYTES
    assert api.post("/exchanges/%2F/amq.default/publish", json=content, timeout=60).json() == {"routed": True}
    got = api.post(f"/queues/%2F/{queue}/get", json={"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    assert got.json()[0]["payload"] == payload


@pytest.mark.parametrize("content", [b"[1," * 30_000, b'{"arguments": {', b'"' + b"x" * 70_000 + b'"'])
def test_large_bodies_that_are_no_json_objects_are_refused(api: httpx2.Client, name: str, content: bytes) -> None:
    answer = api.put(f"/queues/%2F/{name}", content=content + b" " * PARSED_HERE, timeout=60)
    assert (answer.status_code, answer.json()["reason"]) == (400, "not_json")


@pytest.mark.parametrize("count", [1_025, 10_000, 100_000])
def test_a_declaration_has_so_many_arguments(api: httpx2.Client, name: str, count: int) -> None:
    answer = api.put(
        f"/queues/%2F/{name}", json={"durable": True, "arguments": {f"a{n}": n for n in range(count)}}, timeout=60
    )
    assert answer.status_code == 400
    few = f"there are {count} arguments, more than 1024"
    reason = few if count <= 10_000 else "the body has more than 20000 values"
    assert answer.json()["reason"] == reason
    assert api.get(f"/queues/%2F/{name}").status_code == 404


def test_and_they_are_of_so_many_bytes(api: httpx2.Client, name: str) -> None:
    answer = api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"a": ["x" * 1_000] * 200}}, timeout=60)
    assert (answer.status_code, answer.json()["reason"]) == (400, "the arguments are larger than 131072 bytes")
    assert (
        api.put(
            f"/queues/%2F/{name}", json={"durable": True, "arguments": {f"a{n}": "x" for n in range(1_000)}}
        ).status_code
        == 201
    )


def test_large_definitions_go_in_and_out(api: httpx2.Client, name: str) -> None:
    document = {"queues": [{"name": f"{name}-{n}", "vhost": "/", "durable": True} for n in range(3_000)]}
    assert len(json.dumps(document)) > PARSED_HERE
    assert api.post("/definitions", json=document, timeout=120).status_code == 204
    names = [each["name"] for each in api.get("/definitions", timeout=60).json()["queues"]]
    assert names == sorted(names)
    assert {f"{name}-{n}" for n in range(3_000)} <= set(names)
    listed = api.get("/queues?columns=name,vhost&sort=name&sort_reverse=true", timeout=60).json()
    assert [each["name"] for each in listed if each["name"] in set(names)] == sorted(names, reverse=True)
    wrong = {"queues": [*document["queues"], {"name": 7}]}
    answer = api.post("/definitions", json=wrong, timeout=120)
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith("queue '7': ")


def test_what_values_are_counted() -> None:
    few = {"a": "," * (2 * MAX_VALUES)}
    assert json_object(json.dumps(few).encode()) == few, "commas in a text are no values"
    with pytest.raises(BadBody, match="the body has more than 20000 values"):
        json_object(json.dumps({"a": [0] * MAX_VALUES}).encode())
    with pytest.raises(BadBody, match="an entry of queues has more than 20000 values"):
        definitions_from(json.dumps({"queues": [{"name": "q", "arguments": [0] * MAX_VALUES}]}).encode(), "")
    with pytest.raises(BadBody, match="the document's head has more than 20000 values"):
        definitions_from(json.dumps({"queues": {"a": [0] * MAX_VALUES}}).encode(), "")


def test_what_a_request_holds_is_counted_until_it_is_answered(tmp_path: Path) -> None:
    with Harness(tmp_path) as h:
        broker: Any = h.broker._broker
        workers = WorkerPool()

        async def scenario() -> tuple[list[int], list[int]]:
            statuses, held = [], []
            transport = httpx2.ASGITransport(app=make_app(broker, workers))
            async with httpx2.AsyncClient(transport=transport, base_url="http://test/api", auth=AUTH) as client:
                for limit in (broker.host.memory.limit_bytes, 50_000):
                    broker.host.memory.limit_bytes = limit
                    for content in ({"x": "y" * 100_000}, {}):
                        answer = await client.put("/queues/%2F/q", json=content, timeout=60)
                        statuses.append(answer.status_code)
                        held.append(broker.host.memory.by_kind[MemoryKind.HTTP])
            return statuses, held

        try:
            statuses, held = h.loop.run_until_complete(asyncio.wait_for(scenario(), 60))
        finally:
            workers.close()
        assert statuses == [201, 204, 503, 204]
        assert held == [0] * 4
