"""Erasure with proof (B-15), on brokers in processes of their own: what clients, files and auditors see of an encrypted
body while its key lives, and after it was destroyed.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from rewindmq.engine.erasure.key_store import KEY_ID, MAGIC, KeyStore, name_of
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from tests.support.deadlines import until
from tests.support.erasure import cli, end_of, files_with, read, run, seal
from tests.support.http_clients import api_client
from tests.support.pika_clients import connect
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

MARKER = b"PLAIN-BODY-OF-ADA"
ON = ("--subject-header", "x-subject")
ADA = pika.BasicProperties(delivery_mode=2, headers={"x-subject": "ada"}, message_id="kept")
Start = Callable[..., RunningBroker]


def taken(channel: Any, queue: str, requeue: bool = True) -> list[tuple[bytes, dict[str, object]]]:
    """Bodies and headers of what is in a queue, by basic.get; given back."""
    got = []
    while (each := channel.basic_get(queue))[0] is not None:
        assert each[1].message_id == "kept"
        got.append((each[2], {key: value for key, value in each[1].headers.items() if key != "x-death"}))
    if requeue:
        channel.basic_nack(0, multiple=True)
    return got


def consumed(channel: Any, queue: str, count: int) -> list[bytes]:
    """By a consumer like any other; given back."""
    got: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=10):
        assert method is not None, f"only {got}"
        got.append(body)
        if len(got) == count:
            break
    channel.cancel()  # which gives back
    return got


def publish_everywhere(broker: RunningBroker) -> None:
    """Ada's messages by every way in; some of nobody among them."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("main", durable=True)
        for queue in ("a", "b", "c", "d"):  # in both partitions
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        channel.queue_declare("dead", durable=True)
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("dying", durable=True, arguments=dying)
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("due", durable=True)
        channel.queue_bind("due", "later")
        transactional = connection.channel()
        transactional.tx_select()
        transactional.basic_publish("", "main", MARKER + b" tx", ADA)
        transactional.tx_commit()
        channel.confirm_delivery()
        for body in (MARKER, MARKER * 20_000, MARKER[:1], b""):  # the second in three frames
            channel.basic_publish("", "main", body, ADA)
        channel.basic_publish("amq.fanout", "", MARKER, ADA)
        channel.basic_publish("", "dying", MARKER, ADA)
        channel.basic_reject(channel.basic_get("dying")[0].delivery_tag, requeue=False)
        for number in range(3):
            channel.basic_publish("", "stream", MARKER + b" %d" % number, ADA)
        headers = {"x-subject": "ada", "x-delay": 50}
        later = pika.BasicProperties(delivery_mode=2, headers=headers, message_id="kept")
        channel.basic_publish("later", "", MARKER, later)
        with pytest.raises(pika.exceptions.UnroutableError) as returned:
            channel.basic_publish("", "nowhere", MARKER, ADA, mandatory=True)
        assert returned.value.messages[0].body == MARKER
    with api_client(broker) as client:
        answer = client.post(
            "/exchanges/%2F/amq.default/publish",
            json={
                "routing_key": "main",
                "payload": MARKER.decode() + " http",
                "payload_encoding": "string",
                "properties": {"delivery_mode": 2, "headers": {"x-subject": "ada"}, "message_id": "kept"},
            },
        )
        assert answer.json() == {"routed": True}


BODIES = [MARKER + b" tx", MARKER, MARKER * 20_000, MARKER[:1], b"", MARKER + b" http"]


def seen_by_clients(broker: RunningBroker) -> list[tuple[bytes, dict[str, object]]]:
    """Everything of Ada's, by every way out."""
    with connect(broker) as connection:
        channel = connection.channel()
        found = taken(channel, "main")
        assert consumed(channel, "main", 6) == [body for body, _ in found]
        for queue in ("a", "b", "c", "d", "dead", "due"):
            found += taken(channel, queue)
        found += read(channel, "stream", 3, **{"x-stream-offset": "first"})
        found += read(channel, "main", 6, **{"x-stream-offset": "first"})
        found += read(channel, "dying", 1, **{"x-stream-offset": "first"})
    return found


def seen_over_http(broker: RunningBroker, queue: str = "a") -> list[tuple[object, object]]:
    """The payload and the header x-erased of a queue's only message: get, peek, the past, and `rewind` of the files."""
    with api_client(broker) as client:
        content = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        items = [client.post(f"/queues/%2F/{queue}/get", json=content).json()[0]]
        items.append(client.get(f"/queues/%2F/{queue}/peek/1").json())
        offset = end_of(client, queue)
        items += client.get(f"/queues/%2F/{queue}/at", params={"offset": offset}).json()["message_details"]
    done = run("rewind", queue, "--offset", str(offset), "--data", str(broker.data), "--formatter", "json")
    assert done.returncode == 0, done.stderr
    items += json.loads(done.stdout)
    assert len(items) == 4
    return [(item["payload"], item["properties"]["headers"].get("x-erased")) for item in items]


def depths(client: httpx2.Client) -> dict[str, tuple[int, int]]:
    return {each["name"]: (each["messages"], each["message_bytes"]) for each in client.get("/queues").json()}


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that is stopped, after an erasure."""
    broker = RunningBroker(tmp_path_factory.mktemp("erasure") / "data", *ON, "--partitions", "2")
    try:
        publish_everywhere(broker)
        with connect(broker) as connection:
            channel = connection.channel()
            channel.queue_declare("bob", durable=True)
            with api_client(broker) as client:  # whose key is made for this
                assert client.post(
                    "/exchanges/%2F/amq.default/publish",
                    json={
                        "routing_key": "bob",
                        "payload": MARKER.decode(),
                        "payload_encoding": "string",
                        "properties": {"delivery_mode": 2, "headers": {"x-subject": "bob"}},
                    },
                ).json() == {"routed": True}
            channel.basic_publish("", "bob", b"NOBODYS-BODY")
        time.sleep(0.1)  # for what is delayed
        plain = seen_by_clients(broker)
        assert [body for body, _ in plain] == [
            *BODIES,
            *[MARKER] * 6,
            *[MARKER + b" %d" % n for n in range(3)],
            *BODIES,
            MARKER,
        ]
        assert all(headers["x-subject"] == "ada" and "x-erased" not in headers for _, headers in plain)
        assert set(seen_over_http(broker)) == {(MARKER.decode(), None)}
        with api_client(broker) as client:
            counts = depths(client)
            seal(broker.data)
            assert counts["main"] == (6, sum(map(len, BODIES))), "the plain size counts"
            done = cli(broker, "erase_subject", "ada", "--reason", "her letter of 2026-11-22")
            assert (done.returncode, done.stdout, done.stderr) == (0, 'Erasing subject "ada" ...\n', "")
            assert depths(client) == counts
        assert is_erased(broker)
    except BaseException:
        broker.kill()
        raise
    assert broker.stop() == 0
    assert "Traceback" not in "".join(broker.errors)
    return broker.data


def is_erased(broker: RunningBroker) -> bool:
    found = seen_by_clients(broker)
    assert len(found) == 22
    assert all(body == b"" and headers["x-erased"] is True for body, headers in found), found
    assert set(seen_over_http(broker)) == {("", True)}
    with connect(broker) as connection:
        _method, properties, body = connection.channel().basic_get("bob")
        assert (body, properties.headers) == (MARKER, {"x-subject": "bob"})
    return True


def test_b15_no_body_is_on_any_disk(erased: Path) -> None:
    assert files_with(MARKER, erased) == []
    assert files_with(b"NOBODYS-BODY", erased) != [], "what is not encrypted would have been found"
    names = [path.name for path in (erased / "keys").iterdir()]
    assert sorted(len(name) for name in names) == [42, 42, 59, len(f"{'-' * 59}.destroyed")]
    assert {name.split("-")[0] for name in names} == {name_of("ada"), name_of("bob")}, "a name is a hash of the subject"


def test_b15_it_stays_erased_after_a_restart_and_the_history_says_why(erased: Path, start_broker: Start) -> None:
    broker = start_broker(erased, *ON)
    assert is_erased(broker)
    with api_client(broker) as client:
        (told,) = client.get("/erasures").json()
        key_ids = told["key_ids"]
        assert {key: told[key] for key in ("subject", "user", "reason")} == {
            "subject": "ada",
            "user": "guest",
            "reason": "her letter of 2026-11-22",
        }
        assert client.delete("/subjects/ada").status_code == 404
        client.put("/users/clerk", json={"password": "clerk", "tags": "management"}).raise_for_status()
        for method, path in (("DELETE", "/subjects/bob"), ("GET", "/erasures")):
            assert client.request(method, path, auth=("clerk", "clerk")).status_code == 401
        assert client.delete("/subjects/" + "x" * 300).status_code == 400
    listed = cli(broker, "list_erasures", "--formatter", "json")
    (row,) = json.loads(listed.stdout)
    assert (row["subject"], row["key_ids"], row["offset"]) == ("ada", key_ids, told["offset"])
    done = cli(broker, "erase_subject", "nobody")
    assert (done.returncode, done.stderr) == (69, "Error: subject 'nobody' has no keys\n")
    with connect(broker) as connection:  # queues drain
        channel = connection.channel()
        assert len(taken(channel, "main", requeue=False)) == 6
        channel.basic_ack(0, multiple=True)
        channel.queue_purge("a")
    with api_client(broker) as client:
        undone = client.post("/queues/%2F/a/restore", json={"undo": "purge"}).json()
        assert undone["restored"] == 1
    with connect(broker) as connection:
        assert [headers["x-erased"] for _, headers in taken(connection.channel(), "a")] == [True]
    assert broker.stop() == 0


def test_b15_audits_hold_and_the_proof_can_be_had_without_a_broker(erased: Path, tmp_path: Path) -> None:
    done = run("verify", "--data", str(erased))
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("verify_seals", "--data", str(erased), "--public-key", str(erased.parent / "seal.pub"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("check_erasure", "ada", "--data", str(erased), "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, "")
    (report,) = json.loads(done.stdout)
    assert report["records"] >= 12
    assert report["first"].startswith("queues-")
    assert (report["key"], report["user"]) == ("destroyed", "guest")
    done = run("check_erasure", "bob", "--data", str(erased))
    assert (done.returncode, done.stderr) == (1, "Error: subject 'bob' is not erased: no erasure was requested\n")
    done = run("check_erasure", "carol", "--data", str(erased))
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("check_erasure", "ada", "--data", str(erased), "--keys", str(empty))
    assert (done.returncode, done.stderr) == (1, "Error: subject 'ada' is not erased: unknown\n")
    for key_id in (report["key_id"], report["key_id"][:43] + "0" * 16):  # of the other the history knows nothing
        key = erased / "keys" / key_id
        key.write_bytes(MAGIC + b"k" * 32)  # from a backup
        try:
            done = run("check_erasure", "ada", "--data", str(erased))
            assert (done.returncode, done.stderr) == (1, "Error: subject 'ada' is not erased: STILL THERE\n")
        finally:
            key.unlink()


def test_b15_ciphertext_that_was_changed_is_found_by_the_chain(erased: Path, tmp_path: Path) -> None:
    log = next(log for log in EmbeddedLogReader(erased).queues if "queues-0" in log.name)
    events = [Decoder().decode(record)[2] for block in log.read() for record in block.records]
    body = next(each.body for each in events if isinstance(each, Published) and each.encryption and each.body_size > 9)
    shutil.copytree(erased / "log", tmp_path / "log")
    (segment,) = (tmp_path / "log" / "queues-0").glob("*.avro")
    content = segment.read_bytes()
    assert content.count(body) >= 1
    segment.write_bytes(content.replace(body, bytes((body[0] ^ 1,)) + body[1:], 1))
    done = run("verify", "--data", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def test_b15_a_key_from_a_backup_is_destroyed_at_the_start(erased: Path, start_broker: Start) -> None:
    (mark,) = (erased / "keys").glob("*.destroyed")
    key = mark.with_suffix("")
    mark.unlink()
    key.write_bytes(MAGIC + b"k" * 32)
    ids = ((path, KEY_ID.fullmatch(path.name)) for path in key.parent.iterdir() if path != key)
    (bobs,) = (path for path, key_id in ids if key_id is not None)
    bobs.write_bytes(MAGIC + b"k" * 32)  # not the key of bob's message
    broker = start_broker(erased)  # also without the option, which decides about what comes in
    assert not key.exists()
    assert mark.exists()
    until(lambda: any("was erased, and is in" in line for line in broker.errors), "the log does not say so")
    with connect(broker) as connection:
        channel = connection.channel()
        assert [headers["x-erased"] for _, headers in taken(channel, "b")] == [True]
        _, properties, body = channel.basic_get("bob")
        assert (body, "x-erased" in properties.headers) == (b"", False)
        assert properties.headers["x-unreadable"] == "these are not the bytes that were encrypted"
        channel.basic_publish("", "b", b"nobody asks", ADA)
        channel.queue_declare("b", passive=True)
    mark.unlink()  # a backup of the whole directory, under a running broker
    key.write_bytes(MAGIC + b"k" * 32)
    with api_client(broker) as client:
        moment = {"offset": end_of(client, "b"), "count": 1}
        (shown,) = client.get("/queues/%2F/b/at", params=moment).json()["message_details"]
        assert shown["properties"]["headers"]["x-erased"] is True
        assert client.delete("/subjects/ada").status_code == 204
        assert (key.exists(), mark.exists()) == (False, True)
        assert client.delete("/subjects/ada").status_code == 404
    assert broker.stop() == 0
    assert files_with(b"nobody asks", erased / "log") != []


def test_b15_a_crash_before_the_event_is_mended_by_asking_again(start_broker: Start) -> None:
    broker = start_broker(None, *ON)
    publish_one(broker, MARKER)
    assert broker.kill() != 0
    keys = KeyStore(broker.data / "keys")
    (key_id,) = keys.known("ada")
    keys.destroy(key_id)
    done = run("check_erasure", "ada", "--data", str(broker.data))
    assert (done.returncode, done.stderr) == (1, "Error: subject 'ada' is not erased: unlogged\n")
    broker = start_broker(broker.data, *ON)
    with connect(broker) as connection:
        assert taken(connection.channel(), "q") == [(b"", {"x-subject": "ada", "x-erased": True})]
    with api_client(broker) as client:
        assert client.get("/erasures").json() == []
        assert client.request("DELETE", "/subjects/ada", json={"reason": "again"}).status_code == 204
        assert [(each["key_ids"], each["reason"]) for each in client.get("/erasures").json()] == [([key_id], "again")]
        assert client.delete("/subjects/ada").status_code == 404
        publish_one(broker, b"she is back")
        assert client.delete("/subjects/ada", params={"reason": "once more"}).status_code == 204
        assert [len(each["key_ids"]) for each in client.get("/erasures").json()] == [1, 1]
    assert broker.kill() != 0
    done = run("check_erasure", "ada", "--data", str(broker.data))
    assert (done.returncode, done.stdout.count("destroyed")) == (0, 2), done.stdout + done.stderr


def publish_one(broker: RunningBroker, body: bytes) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", body, ADA)


def test_a_start_that_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    where = ("start", "--data", str(tmp_path / "data"), "--amqp-port", str(free_port()))
    (tmp_path / "file").write_bytes(b"")
    for options, code, said in (
        (("--subject-header", "CC"), 64, "the header CC has a meaning of its own"),
        ((*ON, "--kafka", "localhost:1"), 64, "needs --keys DIR"),
        ((*ON, "--keys", str(tmp_path / "file" / "keys")), 78, "rewindmq: keys: "),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "rewindmq.engine", *where[1:], *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert said in done.stderr.splitlines()[-1]
