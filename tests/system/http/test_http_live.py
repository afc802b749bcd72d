"""Live figures as server-sent events: what comes, who may listen, and when a stream ends (B-37)."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from rewindmq.engine.http import live
from tests.support.deadlines import until
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

SECONDS = 60
GUEST = ("guest", "guest")


class Heard:
    """The frames of a stream, read by a thread. `over`: the stream has ended."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.frames: list[tuple[str, Any]] = []
        self.over = False
        self._lines = lines
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        try:
            for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.frames.append((name, json.loads(line.removeprefix("data: "))))
        except httpx2.HTTPError:
            pass
        self.over = True

    def last(self) -> Any:
        until(lambda: self.frames, "a frame came")
        return self.frames[-1][1]


@contextmanager
def stream(running: RunningBroker, path: str, **options: Any) -> Iterator[Heard]:
    options.setdefault("auth", GUEST)
    url = f"{running.http_url}/api/live{path}"
    with (
        httpx2.Client(trust_env=False, timeout=SECONDS) as client,
        client.stream("GET", url, **options) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
        yield Heard(answer.iter_lines())


def status(running: RunningBroker, path: str, **options: Any) -> tuple[int, str]:
    options.setdefault("auth", GUEST)
    with (
        httpx2.Client(trust_env=False, timeout=SECONDS) as client,
        client.stream("GET", f"{running.http_url}/api/live{path}", **options) as answer,
    ):
        return answer.status_code, "" if answer.status_code == 200 else answer.read().decode()


def publish(api: httpx2.Client, queue: str, count: int = 1) -> None:
    for _ in range(count):
        content = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
        assert api.post("/exchanges/%2F/amq.default/publish", json=content).json() == {"routed": True}


@pytest.fixture
def queue(api: httpx2.Client) -> Iterator[str]:
    api.put("/queues/%2F/live", json={"durable": True}).raise_for_status()
    yield "live"
    api.delete("/queues/%2F/live")


def test_b37_figures_come_as_they_change(broker: RunningBroker, api: httpx2.Client, queue: str) -> None:
    listing = "/queues?page=1&page_size=10&name=live&columns=name,messages_ready"
    with (
        stream(broker, f"/queues/%2F/{queue}?columns=messages_ready") as one,
        stream(broker, listing) as page,
        stream(broker, "/overview") as whole,
    ):
        assert one.last() == {"messages_ready": 0}
        assert page.last()["items"] == [{"name": "live", "messages_ready": 0}]
        publish(api, queue, 3)
        until(lambda: one.last() == {"messages_ready": 3}, "the queue's figure")
        until(lambda: page.last()["items"] == [{"name": "live", "messages_ready": 3}], "the page's figure")
        until(lambda: whole.last()["queue_totals"]["messages_ready"] >= 3, "the node's figure")
        before = len(one.frames)
        time.sleep(2 * live.TICK_SECONDS + 1)
        assert len(one.frames) == before  # nothing changed, so nothing was sent
        api.delete(f"/queues/%2F/{queue}")
        until(lambda: one.frames[-1][0] == "problem", "the queue is gone")
        assert one.last()["status"] == 404
        api.put(f"/queues/%2F/{queue}", json={"durable": True})
        until(lambda: one.last() == {"messages_ready": 0}, "the queue came back")
        assert [one.over, page.over, whole.over] == [False] * 3


def test_b37_listeners_share_an_answer_and_hear_only_what_they_may_see(
    broker: RunningBroker, api: httpx2.Client
) -> None:
    api.put("/users/lee", json={"password": "lee", "tags": "management"})
    api.put("/vhosts/private")
    api.put("/queues/private/secret", json={"durable": True})
    path = "/queues?page=1&columns=name"
    with stream(broker, path, auth=("lee", "lee")) as lee, stream(broker, path) as guest:
        assert lee.last()["items"] == []
        assert {"name": "secret"} in guest.last()["items"]
        api.put("/permissions/private/lee", json={"configure": "", "write": "", "read": ".*"})
        until(lambda: {"name": "secret"} in lee.last()["items"], "lee may enter the vhost")
        api.delete("/permissions/private/lee")
        until(lambda: lee.last()["items"] == [], "lee may not any more")
    assert status(broker, "/queues/private/secret", auth=("lee", "lee"))[0] == 401
    api.delete("/vhosts/private")
    api.delete("/users/lee")


@pytest.mark.parametrize("how", ["deleted", "another password", "other tags"])
def test_b37_a_stream_ends_with_its_user(broker: RunningBroker, api: httpx2.Client, how: str) -> None:
    api.put("/users/max", json={"password": "max", "tags": "monitoring"})
    with stream(broker, "/overview", auth=("max", "max")) as heard:
        assert heard.last()["node"]
        if how == "deleted":
            api.delete("/users/max")
        else:
            tags = "management" if how == "other tags" else "monitoring"
            api.put("/users/max", json={"password": "max" if how == "other tags" else "new", "tags": tags})
        until(lambda: heard.over, "the stream ended")
        assert heard.frames[-1] == ("end", {})
    api.delete("/users/max")


def test_b37_a_stream_ends_with_its_login(broker: RunningBroker) -> None:
    with httpx2.Client(
        base_url=f"{broker.http_url}/api", trust_env=False, headers={"x-requested-with": "page"}
    ) as page:
        page.post("/login", json={"username": "guest", "password": "guest"}).raise_for_status()
        cookies = dict(page.cookies)
        with stream(broker, "/overview", auth=None, cookies=cookies) as heard:
            assert heard.last()["node"]
            page.delete("/login")
            until(lambda: heard.over, "the stream ended")
            assert heard.frames[-1] == ("end", {})
    headers = {"accept": "text/event-stream"}
    with httpx2.Client(trust_env=False) as client:
        answer = client.get(f"{broker.http_url}/api/live/overview", headers=headers, cookies=cookies)
    assert answer.status_code == 401
    assert "Basic" not in answer.headers["www-authenticate"]  # else the browser asks for a password itself


def test_b37_streams_are_bounded(broker: RunningBroker, api: httpx2.Client) -> None:
    api.put("/users/many", json={"password": "many", "tags": "monitoring"})
    open_ones: list[Any] = []
    try:
        for _ in range(live.MOST_OF_USER):
            one = stream(broker, "/overview", auth=("many", "many"))
            one.__enter__()
            open_ones.append(one)
        assert status(broker, "/overview", auth=("many", "many"))[0] == 429
        assert status(broker, "/overview")[0] == 200  # another user
        open_ones.pop().__exit__(None, None, None)
        until(lambda: status(broker, "/overview", auth=("many", "many"))[0] == 200, "one was closed")
    finally:
        for one in open_ones:
            one.__exit__(None, None, None)
        api.delete("/users/many")


def test_b37_what_cannot_be_streamed_is_refused(broker: RunningBroker) -> None:
    code, text = status(broker, "/queues")
    assert (code, "page and page_size" in text) == (400, True)
    assert status(broker, "/queues/%2F/none")[0] == 404
    assert status(broker, "/overview", auth=("guest", "wrong"))[0] == 401
    answer = httpx2.head(f"{broker.http_url}/api/live/overview", auth=GUEST, trust_env=False)
    assert answer.headers["content-type"] == "text/event-stream"


def test_b37_streams_end_at_once_when_the_broker_stops(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker(None)
    with stream(running, "/overview") as heard:
        assert heard.last()["node"]
        began = time.monotonic()
        running.stop()
        assert time.monotonic() - began < 3
        until(lambda: heard.over, "the stream ended")
