"""GET /api/state: who may have it, where there is none, and what happens when nobody takes it.

On Kafka, where it is of use: tests/system/kafka/test_kafka_copy_state.py.
"""

import asyncio
from pathlib import Path

import httpx2
import pytest
from starlette.types import Message

from rewindmq.engine.cluster.store_copy import StateCopy
from rewindmq.engine.http.resources import state
from rewindmq.projections.store.store import StateStore
from tests.support.running import RunningBroker


def test_an_embedded_broker_refuses(api: httpx2.Client, broker: RunningBroker) -> None:
    answer = api.get("/state")
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "bad_request",
        "reason": (
            "the log of this broker is in its data directory, and its state is of no use without it: back up the log"
            " (docs/operators/backup.md)"
        ),
    }
    assert not (broker.data / "copying").exists()


@pytest.mark.parametrize("tags", ["monitoring", "policymaker", "management"])
def test_it_is_for_administrators(api: httpx2.Client, name: str, tags: str) -> None:
    assert api.put(f"/users/{name}", json={"password": "secret", "tags": tags}).status_code == 201
    answer = api.get("/state", auth=(name, "secret"))
    assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user")


class Taker:
    """Who asked, at the other side of ASGI: takes `takes` messages and then nothing more, or goes away."""

    def __init__(self, takes: int, goes: bool) -> None:
        self.left = takes
        self.goes = goes
        self.gone = asyncio.Event()
        self.taken: list[Message] = []

    async def send(self, message: Message) -> None:
        if not self.left:
            if self.goes:
                self.gone.set()
            await asyncio.Event().wait()
        self.left -= 1
        self.taken.append(message)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("takes", "goes", "said"),
    [
        (3, True, ""),
        (3, False, "a copy of the state was not sent to its end: TimeoutError\n"),
        (-1, False, ""),
    ],
    ids=["gone", "stalled", "all taken"],
)
def test_the_copy_is_gone_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, takes: int, goes: bool, said: str
) -> None:
    if said:
        monkeypatch.setattr(state, "STALLED_SECONDS", 1)
    (tmp_path / "kafka").write_text('{"format": 1, "history": "a history"}\n')
    store = StateStore.open(tmp_path / "state")
    copy = StateCopy(tmp_path, "north")
    copy.make(store)
    store.close()

    async def taking() -> list[Message]:
        taker = Taker(takes, goes)
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await state.SentCopy(copy)(scope, taker.receive, taker.send)
        return taker.taken

    assert (tmp_path / "copying").exists()
    taken = asyncio.run(taking())
    assert not (tmp_path / "copying").exists()
    assert taken[0]["status"] == 200
    assert len(taken) == takes or taken[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert "".join(f"{record.getMessage()}\n" for record in caplog.records if record.name == state.__name__) == said


def test_it_ends_with_the_broker(tmp_path: Path) -> None:
    """Which cancels what is under way."""
    (tmp_path / "kafka").write_text('{"format": 1, "history": "a history"}\n')
    store = StateStore.open(tmp_path / "state")
    copy = StateCopy(tmp_path, "north")
    copy.make(store)
    store.close()

    async def stopped() -> None:
        taker = Taker(3, goes=False)
        sending = asyncio.ensure_future(state.SentCopy(copy)({"type": "http"}, taker.receive, taker.send))
        while taker.left:
            await asyncio.sleep(0)
        sending.cancel()
        await sending

    asyncio.run(stopped())
    assert not (tmp_path / "copying").exists()
