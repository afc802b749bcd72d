"""Logins by tokens of an identity provider, and the brake for guessed passwords, with a real broker (B-55, B-56)."""

import asyncio
import itertools
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import httpx2
import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.support.amqp_wire import HEADER, start_ok
from tests.support.certificates import Authority
from tests.support.forked import run
from tests.support.identity_provider import ALL, Provider, running_provider
from tests.support.running import RunningBroker

SECONDS = 60


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A provider whose certificate the broker knows by --oauth-ca."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.issue("provider", "/CN=provider", "IP:127.0.0.1")
    with running_provider((pair.certificate, pair.key)) as provider:
        provider.add("rsa", "RS256")
        provider.authority = authority.certificate
        yield provider


@pytest.fixture(scope="module")
def broker(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("tokens") / "data", *options(provider))
    with api(broker, provider.token(f"{ALL} rabbitmq.tag:management")) as client:
        until(lambda: client.get("/api/whoami").status_code == 200)  # a busy machine fetches the keys late
    yield broker
    broker.stop()


def options(provider: Provider) -> list[str]:
    named = ["--oauth-resource-server-id", "rabbitmq", "--oauth-issuer", provider.issuer]
    return named + (["--oauth-ca", str(provider.authority)] if provider.authority else [])


def connect(broker: RunningBroker, password: str, user: str = "") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, "/", credentials))


def api(broker: RunningBroker, token: str | None = None, **how: Any) -> httpx2.Client:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx2.Client(base_url=broker.http_url, headers=headers, trust_env=False, **how)


def talk(broker: RunningBroker, *sent: bytes) -> bytes:
    """Send these bytes one after the other, and return the broker's answer to the last."""
    with socket.create_connection(("127.0.0.1", broker.amqp_port), SECONDS) as sock:
        answer = b""
        for each in sent:
            sock.sendall(each)
            answer = sock.recv(65_536)
        return answer


def logged(broker: RunningBroker, event: str) -> list[dict[str, Any]]:
    done = run("events", "--data", str(broker.data), "--partition", "metadata-0", "--format", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        each["fields"] | {"user": each["fields"].get("user", each.get("user"))}
        for each in found
        if each["event"] == event
    ]


def has_refused(broker: RunningBroker, reason: str) -> bool:
    """Return True if the history has a login that was refused for this reason."""
    return any(each["reason"].startswith(reason) for each in logged(broker, "LoginRefused"))


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_b55_a_token_is_the_password_over_amqp(broker: RunningBroker, provider: Provider) -> None:
    scope = " ".join(f"rabbitmq.{each}:%2F/mine-*" for each in ("configure", "write", "read"))
    scope += " rabbitmq.write:%2F/amq.default"
    padding = "x" * 6_000  # a token that is longer than a frame before connection.tune
    for key_id in ("first", "rsa"):
        with connect(broker, provider.token(scope, key_id, padding=padding), "whoever") as connection:
            channel = connection.channel()
            channel.queue_declare(f"mine-{key_id}")
            channel.basic_publish("", f"mine-{key_id}", b"1")
            with pytest.raises(ChannelClosedByBroker) as refused:
                channel.queue_declare("yours")
            text = "ACCESS_REFUSED - configure access to queue 'yours' in vhost '/' refused for user 'ann'"
            assert (refused.value.reply_code, refused.value.reply_text) == (403, text)
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker, match=r"configure access to exchange 'amq\.topic'"):
                channel.exchange_declare("amq.topic", "topic", durable=True)
    until(lambda: "PLAIN with a token" in {each["mechanism"] for each in logged(broker, "SessionOpened")})
    with connect(broker, "guest", "guest") as connection:  # passwords go on
        assert connection.channel().queue_declare("mine-rsa", passive=True).method.message_count == 1


def test_b55_topics_are_scopes_too(broker: RunningBroker, provider: Provider) -> None:
    scope = "rabbitmq.write:%2F/amq.topic/orders.*"
    with connect(broker, provider.token(scope)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "orders.1", b"")
        with pytest.raises(ChannelClosedByBroker, match=r"write access to topic 'invoices\.1'"):
            channel.basic_publish("amq.topic", "invoices.1", b"")


def test_b55_a_token_that_is_not_right_is_refused_and_in_the_history(broker: RunningBroker, provider: Provider) -> None:
    for number, (token, reason) in enumerate(
        (
            (provider.unsigned(), "the token's algorithm is 'none'"),
            (provider.confused(), "the token's algorithm is 'HS256'"),
            (provider.forged(), "the token's signature is wrong"),
            (provider.token(iss="https://elsewhere", sub="stranger"), "the token's issuer is"),
            (provider.token(aud="others", sub="auditor"), "the token's audience is"),
            (provider.token(seconds=-60), "the token expired at"),
            (provider.token(nbf=int(time.time()) + 600, sub="early"), "the token is not yet valid"),
        )
    ):
        with pytest.raises(ProbableAuthenticationError) as refused:
            connect(broker, token, f"user {number}")
        assert "Login was refused using authentication mechanism PLAIN. For details see" in str(refused.value)
        until(partial(has_refused, broker, reason))
        with api(broker, token) as client:
            answer = client.get("/api/whoami")
        assert answer.status_code == 401
        assert answer.json()["reason"].startswith(f"Login failed: {reason}")
    signed = {each["user"] for each in logged(broker, "LoginRefused") if "audience" in each["reason"]}
    assert signed == {"auditor"}, "the name in a token that the provider signed"
    with pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - access to vhost '/' refused for user 'ann'"):
        connect(broker, provider.token("rabbitmq.read:v1/*"))


def test_b55_a_connection_ends_with_its_token(broker: RunningBroker, provider: Provider) -> None:
    connection = connect(broker, provider.token(seconds=2))
    channel = connection.channel()
    channel.queue_declare("expiring")
    channel.basic_consume("expiring", lambda *_: None)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        channel.start_consuming()
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - credential expired")


def test_b55_a_secret_that_is_updated_in_time_goes_on(broker: RunningBroker, provider: Provider) -> None:
    async def renew() -> None:
        url = f"amqp://ann:{provider.token(seconds=3)}@{broker.host}:{broker.amqp_port}/"
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        queue = await channel.declare_queue("renewed")
        until_s = time.time() + 4
        await connection.update_secret(provider.token(f"{ALL} rabbitmq.tag:management"), reason="new")
        while time.time() < until_s:
            await channel.default_exchange.publish(aio_pika.Message(b"1"), "renewed")
            await asyncio.sleep(0.1)
        assert await queue.get(no_ack=True)
        less = "rabbitmq.read:%2F/renewed rabbitmq.configure:%2F/renewed"
        await connection.update_secret(provider.token(less), reason="less")
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):  # a publish that was allowed before
            await channel.default_exchange.publish(aio_pika.Message(b"1"), "renewed")
        await connection.close()

    asyncio.run(renew())


@pytest.mark.parametrize(
    ("user", "claims", "why"),  # users of their own: refusals of one are counted together for a minute
    [
        ("a", {"sub": "bob"}, "it is a token of user 'bob'"),
        ("b", {"seconds": -1}, "the token expired at"),
        ("c", {"scope": "rabbitmq.read:v1/*"}, "access to vhost '/' refused for user 'c'"),
        ("d", {"scope": "rabbitmq.read:%2F/other"}, "read access to queue 'held' in vhost '/' refused for user 'd'"),
    ],
)
def test_b55_a_new_token_that_would_not_do_closes_the_connection(
    broker: RunningBroker, provider: Provider, user: str, claims: dict[str, Any], why: str
) -> None:
    connection = connect(broker, provider.token(sub=user))
    channel = connection.channel()
    channel.queue_declare("held")
    channel.basic_consume("held", lambda *_: None)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.update_secret(provider.token(**{"sub": user} | claims), "new")
    text = "NOT_ALLOWED - New secret was refused by one of the backends"
    assert (closed.value.reply_code, closed.value.reply_text) == (530, text)
    until(partial(has_refused, broker, why))


def test_b55_tokens_over_http(broker: RunningBroker, provider: Provider) -> None:
    monitoring, nobody = provider.token(f"{ALL} rabbitmq.tag:monitoring"), provider.token(ALL)
    with api(broker, monitoring) as client:
        assert client.get("/api/whoami").json() == {"name": "ann", "tags": ["monitoring"], "is_internal_user": False}
        assert client.get("/api/nodes").status_code == 200
        assert client.get("/api/users").status_code == 401
        assert client.put("/api/queues/%2F/by-http", json={"durable": True}).status_code == 201
    with api(broker, auth=("any", monitoring)) as client:
        assert client.get("/api/whoami").json()["name"] == "ann"
    with api(broker, nobody) as client:
        assert client.get("/api/whoami").json()["reason"] == "Not management user"
    some = provider.token("rabbitmq.read:other/* rabbitmq.tag:management")
    with api(broker, some) as client:
        assert client.get("/api/vhosts").json() == []
        assert client.get("/api/queues/%2F").status_code == 401
    with api(broker, provider.token("rabbitmq.tag:administrator")) as client:
        assert client.put("/api/vhosts/made", json={}).status_code == 201
        assert client.get("/api/vhosts/made/permissions").json() == []
        assert client.put("/api/users/bob", json={"password": "b", "tags": ""}).status_code == 201
    imitated = provider.token("rabbitmq.tag:management", sub="guest")
    with api(broker, imitated) as client:
        assert client.get("/api/queues/%2F").status_code == 401, "the permissions of the user of that name do not count"
        assert client.get("/api/vhosts").json() == []


def test_b55_a_browser_is_logged_in_for_as_long_as_its_token(broker: RunningBroker, provider: Provider) -> None:
    token = provider.token(f"{ALL} rabbitmq.tag:management", seconds=2)
    with api(broker) as browser:
        page = {"x-requested-with": "page"}
        answer = browser.post("/api/login", json={"username": "", "password": token}, headers=page)
        assert answer.status_code == 204
        assert browser.get("/api/whoami").json()["name"] == "ann"
        until(lambda: browser.get("/api/whoami").status_code == 401)
        assert browser.get("/api/whoami").json()["reason"] == "The token expired: log in again"


@pytest.mark.long
def test_b55_sighup_takes_other_settings_over(tmp_path: Path, provider: Provider) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(provider.jwks())
    file = tmp_path / "rewindmq.toml"
    settings = 'oauth_resource_server_id = "{}"\noauth_keys = "keys.json"\n'
    file.write_text(settings.format("others"))
    broker = RunningBroker(tmp_path / "data", "--config", str(file))
    try:
        with api(broker, provider.token(f"{ALL} rabbitmq.tag:management")) as client:
            assert "audience" in client.get("/api/whoami").json()["reason"]
            file.write_text(settings.format("rabbitmq"))
            broker.process.send_signal(signal.SIGHUP)
            until(lambda: client.get("/api/whoami").status_code == 200)
            keys.write_text("nonsense")
            broker.process.send_signal(signal.SIGHUP)
            until(lambda: any("is bad" in line for line in broker.errors))
            assert client.get("/api/whoami").status_code == 200
        [line] = [line for line in broker.errors if "is bad" in line]
        assert f"oauth_keys: {keys}: it is not a JSON Web Key Set" in line
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("proxied") / "data", "--proxy-protocol")
    yield broker
    broker.stop()


def proxy(host: str) -> bytes:
    """The header with which a balancer speaks for a client of this address."""
    return f"PROXY TCP4 {host} 127.0.0.1 51230 5672\r\n".encode()


def until_braked(guess: Callable[[int], bool]) -> int:
    """The number of guesses until one was not looked at."""
    return next(number for number in range(100) if guess(number))


@pytest.mark.long
def test_b56_guesses_are_braked_by_address_over_amqp_and_http_alike(proxied: RunningBroker) -> None:
    with api(proxied, auth=("guest", "guest")) as client:
        client.put("/api/users/ann", json={"password": "right", "tags": "management"}).raise_for_status()
        client.put("/api/permissions/%2F/ann", json={"configure": "", "write": "", "read": ""}).raise_for_status()

    def log_in(host: str, password: str) -> bytes:
        return talk(proxied, proxy(host) + HEADER, start_ok("ann", password))

    braked = b"too many logins from 203.0.113.7 failed: try again in "
    assert until_braked(lambda number: braked in log_in("203.0.113.7", f"guess {number}")) >= 10
    assert braked in log_in("203.0.113.7", "right")
    assert b"Login was refused" not in log_in("198.51.100.1", "right")

    def ask(number: int) -> bool:
        answers.append(api(proxied, auth=("ann", f"guess {number}")).get("/api/whoami"))
        return answers[-1].status_code == 429

    answers: list[httpx2.Response] = []
    assert until_braked(ask) >= 10
    assert 0 < int(answers[-1].headers["retry-after"]) <= 30
    assert {answer.status_code for answer in answers[:-1]} == {401}
    form = api(proxied).post("/api/login", json={"username": "ann", "password": "right"})
    assert form.status_code == 429
    assert form.json()["reason"].startswith("too many logins from 127.0.0.1 failed")
    with api(proxied, auth=("guest", "guest")) as client:
        assert "\nrewindmq_logins_braked_total 4\n" in client.get("/metrics").text
    hosts = {"203.0.113.7", "127.0.0.1"}
    until(lambda: {each["host"] for each in logged(proxied, "LoginRefused")} == hosts)


@pytest.mark.long
def test_b56_a_flood_of_wrong_passwords_holds_no_other_client_up(proxied: RunningBroker) -> None:
    """Passwords are verified in threads; a client that is connected is answered meanwhile."""
    ended = threading.Event()
    guesses: list[bytes] = []

    def flood(part: int) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            host = proxy(f"203.0.{part}.{number % 250}")
            guesses.append(talk(proxied, host + HEADER, start_ok(f"name {number}", f"guess {number}")))

    threads = [threading.Thread(target=flood, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    try:
        with api(proxied, auth=("guest", "guest")) as client:
            until(lambda: len(guesses) > 20)
            answers = [client.get("/api/overview").status_code for _ in range(50)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert answers == [200] * 50
    assert all(b"Login was refused" in each for each in guesses)
