"""`rewindmq remove_message`, `move_message`, `pause_queue` and `resume_queue` (B-38, B-39)."""

import json

import pytest

from tests.support.commands import Cli, require_failure
from tests.support.http_clients import publish_to, put_queue
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def found(cli: Cli, message_id: str) -> str:
    answer = cli("find", "--message-id", message_id, "--format", "json")
    name = json.loads(answer.stdout.splitlines()[0])["message"]
    assert isinstance(name, str)
    return name


def ready(cli: Cli, queue: str) -> int:
    listed = json.loads(cli("list_queues", "name", "messages_ready", "-q", "--formatter", "json").stdout)
    return next(int(row["messages_ready"]) for row in listed if row["name"] == queue)


def test_b38_messages_are_removed_and_moved_by_name(cli: Cli, broker: RunningBroker) -> None:
    for queue in ("removing", "removing.checked"):
        put_queue(broker, queue)
    for number in range(4):
        publish_to(broker, "removing", "body", message_id=f"removing-{number}")
    names = [found(cli, f"removing-{number}") for number in range(4)]
    ids = [name.rpartition(":")[2] for name in names]
    removed = cli("remove_message", "removing", names[0], "--reason", "no address")
    assert (removed.returncode, removed.stdout.splitlines()) == (
        0,
        ["Removing messages of queue 'removing' in vhost '/' ...", "1 messages were removed"],
    )
    again = cli("remove_message", "removing", names[0], "-q")
    assert (again.returncode, again.stderr) == (65, "Error: 1 messages stayed as they are\n")
    assert "it is not in the queue" in again.stdout
    moved = cli("move_message", "removing", ids[1], f"{ids[2]}-{ids[2]}", "--to", "removing.checked", "-q")
    assert (moved.returncode, moved.stderr) == (0, "")
    assert (ready(cli, "removing"), ready(cli, "removing.checked")) == (1, 2)
    lines = [json.loads(line) for line in cli("biography", names[0], "--format", "json").stdout.splitlines()]
    assert [(line["outcome"], line["reason"]) for line in lines] == [("published", None), ("removed", "no address")]
    undone = cli("restore", "removing", "--undo", "remove", "-q")
    assert (undone.returncode, undone.stderr) == (0, "")
    assert ready(cli, "removing") == 2


def test_b38_what_makes_no_sense_ends_with_one_line(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "senseless")
    require_failure(cli("remove_message", "nowhere", "1"), 69, "Error: Queue not found: there is no queue 'nowhere'")
    require_failure(cli("move_message", "senseless", "1"), 64, "Error: give either --to QUEUE, or --exchange EXCHANGE")
    require_failure(
        cli("move_message", "senseless", "1", "--to", "nowhere"), 65, "Error: no queue 'nowhere' in vhost '/'"
    )
    require_failure(cli("remove_message", "senseless", "0-2000000"), 64, "Error: at most 1,000,000 messages at a time")
    require_failure(cli("remove_message", "senseless", "elsewhere:1"), 65, "Error: queue 'senseless' is in partition")
    wrong = cli("remove_message", "senseless", "x")
    assert wrong.returncode == 64
    assert "'x' is not a message id: give numbers such as 17, or ranges such as 17-29" in wrong.stderr


def test_b39_a_queue_is_paused_and_resumed(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "pausing")

    def state() -> str:
        listed = json.loads(cli("list_queues", "name", "state", "-q", "--formatter", "json").stdout)
        return next(str(row["state"]) for row in listed if row["name"] == "pausing")

    paused = cli("pause_queue", "pausing", "--reason", "the shop is closed")
    assert (paused.returncode, paused.stdout) == (0, "Pausing queue 'pausing' in vhost '/' ...\n")
    assert state() == "paused"
    assert cli("resume_queue", "pausing").returncode == 0
    assert state() == "running"
    require_failure(cli("pause_queue", "nowhere"), 69, "Error: Queue not found: there is no queue 'nowhere'")
