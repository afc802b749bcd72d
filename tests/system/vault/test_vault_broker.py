"""A broker whose keys of bodies a real OpenBao seals (B-64): what clients see, also while the Vault is away."""

import contextlib
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.cli import main
from rewindmq.engine.erasure.vault import PREFIX, REST_SECONDS
from tests.support.http_clients import api_client
from tests.support.pika_clients import connect, pump, take
from tests.support.running import RunningBroker
from tests.support.vault.server import VaultServer

pytestmark = pytest.mark.long

HEADER = "x-subject"


class ImpatientBroker(RunningBroker):
    """A broker that asks a Vault for a key for one second only."""

    program = (
        "-c",
        "import sys; from rewindmq.engine.erasure import encryption; encryption.FETCH_SECONDS = 1.0;"
        " from rewindmq.engine.cli.main import run; sys.exit(run(['start', *sys.argv[1:]]))",
    )


@dataclass
class World:
    """A data directory and a Vault. `start` starts a broker on them, which has no key in memory."""

    data: Path
    vault: VaultServer
    broker: RunningBroker | None = None

    def start(self, kind: type[RunningBroker] = RunningBroker) -> RunningBroker:
        self.stop()
        self.broker = kind(self.data, "--subject-header", HEADER, *self.vault.options)
        return self.broker

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()
        self.broker = None


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VaultServer]:
    with VaultServer(tmp_path_factory.mktemp("vault")) as found:
        yield found


@pytest.fixture
def world(vault: VaultServer, tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "data", vault)
    yield found
    found.stop()


@contextlib.contextmanager
def channel_of(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = connect(broker)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def publish(channel: BlockingChannel, queue: str, body: bytes, subject: str = "") -> None:
    headers = {HEADER: subject} if subject else {}
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, headers=headers))


def command(*arguments: object) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main.run([str(each) for each in arguments])
    return code, out.getvalue()


def test_b64_bodies_come_as_they_were_and_go_with_the_transit_key(world: World) -> None:
    broker = world.start()
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        for queue in ("got", "consumed", "looked-at"):
            channel.queue_declare(queue, durable=True)
            for number, name in enumerate(("ada", "", "bob", "ada", "cy", "")):
                publish(channel, queue, b"body %d" % number, name and f"{name} of {queue}")
    bodies = [b"body %d" % number for number in range(6)]
    broker = world.start()  # no key is in memory: each is asked for at the first delivery
    with channel_of(broker) as channel:
        assert [channel.basic_get("got", auto_ack=True)[2] for _ in bodies] == bodies
    with channel_of(broker) as channel:
        channel.basic_qos(prefetch_count=3)
        assert [body for _, _, body in take(channel, "consumed", 3, auto_ack=False)] == bodies[:3]
    with channel_of(broker) as channel:
        assert [body for _, _, body in take(channel, "consumed", 6, auto_ack=True)] == bodies
    with api_client(broker) as client:
        assert client.get("/queues/%2F/looked-at/peek/3").json()["payload"] == "body 2"
        wish = {"count": 6, "ackmode": "ack_requeue_true", "encoding": "auto"}
        got = client.post("/queues/%2F/looked-at/get", json=wish).json()
        assert [each["payload"].encode() for each in got] == bodies
        past = client.get("/queues/%2F/looked-at/at", params={"time": "-0s"}).json()
        assert [each["payload"].encode() for each in past["message_details"]] == bodies, (
            "another process asks the Vault, too"
        )
        before = world.vault.keys
        assert client.delete("/subjects/ada of looked-at", params={"reason": "asked"}).status_code == 204
        gone = before - world.vault.keys
        got = client.post("/queues/%2F/looked-at/get", json=wish).json()
        assert [each["payload"].encode() for each in got] == [b"", bodies[1], bodies[2], b"", bodies[4], bodies[5]]
        assert got[0]["properties"]["headers"]["x-erased"] is True
    assert len(gone) == 1
    world.stop()
    assert command("check_erasure", "ada of looked-at", "--data", world.data)[0] == 0
    code, shown = command("rewind", "looked-at", "--at", "0s", "--data", world.data)
    assert (code, "body 2" in shown, "body 3" in shown) == (0, True, False)
    world.vault.root("POST", f"transit/keys/{gone.pop()}", {})  # as if the Vault's own backup brought it back
    code, shown = command("check_erasure", "ada of looked-at", "--data", world.data)
    assert (code, "STILL THERE" in shown) == (1, True)


def test_b64_while_the_vault_hangs_others_go_on_and_nothing_is_lost(world: World) -> None:
    broker = world.start()
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        for queue in ("sealed", "plain"):
            channel.queue_declare(queue, durable=True)
        publish(channel, "sealed", b"hers", "ada")
        publish(channel, "sealed", b"his", "bob")
    broker = world.start()
    world.vault.hang()
    try:
        waiting = connect(broker)
        came: list[bytes] = []
        waits = waiting.channel()
        waits.basic_consume("sealed", lambda *given: came.append(given[3]), auto_ack=True)
        with channel_of(broker) as other:
            other.confirm_delivery()
            for number in range(200):
                publish(other, "plain", b"%d" % number)
                assert other.basic_get("plain", auto_ack=True)[2] == b"%d" % number
        refused = connect(broker)
        channel = refused.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as error:
            publish(channel, "plain", b"secret", "new")
        assert error.value.reply_code == 506
        assert "the Vault does not answer" in error.value.reply_text
        waiting.process_data_events(time_limit=0)
        assert not came
    finally:
        world.vault.wake()
    pump(waiting, lambda: len(came) == 2)
    assert came == [b"hers", b"his"]
    waiting.close()
    with channel_of(broker) as channel:
        assert channel.queue_declare("plain", passive=True).method.message_count == 0, "what was refused is nowhere"


def test_b64_a_delivery_whose_key_cannot_be_had_goes_back(world: World) -> None:
    broker = world.start()
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.queue_declare("other", durable=True)
        publish(channel, "other", b"theirs", "cy")
        publish(channel, "kept", b"first")
        publish(channel, "kept", b"hers", "ada")
        publish(channel, "kept", b"large" * 100_000, "bob")
    broker = world.start(ImpatientBroker)
    world.vault.seal()
    try:
        for taken in (consumed, got):
            connection = connect(broker)
            with pytest.raises(pika.exceptions.ConnectionClosed):
                taken(connection.channel())
        with api_client(broker) as client:
            answers = [
                client.get("/queues/%2F/kept/peek/2"),
                client.post(
                    "/queues/%2F/kept/get", json={"count": 3, "ackmode": "ack_requeue_false", "encoding": "auto"}
                ),
                client.delete("/subjects/cy"),
            ]
            assert [each.status_code for each in answers] == [503, 503, 500], [each.text for each in answers]
    finally:
        world.vault.unseal()
    broker = world.start()
    with channel_of(broker) as channel:
        taken_now = take(channel, "kept", 3, auto_ack=True)
        assert [body for _, _, body in taken_now] == [b"first", b"hers", b"large" * 100_000]
        assert channel.basic_get("other")[2] == b"", "an erasure that was begun holds"
    with api_client(broker) as client:
        assert client.delete("/subjects/cy").status_code == 204, "and is finished when it is asked for again"


def consumed(channel: BlockingChannel) -> None:
    channel.basic_consume("kept", lambda *_: None)
    while True:
        channel.connection.process_data_events(time_limit=1)


def got(channel: BlockingChannel) -> None:
    for _ in range(3):
        channel.basic_get("kept")


def test_b64_a_start_ends_with_a_wrong_token_and_goes_on_without_a_vault(world: World, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("no-token\n")
    options = ("--subject-header", HEADER, "--vault", world.vault.url, "--vault-token-file", str(wrong))
    with pytest.raises(AssertionError, match=f"ended with 78.* the token in {wrong} may not GET keys/") as error:
        RunningBroker(world.data, *options)
    assert str(error.value).count("\n") == 1
    world.vault.seal()
    try:
        broker = world.start()
        with channel_of(broker) as channel:
            channel.queue_declare("plain", durable=True)
            publish(channel, "plain", b"clear")
            assert any("the Vault does not answer" in each for each in broker.errors)
    finally:
        world.vault.unseal()
    time.sleep(REST_SECONDS)
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        publish(channel, "plain", b"hers", "ada")
        assert [channel.basic_get("plain")[2] for _ in range(2)] == [b"clear", b"hers"]
    assert any(each.startswith(PREFIX) for each in world.vault.keys)
