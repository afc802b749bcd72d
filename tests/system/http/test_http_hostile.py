"""The API refuses requests that no browser and no library sends, with endless numbers or truncated bodies, and those
that the broker's end interrupts. Each refusal has a reason, and the log has no traceback."""

import asyncio
import socket
import time

import httpx2
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewindmq.engine.http.disconnects import STOPPING, Ending
from tests.support.running import RunningBroker

HUGE = "9" * 20
ENDLESS = "9" * 5_000  # more digits than Python turns into a number


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        (f"/queues/%2F/QUEUE/peek/{HUGE}", 400, "positions are numbers from 1 on"),
        ("/queues/%2F/QUEUE/peek/999999999999999999", 404, "Target queue does not have a message at that position"),
        ("/queues/%2F/QUEUE/peek/0", 400, "positions are numbers from 1 on"),
        (f"/health/checks/port-listener/{HUGE}", 400, "Invalid port"),
        ("/health/checks/certificate-expiration/" + "9" * 250 + "/years", 400, "Invalid expiration value."),
        (f"/queues?page={ENDLESS}", 400, "Pagination parameters are invalid"),
        (f"/queues?page=1&page_size={HUGE}", 400, "Pagination parameters are invalid"),
        (f"/queues/%2F/QUEUE/at?offset={ENDLESS}", 400, f"offset is a whole number, not '{ENDLESS}'"),
    ],
)
def test_a_number_without_end_is_refused(api: httpx2.Client, queue: str, path: str, status: int, reason: str) -> None:
    answer = api.get(path.replace("QUEUE", queue))
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.mark.parametrize("count", [HUGE, ENDLESS, f"-{ENDLESS}"])
def test_a_number_without_end_in_a_body_is_refused(api: httpx2.Client, queue: str, count: str) -> None:
    content = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    answer = api.post(f"/queues/%2F/{queue}/get", json=content)
    assert (answer.status_code, answer.json()["reason"][:18]) == (400, "not_integer: count")


def test_a_body_that_is_cut_short_is_no_defect(broker: RunningBroker, api: httpx2.Client) -> None:
    told = len(broker.errors)
    with socket.create_connection((broker.host, broker.http_port)) as client:
        client.sendall(
            b"PUT /api/queues/%2F/never HTTP/1.1\r\nhost: a\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            b'content-length: 1000\r\n\r\n{"durable":'
        )
        time.sleep(0.2)
    assert api.get("/whoami").status_code == 200
    time.sleep(0.2)
    assert api.get("/queues/%2F/never").status_code == 404
    assert [line for line in broker.errors[told:] if "[error]" in line] == []


def _ended(app: ASGIApp, cancel: bool) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def test() -> None:
        task = asyncio.ensure_future(Ending(app)({"type": "http", "method": "GET"}, receive, send))
        await asyncio.sleep(0)
        if cancel:
            task.cancel()
        await task

    asyncio.run(test())
    return sent


def test_a_request_that_the_brokers_end_meets_is_answered() -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    async def has_begun(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    start, body = _ended(waits, cancel=True)
    assert start["status"] == 503
    assert STOPPING.encode() in body["body"]
    assert [each["type"] for each in _ended(has_begun, cancel=True)] == ["http.response.start"]


def test_a_client_that_goes_away_is_no_defect() -> None:
    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    assert _ended(reads, cancel=False) == []
