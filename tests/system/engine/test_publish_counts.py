"""The broker says what became of each session's publishes, and the audit compares it with the log (B-81)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.schemas.access_events import SessionCounted
from rewindmq.spark_replay.audit.checks import PUBLISHES, Finding
from tests.support.auditing import findings_of
from tests.support.http_clients import api_client
from tests.support.lossy_broker import EVERY, LOST, LossyBroker
from tests.support.publish_counts import counts_of
from tests.support.running import RunningBroker


def numbers_of(found: list[SessionCounted]) -> dict[str, int]:
    """The numbers of the last count that are not 0, and the sum of its events."""
    names = ("received", "refused", "unknown_exchange", "after_error", "unfinished", "grouped", "copies")
    numbers = {name: getattr(found[-1], name) for name in names} | {
        "events": sum(p.events for p in found[-1].partitions)
    }
    return {name: number for name, number in numbers.items() if number}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def running(data: Path) -> Iterator[RunningBroker]:
    broker = RunningBroker(data, "--partitions", "4")
    yield broker
    broker.kill()


def publishes_in(data: Path) -> list[Finding]:
    return [each for each in findings_of(data) if each.check == PUBLISHES]


def connect(broker: RunningBroker) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.amqp_url))


def stopped(broker: RunningBroker) -> dict[str, int]:
    assert broker.stop() == 0
    found = counts_of(InDirectory(broker.data))
    (finding,) = publishes_in(broker.data)
    assert finding.ok, finding
    return numbers_of(found)


def test_b81_publishes_of_every_fate_are_counted(running: RunningBroker) -> None:
    with api_client(running) as api:
        counted = {"pattern": "^telemetry$", "apply-to": "exchanges", "definition": {"unrouted": "count"}}
        api.put("/policies/%2F/counted", json=counted).raise_for_status()
    connection = connect(running)
    channel = connection.channel()
    channel.exchange_declare("telemetry", "topic")
    for number in range(20):  # in several partitions
        channel.queue_declare(f"q{number}")
        channel.queue_bind(f"q{number}", "amq.fanout")
    for _ in range(100):
        channel.basic_publish("", "q1", b"alike")  # 100 events
    channel.basic_publish("amq.fanout", "", b"to all")  # an event in each partition
    channel.basic_publish("amq.direct", "nobody", b"unrouted")
    channel.basic_publish("telemetry", "nobody", b"grouped")
    channel.basic_publish("", "q1", b"x" * 300_000)  # frame by frame
    other = connection.channel()
    other.tx_select()
    other.basic_publish("", "q1", b"committed")
    other.basic_publish("telemetry", "nobody", b"grouped")
    other.tx_commit()
    other.basic_publish("", "q1", b"rolled back")
    other.tx_rollback()
    other.basic_publish("", "q1", b"never committed")
    channel.basic_publish("no such exchange", "q1", b"")
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("q1")
    connection.close()
    numbers = stopped(running)
    assert numbers == {
        "received": 109,
        "unknown_exchange": 1,
        "unfinished": 2,
        "grouped": 2,
        "copies": 3,
        "events": 104 + 3,
    }


def test_b81_refusals_are_counted(running: RunningBroker) -> None:
    connection = connect(running)
    channel = connection.channel()
    channel.exchange_declare("inside", "fanout", internal=True)
    for way in range(2):  # the second is known, and comes whole
        channel = connection.channel()
        channel.basic_publish("inside", "", b"refused" * way)
        with pytest.raises(ChannelClosedByBroker):
            channel.queue_declare("q")
    connection.close()
    assert stopped(running) == {"received": 2, "refused": 2}


def test_b81_requests_of_http_are_counted_in_their_session(running: RunningBroker) -> None:
    with api_client(running) as api:
        api.put("/queues/%2F/q", json={}).raise_for_status()
        wish = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
        for exchange, status in (("amq.default", 200), ("amq.direct", 200), ("unknown", 400)):
            assert api.post(f"/exchanges/%2F/{exchange}/publish", json=wish).status_code == status
        api.get("/aliveness-test/%2F").raise_for_status()
    numbers = stopped(running)
    assert numbers["received"] - numbers.get("unknown_exchange", 0) == numbers["events"] == 3


def test_b81_a_killed_broker_leaves_what_was_not_counted(data: Path) -> None:
    broker = RunningBroker(data)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(10):
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    broker.kill()
    assert counts_of(InDirectory(data)) == []
    (finding,) = publishes_in(data)
    assert (finding.ok, finding.detail) == (True, "0 sessions, 0 publishes counted, 10 not counted")


def test_b81_a_checkpoint_counts_the_sessions_that_go_on(data: Path) -> None:
    broker = LossyBroker(data)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(350):
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    broker.kill()
    found = counts_of(InDirectory(data))
    assert [each.received for each in found] == sorted({each.received for each in found})
    assert len(found) == 350 // EVERY
    (finding,) = publishes_in(data)
    known = found[-1].received
    assert (finding.ok, finding.detail) == (True, f"1 sessions, {known} publishes counted, {350 - known} not counted")


@pytest.mark.parametrize("before", [0, 10], ids=["alone", "within a run"])
def test_b81_a_broker_that_loses_a_single_publish_is_convicted(data: Path, before: int) -> None:
    broker = LossyBroker(data)
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q")
    for body in (*[b"kept"] * before, LOST, *[b"kept"] * before):
        channel.basic_publish("", "q", body)
    connection.close()
    assert broker.stop() == 0
    (finding,) = publishes_in(data)
    assert not finding.ok
    said = f": {2 * before} publishes are between offsets 0 and {finding.offset}, the broker logged {2 * before + 1}"
    assert finding.detail.endswith(said)
