"""`rewindmq spark`, as a process: the result alone on stdout, one line on stderr when it cannot be had."""

import csv
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping import location as places
from rewindmq.projections.history.properties import headers, properties_object
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay import session
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.watch import BatchReport, WatchedPartition
from rewindmq.spark_replay.commands import failures
from rewindmq.spark_replay.commands.exit_status import status_of
from rewindmq.spark_replay.commands.report import print_batch
from rewindmq.spark_replay.commands.table_writer import message_object, print_table
from tests.support.ports import free_port
from tests.support.spark.histories import START_MS, Recorder

CANDIDATE = '{"pattern": ".", "definition": {"max-length": 1}}'


def run(*arguments: object, status: int = 0) -> str:
    """As a process, with a Spark of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_replay", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "TZ": "America/New_York"},
    )
    assert done.returncode == status, done.stderr
    assert len(done.stderr.splitlines()) == (0 if status in (0, 1) else 1), done.stderr
    return done.stdout if status in (0, 1) else done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("told")
    history = Recorder(data, partitions=1)
    history.declare("orders", {"x-max-length": 5})
    history.publish("orders", "grüße".encode())
    history.publish("orders", b"\xff\xfe")
    history.get("orders", 1)
    history.mark("early")
    history.wait(1_000)
    history.purge("orders")
    history.mark("late")
    history.close()
    return data


def at_a_terminal(*arguments: object) -> str:
    """Return the output of a command on both streams, as a terminal shows it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_replay", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        cwd=Path(__file__).resolve().parents[3],
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the other end was closed
        while part := os.read(ours, 65_536):
            seen += part
    os.close(ours)
    assert process.wait(60) == 0, seen
    return seen.decode()


@pytest.mark.rare
def test_at_a_terminal_it_says_that_spark_starts_and_shows_tables(told: Path) -> None:
    lines = at_a_terminal("state-at", "--data", told, "--mark", "early", "--messages").splitlines()
    assert lines[0] == "spark_replay: starting Spark, which takes some seconds ..."
    assert lines[1].split()[:3] == ["vhost", "queue", "type"]
    assert [line.split()[-1] for line in lines if line.startswith("orders ")] == ["//4=", "grüße"]
    assert max(map(len, lines)) < 200


def test_a_time_before_now_is_one_moment_for_all_that_read_it(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["history"], ["slo"], ["what-if", "--candidate", CANDIDATE]):
        assert cli.run([*command, "--data", str(told), "--from", "-2h"]) in (64, 65)
        said = capsys.readouterr().err
        assert "nothing was logged at or after 20" in said, "the command names the time that -2h means"
    assert cli.run(["history", "--data", str(told), "--from", "-5x"]) == 64
    assert "'-5x' is not a time" in capsys.readouterr().err


def test_state_at_as_the_checks_call_it(told: Path) -> None:
    found = json.loads(
        run("state-at", "--data", told, "--time", "2025-11-21T03:00:00.999+00:00", "--format", "json", "--messages")
    )
    assert len(found) == 1
    queue = found[0]
    assert (queue["vhost"], queue["queue"], queue["name"]) == ("/", "orders", "orders")
    assert (queue["messages_ready"], queue["messages_unacknowledged"]) == (1, 1)
    assert (queue["message_bytes_ready"], queue["message_bytes_unacknowledged"]) == (2, 7)
    assert queue["arguments"] == {"x-max-length": 5}
    assert [(m["body"], m["body_encoding"], m["state"]) for m in queue["messages"]] == [
        ("//4=", "base64", "ready"),
        ("grüße", "utf-8", "unacked"),
    ]
    assert queue["messages"][0]["published"] == "2025-11-21T03:00:00.000+00:00"
    assert queue["messages"][0]["properties"] == {"delivery_mode": 2}


def test_state_at_offsets_and_a_bare_number(
    told: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    for offsets in ("3", '{"queues-0": 3}'):
        assert cli.run(["state-at", "--data", str(told), "--offsets", offsets]) == 0
        queue = json.loads(capsys.readouterr().out)[0]
        assert (queue["messages"], queue["messages_ready"]) == (1, 1)


@pytest.mark.long
def test_history_as_csv_json_and_parquet(
    told: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["history", "--data", str(told), "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["outcome"] for row in rows] == ["published", "published", "delivered", "purged"]
    assert rows[0]["timestamp"] == "2025-11-21T03:00:00.000+00:00"
    out = tmp_path / "history"
    for form in ("parquet", "json"):
        assert cli.run(["history", "--data", str(told), "--format", form, "--out", str(out / form)]) == 0
    assert spark.read.parquet(str(out / "parquet")).count() == 4
    written = json.loads((out / "json" / "part-0.json").read_text())
    assert [row["outcome"] for row in written] == [row["outcome"] for row in rows]
    assert cli.run(["history", "--data", str(told), "--out", str(out)]) == 64


def test_biography_as_a_table(told: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["biography", "--data", str(told), "--message", "queues-0:2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "delivered" in lines[2]


def test_audit_says_what_it_did_and_exits_0(
    told: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["audit", "--data", str(told)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("audit passed")


def test_audit_of_a_lie_exits_1_and_says_where(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    offset = history.claim(0, "0" * 64)
    history.close()
    assert cli.run(["audit", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"claims: queues-0 offset {offset}: the broker claimed 000" in printed
    assert printed.rstrip().endswith("audit FAILED: 1 finding")


@pytest.fixture
def corrupt(told: Path, tmp_path: Path) -> Path:
    import shutil

    data = tmp_path / "corrupt"
    shutil.copytree(told, data)
    segment = next((data / "log" / "queues-0").glob("*.avro"))
    content = bytearray(segment.read_bytes())
    content[-40] ^= 255
    segment.write_bytes(bytes(content))
    return data


@pytest.mark.rare
def test_a_corrupt_log_exits_65_with_file_and_offset(
    corrupt: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["audit", "--data", str(corrupt)]) == 65
    assert "block at byte" in capsys.readouterr().out
    line = run("history", "--data", corrupt, status=65)
    assert "00000000000000000000.avro: block at byte" in line
    assert "(offset " in line


# -- what is refused before Spark starts, in this process -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["state-at", "--time", "yesterday"], 64, "'yesterday' is not a time"),
        (["state-at", "--time", "2001-01-01T00:00:00Z"], 65, "is before the history"),
        (["state-at", "--time", "2030-01-01T00:00:00Z", "--offsets", "1"], 64, "not both"),
        (["state-at", "--offsets", "99"], 65, "not 99"),
        (["state-at", "--format", "xml"], 64, "'xml' is not one of"),
        (["history", "--format", "parquet"], 64, "name a directory with --out"),
        (["history", "--from", "2031-01-01T00:00:00Z"], 65, "nothing was logged at or after"),
        (["biography", "--message", "x:y"], 64, "is not a message"),
        (["slo", "--every", "sometimes"], 64, "a number and a unit"),
        (["diff", "--from", '{"queues-0": 2}', "--to", '{"queues-0": 1}'], 64, "lies before the first"),
        *(
            ([command, *more, "--from", start, "--to", end], 64, "the second moment lies before the first")
            for command, *more in (["history"], ["slo"], ["diff"], ["what-if", "--candidate", CANDIDATE])
            for start, end in (
                ("2025-11-21T03:00:01Z", "2025-11-21T03:00:00Z"),
                ("mark:late", "mark:early"),
                ("2031-01-01T00:00:00Z", "2001-01-01T00:00:00Z"),
                ("mark:late", "2025-11-21T03:00:00Z"),
            )
        ),
        *(
            ([*command, "--from", "2026-01-01T00:00:00Z"], 65, "nothing was logged at or after 2026-01-01T00:00:00Z")
            for command in (["history"], ["slo"], ["what-if", "--candidate", CANDIDATE])
        ),
        *(
            ([*command, "--without", f"user=ann,from={start},to={end}"], 64, line)
            for command in (["what-if"], ["restore", "--queue", "orders", "--to", "again"])
            for start, end, line in (
                ("2025-11-21T03:00:01Z", "2025-11-21T03:00:00Z", "the second moment lies before the first"),
                ("mark:late", "mark:early", "the second moment lies before the first"),
                ("mark:late", "2025-11-21T03:00:00Z", "the second moment lies before the first"),
                ("mark:nobody", "mark:early", "there is no mark 'nobody'"),
                ("noon", "mark:early", "'noon' is not a time"),
            )
        ),
        (["state-at", "--time", "999999999999999"], 64, "'999999999999999' is out of range"),
        (["slo", "--every", "99999999999999999999 days"], 64, "a number and a unit"),
        (["slo", "--every", "999999999 days"], 64, "at most 36500 days"),
        (["audit", "--html", "nodir/x.html"], 64, "--html: nodir/x.html cannot be written: there is no"),
        (["history", "--out", f"{__file__}/x"], 64, f"cannot be written: {__file__} is no directory"),
        (["cut", "--out", f"{__file__}/x"], 64, f"cannot be written: {__file__} is no directory"),
        (["what-if", "--candidate", '{"definition": {"max-length": 1}}'], 64, "names no queues"),
        (["frobnicate"], 64, "No such command"),
    ],
)
def test_bad_arguments_are_one_line(
    told: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    line: str,
) -> None:
    monkeypatch.setattr(session, "session", lambda **_: pytest.fail("Spark was started"))
    data = [] if arguments == ["frobnicate"] else ["--data", str(told)]
    assert cli.run([*arguments, *data]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert line in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_directory_without_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["state-at", "--data", str(tmp_path / "none")]) == 64
    assert cli.run(["state-at", "--data", str(tmp_path)]) == 65
    assert "no RewindMQ log is here" in capsys.readouterr().err


def test_a_kafka_that_does_not_answer_exits_69_here_and_in_a_worker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "FIRST_ANSWER_SECONDS", 1.0)
    address = f"127.0.0.1:{free_port()}"
    assert cli.run(["state-at", "--kafka", address]) == 69
    assert f"no answer from {address}" in capsys.readouterr().err
    assert (
        status_of(RuntimeError("Traceback\nrewindmq.engine.log.contract.NoAnswer: Kafka: no answer\n\n\tat org.apache"))
        == 69
    )


@pytest.mark.long
@pytest.mark.parametrize("buffering", [1, -1], ids=["while it writes", "at its end"])
def test_a_pipe_that_nobody_reads_is_no_error_and_no_finding(
    told: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, buffering: int
) -> None:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    history.claim(0, "0" * 64)
    history.close()
    for arguments, status in (
        (["history", "--data", str(told), "--format", "csv"], 0),
        (["audit", "--data", str(told)], 0),
        (["audit", "--data", str(tmp_path)], 1),
        (["audit", "--data", str(tmp_path), "--format", "json"], 1),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w", buffering) as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert cli.run(arguments) == status
        monkeypatch.undo()


@pytest.mark.long
def test_several_moments_in_one_go(told: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    times = [str(START_MS), "mark:early", str(START_MS + 1_000)]
    alone = []
    for time in times:
        assert cli.run(["state-at", "--data", str(told), "--messages", "--time", time]) == 0
        alone += [{"moment": time, **queue} for queue in json.loads(capsys.readouterr().out)]
    command = ["state-at", "--data", str(told), "--messages", *(part for time in times for part in ("--time", time))]
    assert cli.run(command) == 0
    assert json.loads(capsys.readouterr().out) == alone
    assert [queue["messages_total"] for queue in alone][-1] == 1  # the consumer has one, the others were purged
    assert cli.run([*command, "--format", "table"]) == 0
    assert capsys.readouterr().out.count("mark:early") == 3  # the queue, and two messages
    assert cli.run([*command, "--mark", "late"]) == 64


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_watch_goes_on_when_nobody_reads_it(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    finding = Finding("claims", False, "queues-0", 17, None, None, "wrong")
    at = WatchedPartition(18, 18, 0, 0, 0)
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, os.fdopen(writing, "w", 1) as pipe:
        patched.setattr(sys, "stdout", pipe)
        for batch in range(3):  # the first notices it, the others write to nowhere
            print_batch(BatchReport(batch, "2026-11-21T03:04:05Z", 18, {"queues-0": at}, [finding]), form)


def test_the_cause_is_found_in_what_spark_wraps() -> None:
    error = RuntimeError(
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "x.py", line 1\n'
        "rewindmq.engine.log.contract.CorruptLog: /d/0.avro: block at byte 9 (offset 3): bad\n\n\tat org.apache..."
    )
    assert failures.cause_of(error) == ("CorruptLog", "/d/0.avro: block at byte 9 (offset 3): bad")
    assert failures.cause_of(ValueError("odd"))[0] == "ValueError"


def test_properties_that_cannot_be_read_are_shown_as_they_are() -> None:
    assert properties_object(b"") == {}
    assert properties_object(b"\x80\x20\x0atext/plain\x04ping") == {"content_type": "text/plain", "type": "ping"}
    assert properties_object(b"\x20\x00\xff") == "IAD/"
    assert properties_object(b"\x10\x00\x02left over") == "EAACbGVmdCBvdmVy"


def test_properties_have_times_and_numbers_as_people_write_them() -> None:
    told = {"timestamp": "2023-11-14T22:13:20.000+00:00"}
    for time in (1_700_000_000, 1_700_000_000_000):  # some clients send milliseconds
        assert properties_object(b"\x00\x40" + time.to_bytes(8, "big")) == told
    assert properties_object(b"\x00\x40" + b"\xff" * 8) == {"timestamp": 2**64 - 1}, "no time at all"
    table = b"\x01dD\x02\xff\xff\xff\xff"
    price = headers(b"\x20\x00\x00\x00\x00\x08" + table)
    assert price == [{"key": "d", "value": b'"42949672.95"'}], "unsigned, as RabbitMQ reads it"


def test_times_are_utc_wherever_it_runs(told: Path) -> None:
    assert START_MS == 1_763_694_000_000  # 03:00 UTC; `run` sets another time zone
    assert message_object({"properties": None, "body": None})["body"] == ""


def test_tables_leave_out_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b", "c"], [["1", "", "x"], ["22", "", "y"]], sys.stdout)
    assert capsys.readouterr().out == "a   c\n1   x\n22  y\n"


def test_a_table_shows_what_would_speak_to_the_terminal_or_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["queue", "body"], [["a\x1b[2J", "x\nb      forged\u202e"], ["grüße", "y"]], sys.stdout)
    assert capsys.readouterr().out == ("queue     body\na\\x1b[2J  x\\nb      forged\\u202e\ngrüße     y\n")


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], iter([]), sys.stdout)
    assert capsys.readouterr().out == "a  b\n"
