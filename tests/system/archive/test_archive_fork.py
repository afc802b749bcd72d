"""A fork of a broker's history, made by `recover --at`; a read-only broker on it, by pika and HTTP (B-19, B-20)."""

import hashlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from rewindmq.engine.keeping.archive.identity import identity_of
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import parse_header
from rewindmq.projections.rewind import format_time
from tests.support.archive_commands import Place, archive
from tests.support.commands import require_failure
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.needs import needed
from tests.support.pika_clients import Reader, connect, count, take
from tests.support.running import RunningBroker

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # the first test may have to build the S3 server

BEFORE = [b"%d" % number for number in range(3, 20)]


def put(broker: RunningBroker, path: str) -> None:
    answer = httpx2.put(f"{broker.http_url}/api{path}", auth=("guest", "guest"), json={}, trust_env=False)
    assert answer.status_code in (201, 204), answer.text


def get(broker: RunningBroker, path: str) -> Any:
    answer = httpx2.get(f"{broker.http_url}/api{path}", auth=("guest", "guest"), trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def history(broker: RunningBroker) -> None:
    """Messages, a mark `release` while BEFORE is queued, then a purge, other messages and another queue."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(20):
            for queue in ("orders", "events"):
                channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        taken = take(channel, "orders", 3, auto_ack=False)
        channel.basic_ack(taken[-1][0].delivery_tag, multiple=True)
        channel.cancel()
        put(broker, "/marks/release")
        channel.queue_purge("orders")
        channel.queue_declare("later", durable=True)
        for queue in ("orders", "later", "events"):
            channel.basic_publish("", queue, b"after", pika.BasicProperties(delivery_mode=2))


def recover(place: Place, data: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return run("recover", "--archive", place.url, "--data", str(data), *options, **place.environment)


def ends(data: Path) -> list[int]:
    return [partition.next_offset for partition in EmbeddedLogReader(data).queues]


def tree(data: Path) -> dict[str, tuple[int, int, str]]:
    """Each file and directory with its time of change, size and content."""
    found = {}
    for path in sorted([data, *data.rglob("*")]):
        about = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = about.st_mtime_ns, about.st_size, content
    return found


@pytest.fixture
def archived(start_broker: Callable[..., RunningBroker], place: Place) -> Path:
    """The data directory of a stopped broker that is archived."""
    running = start_broker()
    history(running)
    assert running.stop() == 0
    archive(running.data, place, "--roll")
    return running.data


@pytest.mark.rare(place=["directory"])
def test_what_was_queued_at_the_mark_is_consumed_from_the_fork(
    archived: Path, place: Place, tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    fork = tmp_path / "fork"
    done = recover(place, fork, "--at", "mark:release", "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert {row["partition"] for row in json.loads(done.stdout)} == {"metadata-0", "queues-0", "queues-1"}
    running = start_broker(fork)
    until(lambda: any("as of mark:release: it branched from" in line for line in running.errors), "the log is silent")
    shown = get(running, "/overview")["fork"]
    assert (shown["moment"], shown["parent"]) == ("mark:release", identity_of(archived).history)
    told = run("status", "--http-port", str(running.http_port))
    assert "as of mark:release, made " in told.stdout
    with connect(running) as connection:
        channel = connection.channel()
        assert [body for *_, body in take(channel, "orders", len(BEFORE), auto_ack=True)] == BEFORE
        channel.cancel()
        assert count(channel, "orders") == 0
        with pytest.raises(ChannelClosedByBroker, match="no queue 'later'"):
            channel.queue_declare("later", passive=True)
    assert running.stop() == 0
    refused = run("archive", "-q", "--data", str(fork), "--to", place.url, "--roll", **place.environment)
    require_failure(refused, 65, "Error: ")
    assert "the archive of another history" in refused.stderr
    events = run("events", "--data", str(fork), "--partition", "metadata-0")
    assert "HistoryForked parent=" in events.stdout
    verified = run("verify", "--data", str(fork), "--formatter", "json")
    assert verified.returncode == 0, verified.stderr
    assert [row["check"] for row in json.loads(verified.stdout)].count("fork") == 1
    own = str(tmp_path / "own")
    assert run("archive", "-q", "--data", str(fork), "--to", own, "--roll").returncode == 0
    again = run("recover", "-q", "--archive", own, "--data", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    assert identity_of(tmp_path / "again") == identity_of(fork)


@pytest.mark.parametrize(
    ("at", "code", "text"),
    [
        ("yesterday", 64, "is not a time"),
        ("2001-01-01T00:00:00Z", 65, "is before the history, which begins "),
        ("2999-01-01T00:00:00Z", 65, "is in the future"),
        ("mark:none", 65, "there is no mark 'none' in the archive (its marks: release)"),
    ],
)
def test_a_moment_that_the_archive_does_not_have(
    archived: Path, place: Place, tmp_path: Path, at: str, code: int, text: str
) -> None:
    done = recover(place, tmp_path / "fork", "-q", "--at", at)
    require_failure(done, code, "Error: ")
    assert text in done.stderr
    assert not (tmp_path / "fork").exists()


@pytest.mark.rare(place=["directory"])
def test_a_moment_behind_the_archived_end_is_answered_with_the_end(
    archived: Path, place: Place, tmp_path: Path
) -> None:
    done = recover(place, tmp_path / "fork", "--at", format_time(time.time_ns() // 1_000_000), "--formatter", "json")
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    until = max(row["archived_until"] for row in json.loads(done.stdout))
    assert line.startswith(f"the archive ends with the record of {until}, and the fork with it: any event between")
    own = tmp_path / "whole"
    assert recover(place, own, "-q").returncode == 0
    assert ends(tmp_path / "fork") == ends(own)


@pytest.mark.rare(place=["directory"])
def test_a_fork_takes_the_keys_that_its_bodies_need(
    start_broker: Callable[..., RunningBroker], place: Place, tmp_path: Path
) -> None:
    options = ("--subject-header", "x-subject", "--keep-bodies", "400d")
    running = start_broker(None, *options)
    with connect(running) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("letters", durable=True)
        for subject in ("ada", "bob", "eve"):
            headers = {"x-subject": subject}
            channel.basic_publish(
                "", "letters", subject.encode(), pika.BasicProperties(headers=headers, delivery_mode=2)
            )
            if subject == "bob":
                put(running, "/marks/release")
    assert run("erase_subject", "-q", "bob", "--http-port", str(running.http_port)).returncode == 0
    assert running.stop() == 0
    archive(running.data, place, "--roll")
    keys, fork = running.data / "keys", tmp_path / "fork"
    without = recover(place, tmp_path / "without", "--at", "mark:release", "--formatter", "json")
    assert without.returncode == 0, without.stderr
    [line] = without.stderr.splitlines()
    assert line.startswith("bodies are encrypted under 2 keys, and no archive has keys: copy the former broker's")
    assert line.endswith(f"(`cp -a DIR/keys {tmp_path / 'without' / 'keys'}`)")
    assert not (tmp_path / "without" / "keys").exists()
    done = recover(place, fork, "--at", "mark:release", "--keys", str(keys), "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((fork / "keys").iterdir())) == 2, "a key, and the tombstone of the other one"
    for path in (fork / "keys").iterdir():
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == ((keys / path.name).read_bytes(), 0o600)
    (tmp_path / "no-keys").mkdir()
    lacking = recover(place, tmp_path / "lacking", "--at", "mark:release", "--keys", str(tmp_path / "no-keys"))
    assert "lacks 2 of 2 keys: their bodies are delivered empty, with x-unreadable" in lacking.stderr
    again = start_broker(fork, *options)
    with connect(again) as connection:
        letters = take(connection.channel(), "letters", 2, auto_ack=True)
        assert [body for *_, body in letters] == [b"ada", b""]
        assert letters[1][1].headers["x-erased"] is True
    assert again.stop() == 0


@pytest.mark.rare(place=["directory"])
def test_seals_of_the_parent_hold_for_the_part_in_common(
    start_broker: Callable[..., RunningBroker], place: Place, tmp_path: Path
) -> None:
    key, public, copies = (tmp_path / name for name in ("seal.key", "seal.pub", "seals.jsonl"))
    subprocess.run(
        [needed("openssl"), "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True
    )
    subprocess.run([needed("openssl"), "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    running = start_broker()
    seal = ("seal", "-q", "--data", str(running.data), "--key", str(key), "--copies", str(copies))
    assert run(*seal).returncode == 0
    history(running)
    assert run(*seal).returncode == 0
    assert running.stop() == 0
    assert run(*seal).returncode == 0
    archive(running.data, place, "--roll")
    fork = tmp_path / "fork"
    assert recover(place, fork, "-q", "--at", "mark:release").returncode == 0
    verify = ("verify_seals", "--data", str(fork), "--public-key", str(public), "--formatter", "json")
    bare = run(*verify, "--parent-copies", str(copies))
    assert bare.returncode == 1
    assert "is not in the copies: make them with 'export_seals --secrets'" in bare.stderr
    with_secrets = tmp_path / "with_secrets.jsonl"
    with_secrets.write_text(run("export_seals", "--data", str(running.data), "--secrets").stdout)
    done = run(*verify, "--parent-copies", str(with_secrets))
    assert done.returncode == 0, done.stderr
    results = [row["result"] for row in json.loads(done.stdout)]
    assert "holds" in results
    assert any(each.startswith("does not count: a seal of the parent") for each in results)
    strict = run(*verify, "--copies", str(copies))
    assert strict.returncode == 1
    whole = run(
        "verify_seals", "-q", "--data", str(running.data), "--public-key", str(public), "--parent-copies", str(copies)
    )
    require_failure(whole, 64, "Error: --parent-copies: this history is not a fork")
    log = fork / "log" / "queues-0"
    first = min(path for path in log.iterdir() if path.suffix == ".avro")
    changed = bytearray(first.read_bytes())
    changed[len(parse_header(bytes(changed)).raw) + 140] ^= 1  # in the first block, which is sealed
    first.write_bytes(changed)
    assert run(*verify, "--parent-copies", str(with_secrets)).returncode == 1


@pytest.mark.rare(place=["directory"])
def test_a_read_only_broker_serves_the_history_and_writes_nothing(
    archived: Path, place: Place, tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    fork = tmp_path / "fork"
    assert recover(place, fork, "-q", "--at", "mark:release").returncode == 0
    before = tree(fork)
    running, other = start_broker(fork, "--read-only"), start_broker(fork, "--read-only")
    assert "read-only" in running.ready_line
    queues = {queue["name"]: queue for queue in get(running, "/queues")}
    assert queues["orders"]["messages_ready"] == len(BEFORE)
    assert get(other, "/queues/%2F/orders")["messages_ready"] == len(BEFORE)
    past = get(running, "/queues/%2F/orders/at?time=mark:release")
    assert past["messages"] == len(BEFORE)
    metrics = httpx2.get(f"{running.http_url}/metrics", auth=("guest", "guest"), trust_env=False)
    assert metrics.status_code == 200
    assert run("status", "--http-port", str(running.http_port)).returncode == 0
    with connect(running) as connection:
        assert Reader(connection, "orders", x_stream_offset="first").bodies_until(20)[:20] == [
            b"%d" % n for n in range(20)
        ]
        assert Reader(connection, "orders", x_rewind_to="mark:release").through() == BEFORE
        stream = Reader(connection, "events", x_stream_offset="first")
        assert stream.bodies_until(20)[:20] == [b"%d" % n for n in range(20)]
        stream.channel.basic_cancel(stream.tag)
        stream.channel.close()
        refusals: list[Callable[[pika.adapters.blocking_connection.BlockingChannel], object]] = [
            lambda channel: (channel.confirm_delivery(), channel.basic_publish("", "orders", b"x")),
            lambda channel: channel.queue_declare("new", durable=True),
            lambda channel: channel.queue_delete("orders"),
            lambda channel: channel.queue_purge("orders"),
            lambda channel: channel.exchange_declare("new"),
            lambda channel: channel.queue_bind("orders", "amq.topic", "x"),
            lambda channel: channel.basic_get("orders"),
            lambda channel: channel.basic_consume("orders", print),
        ]
        for refused in refusals:
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED - this broker is read-only") as closed:
                refused(channel)
            assert closed.value.reply_code == 403
        channel = connection.channel()
        assert channel.queue_declare("orders", durable=True).method.message_count == len(BEFORE)
    for method, path in (("PUT", "/queues/%2F/new"), ("DELETE", "/queues/%2F/orders"), ("PUT", "/marks/new")):
        answer = httpx2.request(
            method, f"{running.http_url}/api{path}", auth=("guest", "guest"), json={}, trust_env=False
        )
        assert (answer.status_code, answer.json()["error"]) == (403, "read_only"), answer.text
    answer = httpx2.get(f"{running.http_url}/api/aliveness-test/%2F", auth=("guest", "guest"), trust_env=False)
    assert answer.status_code == 403
    assert [each.stop() for each in (running, other)] == [0, 0]
    assert tree(fork) == before
    assert not [line for line in (*running.errors, *other.errors) if "ERROR" in line or "Traceback" in line]
