"""Requests that name a queue wait while it moves to another partition, but not for ever."""

import asyncio
from typing import Any

import httpx2
import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.http import call
from rewindmq.engine.http.app import make_app
from rewindmq.engine.rewind.worker import WorkerPool
from tests.support.amqp_wire import publish
from tests.support.moving_clients import STILL_SECONDS, Client, Play, Q, declared, got, on_each_log
from tests.support.repartition import Steps

WISH = {"properties": {}, "routing_key": Q, "payload": "m", "payload_encoding": "string"}
GET = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
QUEUE, DEFAULT = f"/queues/%2F/{Q}", "/exchanges/%2F/amq.default"


def api_of(broker: Broker) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    return httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest"))


@on_each_log
async def test_requests_wait_for_a_queue_that_moves(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    await steps.change()
    await steps.begin(Q)
    async with api_of(broker) as api:
        listed: list[Any] = (await api.get("/queues")).json()
        assert [each["name"] for each in listed] == [Q]
        work = [api.post(DEFAULT + "/publish", json=WISH), api.get(QUEUE), api.post(QUEUE + "/get", json=GET)]
        tasks = [asyncio.ensure_future(each) for each in work]
        done, _ = await asyncio.wait(tasks, timeout=STILL_SECONDS)
        assert not done
        await steps.end(Q)
        published, shown, taken = [(await task) for task in tasks]
    assert published.json() == {"routed": True}
    assert (shown.status_code, taken.status_code) == (200, 200)
    assert await got(client, Q) == [b"m"]


def test_a_request_that_waits_too_long_is_told_so(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "MOVE_SECONDS", STILL_SECONDS)

    async def test(broker: Broker, steps: Steps) -> None:
        client = await Client.opened(broker)
        await declared(client, Q)
        await steps.change()
        await steps.begin(Q)
        async with api_of(broker) as api:
            answers = [
                await api.post(DEFAULT + "/publish", json=WISH),
                await api.delete(QUEUE),
                await api.delete(QUEUE + "/contents"),
                await api.post(QUEUE + "/get", json=GET),
                await api.put(QUEUE, json={"durable": True}),
                await api.post(f"/bindings/%2F/e/amq.fanout/q/{Q}", json={}),
                await api.post("/definitions/%2F", json={"queues": [{"name": "other"}, {"name": Q}]}),
            ]
        assert [each.status_code for each in answers] == [503] * len(answers)
        assert all("on its way to another partition" in each.json()["reason"] for each in answers)
        assert broker.queues.get("/", "other") is None
        queue = await steps.end(Q)
        assert queue.messages_ready == 0

    play(test)


@on_each_log
async def test_an_id_of_the_old_partition_names_no_message_of_the_new_one(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    client.send(publish(1, "", Q, b"1"), publish(1, "", Q, b"2"))
    await steps.change()
    old, left = steps.queue(Q)
    async with api_of(broker) as api:
        await steps.begin(Q)
        (first, *_) = [each.message_id for each in left.messages()]
        waits = asyncio.ensure_future(api.delete(f"{QUEUE}/messages/{first}"))  # asked before it has moved
        await asyncio.sleep(STILL_SECONDS)
        queue = await steps.end(Q)
        new = [each.message_id for each in queue.messages()]
        answers = [await waits]
        wish = {"messages": new, "to": Q}
        for partition in (dict[str, str](), {"partition": old.name}):
            answers.append(await api.delete(f"{QUEUE}/messages/{new[0]}", params=partition))
            answers.append(await api.post(QUEUE + "/messages/remove", json=wish | partition))
            answers.append(await api.post(QUEUE + "/messages/move", json=wish | partition))
        assert [each.status_code for each in answers] == [409] * 7
        assert all("is in partition " in each.json()["reason"] for each in answers)
        assert queue.messages_ready == 2
        here = {"partition": broker.homes.of("/", Q).name}
        assert (await api.delete(f"{QUEUE}/messages/{new[0]}", params=here)).status_code == 204
        removed = await api.post(QUEUE + "/messages/remove", json={"messages": new} | here)
        assert removed.json()["removed"] == new[1:]
