"""The length of a queue over time: GET /api/history/depth/{vhost}/{queue} (B-31)."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.projections.rewind import parse_time
from tests.support.http_clients import history_answer, publish, take
from tests.support.moments import now
from tests.support.running import RunningBroker
from tests.support.trimmed_broker import live, trimmed


def sums(points: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {"published": sum(point["published"] for point in points)}
    for point in points:
        for name, number in point["outcomes"].items():
            found[name] = found.get(name, 0) + number
    return found


def live_a_while(api: httpx2.Client, queue: str) -> str:
    """Some traffic of all kinds. Returns the moment before."""
    publish(api, queue, "before")
    start = now()
    for number in range(6):
        publish(api, queue, f"m{number}")
        if number % 2:
            take(api, queue, "ack_requeue_false")
    publish(api, queue, "mortal", expiration="5")
    api.put(f"/marks/{queue}", json={"note": "before the purge"})
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    assert api.post(f"/queues/%2F/{queue}/restore", json={"undo": "purge"}).is_success
    policy = {"pattern": f"^{queue}$", "definition": {"max-length": 3}, "apply-to": "queues"}
    assert api.put(f"/policies/%2F/{queue}", json=policy).is_success
    publish(api, queue, "after")
    return start


@pytest.mark.long
def test_b31_each_point_is_the_queue_at_its_moment(api: httpx2.Client, queue: str) -> None:
    start = live_a_while(api, queue)
    found = history_answer(api, f"depth/%2F/{queue}", **{"from": start, "points": "40"})
    assert len(found["points"]) == 40
    for point in found["points"][::4]:
        then = api.get(f"/queues/%2F/{queue}/at", params={"time": point["time"]}).json()
        assert (point["offset"], point["ready"]) == (then["at"]["offset"], then["messages_ready"])
        assert point["unacked"] == then["messages_unacknowledged"]
    assert found["from"]["time"] == found["points"][0]["time"] == start
    assert (found["points"][0]["ready"], found["points"][-1]["ready"]) == (1, 3)


def test_b31_what_happened_between_two_points_is_their_difference(api: httpx2.Client, queue: str) -> None:
    start = live_a_while(api, queue)
    end = now()
    for points in ("2", "17", "1000"):
        found = history_answer(api, f"depth/%2F/{queue}", **{"from": start, "to": end, "points": points})
        changes = history_answer(api, f"diff/%2F/{queue}", **{"from": start, "to": end})["summary"]
        expected: dict[str, int] = {}
        for each in changes:
            expected[each["outcome"]] = expected.get(each["outcome"], 0) + abs(each["change"])
        assert {name: number for name, number in sums(found["points"]).items() if name in expected} == expected
        length = sum(each["change"] for each in changes)
        assert found["points"][-1]["ready"] - found["points"][0]["ready"] == length


def test_b31_ticks_say_what_people_did(api: httpx2.Client, queue: str) -> None:
    live_a_while(api, queue)
    found = history_answer(api, f"depth/%2F/{queue}")
    ticks = [(tick["kind"], tick["user"]) for tick in found["ticks"] if tick["text"] != "" or tick["kind"] == "purged"]
    own = [tick for tick in ticks if tick[0] not in ("restart", "mark")]
    assert own == [("declared", "guest"), ("purged", "guest"), ("restored", "guest"), ("policy", "guest")]
    purged, restored = (next(t for t in found["ticks"] if t["kind"] == kind) for kind in ("purged", "restored"))
    assert purged["messages"] == restored["messages"]
    before, after = (
        api.get(f"/queues/%2F/{queue}/at", params={"offset": str(purged["offset"] + more)}).json() for more in (0, 1)
    )
    assert (before["messages"], after["messages"]) == (purged["messages"], 0)
    assert [tick["text"] for tick in found["ticks"] if tick["kind"] == "mark"][-1] == queue
    assert any(tick["kind"] == "restart" for tick in found["ticks"])
    until = history_answer(api, f"depth/%2F/{queue}", to=f"mark:{queue}")
    assert "purged" not in {tick["kind"] for tick in until["ticks"]}
    since = history_answer(api, f"depth/%2F/{queue}", **{"from": f"mark:{queue}"})
    assert "declared" not in {tick["kind"] for tick in since["ticks"]}


def test_b31_a_queue_that_was_made_anew_is_told_of_too(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, "first")
    api.delete(f"/queues/%2F/{queue}")
    gone = now()
    api.put(f"/queues/%2F/{queue}", json={"durable": True})
    publish(api, queue, "second")
    found = history_answer(api, f"depth/%2F/{queue}")
    own = [tick["kind"] for tick in found["ticks"] if tick["kind"] in ("declared", "deleted")]
    assert own == ["declared", "deleted", "declared"]
    assert sums(found["points"])["published"] == 2
    assert history_answer(api, f"depth/%2F/{queue}", to=gone)["points"][-1]["ready"] is None


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("points=1", 400, "points is from 2 to 1000"),
        ("points=1001", 400, "points is from 2 to 1000"),
        ("points=x", 400, "points is a whole number"),
        ("from=noon", 400, "'noon' is not a time"),
        ("to=mark:never", 400, "there is no mark 'never'"),
        ("from=-1s&to=-1h", 400, "queues-"),
        ("from=9999-12-31T23:59:59.999Z", 400, "queues-"),
        ("", 404, "no queue 'never' in vhost '/' from "),
    ],
)
def test_b31_questions_that_make_no_sense(api: httpx2.Client, query: str, status: int, reason: str) -> None:
    answer = api.get(f"/history/depth/%2F/never?{query}")
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"].startswith(reason)


def test_b31_a_reader_of_a_queue_sees_its_part(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    publish(api, queue, "of the first queue")
    api.delete(f"/queues/%2F/{queue}")
    api.put(f"/queues/%2F/{queue}", json={"durable": True})
    api.put(f"/queues/%2F/{queue}-other", json={"durable": True})
    api.put(f"/marks/{queue}", json={"note": "secret"})
    api.put(f"/users/{queue}", json={"password": "x", "tags": "management"})
    api.put(f"/permissions/%2F/{queue}", json={"configure": "", "write": "", "read": f"^{queue}$"})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(queue, "x"), trust_env=False) as reader:
        found = history_answer(reader, f"depth/%2F/{queue}")
        assert sums(found["points"]) == {"published": 0}
        kinds = [tick["kind"] for tick in found["ticks"]]
        assert (kinds.count("declared"), kinds.count("deleted")) == (1, 0)
        assert {tick["user"] for tick in found["ticks"] if tick["kind"] == "mark"} == {""}
        assert reader.get(f"/history/depth/%2F/{queue}-other").status_code == 401
    assert httpx2.get(f"{broker.http_url}/api/history/depth/%2F/{queue}", trust_env=False).status_code == 401


@pytest.mark.long
def test_b31_a_range_begins_where_the_history_begins(tmp_path: Path) -> None:
    story = live(tmp_path)
    trimmed(tmp_path, story, 2)
    running = RunningBroker(tmp_path)
    try:
        with httpx2.Client(base_url=f"{running.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
            wide = history_answer(api, "depth/%2F/orders", **{"from": "0", "to": str(story.end_ms), "points": "50"})
            assert 0 < wide["floor"] <= wide["from"]["offset"]
            assert parse_time(wide["from"]["time"]) > story.days[0]
            for point in wide["points"][::7]:
                then = api.get("/queues/%2F/orders/at", params={"time": point["time"]}).json()
                assert (point["offset"], point["ready"]) == (then["at"]["offset"], then["messages_ready"])
            late = history_answer(api, "depth/%2F/orders", **{"from": str(story.days[3]), "to": str(story.end_ms)})
            assert late["floor"] is None
            answer = api.get("/history/depth/%2F/orders", params={"from": "0", "to": str(story.days[0])})
            assert answer.status_code == 400
    finally:
        running.stop()
