"""Bodies for so many days, events for ever (B-21), on brokers in processes of their own: what clients, files, commands
and auditors see while the days pass.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from rewindmq.engine.erasure.key_store import KeyStore
from tests.support.deadlines import until
from tests.support.erasure import cli, end_of, files_with, read, run, seal
from tests.support.http_clients import api_client
from tests.support.moved_clock import DAY_MS, MovedBroker
from tests.support.pika_clients import connect

MARKER = b"PLAIN-BODY-OF-THAT-DAY"
KEPT = pika.BasicProperties(delivery_mode=2, message_id="kept", headers={"n": 1})
ON = ("--keep-bodies", "2d", "--subject-header", "x-subject", "--partitions", "2")


def days(broker: MovedBroker) -> dict[str, dict[str, Any]]:
    with api_client(broker) as client:
        return {each["day"]: each for each in client.get("/expired-bodies").json()}


def today(broker: MovedBroker) -> str:
    """The day that the broker has a key of."""
    until(lambda: days(broker), "there is no key of today")
    return max(days(broker))


def next_day(broker: MovedBroker) -> str:
    """A day later, when the broker has looked."""
    before = today(broker)
    broker.pass_time(DAY_MS)
    until(lambda: max(days(broker)) > before, "the broker has not seen the new day")
    until(lambda: all(each["state"] != "due" for each in days(broker).values()), "due days stay")
    return max(days(broker))


def publish(channel: Any, queue: str, body: bytes, subject: str = "") -> None:
    headers = {"n": 1} | ({"x-subject": subject} if subject else {})
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, message_id="kept", headers=headers))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MovedBroker]:
    running = MovedBroker(tmp_path / "data", *ON)
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0
    assert "Traceback" not in "".join(running.errors), "".join(running.errors)


@pytest.mark.long
def test_b21_the_life_of_a_day(broker: MovedBroker) -> None:
    first = today(broker)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in ("main", "waits", "dead"):
            channel.queue_declare(queue, durable=True)
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1D"})
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("dying", durable=True, arguments=dying)
        for body in (MARKER, MARKER * 20_000, b""):
            publish(channel, "main", body)
        publish(channel, "main", MARKER, "ada")
        publish(channel, "stream", MARKER)
        publish(channel, "waits", MARKER)
        publish(channel, "dying", MARKER)
        got = [channel.basic_get("main", auto_ack=True)[2] for _ in range(4)]
        assert got == [MARKER, MARKER * 20_000, b"", MARKER]
        transactional = connection.channel()
        transactional.tx_select()
        transactional.basic_publish("", "main", MARKER + b" tx", KEPT)
        transactional.tx_commit()
    with api_client(broker) as client:
        asked = {"routing_key": "main", "payload": MARKER.decode(), "payload_encoding": "string", "properties": {}}
        assert client.post("/exchanges/%2F/amq.default/publish", json=asked).json() == {"routed": True}
        client.delete("/queues/%2F/main/contents").raise_for_status()
    next_day(broker)
    with connect(broker) as connection:
        channel = connection.channel()
        assert read(channel, "main", 6, **{"x-stream-offset": "first"})[0][0] == MARKER
        channel.basic_reject(channel.basic_get("dying")[0].delivery_tag, requeue=False)
    next_day(broker)
    next_day(broker)
    found = days(broker)[first]
    assert (found["state"], found["keys"]) == ("held", 2)
    held = {(each["queue"], each["messages"]) for each in found["queues"]}
    assert held - {("stream", 1)} == {("dead", 1), ("waits", 1)}  # the stream's timer need not have rung yet
    said = cli(broker, "status").stdout
    assert f"Held back: {first}, by queue 'waits' of '/': 1 messages" in said
    assert "Kept: 2 days; expired: 0 days" in said
    with connect(broker) as connection:
        channel = connection.channel()
        for queue in ("dead", "waits"):
            assert channel.basic_get(queue, auto_ack=True)[2] == MARKER
    assert broker.stop() == 0  # it is no day's work that a start does away with
    broker = restarted(broker)
    broker.pass_time(11 * 60_000)
    next_day(broker)
    found = days(broker)[first]
    assert (found["state"], found["keys"], found["queues"]) == ("expired", 0, [])
    gone_for_clients(broker, first)
    gone_for_auditors(broker, first)


def restarted(broker: MovedBroker) -> MovedBroker:
    """The fixture ends this one, too."""
    other = MovedBroker(broker.data, *ON)
    broker.__dict__.update(other.__dict__)
    return broker


def gone_for_clients(broker: MovedBroker, day: str) -> None:
    """By every way out: empty, and the reason beside it."""
    with connect(broker) as connection:
        found = read(connection.channel(), "main", 6, **{"x-stream-offset": "first"})
    expired = {"n": 1, "x-expired-body": day}
    assert [body for body, _ in found] == [b""] * 6
    assert [headers.get("x-expired-body") for _, headers in found] == [day, day, None, day, day, day]
    assert found[0][1] == expired
    with api_client(broker) as client:
        undone = client.post("/queues/%2F/main/restore", json={"undo": "purge"}).json()
        assert undone["restored"] == 2
        content = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        items = [client.post("/queues/%2F/main/get", json=content).json()[0]]
        items.append(client.get("/queues/%2F/main/peek/1").json())
        offset = end_of(client, "main")
        items.append(client.get("/queues/%2F/main/at", params={"offset": offset}).json()["message_details"][0])
    done = run("rewind", "main", "--offset", str(offset), "--data", str(broker.data), "--formatter", "json")
    assert done.returncode == 0, done.stderr
    items.append(json.loads(done.stdout)[0])
    shown = [(item["payload"], item["properties"]["headers"].get("x-expired-body")) for item in items]
    assert shown == [("", day)] * 4


def gone_for_auditors(broker: MovedBroker, day: str) -> None:
    data = broker.data
    rows = json.loads(cli(broker, "list_expired_bodies", "--formatter", "json").stdout)
    assert (rows[0]["day"], rows[0]["state"]) == (day, "expired")
    with api_client(broker) as client:
        client.put("/users/clerk", json={"password": "clerk", "tags": "management"}).raise_for_status()
        assert client.get("/expired-bodies", auth=("clerk", "clerk")).status_code == 401
    assert broker.stop() == 0
    assert files_with(MARKER, data) == []
    seal(data)
    public = str(data.parent / "seal.pub")
    for command in (("verify", "--data", str(data)), ("verify_seals", "--data", str(data), "--public-key", public)):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run("check_erasure", "--day", day, "--data", str(data), "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [(each["key"], each["reason"]) for each in found] == [("expired", "the day has expired")] * 2
    assert sum(each["records"] for each in found) >= 8
    last = max(KeyStore(data / "keys").of_days())
    done = run("check_erasure", "--day", last, "--data", str(data))
    assert (done.returncode, done.stderr) == (1, f"Error: the day {last} has not expired: in_use\n")
    done = run("check_erasure", "ada", "--data", str(data))
    assert (done.returncode, done.stderr) == (1, "Error: subject 'ada' is not erased: no erasure was requested\n")


def test_b21_a_kill_between_destroying_and_logging_is_mended_by_the_start(broker: MovedBroker) -> None:
    first = today(broker)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("main", durable=True)
        channel.confirm_delivery()
        publish(channel, "main", MARKER)
        channel.basic_get("main", auto_ack=True)
        channel.queue_purge("main")  # its answer follows the sync: the ack outlives the kill
    keys = KeyStore(broker.data / "keys")
    (key_id,) = keys.of_days()[first]
    broker.kill()
    keys.destroy(key_id)
    done = run("check_erasure", "--day", first, "--data", str(broker.data))
    assert (done.returncode, done.stderr) == (1, f"Error: the day {first} has not expired: unlogged\n")
    broker = restarted(broker)
    until(lambda: days(broker).get(first, {}).get("offset") is not None, "the history does not say it")
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        publish(channel, "main", b"the same day")  # under another key
        assert channel.basic_get("main", auto_ack=True)[2] == b"the same day"
        ((body, headers),) = read(channel, "main", 2, **{"x-stream-offset": "first"})[:1]
    assert (body, headers["x-expired-body"]) == (b"", first)


@pytest.mark.long
def test_b21_a_wall_clock_that_jumps_by_a_year_destroys_nothing(broker: MovedBroker) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("main", durable=True)
        channel.confirm_delivery()
        publish(channel, "main", MARKER)
        channel.basic_get("main", auto_ack=True)
    today(broker)
    broker.move(365 * DAY_MS, 0)
    broker.pass_time(11 * 60_000)
    for _ in range(2):
        assert broker.stop() == 0
        broker = restarted(broker)
        before = len(days(broker))
        broker.pass_time(61 * 60_000)  # a pass, in trust
        until(days, "no pass", broker)
        assert len(days(broker)) >= before
    assert {each["state"] for each in days(broker).values()} == {"kept"}
    with connect(broker) as connection:
        assert read(connection.channel(), "main", 1, **{"x-stream-offset": "first"})[0][0] == MARKER


def test_b21_no_key_of_a_day_can_be_made(broker: MovedBroker) -> None:
    """No body gets into the log that would never expire."""
    keys = broker.data / "keys"
    today(broker)
    keys.rename(keys.with_name("elsewhere"))
    keys.write_text("no directory")
    broker.pass_time(DAY_MS)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("main", durable=True)
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="no key for the message's day"):
            publish(channel, "main", MARKER)
    keys.unlink()
    keys.with_name("elsewhere").rename(keys)
