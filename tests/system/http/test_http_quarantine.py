"""GET /api/quarantine and its metric: the same before and after a restart, clean or not (docs/design.md#one-idea)."""

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Acked, Event, Published
from rewindmq.schemas.single_object import HEADER
from rewindmq.schemas.values import Actor, Route
from tests.support.running import RunningBroker

ANN = Actor("ann", 0)
START_MS = 1_763_694_000_000
HOME = partition_of("/", "nowhere", 2)


def published(queue: str) -> Published:
    return Published(Route("/", "", queue, (queue,)), b"\x10\x00\x02", persistent=True, body=b"body", body_size=4)


def append(data: Path, number: int, *records: Event | bytes) -> None:
    """To the log of a broker that is not running."""
    encoder = Encoder()
    log = EmbeddedLog.open(data, 2)
    for record in records:
        value = HEADER + record if isinstance(record, bytes) else encoder.encode(encoder.prefix(START_MS, ANN), record)
        log.queues[number].append(START_MS, value)
    log.commit_and_wait()
    log.close()


def listed(broker: RunningBroker, **query: str) -> list[dict[str, object]]:
    answer = httpx2.get(f"{broker.http_url}/api/quarantine", params=query, auth=("guest", "guest"), trust_env=False)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()
    return found


def counted(broker: RunningBroker) -> list[str]:
    lines = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest"), trust_env=False).text.splitlines()
    return [line for line in lines if line.startswith("rewindmq_quarantined_events_total")]


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_makes_no_sense_is_listed_and_counted_also_after_a_restart(
    start_broker: Callable[..., RunningBroker], tmp_path: Path, end: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    append(data, HOME, published("nowhere"), b"\xff\xff", Acked("/", "nowhere", 7, ((0, 0),)))
    append(data, 1 - HOME, b"\x00")
    no_queue: dict[str, object] = {"event": "Published", "reason": "no queue 'nowhere' in vhost '/'"}
    cut: dict[str, object] = {"event": None, "reason": "byte 10 of 12: the record ends within timestamp"}
    no_holder: dict[str, object] = {"event": "Acked", "reason": "consumer 7 holds nothing of queue 'nowhere'"}
    where = {"partition": f"queues-{HOME}", "topic": None}
    expected = [{**where, "offset": at, **what} for at, what in enumerate((no_queue, cut, no_holder))]
    broker = start_broker(data, "--partitions", "2")
    for _ in range(2):
        of_home = listed(broker, partition=f"queues-{HOME}")
        assert of_home == expected
        everything = listed(broker)
        assert [each["partition"] for each in everything] == sorted(str(each["partition"]) for each in everything)
        assert len(everything) == 4
        assert listed(broker, partition=f"queues-{HOME}", count="2") == expected[1:]
        assert listed(broker, count="0") == []
        assert listed(broker, columns="offset", partition=f"queues-{HOME}") == [{"offset": n} for n in range(3)]
        assert counted(broker) == [
            'rewindmq_quarantined_events_total{partition="metadata-0"} 0',
            *(
                f'rewindmq_quarantined_events_total{{partition="queues-{number}"}} {3 if number == HOME else 1}'
                for number in range(2)
            ),
        ]
        (broker.stop if end == "stop" else broker.kill)()
        broker = start_broker(data)
    broker.stop()
    broker = start_broker(data)
    assert listed(broker, partition=f"queues-{HOME}") == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"partition": "queues-9"}, "there is no partition queues-9; there are metadata-0, queues-0, queues-1"),
        ({"count": "-1"}, "count is a whole number"),
        ({"count": "many"}, "count is a whole number"),
    ],
)
def test_wrong_questions(api: httpx2.Client, query: dict[str, str], reason: str) -> None:
    answer = api.get("/quarantine", params=query)
    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


@pytest.mark.parametrize(("tags", "status"), [("monitoring", 200), ("policymaker", 401), ("management", 401)])
def test_it_is_for_administrators_and_monitoring(api: httpx2.Client, name: str, tags: str, status: int) -> None:
    assert api.put(f"/users/{name}", json={"password": "secret", "tags": tags}).status_code == 201
    assert api.get("/quarantine", auth=(name, "secret")).status_code == status
    assert api.get("/quarantine").status_code == 200
