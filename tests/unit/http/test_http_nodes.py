"""The HTTP API of nodes that fold only what they read back, on a shared log in memory."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.errors import ConnectionForced
from rewindmq.engine.http.app import make_app
from rewindmq.engine.rewind.restorations import Restoration
from rewindmq.engine.rewind.restore_plan import Plan, RestoredMessage
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event, Fetched, NodeLost, Published
from rewindmq.schemas.metadata_events import GlobalParameterSet, VhostCreated
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.support.broker_harness import Client
from tests.support.memory_nodes import START_MS, Nodes, declare, on_nodes, publish, run, session, settled
from tests.support.queues import queue_of


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@on_nodes()
async def test_http_takes_many_messages_in_as_many_round_trips_as_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each wait is for a record to come back from Kafka, milliseconds."""
    broker = await nodes.start("a")
    asked: list[Event] = []
    waiting = ReadBackPartition.ask

    async def counted(self: ReadBackPartition, actor: Actor, event: Event, *folded: Any) -> Any:
        asked.append(event)
        return await waiting(self, actor, event, *folded)

    monkeypatch.setattr(ReadBackPartition, "ask", counted)
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest")) as api:

        async def get(count: int, ackmode: str) -> tuple[int, list[dict[str, Any]]]:
            before = sum(isinstance(event, Fetched) for event in asked)
            content = {"count": count, "ackmode": ackmode, "encoding": "auto"}
            answer = await api.post("/queues/%2F/q/get", json=content)
            assert answer.status_code == 200, answer.text
            return sum(isinstance(event, Fetched) for event in asked) - before, answer.json()

        assert (
            await api.put("/queues/%2F/q", json={"durable": True, "arguments": {"x-queue-type": kind}})
        ).status_code == 201
        who = session(broker)
        for number in range(300):
            publish(broker, who, b"%d" % number, Client())
        await settled()
        queue = queue_of(broker, "q")
        model = [(str(number), 0) for number in range(300)]  # bodies, and how often they were delivered
        for count, waits in ((1, 1), (10, 1), (300, 1), (301, 2), (100_000, 2)):
            found, items = await get(count, "ack_requeue_true")
            expected = [(body, times > 0) for body, times in model[:count]]
            assert (found, [(each["payload"], each["redelivered"]) for each in items]) == (waits, expected)
            assert [each["message_count"] for each in items] == list(range(299, 299 - len(items), -1))
            await settled()
            back = sorted(((body, times + 1) for body, times in model[:count]), key=lambda each: int(each[0]))
            model = back + model[count:] if kind == "classic" else model[count:] + back  # a limit brings that about
            counts = [view.delivery_count for view in queue.messages()]
            assert counts == [times * (kind == "quorum") for _, times in model]
        assert (queue.messages_ready, queue.messages_unacked) == (300, 0)
        for number in range(300, 1_500):
            publish(broker, who, b"%d" % number, Client())
        await settled()
        found, items = await get(1_500, "ack_requeue_false")
        assert (found, len(items)) == (2, 1_500)  # a thousand at a time
        assert [each["payload"] for each in items] == [body for body, _ in model] + [
            str(number) for number in range(300, 1_500)
        ]
        assert await get(1_500, "ack_requeue_false") == (1, [])


@on_nodes()
async def test_http_takes_what_is_left_when_somebody_is_faster(nodes: Nodes) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    transport = httpx2.ASGITransport(app=make_app(here, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest")) as api:
        await api.put("/queues/%2F/q", json={"durable": True})
        who, other = session(here), session(there)
        for number in range(10):
            publish(here, who, b"%d" % number, Client())
        await settled()
        nodes.log("a").cut(True)  # "a" sees ten messages still, when "b" takes four
        for _ in range(4):
            await there.consumers.fetch(other, 1, Client(), "q", True)
        asking = asyncio.ensure_future(
            api.post("/queues/%2F/q/get", json={"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"})
        )
        await settled()
        nodes.log("a").cut(False)
        assert [each["payload"] for each in (await asking).json()] == ["4", "5", "6", "7", "8", "9"]
        assert queue_of(here, "q").messages_ready == 0


def test_a_restoration_over_a_lost_node_does_not_say_that_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was declared lost cannot confirm the restoration, although its message reached the queue."""
    was = RestoredMessage(7, 1, 0, False, None)
    plan = Plan("/", "q", 1, "queues-0", 8, START_MS, ("classic", True, False, ()), (was,), {})
    bodies = {7: (1_000, Published(Route("/", "", "q", ("q",)), b"\0\0", persistent=True, body=b"x", body_size=1))}

    class Past:
        async def ask(self, _question: object, _user: str) -> dict[int, tuple[int, Published]]:
            return bodies

    async def test(nodes: Nodes) -> None:
        broker = await nodes.start("a")
        who = session(broker)
        await declare(broker, who)
        await settled()
        nodes.log("a").cut(True)
        asking = asyncio.ensure_future(
            broker.history.restorations.restore(who, Past(), None, Restoration("guest", plan, "q", "name"))  # type: ignore[arg-type]  # no history is read
        )
        await settled()
        lost = Encoder()
        record = lost.encode(lost.prefix(nodes.now_ms, BROKER), NodeLost("a", nodes.node("a").epoch, "lapsed"))
        for partition in (nodes.history.metadata, *nodes.history.queues):
            partition.put(b"", record)
        nodes.log("a").cut(False)
        with pytest.raises(ConnectionForced):
            await asking
        assert queue_of(broker, "q").messages_ready == 1  # and asked again, it does not come twice

    run(test, tmp_path, monkeypatch)


@on_nodes()
async def test_a_publish_whose_queue_is_gone_as_it_gets_there_was_not_routed(nodes: Nodes) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    await declare(there, session(there))
    await settled()
    transport = httpx2.ASGITransport(app=make_app(here, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest")) as api:
        nodes.log("a").cut(True)
        publishing = asyncio.ensure_future(
            api.post(
                "/exchanges/%2F/amq.default/publish",
                json={"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"},
            )
        )
        await settled()
        await there.queues.delete(session(there), "q", False, False)
        nodes.log("a").cut(False)
        answer = await publishing
        assert (answer.status_code, answer.json()) == (200, {"routed": False})


def test_every_node_lists_nonsense_in_the_metadata_log_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By those that read it when it comes, and by those that find it at their start."""
    encoder = Encoder()
    no_json = "global parameter 'g' is not JSON: Expecting value: line 1 column 1 (char 0)"
    nonsense: list[tuple[Event, str]] = [
        (GlobalParameterSet("g", "no JSON"), no_json),
        (VhostCreated("/", "", (), "lazy"), "vhost '/': there is no queue type 'lazy'"),
    ]

    async def asked(broker: Broker, path: str) -> Any:
        transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://a", auth=("guest", "guest")) as api:
            answer = await api.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json() if path.startswith("/api") else answer.text

    async def test(nodes: Nodes) -> None:
        here = await nodes.start("a")
        metadata, name = nodes.history.metadata, "metadata-0"
        offsets = [metadata.put(b"", b"garbage")]
        for event, _ in nonsense:
            offsets.append(metadata.put(b"", encoder.encode(encoder.prefix(nodes.now_ms, BROKER), event)))
        await settled()
        expected: list[tuple[str | None, str]] = [
            (None, "byte 0 of 7: not a single-object encoding, which begins with C3 01")
        ]
        expected += [(type(event).__name__, reason) for event, reason in nonsense]
        for broker in (here, await nodes.start("b")):
            assert await asked(broker, f"/api/quarantine?partition={name}") == [
                {"offset": at, "event": event, "reason": reason, "partition": name, "topic": "rewindmq.metadata"}
                for at, (event, reason) in zip(offsets, expected, strict=True)
            ]
            assert 'quarantined_events_total{partition="metadata-0"} 3' in await asked(broker, "/metrics")
            assert (await asked(broker, "/api/definitions"))["global_parameters"] == []
            assert await asked(broker, "/api/global-parameters") == []
            await declare(broker, session(broker), f"q at {broker.config.node}")

    run(test, tmp_path, monkeypatch)
