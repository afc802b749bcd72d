"""The API returns the content of a queue at an earlier moment: GET /api/queues/{vhost}/{queue}/at."""

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.resources.past import PastQuestion, read
from rewindmq.engine.keeping.location import InDirectory, InKafka
from rewindmq.engine.rewind.masks import NOTHING
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.projections.rewind import At
from tests.support.moments import now
from tests.support.ports import free_port
from tests.support.processes import children_of
from tests.support.running import RunningBroker


def at(api: httpx2.Client, queue: str, **query: str) -> dict[str, Any]:
    answer = api.get(f"/queues/%2F/{queue}/at", params=query)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def payloads(past: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["state"], each["payload"]) for each in past["message_details"]]


def test_a_purged_queue_is_seen_as_it_stood_before(api: httpx2.Client, queue: str) -> None:
    empty = now()
    for number in range(3):
        content = {
            "properties": {"headers": {"n": number}},
            "routing_key": queue,
            "payload": f"m{number}",
            "payload_encoding": "string",
        }
        api.post("/exchanges/%2F/amq.default/publish", json=content)
    full = now()
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    past = at(api, queue, time=full)
    assert payloads(past) == [("ready", "m0"), ("ready", "m1"), ("ready", "m2")]
    assert (past["messages_ready"], past["message_bytes_ready"]) == (3, 6)
    assert past["at"]["time"] == full
    first = past["message_details"][0]
    assert (first["position"], first["redelivered"], first["properties"]) == (0, False, {"headers": {"n": 0}})
    assert empty < first["published"] < full
    assert payloads(at(api, queue, time=empty)) == []
    assert payloads(at(api, queue, time=now())) == []
    offset = str(first["message_id"] + 1)
    assert payloads(at(api, queue, offset=offset)) == [("ready", "m0")]
    assert payloads(at(api, queue, time=full, first="1", count="1")) == [("ready", "m1")]
    assert payloads(at(api, queue, time=full, truncate="1"))[0] == ("ready", "m")


def test_a_moment_may_be_so_long_ago(api: httpx2.Client, queue: str) -> None:
    before, after = now(), at(api, queue, time="-0s")
    assert before <= str(after["at"]["time"])
    assert after["messages"] == at(api, queue, time=now())["messages"]
    refused = api.get(f"/queues/%2F/{queue}/at", params={"time": "-99w"})
    assert refused.status_code == 400
    assert "is before the history" in refused.json()["reason"]


def test_unacked_messages_their_holder_and_a_deleted_queue(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"a")
    channel.basic_publish("", queue, b"b")
    channel.basic_get(queue)
    held = now()
    connection.close()
    assert api.delete(f"/queues/%2F/{queue}").status_code == 204
    past = at(api, queue, time=held)
    assert payloads(past) == [("ready", "b"), ("unacked", "a")]
    assert past["message_details"][1]["consumer"] > 0
    gone = api.get(f"/queues/%2F/{queue}/at", params={"time": now()})
    assert (gone.status_code, gone.json()["error"]) == (404, "not_found")
    assert gone.json()["reason"].startswith(f"no queue '{queue}' in vhost '/' at ")


def test_time_passes_in_the_past_as_well(api: httpx2.Client, name: str) -> None:
    """State at T: the clock stands at T, so what was due by then has expired, though nothing was logged (S-031)."""
    api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-message-ttl": 3_600_000}})
    content = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
    api.post("/exchanges/%2F/amq.default/publish", json=content)
    assert at(api, name, time=now())["messages"] == 1
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    assert at(api, name, time=later)["messages"] == 0


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "give either time or offset"),
        ({"time": "2026-11-21T00:00:00Z", "offset": "1"}, "give either time or offset"),
        ({"time": "yesterday"}, "'yesterday' is not a time"),
        ({"time": "2026-11-21T00:00:00"}, "'2026-11-21T00:00:00' has no zone"),
        ({"time": "2001-01-01T00:00:00Z"}, "2001-01-01T00:00:00.000+00:00 is before the history"),
        ({"offset": "999999999"}, "queues-"),
        ({"offset": "-1"}, "offset is a whole number"),
        ({"offset": "1", "count": "100001"}, "count is at most"),
        ({"offset": "1", "truncate": "x"}, "truncate is a whole number"),
    ],
)
def test_moments_that_are_none(api: httpx2.Client, queue: str, query: dict[str, str], reason: str) -> None:
    answer = api.get(f"/queues/%2F/{queue}/at", params=query)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert answer.json()["reason"].startswith(reason)


def test_an_unencoded_plus_in_the_zone_is_understood(api: httpx2.Client, queue: str) -> None:
    answer = api.get(f"/queues/%2F/{queue}/at?time={now()}")
    assert answer.status_code == 200


def test_the_broker_outlives_the_process_that_reads_the_past(
    api: httpx2.Client, broker: RunningBroker, queue: str
) -> None:
    assert at(api, queue, time=now())["messages"] == 0
    children = children_of(broker.process.pid)
    readers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    assert len(readers) == 1
    os.kill(readers[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (answer := api.get(f"/queues/%2F/{queue}/at", params={"time": now()})).status_code == 200:
        assert time.monotonic() < deadline, "the killed reader still answers"
    assert answer.json()["error"] == "service_unavailable"
    assert at(api, queue, time=now())["messages"] == 0


def test_a_question_that_nobody_waits_for_any_longer_is_given_up(tmp_path: Path) -> None:
    """Its answer must not be taken for that of the next one, and those that wait have their turn."""
    away, gone = InKafka(f"127.0.0.1:{free_port()}"), InDirectory(tmp_path)

    async def run() -> list[BaseException | object]:
        process, keys = WorkerPool(), KeyStore(NO_KEYS)
        first, *others = [
            asyncio.create_task(
                read(
                    process,
                    PastQuestion(
                        history,
                        vhost="/",
                        queue="q",
                        at=At(offset=0),
                        first=0,
                        count=1,
                        truncate=1,
                        keys=keys,
                        withheld=NOTHING,
                    ),
                    "u",
                )
            )
            for history in (away, gone, gone)
        ]
        await asyncio.sleep(0.1)
        first.cancel()
        try:
            return await asyncio.gather(first, *others, return_exceptions=True)
        finally:
            process.close()

    cancelled, *refusals = asyncio.run(run())
    assert isinstance(cancelled, asyncio.CancelledError)
    for refusal in refusals:
        assert isinstance(refusal, ApiError)
        assert (refusal.status, refusal.reason[: len(str(tmp_path))]) == (500, str(tmp_path))


def test_thirty_questions_of_one_user_hold_up_no_other(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    """A user's questions beyond the limit of waiting ones are refused, while another user's question is answered."""
    path = f"/api/queues/%2F/{queue}/at?time={now().replace('+', '%2B')}"
    api.put("/users/other", json={"password": "o", "tags": "administrator"})
    with httpx2.Client(base_url=broker.http_url, auth=("other", "o")) as other:

        async def ask_at_once() -> tuple[list[int], int]:
            limits = httpx2.Limits(max_connections=40)
            async with httpx2.AsyncClient(base_url=broker.http_url, auth=api.auth, limits=limits, timeout=60) as client:
                asked = [asyncio.create_task(client.get(path)) for _ in range(30)]
                theirs = await asyncio.to_thread(other.get, path, timeout=60)
                return [answer.status_code for answer in await asyncio.gather(*asked)], theirs.status_code

        mine, theirs = asyncio.run(ask_at_once())
    assert theirs == 200
    assert mine.count(200) >= 9
    assert set(mine) <= {200, 429}


@pytest.mark.long
def test_an_answer_shows_so_many_bytes_and_no_more(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(300):
        channel.basic_publish("", queue, bytes(65_536))
    connection.close()
    past = at(api, queue, time=now(), count="10000")
    assert past["messages"] == 300
    assert len(past["message_details"]) == 256
    assert len(at(api, queue, time=now(), count="10000", first="256")["message_details"]) == 44
