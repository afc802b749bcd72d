"""Moments with a name: /api/marks, `rewindmq set_mark` and its kin, and mark:NAME wherever a moment is given (B-01)."""

from collections.abc import Callable
from pathlib import Path

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.marks import NoSuchMark, moment, positions, topology_of
from rewindmq.spark_replay.history.diff import plan_moment
from rewindmq.spark_replay.history.history import plan_history
from rewindmq.spark_replay.location.marks import by_offsets, time_of
from tests.support.commands import run_in_process
from tests.support.pika_clients import publish
from tests.support.running import RunningBroker


def bodies_at(api: httpx2.Client, queue: str, when: str) -> list[str]:
    answer = api.get(f"/queues/%2F/{queue}/at", params={"time": when})
    assert answer.status_code == 200, answer.text
    return [message["payload"] for message in answer.json()["message_details"]]


def test_a_mark_is_set_shown_moved_and_cleared(api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    assert api.put("/marks/before release", json={"note": "v2"}).status_code == 201
    first = api.get("/marks/before%20release").json()
    assert (first["name"], first["note"], first["user"]) == ("before release", "v2", "guest")
    assert set(first["positions"]) == {"queues-0", "queues-1"}
    publish(channel, queue, "a")
    assert api.put("/marks/before%20release").status_code == 204
    second = api.get("/marks/before%20release").json()
    assert sum(second["positions"].values()) > sum(first["positions"].values())
    assert second in api.get("/marks").json()
    assert api.delete("/marks/before%20release").status_code == 204
    assert api.get("/marks/before%20release").status_code == 404
    assert api.delete("/marks/before%20release").status_code == 404
    assert api.put("/marks/long", json={"note": "x" * 5_000}).status_code == 400
    assert [api.put(f"/marks/{odd}").status_code for odd in ("%20x", "x%20", "%0A")] == [400] * 3, "nobody finds them"


def test_b01_a_mark_is_a_moment_everywhere(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel, name: str
) -> None:
    publish(channel, queue, "one", "two")
    mark = f"mark:{name}"
    assert run_in_process(broker, "set_mark", name, "--note", "before the purge")[0] == 0
    publish(channel, queue, "three")
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    publish(channel, queue, "four")

    assert bodies_at(api, queue, mark) == ["one", "two"]
    code, told = run_in_process(broker, "rewind", queue, "--at", mark)
    assert (code, "one" in told, "three" in told) == (0, True, False)
    code, told = run_in_process(broker, "rewind", queue, "--at", mark, "--data", str(broker.data))
    assert (code, "two" in told, "four" in told) == (0, True, False), told
    assert "before the purge" in run_in_process(broker, "list_marks")[1]

    got: list[bytes] = []
    reading = channel.connection.channel()
    reading.basic_qos(prefetch_count=10)
    for method, _, body in reading.consume(queue, arguments={"x-rewind-to": mark}, inactivity_timeout=5):
        assert method is not None, got
        got.append(body)
        reading.basic_ack(method.delivery_tag)
        if len(got) == 2:
            break
    assert got == [b"one", b"two"]
    reading.close()

    code, told = run_in_process(broker, "restore", queue, "--at", mark)
    assert (code, "2 messages" in told) == (0, True), told
    waiting = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    assert waiting == [b"four", b"one", b"two"]

    # Spark's side, where it needs none
    log = InDirectory(broker.data).open()
    offsets = positions(topology_of(log.metadata).marks, name)
    plan = plan_moment(InDirectory(broker.data), mark)
    assert {each.partition: each.end for each in plan.ends} == offsets
    assert plan.clock_ms is None
    ends = plan_history(InDirectory(broker.data), {"endingTimestamp": mark})
    assert max(each.end for each in ends) == max(offsets.values())
    assert by_offsets(log, {"startingTimestamp": "5"}) == {"startingTimestamp": "5"}
    assert int(time_of(log, mark)) > 1_600_000_000_000

    assert run_in_process(broker, "clear_mark", name)[0] == 0
    assert run_in_process(broker, "clear_mark", name)[0] != 0


def test_a_mark_that_is_not_there_is_said(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel, name: str
) -> None:
    answer = api.get(f"/queues/%2F/{queue}/at", params={"time": f"mark:{name}"})
    assert (answer.status_code, answer.json()["reason"]) == (400, f"there is no mark '{name}'")
    assert api.post(f"/queues/%2F/{queue}/restore", json={"time": f"mark:{name}"}).status_code == 400
    code, told = run_in_process(broker, "rewind", queue, "--at", f"mark:{name}")
    assert (code != 0, f"there is no mark '{name}'" in told) == (True, True), told
    reading = channel.connection.channel()
    reading.basic_qos(prefetch_count=10)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="there is no mark"):
        reading.basic_consume(queue, lambda *_: None, arguments={"x-rewind-to": f"mark:{name}"})
    with pytest.raises(NoSuchMark):
        plan_moment(InDirectory(broker.data), f"mark:{name}")


def test_marks_are_there_after_a_crash_and_never_ahead_of_the_log(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        assert api.put("/queues/%2F/q", json={"durable": True}).status_code == 201
        for number in range(5):
            properties = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload_encoding": "string"}
            api.post("/exchanges/%2F/amq.default/publish", json=properties | {"payload": str(number)})
            assert api.put(f"/marks/m{number}").status_code == 201
    broker.kill()
    reader = EmbeddedLogReader(tmp_path / "data")
    marks = topology_of(reader.metadata).marks
    assert list(marks) == [f"m{number}" for number in range(5)]
    for partition in reader.queues:
        moments = [moment(f"mark:{mark}", partition.name, lambda: marks) for mark in marks]
        at = [each.offset for each in moments if each.offset is not None]
        assert len(at) == len(marks)
        assert at == sorted(at)
        assert at[-1] <= partition.next_offset


def test_names_and_notes_of_others_are_for_those_who_run_the_broker(broker: RunningBroker, api: httpx2.Client) -> None:
    api.put("/marks/told", json={"note": "a customer's name"}).raise_for_status()
    found: dict[str, object] = {}
    for tag, vhosts in (("management", 1), ("monitoring", 0), ("policymaker", 1), ("management", 0)):
        user = f"marks-{tag}-{vhosts}"
        api.put(f"/users/{user}", json={"password": "p", "tags": tag}).raise_for_status()
        if vhosts:
            permissions = dict.fromkeys(("configure", "write", "read"), "")
            api.put(f"/permissions/%2F/{user}", json=permissions).raise_for_status()
        answer = httpx2.get(f"{broker.http_url}/api/marks/told", auth=(user, "p"), trust_env=False)
        found[user] = answer.status_code
        if answer.status_code == 200:
            found[user] = answer.json()["user"], answer.json()["note"]
    assert found == {
        "marks-management-1": ("", ""),
        "marks-monitoring-0": ("guest", "a customer's name"),
        "marks-policymaker-1": ("guest", "a customer's name"),
        "marks-management-0": 404,
    }
