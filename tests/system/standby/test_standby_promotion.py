"""Promotion: nothing confirmed is lost, the old leader stops, two that are promoted find each other (B-60)."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.deadlines import until
from tests.support.publishers import WaitingPublisher
from tests.support.running import RunningBroker
from tests.support.standby import (
    RunningFollower,
    command,
    level,
    messages_at,
    promoted,
    publish,
    refused,
    run,
    segments_in,
    standby_of,
)

pytestmark = pytest.mark.long

WAITS = ("--confirm-after", "follower")


@pytest.fixture
def ended() -> Iterator[list[RunningBroker]]:
    """Processes to end after the test."""
    started: list[RunningBroker] = []
    yield started
    for running in started:
        if running.process.poll() is None:
            running.kill()


def test_b60_kill_cut_and_promote_under_load(tmp_path: Path) -> None:
    made = run(tmp_path, 3, 0.4)
    assert len(made.publisher.confirmed) > 50, "the load was no load"


def test_b60_without_a_follower_nothing_is_confirmed(
    start_broker: Callable[..., RunningBroker], ended: list[RunningBroker], tmp_path: Path
) -> None:
    leader = start_broker(None, *WAITS)
    publisher = WaitingPublisher(leader)
    until(lambda: standby_of(leader)["unacknowledged_records"] > 0)
    assert publisher.confirmed == 0
    assert "No follower has joined yet: nothing is confirmed" in command("status", url=leader.http_url).stdout
    follower = RunningFollower(tmp_path / "copy", leader.http_url)
    ended.append(follower)
    until(lambda: publisher.confirmed == 1)
    follower.kill()
    publisher.publish()
    until(lambda: standby_of(leader)["unacknowledged_records"] > 0)
    assert publisher.confirmed == 1
    assert command("forget_follower", "rewindmq@localhost", url=leader.http_url).returncode == 0
    assert publisher.confirmed == 1, "no follower is left, and one has to confirm"


def test_b60_an_old_leader_follows_and_keeps_aside_what_only_it_has(
    start_broker: Callable[..., RunningBroker], ended: list[RunningBroker], tmp_path: Path
) -> None:
    leader = start_broker()
    publish(leader, "q", 5)
    follower = RunningFollower(tmp_path / "copy", leader.http_url)
    ended.append(follower)
    until(lambda: level(leader))
    follower.kill()
    publish(leader, "q", 7)  # confirmed by the local sync alone, and not at the follower
    leader.kill()
    assert "must not continue" in promoted(follower.data)
    new = start_broker(follower.data)
    assert messages_at(new, "q") == 5
    old = RunningFollower(leader.data, new.http_url, "--node", "old")
    ended.append(old)
    assert any("are kept in" in line for line in old.errors), old.errors
    aside = list((leader.data / "aside").glob("*/queues-*/*.avro"))
    assert b"body 6" in b"".join(path.read_bytes() for path in aside)
    publish(new, "q", 2)
    until(lambda: level(new) and messages_at(old, "q") == 7)
    assert segments_in(old.data) == segments_in(new.data)
    done = command("start", "--data", str(old.data), "--amqp-port", "1", "--http-port", "2")
    assert done.returncode == 69, done.stderr


def test_b60_a_leader_that_is_told_stops_for_good(
    start_broker: Callable[..., RunningBroker], ended: list[RunningBroker], tmp_path: Path
) -> None:
    leader = start_broker()
    publish(leader, "q", 1)
    copies = []
    for name in ("one", "two"):
        follower = RunningFollower(tmp_path / name, leader.http_url, "--node", name)
        ended.append(follower)
        copies.append(follower)
    until(lambda: level(leader))
    for each in copies:
        each.stop()
    spare = tmp_path / "spare"
    shutil.copytree(leader.data, spare)
    assert "was told, and stops" in promoted(copies[0].data)
    assert leader.process.wait(30) == 78
    assert "a follower of this broker was promoted" in "".join(leader.errors)
    done = command("start", "--data", str(leader.data), "--amqp-port", "1", "--http-port", "2")
    assert (done.returncode, "follow URL" in done.stderr) == (69, True), done.stderr

    promoted(copies[1].data)  # two at once
    one = start_broker(copies[0].data)
    done = refused(copies[1].data, one.http_url)
    assert (done.returncode, "two were promoted" in done.stderr) == (65, True), done.stderr
    assert one.process.poll() is None, "it goes on"

    back = start_broker(spare)  # the old leader from a backup: a node of the new history asks to follow it
    one.stop()
    done = refused(copies[0].data, back.http_url)
    assert (done.returncode, "stops now" in done.stderr) == (65, True), done.stderr
    assert back.process.wait(30) == 78
