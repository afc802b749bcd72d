"""A reason for every act: `--reason` and X-Reason reach the history, whatever the act (B-78)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pika
import pytest

from rewindmq.schemas.reasons import WITH_A_REASON
from tests.support.commands import run_in_process
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

OWN = {each.__name__ for each in WITH_A_REASON}
SECRET = "a-password-of-bob"
Start = Callable[..., RunningBroker]


def by_fastavro(data: Path) -> set[tuple[str, str]]:
    """Return the reason and the type of each event with a reason that another Avro library finds in the segments."""
    found = set()
    for file in data.glob("log/*/*.avro"):
        with file.open("rb") as stream:
            for row in fastavro.reader(stream, return_record_name=True):
                assert isinstance(row, dict)
                name, event = row["event"]
                reason = event.get("reason") if name.rpartition(".")[2] in {*OWN, "Explained"} else None
                if name.endswith(".Explained"):
                    name = event["event"][0]
                if reason:
                    found.add((reason, name.rpartition(".")[2]))
    return found


def printed(data: Path) -> list[dict[str, Any]]:
    """Return the lines of `rewindmq events`."""
    done = run("events", "--data", str(data), "--format", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def did(broker: RunningBroker, *arguments: str) -> str:
    code, said = run_in_process(broker, *arguments)
    assert code == 0, said
    return said


def test_b78_every_act_has_its_reason_in_the_history(start_broker: Start, tmp_path: Path) -> None:
    """A test does each act by the command line, and finds its reason by Avro, in the events and in the answers."""
    broker = start_broker(tmp_path / "data", "--subject-header", "customer")
    document = tmp_path / "definitions.json"
    document.write_text(json.dumps({"vhosts": [{"name": "imported"}]}))
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in ("orders", "other"):
        channel.queue_declare(queue, durable=True)
    for number in range(4):
        properties = pika.BasicProperties(delivery_mode=2, headers={"customer": "ann"})
        channel.basic_publish("", "orders", f"secret {number}".encode(), properties)
    with api_client(broker) as api:
        ids = [each["message_id"] for each in api.get("/queues/%2F/orders/at?time=-0s").json()["message_details"]]
        acts = {
            ("MessageRemoved",): ("remove_message", "orders", str(ids[0])),
            ("MessageRemoved", "moved"): ("move_message", "orders", str(ids[1]), "--to", "other"),
            ("QueuePaused",): ("pause_queue", "orders"),
            ("QueueResumed",): ("resume_queue", "orders"),
            ("Purged",): ("purge_queue", "orders"),
            ("Published",): ("restore", "orders", "--undo", "purge"),
            ("PolicySet",): ("set_policy", "limited", "^orders$", '{"max-length": 9}'),
            ("PolicyCleared",): ("clear_policy", "limited"),
            ("OperatorPolicySet",): ("set_operator_policy", "limited", "^orders$", '{"max-length": 9}'),
            ("UserSet",): ("add_user", "bob", SECRET),
            ("PermissionsSet",): ("set_permissions", "bob", ".*", ".*", ".*"),
            ("TopicPermissionsSet",): ("set_topic_permissions", "bob", "amq.topic", ".*", ".*"),
            ("PermissionsCleared",): ("clear_permissions", "bob"),
            ("UserLimitsSet",): ("set_user_limits", "bob", '{"max-channels": 9}'),
            ("UserDeleted",): ("delete_user", "bob"),
            ("VhostCreated",): ("import_definitions", str(document)),
            ("MarkSet",): ("set_mark", "here"),
            ("ParameterSet",): ("set_vhost_limits", '{"max-queues": 99}'),
            ("SubjectErased",): ("erase_subject", "ann"),
            ("QueueDeleted",): ("delete_queue", "orders"),
        }
        for name, command in acts.items():
            did(broker, *command, "--reason", "why " + " ".join(name))
        rows = api.get("/history/outcomes/%2F/orders?tail=10000").json()["rows"]
        biography = api.get(f"/history/biography/%2F/{rows[0]['partition']}:{ids[2]}").json()["rows"]
        ticks = api.get("/history/depth/%2F/orders").json()["ticks"]
        [open_one] = api.get("/connections").json()
        did(broker, "close_connection", open_one["name"], "bad Frankfurt é 東京")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="bad Frankfurt é 東京"):
        connection.process_data_events(time_limit=20)
    told = {(row["outcome"], row["why"]) for row in rows if row["why"] is not None}
    assert told >= {
        ("removed", "why MessageRemoved"),
        ("moved", "why MessageRemoved moved"),
        ("purged", "why Purged"),
        ("published", "why Published"),
        ("queue_gone", "why QueueDeleted"),
    }
    assert {row["user"] for row in rows if row["why"] is not None} == {"guest"}
    assert [row["why"] for row in biography if row["why"] is not None] == [
        "why Purged",
        "why Published",
        "why QueueDeleted",  # of the restored message
    ]
    assert {(tick["kind"], tick["why"] or tick["text"]) for tick in ticks if tick["user"] == "guest"} >= {
        ("purged", "why Purged"),
        ("restored", "why Published"),
        ("policy", "why PolicySet"),
        ("paused", "why QueuePaused"),
        ("deleted", "why QueueDeleted"),
    }
    assert broker.stop() == 0
    expected = {("why " + " ".join(name), name[0]) for name in acts}
    closed = ("closed by guest: bad Frankfurt é 東京", "SessionClosed")
    assert by_fastavro(tmp_path / "data") >= {*expected, closed}
    events = printed(tmp_path / "data")
    assert {(each.get("why", each.get("fields", {}).get("reason")), each["event"]) for each in events} >= {
        *expected,
        closed,
    }
    assert not [each for each in events if each["event"] in OWN and "why" in each]  # it is not stored twice
    ends = {each["session"]: each for each in events if each["event"] == "SessionClosed" and "why" in each}
    assert [each["user"] for each in ends.values()] == ["guest"]
    verified = run("verify", "--data", str(tmp_path / "data"))
    assert verified.returncode == 0, verified.stdout + verified.stderr
