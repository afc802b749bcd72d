"""The way to the leader: TLS, its seals, and a leader that stops while confirms wait (B-59, B-60)."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.directory import partition_directory
from tests.support.certificates import Authority, Pair
from tests.support.deadlines import until
from tests.support.ports import free_port
from tests.support.publishers import WaitingPublisher
from tests.support.running import RunningBroker
from tests.support.seals import keys, seal
from tests.support.standby import (
    RunningFollower,
    command,
    level,
    messages_at,
    promoted,
    publish,
    refused,
    standby_of,
    verified,
)

pytestmark = pytest.mark.long

Follow = Callable[..., RunningFollower]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """`follow(url, data, *options)`: a running follower; all are ended after the test."""
    started: list[RunningFollower] = []

    def start(url: str, data: Path, *options: str) -> RunningFollower:
        started.append(RunningFollower(data, url, *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.kill()


def test_b59_the_leader_over_tls(start_broker: Callable[..., RunningBroker], follow: Follow, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    right = authority.issue("right", "/CN=localhost", "DNS:localhost,IP:127.0.0.1")
    wrong = authority.issue("wrong", "/CN=elsewhere", "DNS:elsewhere.example")
    port = free_port()

    def led(pair: Pair, data: Path | None = None) -> RunningBroker:
        tls = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
        return start_broker(data, "--https-port", str(port), *tls)

    leader = led(right)
    publish(leader, "orders", 3)
    url, trusts = f"https://localhost:{port}", ("--leader-ca", str(authority.certificate))
    for options, said in (
        ((), "is not trusted: unable to get local issuer certificate: give --leader-ca"),
        (("--leader-ca", str(other.certificate)), "is not trusted: unable to get local issuer certificate"),
        (("--leader-ca", str(tmp_path / "none.pem")), "none.pem"),
    ):
        done = refused(tmp_path / "copy", url, *options)
        assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr
        assert "Traceback" not in done.stderr
    done = refused(tmp_path / "copy", leader.http_url, *trusts)
    assert "--leader-ca is for a leader at https://" in done.stderr
    done = refused(tmp_path / "copy", f"https://localhost:{leader.http_port}", *trusts)
    assert (done.returncode, "does not answer" in done.stderr) == (69, True), done.stderr

    follower = follow(url, tmp_path / "copy", *trusts)
    until(lambda: level(leader) and messages_at(follower, "orders") == 3)
    assert leader.stop() == 0
    leader = led(wrong, leader.data)  # a certificate for another name
    until(lambda: "is not trusted: Hostname mismatch" in standby_of(follower)["follows"]["problem"])
    assert messages_at(follower, "orders") == 3, "the copy is served"
    assert leader.stop() == 0
    leader = led(right, leader.data)
    publish(leader, "orders", 2)
    until(lambda: messages_at(follower, "orders") == 5)  # by itself
    assert follower.stop() == 0
    said = command("--tls-ca-cert-file", str(authority.certificate), "promote", "--data", str(follower.data)).stderr
    assert "was told, and stops" in said
    assert leader.process.wait(30) == 78


def sealed(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "log").glob("*/_*.seal"))


def test_b59_seals_hold_at_the_follower_and_after_a_promotion(
    start_broker: Callable[..., RunningBroker], follow: Follow, tmp_path: Path
) -> None:
    key, public = keys(tmp_path)
    (tmp_path / "seal.pub").write_text(public)

    def holds(data: Path) -> None:
        done = command("verify_seals", "--data", str(data), "--public-key", str(tmp_path / "seal.pub"))
        assert done.returncode == 0, done.stdout + done.stderr

    leader = start_broker()
    publish(leader, "orders", 5)
    seal(leader.data, key)
    publish(leader, "orders", 5)
    seal(leader.data, key)
    follower = follow(leader.http_url, tmp_path / "copy")
    until(lambda: level(leader) and sealed(follower.data) == sealed(leader.data) != [])
    for ours in follower.data.glob("log/*/_*.seal"):
        for each in (ours, ours.with_suffix(".secret")):
            theirs = leader.data / each.relative_to(follower.data)
            assert each.read_bytes() == theirs.read_bytes()
    holds(follower.data)
    follower.stop()
    publish(leader, "orders", 5)
    seal(leader.data, key)  # of records that the copy does not have
    leader.kill()
    newest = max((leader.data / "log").glob("queues-*/_*.seal"))
    there = partition_directory(follower.data, newest.parent.name)
    for each in (newest, newest.with_suffix(".secret")):  # the leader died between the seal and the records
        shutil.copy(each, there)
    assert "must not continue" in promoted(follower.data)
    assert not (there / newest.name).exists()
    holds(follower.data)
    new = start_broker(follower.data)
    publish(new, "orders", 9)
    seal(new.data, key)
    assert new.stop() == 0
    holds(new.data)
    verified(new.data)


def test_b60_a_leader_stops_while_confirms_wait(start_broker: Callable[..., RunningBroker]) -> None:
    """It says what waits, answers what it can, and keeps what was published."""
    leader = start_broker(None, "--confirm-after", "follower")
    publisher = WaitingPublisher(leader)
    until(lambda: standby_of(leader)["unacknowledged_records"] > 0)
    until(lambda: standby_of(leader)["waiting_seconds"] > 0)
    assert "records wait now, for " in command("status", url=leader.http_url).stdout
    assert leader.stop() == 0
    assert publisher.confirmed == 0
    leader = start_broker(leader.data)
    assert messages_at(leader, "q") == 0, "its declaration was kept, and nobody published without the answer"
