"""`rewindmq find`: where is order 4711? (B-29)."""

import json

import pytest

from tests.support.commands import Cli, require_failure
from tests.support.http_clients import publish_to, put_queue
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def test_b29_orders_are_found_by_any_key(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "finding")
    publish_to(broker, "finding", "four\x1b[31m\n", message_id="order-4711", headers={"customer": "alice"})
    publish_to(broker, "finding", "other", message_id="order-4712", headers={"customer": "bob", "n": 5})
    assert cli("purge_queue", "finding").returncode == 0
    found = cli("find", "--message-id", "order-4711")
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert lines[0] == "Searching the history of vhost '/' ..."
    assert lines[1].split("\t")[:4] == ["message", "published", "user", "queues"]
    assert len(lines) == 3
    assert "finding" in lines[2]
    assert "four\\x1b[31m\\n" in lines[2]  # a terminal is told nothing by a message
    for options in (("--header", "customer=bob"), ("--header", "n=5"), ("--body", "the"), ("--body=o", "--limit=1")):
        answer = cli("find", "finding", *options, "--since", "2h", "--format", "json")
        (message,) = [json.loads(line) for line in answer.stdout.splitlines()]
        assert (message["payload"], message["queues"]) == ("other", ["finding"])
    assert cli("find", "finding", "--body", "o", "--until", "2h", "--format", "json").stdout == ""
    assert cli("find", "finding", "--body", "nowhere", "-q").stdout.count("\n") <= 1


def test_b29_searches_that_make_no_sense_end_with_one_line(cli: Cli) -> None:
    named = "--message-id, --correlation-id, --header NAME=VALUE, --body TEXT or --unrouted"
    require_failure(
        cli("restore", "q", "--unrouted", "--exchange", "x", "--since", "1h"), 64, "Error: --unrouted takes"
    )
    require_failure(
        cli("restore", "q", "--exchange", "x", "--undo", "purge"), 64, "Error: name a QUEUE, or give --unrouted"
    )
    require_failure(cli("find"), 64, f"Error: say what to find: {named}")
    require_failure(cli("find", "--header", "alice"), 64, "Error: --header is NAME=VALUE, not 'alice'")
    require_failure(cli("find", "--body", "x", "--since", "yesterday"), 64, "Error: 'yesterday' is not a time")


def test_b29_a_life_a_tail_and_a_diff_at_the_command_line(cli: Cli, broker: RunningBroker) -> None:
    put_queue(broker, "living")
    publish_to(broker, "living", "one", message_id="living-1")
    publish_to(broker, "living", "two", message_id="living-2")
    assert cli("purge_queue", "living").returncode == 0
    message = json.loads(cli("find", "--message-id", "living-1", "--format", "json").stdout)
    life = cli("biography", message["message"])
    assert (life.returncode, life.stderr) == (0, "")
    lines = [line.split("\t") for line in life.stdout.splitlines()]
    assert lines[0] == [f"The life of message {message['message']} ..."]
    assert lines[1][:6] == ["partition", "offset", "timestamp", "event", "user", "queue"]
    assert [line[6] for line in lines[2:]] == ["published", "purged"]
    tail = cli("history", "living", "--tail", "3", "--format", "json")
    assert [json.loads(line)["outcome"] for line in tail.stdout.splitlines()] == ["published", "purged", "purged"]
    diff = cli("diff", "living", "--from", "1h", "--summary", "-q")
    if diff.returncode:  # the broker is younger
        require_failure(diff, 65, "Error: ")
        diff = cli("diff", "living", "--from", message["published"], "--summary", "-q")
    assert "purged\t" in diff.stdout
    require_failure(cli("biography", "4711x"), 65, "Error: '4711x' is not a message")
    require_failure(cli("history", "gone", "--until", "noon"), 64, "Error: 'noon' is not a time")
