"""start, rewind and verify: a broker's life at the command line, and what is wrong with its data in one line."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.support.commands import COMMAND, Cli, require_failure
from tests.support.forked import run
from tests.support.http_clients import put_queue
from tests.support.moments import now
from tests.support.ports import free_port
from tests.support.running import RunningBroker


def test_start_says_when_it_is_ready_and_stops_on_sigterm(tmp_path: Path) -> None:
    amqp, http = free_port(), free_port()
    process = subprocess.Popen(
        [str(COMMAND), "start", "--data", str(tmp_path / "data"), "--amqp-port", str(amqp), "--http-port", str(http)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "ready" in line
    assert process.stdout.readline() == f"The desk is at http://localhost:{http}/, user guest, password guest\n"
    assert f"127.0.0.1:{amqp}" in line
    assert httpx2.get(f"http://127.0.0.1:{http}/api/whoami", auth=("guest", "guest")).json()["name"] == "guest"
    taken = run("start", "--data", str(tmp_path / "other"), "--amqp-port", str(free_port()), "--http-port", str(http))
    assert (taken.returncode, taken.stderr.count("\n")) == (69, 1), taken.stderr
    locked = run(
        "start", "--data", str(tmp_path / "data"), "--amqp-port", str(free_port()), "--http-port", str(free_port())
    )
    assert (locked.returncode, locked.stderr.count("\n")) == (69, 1), locked.stderr
    assert "in use by another broker" in locked.stderr
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, ""), errors


def test_start_refuses_bad_options(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    require_failure(
        run("start", *data, "--kafka", ""), 64, "Error (argument validation): '' is not an address: --kafka"
    )
    which = "Error (argument validation): --kafka-prefix needs --kafka"
    require_failure(run("start", *data, "--kafka-prefix", "other"), 64, which)
    somewhere = (*data, "--kafka", "127.0.0.1:1", "--kafka-prefix", "")
    require_failure(run("start", *somewhere), 64, "Error (argument validation): '' is not a prefix: --kafka-prefix")
    require_failure(
        run("start", "--data", str(tmp_path), "--amqp-port", "70000"), 64, "Error (argument validation): Invalid value"
    )
    nonsense = ("--data", str(tmp_path), "--kafka", "localhost:1", "--kafka-setting", "nonsense")
    require_failure(
        run("start", *nonsense),
        64,
        "Error (argument validation): Invalid value for '--kafka-setting': 'nonsense' is not KEY=VALUE",
    )
    (tmp_path / "file").write_text("")
    require_failure(
        run("start", "--data", str(tmp_path / "file")), 64, "Error (argument validation): Invalid value for '--data'"
    )


def test_rewind_shows_what_was_purged_online_and_offline(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker()
    put_queue(broker, "orders", messages=3)
    full = now()
    url = {"REWINDMQ_URL": broker.http_url}
    assert run("purge_queue", "orders", **url).returncode == 0
    done = run("rewind", "orders", "--at", full, **url)
    assert (done.returncode, done.stderr) == (0, "")
    banner, header, *rows = done.stdout.splitlines()
    assert banner.startswith(f"Queue 'orders' in vhost '/' at {full} (queues-")
    assert banner.endswith(": 3 ready, 0 unacknowledged, policy none ...")
    assert header.split("\t")[:5] == ["position", "message_id", "state", "payload_bytes", "redelivered"]
    assert [(row.split("\t")[0], row.split("\t")[-1]) for row in rows] == [("0", "m0"), ("1", "m1"), ("2", "m2")]
    cut = run("rewind", "orders", "--at", full, "--count", "1", "--first", "1", **url)
    assert cut.stdout.splitlines()[-1] == "... and 1 more (--first 2)"
    assert "│ position │" in run("rewind", "orders", "--at", full, "--formatter=pretty_table", "-s", **url).stdout
    assert broker.stop() == 0
    offline = run("rewind", "orders", "--at", full, "--data", str(broker.data))
    assert offline.stdout == done.stdout
    assert run("rewind", "orders", "--at", now(), "--data", str(broker.data), "-s").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("q",), 64, "Error: give either --at TIME or --offset N"),
        (("q", "--at", "yesterday"), 64, "Error: 'yesterday' is not a time: give ISO 8601 with a zone"),
        (("q", "--at", "2026-11-21T03:04:05"), 64, "Error: '2026-11-21T03:04:05' has no zone"),
        (("q", "--at", "2001-01-01T00:00:00Z"), 65, "Error: 2001-01-01T00:00:00.000+00:00 is before the history"),
        (("q", "--offset", "99999"), 65, "Error: queues-"),
        (("never", "--offset", "0"), 65, "Error: no queue 'never' in vhost '/' at offset 0"),
        (("q", "--offset", "-1"), 64, "Error (argument validation): Invalid value for '--offset'"),
        (("q", "--offset", "1", "--data", "/nowhere"), 64, "Error (argument validation): Invalid value for '--data'"),
    ],
)
def test_a_moment_that_is_none_is_refused(
    cli: Cli, broker: RunningBroker, arguments: tuple[str, ...], code: int, line: str
) -> None:
    require_failure(cli("rewind", *arguments), code, line)
    if code == 65:
        require_failure(cli("rewind", *arguments, "--data", str(broker.data)), code, line)


def test_verify_a_whole_and_a_damaged_history(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start_broker()
    put_queue(broker, "q", messages=20)
    assert run("verify", "--data", str(broker.data), "-q").returncode == 0
    assert broker.stop() == 0
    whole = run("verify", "--data", str(broker.data))
    assert (whole.returncode, whole.stderr) == (0, "")
    rows = [line.split("\t") for line in whole.stdout.splitlines()[2:]]
    assert [(row[0], row[1], row[5]) for row in rows] == [
        ("metadata-0", "log", "whole"),
        ("queues-0", "log", "whole"),
        ("queues-1", "log", "whole"),
        ("metadata-0", "snapshots", "1 equal"),
        ("queues-0", "state", "equal"),
        ("queues-1", "state", "equal"),
    ]
    assert sum(int(row[4]) for row in rows if row[1] == "state") == 20
    [snapshot] = (broker.data / "snapshots" / "metadata-0").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-20])
    cut = run("verify", "--data", str(broker.data), "-q")
    assert cut.returncode == 1
    assert "metadata-0: the snapshot at offset" in cut.stderr
    segment = max((broker.data / "log").glob("queues-*/*.avro"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[content.index(b"m7")] ^= 1
    segment.write_bytes(content)
    damaged = run("verify", "--data", str(broker.data), "-q")
    require_failure(damaged, 1, f"Error: {segment}: block at byte ")
    require_failure(run("verify", "--data", str(tmp_path)), 65, f"Error: {tmp_path}: no RewindMQ log is here")


def test_verify_finds_a_state_that_is_not_what_the_log_says(start_broker: Callable[..., RunningBroker]) -> None:
    """A state from another history stands where the log's own should: every difference is named, exit code 1 (B-09)."""
    ours, theirs = start_broker(), start_broker()
    put_queue(ours, "q", messages=3)
    put_queue(theirs, "q", messages=1)
    with httpx2.Client(base_url=f"{theirs.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        for _ in range(2):
            content = {"properties": {}, "routing_key": "q", "payload": "other", "payload_encoding": "string"}
            api.post("/exchanges/%2F/amq.default/publish", json=content)
    assert ours.stop() == theirs.stop() == 0
    (ours.data / "state").rename(ours.data / "state-of-ours")
    (theirs.data / "state").rename(ours.data / "state")
    done = run("verify", "--data", str(ours.data), "-q")
    assert done.returncode == 1
    assert "//q: " in done.stdout
    assert "differs from byte" in done.stdout
    assert done.stderr.startswith("Error: the stored state differs from the log in ")


def test_that_nobody_reads_on_is_no_error() -> None:
    """As with `| head`. Status 1 says of some commands that something was found."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [str(COMMAND), "help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
