"""AMQP over TLS with pika and aio-pika: certificates on both sides, and logging in by certificate (SASL EXTERNAL)."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import pika
import pytest
from pika.exceptions import AMQPConnectionError, ProbableAuthenticationError

from rewindmq.engine.cli.main import run
from rewindmq.engine.tls import distinguished_name, escaped
from tests.support.certificates import Authority, Pair
from tests.support.ports import free_port
from tests.support.running import RunningBroker


class Tls:
    """The setup of a module's tests: a CA, a broker that offers EXTERNAL by the subject's name, and its TLS port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.authority = Authority(home)
        self.stranger = Authority(home, "stranger")
        self.server = self.authority.issue("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
        self.bunny = self.authority.issue("bunny", "/CN=bunny/O=client")
        self.broker, self.port = self.start("verifying", "--tls-verify-peer", "--tls-login-from", "distinguished_name")

    def start(self, name: str, *options: str) -> tuple[RunningBroker, int]:
        port = free_port()
        running = RunningBroker(
            self.home / name,
            "--tls-port",
            str(port),
            "--tls-cert",
            str(self.server.certificate),
            "--tls-key",
            str(self.server.key),
            "--tls-ca",
            str(self.authority.certificate),
            *options,
        )
        return running, port

    def context(self, pair: Pair | None = None, trust: Authority | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str((trust or self.authority).certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def connect(self, port: int = 0, context: ssl.SSLContext | None = None, **options: Any) -> pika.BlockingConnection:
        tls = pika.SSLOptions(context or self.context(), "localhost")
        parameters = pika.ConnectionParameters("127.0.0.1", port or self.port, ssl_options=tls, **options)
        return pika.BlockingConnection(parameters)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    made = Tls(tmp_path_factory.mktemp("tls"))
    yield made
    assert made.broker.stop() == 0
    assert "Traceback" not in "".join(made.broker.errors), "".join(made.broker.errors)


def test_publish_and_consume_with_pika(tls: Tls) -> None:
    assert f"amqp/ssl 127.0.0.1:{tls.port}" in tls.broker.ready_line
    connection = tls.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 20_000  # 5 MB
    for each in (b"small", body, b""):
        channel.basic_publish("", queue, each)
    got = []
    for _, _, each in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
        got.append(each)
        if len(got) == 3:
            break
    assert got == [b"small", body, b""]
    connection.close()


def test_publish_and_consume_with_aio_pika(tls: Tls) -> None:
    async def main() -> list[bytes]:
        connection = await aio_pika.connect(
            f"amqps://guest:guest@localhost:{tls.port}/", ssl_context=tls.context(tls.bunny)
        )
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            for number in range(100):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
            return [(await queue.get(no_ack=True)).body for _ in range(100)]

    assert asyncio.run(main()) == [b"%d" % number for number in range(100)]


def test_a_client_checks_the_brokers_certificate(tls: Tls) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        tls.connect(context=tls.context(trust=tls.stranger))


def test_a_certificate_that_somebody_else_signed_is_refused(tls: Tls) -> None:
    """TLS 1.3 tells a client so only when it reads."""
    theirs = tls.stranger.issue("theirs", "/CN=bunny/O=client")
    with pytest.raises(AMQPConnectionError):
        tls.connect(context=tls.context(theirs))


def test_log_in_by_certificate(tls: Tls) -> None:
    """The user's name is the subject as RFC 4514 has it; its password does not matter."""
    external = {"credentials": pika.credentials.ExternalCredentials()}
    with httpx2.Client(base_url=tls.broker.http_url, auth=("guest", "guest")) as http:
        for user in ("O=client,CN=bunny", "O=client,CN=hare"):
            http.put(f"/api/users/{user}", json={"password_hash": "", "tags": ""}).raise_for_status()
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        http.put("/api/permissions/%2F/O=client,CN=bunny", json=rights).raise_for_status()
        connection = tls.connect(context=tls.context(tls.bunny), **external)
        connection.channel().queue_declare("", exclusive=True)
        (shown,) = http.get("/api/connections").json()
        assert shown["user"] == "O=client,CN=bunny"
        connection.close()
    refused = "Login was refused using authentication mechanism EXTERNAL. For details see the broker logfile."
    for context in (tls.context(tls.authority.issue("nobody", "/CN=nobody")), tls.context()):
        with pytest.raises(ProbableAuthenticationError, match=refused):
            tls.connect(context=context, **external)


def test_mechanisms_that_are_offered(tls: Tls) -> None:
    """EXTERNAL over TLS only."""

    def mechanisms(sock: socket.socket) -> bytes:
        sock.sendall(b"AMQP\x00\x00\x09\x01")
        data = b""
        while b"en_US" not in data:
            data += sock.recv(65_536)
        return data.split(b"en_US")[0]

    plain = socket.create_connection(("127.0.0.1", tls.port))
    with tls.context().wrap_socket(plain, server_hostname="localhost") as wrapped:
        assert b"PLAIN AMQPLAIN EXTERNAL" in mechanisms(wrapped)
    with socket.create_connection(("127.0.0.1", tls.broker.amqp_port)) as sock:
        assert b"EXTERNAL" not in mechanisms(sock)


def test_what_is_no_tls_is_dropped(tls: Tls) -> None:
    with socket.create_connection(("127.0.0.1", tls.port)) as sock:
        sock.settimeout(30)
        sock.sendall(b"AMQP\x00\x00\x09\x01" * 10)
        with suppress(ConnectionError):
            while sock.recv(4096):  # an alert, perhaps
                pass
    tls.connect().close()


def test_clients_without_a_certificate_can_be_refused(tls: Tls) -> None:
    running, port = tls.start(
        "strict", "--tls-verify-peer", "--tls-fail-if-no-peer-cert", "--tls-login-from", "common_name"
    )
    try:
        with pytest.raises(AMQPConnectionError):
            tls.connect(port)
        tls.connect(port, tls.context(tls.bunny)).close()
        with httpx2.Client(base_url=running.http_url, auth=("guest", "guest")) as http:
            http.put("/api/users/bunny", json={"password": "any", "tags": ""}).raise_for_status()
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            http.put("/api/permissions/%2F/bunny", json=rights).raise_for_status()
        tls.connect(port, tls.context(tls.bunny), credentials=pika.credentials.ExternalCredentials()).close()
    finally:
        assert running.stop() == 0


def test_the_status_says_what_each_listener_is_for(tls: Tls, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", tls.broker.http_url.removesuffix("/api")]) == 0
    assert f"port: {tls.port}, protocol: amqp/ssl, purpose: AMQP 0-9-1 over TLS\n" in capsys.readouterr().out


def test_a_key_that_does_not_fit_is_said_at_the_start(tls: Tls, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"the broker ended with 78: rewindmq: tls: .*KEY_VALUES_MISMATCH"):
        RunningBroker(
            tmp_path / "data",
            "--tls-port",
            str(free_port()),
            "--tls-cert",
            str(tls.server.certificate),
            "--tls-key",
            str(tls.bunny.key),
        )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tls-verify-peer",), "the --tls- options need --tls-port or --https-port"),
        (("--tls-login-from", "common_name"), "the --tls- options need --tls-port or --https-port"),
        (("--tls-port", "1"), "--tls-port and --https-port need --tls-cert and --tls-key"),
    ],
)
def test_options_that_would_protect_nothing_are_refused(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(AssertionError, match=f"the broker ended with 64: .*{problem}"):
        RunningBroker(tmp_path / "data", *options)


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (((("commonName", "bunny"),), (("organizationName", "client"),)), "O=client,CN=bunny"),
        (((("countryName", "DE"),), (("commonName", "a"), ("userId", "b"))), "CN=a+UID=b,C=DE"),
        (((("1.2.3", "x"),),), "1.2.3=x"),
        ((), ""),
    ],
)
def test_distinguished_names(subject: Any, told: str) -> None:
    assert distinguished_name(subject) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a, b+c", r"a\, b\+c"),
        (" x ", r"\ x\ "),
        ("#1#", r"\#1#"),
        ("\u00e9~", r"\C3\A9\7E"),
        ('"<>;\\', r"\"\<\>\;\\"),
    ],
)
def test_values_in_distinguished_names(value: str, told: str) -> None:
    assert escaped(value) == told
