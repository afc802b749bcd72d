"""A follower as a process: the same bytes, the same state, reads of the past, and kills at any moment (B-59)."""

import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pika
import pytest

from rewindmq.engine.erasure.key_store import KeyStore
from tests.support.deadlines import until
from tests.support.metrics import GUEST
from tests.support.running import RunningBroker
from tests.support.standby import (
    RunningFollower,
    command,
    level,
    messages_at,
    promoted,
    publish,
    refused,
    segments_in,
    standby_of,
    verified,
)
from tests.support.trimmed_broker import DAY_MS, live, trimmed

pytestmark = pytest.mark.long

SMALL = ("--segment-age", "1s")
Follow = Callable[..., RunningFollower]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """`follow(leader, data=None, *options)`: a running follower; all are ended after the test."""
    started: list[RunningFollower] = []

    def start(leader: RunningBroker, data: Path | None = None, *options: str) -> RunningFollower:
        running = RunningFollower(data or tmp_path / f"copy-{len(started)}", leader.http_url, *options)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.kill()


def test_b59_the_copy_has_the_same_bytes_and_state_and_serves_the_past(
    start_broker: Callable[..., RunningBroker], follow: Follow
) -> None:
    leader = start_broker()
    publish(leader, "orders", 20)
    follower = follow(leader)
    assert "read-only, follows http://" in follower.ready_line
    publish(leader, "orders", 15)
    until(lambda: level(leader) and messages_at(follower, "orders") == 35)
    assert segments_in(follower.data) == segments_in(leader.data)
    found = command("find", "orders", "--body", "body 14", "--formatter", "json", url=follower.http_url)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2
    refusal = httpx2.put(f"{follower.http_url}/api/queues/%2F/new", auth=GUEST, json={"durable": True})
    assert (refusal.status_code, refusal.json()["error"]) == (403, "read_only")
    metrics = httpx2.get(f"{leader.http_url}/metrics", auth=GUEST).text
    assert 'rewindmq_follower_connected{follower="rewindmq@localhost"} 1' in metrics
    assert 'rewindmq_follower_lag_records{follower="rewindmq@localhost"} 0' in metrics
    metrics = httpx2.get(f"{follower.http_url}/metrics", auth=GUEST).text
    assert 'rewindmq_follower_lag_records{follower="rewindmq@localhost"} 0' in metrics
    assert "Follows http://" in command("status", url=follower.http_url).stdout
    assert "Follower rewindmq@localhost: connected, 0 records" in command("status", url=leader.http_url).stdout
    listed = command("list_followers", "--formatter", "json", url=leader.http_url)
    assert [each["lag_records"] for each in json.loads(listed.stdout)] == [0]
    assert (follower.stop(), leader.stop()) == (0, 0)
    follower = follow(leader, follower.data)  # the leader is away, and the copy is served
    assert messages_at(follower, "orders") == 35
    assert not standby_of(follower)["follows"]["connected"]
    assert follower.stop() == 0
    assert "Traceback" not in "".join(follower.errors + leader.errors)
    verified(follower.data)


def test_b59_kills_of_both_at_any_moment(start_broker: Callable[..., RunningBroker], follow: Follow) -> None:
    """Large bodies make many segments' worth of blocks; the copy goes on where it was."""
    chance = random.Random(59)
    leader = start_broker(None, *SMALL)
    follower = follow(leader)
    for kill in range(2):
        ended = threading.Event()
        load = threading.Thread(target=publish_until, args=(leader, ended))
        load.start()
        ended.wait(chance.uniform(0.1, 0.5))
        follower.kill()
        if kill % 2:
            leader.kill()
        ended.set()
        load.join()
        if kill % 2:
            leader = start_broker(leader.data, *SMALL)
        follower = follow(leader, follower.data)
    until(lambda: level(leader))
    found, copied = segments_in(leader.data), segments_in(follower.data)
    assert {name: found[name] for name in copied} == copied
    follower.stop()
    verified(follower.data)


def publish_until(broker: RunningBroker, ended: threading.Event) -> None:
    """Publish until the broker goes away, or the test says so."""
    try:
        while not ended.is_set():
            publish(broker, "load", 20, {"x": "y" * 2_000})
    except (pika.exceptions.AMQPError, OSError):
        pass


def test_b59_keys_come_along_and_are_destroyed(start_broker: Callable[..., RunningBroker], follow: Follow) -> None:
    leader = start_broker(None, "--subject-header", "person")
    follower = follow(leader)
    publish(leader, "people", 2, {"person": "ann"})
    until(lambda: level(leader))
    theirs, ours = KeyStore(leader.data / "keys"), KeyStore(follower.data / "keys")
    (key_id,) = theirs.known("ann")
    assert ours.read(key_id) == theirs.read(key_id) is not None
    assert command("erase_subject", "ann", url=leader.http_url).returncode == 0
    until(lambda: ours.has_tombstone(key_id))
    assert ours.read(key_id) is None


def test_b59_what_is_no_copy_of_the_leader_is_refused(
    start_broker: Callable[..., RunningBroker], follow: Follow, tmp_path: Path
) -> None:
    leader, other = start_broker(), start_broker()
    publish(leader, "one", 3)
    publish(other, "two", 3)
    follower = follow(other)
    until(lambda: level(other))
    follower.stop()
    other.stop()
    done = refused(follower.data, leader.http_url)
    assert (done.returncode, "is of another history" in done.stderr) == (65, True), done.stderr
    done = refused(other.data, leader.http_url)
    assert (done.returncode, "is of another history" in done.stderr) == (65, True), done.stderr

    behind = tmp_path / "behind"
    shutil.copytree(leader.data, behind, ignore=shutil.ignore_patterns("lock"))
    ahead = follow(leader)
    publish(leader, "one", 3)
    until(lambda: level(leader))
    ahead.stop()
    leader.stop()
    restored = start_broker(behind)  # the leader's directory comes from a backup, and goes another way
    done = refused(ahead.data, restored.http_url)
    assert done.returncode == 65, done.stderr
    assert "lost its end, or came from a backup" in done.stderr or "another hash chain" in done.stderr
    assert len(done.stderr.splitlines()[-1:]) == 1


def test_b59_a_copy_is_no_brokers_directory(start_broker: Callable[..., RunningBroker], follow: Follow) -> None:
    leader = start_broker()
    follower = follow(leader)
    assert "stop the follower first" in command("promote", "--data", str(follower.data)).stderr
    follower.stop()
    done = command("start", "--data", str(follower.data), "--amqp-port", "1", "--http-port", "2")
    assert (done.returncode, "`rewindmq promote --data" in done.stderr) == (69, True), done.stderr
    done = command("promote", "--data", str(leader.data))
    assert done.returncode == 69, done.stderr
    done = refused(leader.data.parent / "nothing", "http://127.0.0.1:9")
    assert (done.returncode, "does not answer" in done.stderr) == (69, True), done.stderr
    done = refused(leader.data.parent / "nobody", leader.http_url, "--leader-user", "nobody")
    assert (done.returncode, "--leader-user" in done.stderr) == (65, True), done.stderr


def test_b59_a_leader_whose_log_begins_later(
    start_broker: Callable[..., RunningBroker], follow: Follow, tmp_path: Path
) -> None:
    """A new copy begins with the base; one that ends before it is refused."""
    data = tmp_path / "leader"
    live(data)
    leader = start_broker(data)
    follower = follow(leader)
    follower.stop()
    leader.stop()
    story = live(data, time.time_ns() // 1_000_000 + DAY_MS)
    assert trimmed(data, story, 2).offset > 0
    leader = start_broker(data)
    done = refused(follower.data, leader.http_url)
    assert (done.returncode, "begin anew in" in done.stderr) == (65, True), done.stderr
    assert command("forget_follower", "rewindmq@localhost", url=leader.http_url).returncode == 0
    anew = follow(leader)
    until(lambda: level(leader))
    assert segments_in(anew.data) == segments_in(data)
    ready = messages_at(leader, "orders")
    assert ready == messages_at(anew, "orders") > 0
    anew.stop()
    assert "was told, and stops" in promoted(anew.data)
    assert leader.process.wait(30) == 78
    again = start_broker(anew.data)
    assert messages_at(again, "orders") == ready
    again.stop()
    verified(anew.data)
