"""A message's life, a queue's last outcomes and the changes between two moments: GET /api/history/... (B-29)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_clients import find, history_answer, publish, take
from tests.support.moments import now
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["queue"], row["outcome"]) for row in rows]


def test_b29_a_message_is_followed_through_dead_letters_and_restorations(api: httpx2.Client, name: str) -> None:
    work, dead = f"{name}-work", f"{name}-dead"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    api.put(f"/queues/%2F/{work}", json={"durable": True, "arguments": arguments})
    api.put(f"/queues/%2F/{dead}", json={"durable": True})
    publish(api, work, "order", message_id=name)
    take(api, work, "reject_requeue_true")
    take(api, work, "reject_requeue_false")
    assert api.delete(f"/queues/%2F/{dead}/contents").status_code == 204
    assert api.post(f"/queues/%2F/{dead}/restore", json={"undo": "purge"}).is_success
    take(api, dead, "ack_requeue_false")
    oldest = find(api, "%2F", message_id=name)[-1]
    rows = history_answer(api, f"biography/%2F/{oldest['message']}")["rows"]
    assert outcomes(rows) == [
        (work, "published"),
        (work, "delivered"),
        (work, "requeued"),
        (work, "delivered"),
        (work, "rejected"),
        (work, "dead_lettered"),
        (dead, "published"),
        (dead, "purged"),
        (dead, "published"),
        (dead, "delivered"),  # by a get without ack
    ]
    assert rows[0]["timestamp"] == oldest["published"]
    assert rows[6]["origin"] | {"queue_id": 0} == {
        "vhost": "/",
        "queue": work,
        "queue_id": 0,
        "message_id": oldest["message_id"],
        "reason": "rejected",
    }
    assert rows[8]["origin"]["reason"] == "restored"
    assert history_answer(api, f"biography/%2F/{oldest['message']}", queue=work)["rows"] == rows
    assert outcomes(history_answer(api, f"outcomes/%2F/{dead}", tail="2")["rows"]) == [
        (dead, "published"),
        (dead, "delivered"),
    ]
    assert len(history_answer(api, f"outcomes/%2F/{dead}")["rows"]) == 4


def test_b80_a_letter_that_no_queue_takes_is_in_the_history_of_its_queue(api: httpx2.Client, name: str) -> None:
    work = f"{name}-work"
    api.put(f"/queues/%2F/{work}", json={"arguments": {"x-dead-letter-exchange": f"{name}-dead"}})
    publish(api, work, "no exchange", message_id=name)
    take(api, work, "reject_requeue_false")
    api.put(f"/exchanges/%2F/{name}-dead", json={"type": "fanout"})
    publish(api, work, "no binding")
    take(api, work, "reject_requeue_false")
    died = [(work, "rejected"), (work, "dead_lettered"), (work, "unrouted")]
    rows = history_answer(api, f"outcomes/%2F/{work}")["rows"]
    assert [each for each in outcomes(rows) if each in died] == died * 2
    assert [row["size"] for row in rows if row["outcome"] == "unrouted"] == [len("no exchange"), len("no binding")]
    oldest = find(api, "%2F", message_id=name)[-1]
    assert outcomes(history_answer(api, f"biography/%2F/{oldest['message']}")["rows"])[-1] == (work, "unrouted")


def test_b29_the_changes_between_two_moments_sum_to_the_change_of_length(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, "before")
    start = now()
    for number in range(4):
        publish(api, queue, f"m{number}")
    api.put(f"/marks/{queue}", json={})
    take(api, queue, "ack_requeue_false")
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    found = history_answer(api, f"diff/%2F/{queue}", **{"from": start})
    left = [(-1, "delivered"), *[(-1, "purged")] * 4]
    assert [(row["change"], row["outcome"]) for row in found["rows"]] == [(1, "published")] * 4 + left
    assert sum(each["change"] for each in found["summary"]) == -1
    assert {(each["outcome"], each["user"], each["change"]) for each in found["summary"]} == {
        ("published", "guest", 4),
        ("delivered", "guest", -1),
        ("purged", "guest", -4),
    }
    until = history_answer(api, f"diff/%2F/{queue}", **{"from": start, "to": f"mark:{queue}", "limit": "1"})
    assert ([row["outcome"] for row in until["rows"]], until["more"]) == (["published"], 3)
    since = history_answer(api, f"diff/%2F/{queue}", **{"from": f"mark:{queue}"})
    assert [row["outcome"] for row in since["rows"]] == ["delivered"] + ["purged"] * 4


@pytest.mark.parametrize(
    ("where", "status", "reason"),
    [
        ("biography/%2F/nonsense", 400, "'nonsense' is not a message: write partition:offset, such as queues-0:123"),
        ("biography/%2F/queues-0:999999999", 404, "no message queues-0:999999999 in the history of vhost '/'"),
        ("biography/%2F/queues-0:-1", 404, "no message queues-0:-1 in the history of vhost '/'"),
        ("biography/%2F/queues-77:1", 404, "no message queues-77:1 in the history of vhost '/'"),
        ("biography/%2F/metadata-0:1", 404, "no message metadata-0:1 in the history of vhost '/'"),
        ("biography/%2F/1", 404, "message 1: which partition? queues-0:1, queues-1:1"),
        ("biography/%2F/queues-0:1?truncate=70000", 400, "truncate is at most 65536"),
        ("outcomes/%2F/q?tail=0", 400, "tail is from 1 to 10000"),
        ("outcomes/%2F/q?until=noon", 400, "until: 'noon' is not a time"),
        ("diff/%2F/q", 400, "give from, and to if it is not now"),
        ("diff/%2F/q?from=noon", 400, "'noon' is not a time"),
        ("diff/%2F/q?from=-0s&to=-1s", 400, "queues-"),
        ("diff/%2F/q?from=mark:never", 400, "there is no mark 'never'"),
    ],
)
def test_b29_questions_that_make_no_sense(api: httpx2.Client, where: str, status: int, reason: str) -> None:
    answer = api.get(f"/history/{where}")
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"].startswith(reason)


def test_b29_a_reader_of_a_queue_sees_its_part_of_a_life(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    mine, other = f"{name}-mine", f"{name}-other"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
    for queue, content in ((mine, {"arguments": arguments}), (other, {})):
        api.put(f"/queues/%2F/{queue}", json=content)
    publish(api, mine, "secret", message_id=name)
    take(api, mine, "reject_requeue_false")
    message = find(api, f"%2F/{mine}", message_id=name)[0]["message"]
    api.put(f"/users/{name}", json={"password": "x", "tags": "management"})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": "", "read": mine})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "x"), trust_env=False) as reader:
        rows = history_answer(reader, f"biography/%2F/{message}", queue=mine)["rows"]
        assert {row["queue"] for row in rows} == {mine}
        assert len(history_answer(reader, f"outcomes/%2F/{mine}")["rows"]) == len(rows)
        assert reader.get(f"/history/biography/%2F/{message}").status_code == 400
        for where in (f"biography/%2F/{message}?queue={other}", f"outcomes/%2F/{other}", f"diff/%2F/{other}?from=-1h"):
            assert reader.get(f"/history/{where}").status_code == 401, where
        api.delete(f"/queues/%2F/{mine}")
        api.put(f"/queues/%2F/{mine}", json={"durable": True})
        assert history_answer(reader, f"outcomes/%2F/{mine}")["rows"] == []
        assert reader.get(f"/history/biography/%2F/{message}", params={"queue": mine}).status_code == 404


def test_b32_a_life_has_the_message_that_it_is_of(api: httpx2.Client, queue: str) -> None:
    publish(api, queue, '{"order": 4711}', message_id=queue, headers={"customer": "alice"})
    found = find(api, "%2F", message_id=queue)[0]
    assert api.delete(f"/queues/%2F/{queue}/contents").status_code == 204
    where = f"biography/%2F/{found['message']}"
    assert history_answer(api, where)["message"] == {**found, "truncated": False, "body_gone": None}
    cut = history_answer(api, where, truncate="8")["message"]
    assert (cut["payload"], cut["payload_bytes"], cut["truncated"]) == ('{"order"', 15, True)


def test_b32_a_life_says_why_a_body_is_gone(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start_broker(tmp_path, "--subject-header", "x-subject")
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        api.put("/queues/%2F/q", json={"durable": True})
        publish(api, "q", "order 4711 of alice", message_id="a", headers={"x-subject": "alice"})
        publish(api, "q", "no body was here", message_id="b", headers={"x-erased": True})
        message, other = (find(api, "%2F/q", message_id=each)[0]["message"] for each in "ab")
        before = history_answer(api, f"biography/%2F/{message}")["message"]
        assert (before["payload"], before["body_gone"]) == ("order 4711 of alice", None)
        assert api.delete("/subjects/alice").is_success
        after = history_answer(api, f"biography/%2F/{message}")["message"]
        assert (after["payload"], after["body_gone"]) == ("", "its subject was erased")
        assert history_answer(api, f"biography/%2F/{other}")["message"]["body_gone"] is None, (
            "a header of its publisher"
        )


def test_b32_a_reader_of_a_queue_is_told_of_no_other_queue_of_the_message(
    api: httpx2.Client, broker: RunningBroker, name: str
) -> None:
    mine, other = f"{name}-mine", f"{name}-other"
    for queue in (mine, other):
        api.put(f"/queues/%2F/{queue}", json={"durable": True})
        api.post(f"/bindings/%2F/e/amq.fanout/q/{queue}", json={})
    content = {"properties": {}, "routing_key": "", "payload": "secret", "payload_encoding": "string"}
    assert api.post("/exchanges/%2F/amq.fanout/publish", json=content).json() == {"routed": True}
    message = find(api, f"%2F/{mine}", body="secret")[0]["message"]
    api.put(f"/users/{name}", json={"password": "x", "tags": "management"})
    api.put(f"/permissions/%2F/{name}", json={"configure": "", "write": "", "read": mine})
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=(name, "x"), trust_env=False) as reader:
        life = history_answer(reader, f"biography/%2F/{message}", queue=mine)
    assert (life["message"]["queues"], life["message"]["payload"]) == ([mine], "secret")
    assert other not in str(life)
