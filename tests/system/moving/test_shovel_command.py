"""B-54. `rewindmq shovel` between two brokers of ours: nothing is lost, and what comes twice says so."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from rewindmq.engine.shovel.header import with_shovelled
from rewindmq.engine.shovel.link import RawProperties
from tests.support.certificates import Authority
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.pika_clients import count
from tests.support.ports import free_port
from tests.support.running import RunningBroker
from tests.support.shovels import HARD_PROPERTIES, Shovel, channel_at, emptied, fill, firsts, numbers_of

pytestmark = pytest.mark.long

Start = Callable[..., Shovel]
Move = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The destination."""
    running = RunningBroker(tmp_path_factory.mktemp("there"))
    yield running
    assert running.stop() == 0, "".join(running.errors)


@pytest.fixture
def start(tmp_path: Path, broker: RunningBroker, there: RunningBroker) -> Iterator[Start]:
    """`start(queue, *options)`: a shovel from the one broker to the other, killed at the end of the test."""
    started: list[Shovel] = []

    def start_one(queue: str, *options: str, source: str = "", destination: str = "") -> Shovel:
        uris = source or f"amqp://127.0.0.1:{broker.amqp_port}", destination or f"amqp://127.0.0.1:{there.amqp_port}"
        started.append(Shovel(tmp_path, uris[0], queue, uris[1], *options))
        return started[-1]

    yield start_one
    for each in started:
        each.kill()


@pytest.fixture
def move(broker: RunningBroker, there: RunningBroker) -> Move:
    """`move(queue, *options)`: a shovel as `start` has it, awaited: one that ends by itself."""

    def move_one(queue: str, *options: str, vhost: str = "") -> "subprocess.CompletedProcess[str]":
        source, destination = f"amqp://127.0.0.1:{broker.amqp_port}", f"amqp://127.0.0.1:{there.amqp_port}/{vhost}"
        return run("shovel", "--src-uri", source, "--src-queue", queue, "--dest-uri", destination, *options)

    return move_one


def waiting(broker: RunningBroker, queue: str) -> int:
    with channel_at(broker.amqp_port) as channel:
        return count(channel, queue)


def test_b54_a_queue_is_moved_with_all_that_its_messages_have(
    broker: RunningBroker, there: RunningBroker, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pika.spec.props, RawProperties.INDEX, RawProperties)  # this client changes them otherwise
    bodies = [b"", b"{}", b"x" * 300_000]
    with channel_at(broker.amqp_port) as here, channel_at(there.amqp_port) as other:
        here.queue_declare("whole", durable=True)
        for body in bodies:
            here.basic_publish("", "whole", body, RawProperties(HARD_PROPERTIES))
        other.queue_declare("whole", durable=True)
        done = move("whole", "--delete-after", "queue-length")
        assert done.returncode == 0, done.stderr
        found = emptied(other, "whole")
        assert emptied(here, "whole") == []
    entry = {
        "shovelled-by": "rewindmq shovel",
        "shovel-type": "command",
        "src-uri": f"amqp://127.0.0.1:{broker.amqp_port}/%2F",
        "dest-uri": f"amqp://127.0.0.1:{there.amqp_port}/%2F",
        "src-queue": "whole",
        "dest-queue": "whole",
    }
    assert [body for _, _, body in found] == bodies
    assert {properties.raw for _, properties, _ in found} == {with_shovelled(HARD_PROPERTIES, entry)}
    assert "moving queue 'whole' at amqp://" in done.stderr
    assert "the shovel ends: 3 messages moved, 0 on their way, 0 may be repeats, 0 left" in done.stderr


def test_b54_only_what_waits_is_moved_and_routing_keys_stay(
    broker: RunningBroker, there: RunningBroker, move: Move
) -> None:
    with channel_at(broker.amqp_port) as here, channel_at(there.amqp_port) as other:
        here.queue_declare("some", durable=True)
        here.queue_bind("some", "amq.topic", "#")
        for number in range(50):
            here.basic_publish("amq.topic", f"key.{number}", b"%d" % number)
        other.exchange_declare("shop", "topic", durable=True)
        other.queue_declare("shop.all", durable=True)
        other.queue_bind("shop.all", "shop", "key.*")
        with channel_at(broker.amqp_port) as busy:  # a consumer that has five of them
            busy.basic_qos(prefetch_count=5)
            busy.basic_consume("some", lambda *_: None)
            until(lambda: count(here, "some") == 45, "the consumer has none")
            options = ("--dest-exchange", "shop", "--delete-after", "queue-length", "--prefetch-count", "7")
            done = move("some", *options)
            assert done.returncode == 0, done.stderr
        found = emptied(other, "shop.all")
        until(lambda: count(here, "some") == 5, "the consumer's messages did not come back")
    assert numbers_of(found) == list(range(5, 50))
    assert [method.routing_key for method, _, _ in found] == [f"key.{number}" for number in range(5, 50)]


def test_b54_a_killed_shovel_loses_nothing_and_flags_what_comes_twice(
    broker: RunningBroker, there: RunningBroker, start: Start
) -> None:
    numbers = range(2_000)
    with channel_at(broker.amqp_port) as here, channel_at(there.amqp_port) as other:
        fill(here, "killed", numbers)
        other.queue_declare("killed", durable=True)
        for enough in (100, 800):
            shovel = start("killed", "--prefetch-count", "200")
            until(lambda enough: count(other, "killed") > enough, "nothing is moved", enough)
            shovel.kill()
            until(lambda: count(here, "killed") + count(other, "killed") >= len(numbers), "some are nowhere")
        shovel = start("killed", "--delete-after", "queue-length")
        assert shovel.ended() == 0, shovel.said
        found = emptied(other, "killed")
        assert emptied(here, "killed") == []
    assert firsts(numbers_of(found)) == list(numbers)
    seen: set[bytes] = set()
    for _, properties, body in found:
        if body in seen:
            assert properties.headers["x-shovelled"][0]["redelivered"] is True, body
        seen.add(body)


def test_b54_a_broker_that_is_away_is_tried_again_and_nothing_is_held(
    broker: RunningBroker, tmp_path: Path, start: Start
) -> None:
    away = RunningBroker(tmp_path / "away")
    numbers = range(2_000)
    with channel_at(broker.amqp_port) as here:
        fill(here, "patient", numbers)
        with channel_at(away.amqp_port) as other:
            other.queue_declare("patient", durable=True)
        shovel = start("patient", "--prefetch-count", "20", destination=f"amqp://127.0.0.1:{away.amqp_port}")
        until(lambda: waiting(away, "patient") > 100, "nothing is moved")
        away.kill()
        until(lambda: shovel.said.count("the destination cannot be reached") >= 2, "it was not tried again")
        # All that the shovel had is in its queue again, and no consumer is there.
        declared = here.queue_declare("patient", passive=True).method
        assert declared.consumer_count == 0
        assert 0 < declared.message_count < len(numbers)
        ports = (away.amqp_port, away.http_port)
        away = RunningBroker(tmp_path / "away", ports=ports)
        until(lambda: count(here, "patient") == 0, "the rest is not moved")
        assert shovel.stop() == 0, shovel.said
        with channel_at(away.amqp_port) as other:
            found = emptied(other, "patient")
    assert firsts(numbers_of(found)) == list(numbers)
    assert away.stop() == 0
    assert "Trying again in 1 s" in shovel.said
    assert "Trying again in 2 s" in shovel.said


def test_b54_a_full_destination_gets_the_rest_when_it_has_room(
    broker: RunningBroker, there: RunningBroker, start: Start
) -> None:
    with channel_at(broker.amqp_port) as here, channel_at(there.amqp_port) as other:
        fill(here, "full", range(30))
        limits = {"x-max-length": 10, "x-overflow": "reject-publish"}
        other.queue_declare("full", durable=True, arguments=limits)
        shovel = start("full", "--delete-after", "queue-length", "--log-format", "json")
        found: list[int] = []
        while shovel.process.poll() is None:
            found += numbers_of(emptied(other, "full"))
            time.sleep(0.05)
        found += numbers_of(emptied(other, "full"))
    assert shovel.ended() == 0, shovel.said
    assert sorted(found) == list(range(30))  # none twice, although many were refused
    lines = [json.loads(line)["message"] for line in shovel.said.splitlines()]
    assert any(line.startswith("the destination refuses messages of queue 'full'") for line in lines)


def test_b54_what_no_time_mends_ends_with_one_line(
    broker: RunningBroker, there: RunningBroker, move: Move, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    with channel_at(broker.amqp_port) as channel, channel_at(there.amqp_port) as far:
        fill(channel, "stuck", range(3))
        far.exchange_declare("nowhere", "topic", durable=True)
        far.queue_declare("nowhere", durable=True)
        far.queue_bind("nowhere", "nowhere", "other")
        for code, text, queue, options, vhost in (
            (65, "the source says: NOT_FOUND - no queue 'none'", "none", ("--dest-queue", "nowhere"), ""),
            (65, "the destination says: NOT_FOUND - no queue 'stuck'", "stuck", (), ""),
            (65, "the destination says: NOT_FOUND - no exchange 'none'", "stuck", ("--dest-exchange", "none"), ""),
            (65, "routes the key 'stuck' nowhere", "stuck", ("--dest-exchange", "nowhere"), ""),
            (77, "the source says: ACCESS_REFUSED", "stuck", ("--src-password-file", str(wrong)), ""),
            (77, "the destination says: NOT_ALLOWED", "stuck", (), "none"),
        ):
            done = move(queue, *options, vhost=vhost)
            assert done.returncode == code, done.stderr
            errors = [line for line in done.stderr.splitlines() if line.startswith("Error")]
            assert len(errors) == 1, done.stderr
            assert text in errors[0]
        assert numbers_of(emptied(channel, "stuck")) == [0, 1, 2]
        assert count(far, "nowhere") == 0


def test_b54_a_shovel_trusts_the_authority_that_it_is_given(
    broker: RunningBroker, start_broker: Callable[..., RunningBroker], start: Start, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair, port = authority.issue("server", "/CN=localhost", "DNS:localhost"), free_port()
    keys = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    other = start_broker(None, "--tls-port", str(port), *keys)
    uri, options = f"amqps://localhost:{port}", ("--delete-after", "queue-length")
    with channel_at(broker.amqp_port) as here, channel_at(other.amqp_port) as far:
        fill(here, "secret", range(5))
        far.queue_declare("secret", durable=True)
        stranger = start("secret", *options, destination=uri)
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in stranger.said, "it does not say so")
        assert stranger.stop() == 0
        trusting = start("secret", *options, "--dest-tls-ca-cert-file", str(authority.certificate), destination=uri)
        assert trusting.ended() == 0, trusting.said
        assert numbers_of(emptied(far, "secret")) == list(range(5))


def test_b54_a_shovel_waits_for_a_source_that_is_not_there_yet(start: Start) -> None:
    shovel = start("later", source="amqp://127.0.0.1:1")
    until(lambda: "the source cannot be reached" in shovel.said, "it does not say so")
    assert shovel.stop() == 0, shovel.said
