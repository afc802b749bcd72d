"""A broker with `--find-index`: ids are found by the index, also after it or its process was killed (B-46)."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import pika_clients
from tests.support.pika_clients import confirming
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

SECONDS = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def page(broker: RunningBroker, message_id: str) -> dict[str, Any]:
    query = {"message_id": message_id}
    answer = httpx2.get(f"{broker.http_url}/api/history/find/%2F", params=query, auth=("guest", "guest"), timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by_index(broker: RunningBroker, message_id: str, most: int) -> dict[str, Any]:
    """The answer as soon as the index has what is needed."""
    deadline = time.monotonic() + SECONDS
    while (found := page(broker, message_id))["read"] > most or found["left"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def index_process(broker: RunningBroker) -> int:
    """The process that has the index's lock open."""
    lock = str(broker.data / "find-index" / "LOCK")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                links = [os.readlink(each) for each in (process / "fd").iterdir()]
            except OSError:
                continue
            if lock in links:
                return int(process.name)
    raise AssertionError("no process has the index")


def publish(broker: RunningBroker, first: int, end: int) -> None:
    with confirming(broker) as channel:
        channel.queue_declare("orders", durable=True)
        for number in range(first, end):
            pika_clients.publish(channel, "orders", "x", message_id=f"order-{number}")


def test_b46_the_index_answers_and_survives_kills(data: Path) -> None:
    broker = RunningBroker(data, "--find-index", "7d")
    publish(broker, 0, 300)
    found = by_index(broker, "order-7", 1)
    assert [each["properties"]["message_id"] for each in found["messages"]] == ["order-7"]
    assert found["searched"] > 300
    os.kill(index_process(broker), signal.SIGKILL)
    publish(broker, 300, 350)
    assert [each["properties"]["message_id"] for each in page(broker, "order-320")["messages"]] == ["order-320"]
    by_index(broker, "order-320", 1)
    broker.kill()
    broker = RunningBroker(data, "--find-index", "7d")
    for message_id in ("order-7", "order-320"):
        assert len(by_index(broker, message_id, 1)["messages"]) == 1
    assert by_index(broker, "none", 0)["messages"] == []
    assert broker.stop() == 0
    for part in (data / "find-index").glob("*.sst"):
        part.write_bytes(b"damaged")
    broker = RunningBroker(data, "--find-index", "7d")
    assert len(by_index(broker, "order-7", 1)["messages"]) == 1
    assert broker.stop() == 0
    broker = RunningBroker(data)
    assert page(broker, "order-7")["read"] > 300
    assert broker.stop() == 0
    assert not (data / "find-index").exists()
