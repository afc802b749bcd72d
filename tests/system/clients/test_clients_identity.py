"""The same tokens with the same scopes decide alike at RabbitMQ and here (B-55)."""

from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.support.identity_provider import Provider, running_provider
from tests.support.management_peer import TOKENS, has_plugin, start_management
from tests.support.needs import require
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

require(has_plugin(TOKENS), "Debian's package rabbitmq-server, with its plugin for OAuth 2.0, is not installed")

SCOPES = (
    "",
    "rabbitmq.read:*/*",
    "rabbitmq.write:*/*",
    "rabbitmq.configure:*/*",
    "rabbitmq.configure:*/* rabbitmq.write:*/* rabbitmq.read:*/*",
    "rabbitmq.configure:%2F/own-* rabbitmq.read:%2F/own-*",
    "rabbitmq.configure:%2F/*-q rabbitmq.read:%2F/own-*q rabbitmq.write:%2F/amq.default",
    "rabbitmq.configure:%2f/own%2Dq rabbitmq.write:%2F/amq.topic",
    "rabbitmq.write:%2F/amq.topic/a.* rabbitmq.configure:v/own-q",
    "rabbitmq.write:%2F/amq.topic/*b rabbitmq.write:%2F/own-q",
    "rabbitmq.write:*/*/*x* rabbitmq.read:*/*/*",
    "rabbitmq.read:%2F",
    "rabbitmq.read:%2F/a/b/c",
    "rabbitmq.read://own-q",
    "rabbitmq.read:%2/own-q",
    "rabbitmq.read:*/own+q rabbitmq.read:*/ rabbitmq.write:*/*q*q*",
    "rabbitmq.read:v/*",
    "read:*/* write:*/* configure:*/*",
    "rabbit.read:*/* rabbitmqread:*/* rabbitmq.READ:*/*",
    "rabbitmq.configure:*/*q rabbitmq.read:**/**",
)
QUEUES = ("own-q", "own q", "other", "own-qq")
KEYS = ("a.b", "a.x", "b", "x")


def connected(port: int, user: str, password: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, "/", pika.PlainCredentials(user, password))
    )


def prepare(port: int) -> None:
    """Make the queues, as a user with a password."""
    with connected(port, "guest", "guest") as connection:
        channel = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)


def decisions(port: int, token: str) -> dict[str, bool]:
    """Return the decisions of a broker on a bearer of the token: for each action, True if it is allowed."""
    try:
        connection = connected(port, "any", token)
    except AMQPError:
        return {"enter": False}
    found = {"enter": True}

    def note(what: str, method: str, *given: object, **how: bool) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            getattr(channel, method)(*given, **how)
            channel.close()
            found[what] = True
        except ChannelClosedByBroker as refused:
            if refused.reply_code != 403:
                raise
            found[what] = False

    with connection:
        for queue in QUEUES:
            note(f"configure {queue}", "queue_declare", queue, durable=True)
            note(f"read {queue}", "basic_get", queue, auto_ack=True)
            note(f"bind {queue}", "queue_bind", queue, "amq.fanout")
        for exchange in ("", "amq.topic"):
            for key in KEYS:
                note(f"publish {exchange} {key}", "basic_publish", exchange, key, b"")
    return found


def settings_of(provider: Provider, home: Path) -> str:
    """RabbitMQ takes the tokens of the provider, whose key is in a file."""
    (home / "first.pem").write_bytes(provider.keys["first"].as_pem(private=False))
    return (
        "auth_backends.1 = rabbit_auth_backend_oauth2\nauth_backends.2 = internal\n"
        "auth_oauth2.resource_server_id = rabbitmq\nauth_oauth2.default_key = first\n"
        f"auth_oauth2.signing_keys.first = {home}/first.pem\nauth_oauth2.algorithms.1 = ES256\n"
    )


def test_b55_rabbitmq_decides_alike(tmp_path: Path) -> None:
    with running_provider() as provider:
        peer = start_management(tmp_path, 180, plugins=(TOKENS,), settings=settings_of(provider, tmp_path))
        try:
            (tmp_path / "keys.json").write_bytes(provider.jwks())
            options = ("--oauth-resource-server-id", "rabbitmq", "--oauth-keys", str(tmp_path / "keys.json"))
            broker = RunningBroker(tmp_path / "data", *options)
            try:
                for port in (peer.port, broker.amqp_port):
                    prepare(port)
                for number, scope in enumerate(SCOPES):
                    token = provider.token(scope.split() if number % 2 else scope)
                    assert decisions(broker.amqp_port, token) == decisions(peer.port, token), scope
                for wrong in (
                    provider.forged(),
                    provider.unsigned(),
                    provider.token(aud="b"),
                    provider.token(seconds=-9),
                ):
                    assert decisions(broker.amqp_port, wrong) == decisions(peer.port, wrong) == {"enter": False}
            finally:
                broker.stop()
        finally:
            peer.stop()
