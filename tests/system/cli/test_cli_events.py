"""`rewindmq events`: the log as text and as JSON, of a real data directory, beside the broker that writes it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.cli.commands import events as command
from tests.support.commands import COMMAND, require_failure
from tests.support.forked import run
from tests.support.http_clients import put_queue
from tests.support.running import RunningBroker


@pytest.fixture(scope="module")
def data(broker: RunningBroker) -> Path:
    url = {"REWINDMQ_URL": broker.http_url}
    put_queue(broker, "orders", messages=30)
    put_queue(broker, "other", messages=3)
    assert run("set_policy", "limit", "^orders$", '{"max-length":5}', **url).returncode == 0
    assert run("purge_queue", "orders", **url).returncode == 0
    return broker.data


def shown(data: Path, *options: str) -> list[str]:
    done = run("events", "--data", str(data), *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def of_json(data: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(data, "--format", "json", *options)]


def test_it_prints_a_line_an_event_in_the_order_of_time(data: Path) -> None:
    lines = shown(data)
    assert any(" guest/" in line and "Published" in line and "queues=[orders]" in line for line in lines)
    assert any("UserSet name=guest tags=[administrator]" in line for line in lines), "the metadata log is there, too"
    assert not any("argon2" in line for line in lines)
    assert [line.split()[1] for line in lines] == sorted(line.split()[1] for line in lines)
    published = next(line for line in lines if "queues=[orders]" in line)
    assert published.endswith("body=2 bytes")


def test_effects_are_what_the_fold_made_of_it(data: Path) -> None:
    lines = shown(data, "--queue", "orders", "--effects")
    assert lines[-2].split("  ")[-1] == "Purged queue=orders"
    assert lines[-1].startswith("    [orders] purged: ")
    (dropped,) = [line for line in lines if line.endswith(" (policy limit.max-length)")]
    spans = dropped.removeprefix("    [orders] maxlen: ").removesuffix(" (policy limit.max-length)").split()
    ends = [[int(each) for each in span.split("-")] for span in spans]
    assert sum(each[-1] - each[0] + 1 for each in ends) == 25, "the policy drops the older ones"
    assert not any("[other]" in line for line in lines)


def test_from_to_and_tail(data: Path) -> None:
    every = of_json(data, "--queue", "orders")
    assert of_json(data, "--queue", "orders", "--tail", "4") == every[-4:]
    assert of_json(data, "--queue", "orders", "--from", "-4") == every[-4:]
    assert of_json(data, "--queue", "orders", "--tail", "0") == []
    assert of_json(data, "--queue", "orders", "--from", "-10m") == every
    assert of_json(data, "--queue", "orders", "--to", "-10m") == []
    some = every[10]
    partition, offset = str(some["partition"]), int(str(some["offset"]))
    assert of_json(data, "--partition", partition, "--from", str(offset), "--to", str(offset + 1)) == [some]
    assert of_json(data, "--partition", partition, "--from", str(some["time"]))[0] in every[:11]
    whole = of_json(data)
    assert of_json(data, "--tail", "7") == whole[-7:]


def test_from_the_middle_the_effects_are_the_same(data: Path) -> None:
    every = of_json(data, "--queue", "orders", "--effects")
    assert of_json(data, "--queue", "orders", "--effects", "--tail", "3") == every[-3:]
    purged = every[-1]
    assert purged["event"] == "Purged"
    assert [(each["effect"], each["reason"], len(each["message_ids"])) for each in purged["effects"]] == [
        ("Forget", "purged", 5)
    ]


def test_last_events_far_behind_the_end_are_found(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rewindmq.engine.cli.main import run as called

    monkeypatch.setattr(command, "FIRST_LOOK_BACK", 1)
    assert called(["events", "--data", str(data), "--queue", "orders", "--tail", "12"]) == 0
    assert capsys.readouterr().out.splitlines() == shown(data, "--queue", "orders")[-12:]


def test_what_cannot_be_is_one_line(data: Path, tmp_path: Path) -> None:
    require_failure(run("events"), 64, "Error: say where the history is: --data DIR, or --kafka HOST:PORT")
    require_failure(run("events", "--data", str(tmp_path)), 65, f"Error: {tmp_path}: no RewindMQ log is here")
    require_failure(
        run("events", "--data", str(data), "--partition", "queues-9"), 64, "Error: there is no partition queues-9"
    )
    require_failure(run("events", "--data", str(data), "--from", "mark:never"), 65, "Error: there is no mark 'never'")
    require_failure(run("events", "--data", str(data), "--from", "yesterday"), 65, "Error: 'yesterday' is not a time")


def test_a_reader_that_goes_away_ends_it(data: Path) -> None:
    process = subprocess.Popen(
        [str(COMMAND), "events", "--data", str(data), "--effects"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(30), process.stderr.read()) == (0, "")
    process.stderr.close()


def test_a_damaged_log_says_where_after_what_is_whole(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker()
    put_queue(broker, "q", messages=20)
    assert broker.stop() == 0
    segment = next((broker.data / "log" / "metadata-0").glob("*.avro"))
    content = bytearray(segment.read_bytes())
    content[-30] ^= 1
    segment.write_bytes(bytes(content))
    done = run("events", "--data", str(broker.data), "--partition", "metadata-0")
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert segment.name in done.stderr


def test_a_record_that_is_none_is_shown(tmp_path: Path) -> None:
    from rewindmq.schemas.values import Actor

    line = command.PrintedEvent("queues-0", 7, 0, Actor("", 0), None, "not one of ours")
    assert command.as_text(line) == "queues-0:7  1970-01-01T00:00:00.000+00:00  -  no event: not one of ours\n"
    assert json.loads(command.as_json(line))["problem"] == "not one of ours"
