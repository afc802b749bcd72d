"""Clients behind a balancer that sends the PROXY protocol's header (B-28)."""

import socket
import time
from collections.abc import Iterator

import httpx2
import pytest

from rewindmq.engine.host.proxy_protocol import SIGNATURE
from tests.support.amqp_wire import HEADER, connection_open, start_ok, tune_ok
from tests.support.commands import metadata_events
from tests.support.running import RunningBroker

FROM_HERE = b"PROXY TCP4 127.0.0.1 127.0.0.1 51230 5672\r\n"
FROM_AFAR = b"PROXY TCP4 10.0.0.7 127.0.0.1 51230 5672\r\n"


BY_ITSELF = SIGNATURE + b"\x20\x00\x00\x00"  # LOCAL
OTHER = start_ok("other", "secret")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("proxied"), "--proxy-protocol")
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest")) as api:
        api.put("/api/users/other", json={"password": "secret", "tags": "management"}).raise_for_status()
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        api.put("/api/permissions/%2F/other", json=rights).raise_for_status()
    yield broker
    broker.stop()


def talk(broker: RunningBroker, *sent: bytes) -> bytes:
    """Send these bytes one after the other, and return the broker's answer to the last."""
    with socket.create_connection(("127.0.0.1", broker.amqp_port), 10) as sock:
        answer = b""
        for each in sent:
            sock.sendall(each)
            try:
                answer = sock.recv(65_536)
            except ConnectionResetError:  # closed with bytes that nobody read
                answer = b""
        return answer


def test_b28_the_client_s_address_is_in_the_history_and_the_balancer_s(proxied: RunningBroker) -> None:
    assert b"RewindMQ" in talk(proxied, FROM_HERE + HEADER)
    talk(proxied, FROM_HERE + HEADER, OTHER, tune_ok() + connection_open())
    [opened] = [each for each in metadata_events(proxied.data, "SessionOpened") if each["protocol"] == "amqp"]
    assert opened["address"] == "127.0.0.1:51230"
    assert opened["proxy"].startswith("127.0.0.1:")
    assert opened["proxy"] != opened["address"]


@pytest.mark.parametrize("header", [FROM_AFAR, FROM_HERE, b"PROXY UNKNOWN\r\n", BY_ITSELF])
def test_b28_nobody_behind_a_balancer_on_this_machine_is_of_this_machine(proxied: RunningBroker, header: bytes) -> None:
    assert b"Login was refused" not in talk(proxied, header + HEADER, OTHER)
    assert b"Login was refused" in talk(proxied, header + HEADER, start_ok())
    refused = metadata_events(proxied.data, "LoginRefused")[-1]
    assert refused["reason"] == "user 'guest' can only connect via localhost"


@pytest.mark.parametrize("sent", [HEADER, b"PROXY TCP4 x y 1 2\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_b28_without_a_header_the_connection_is_closed(proxied: RunningBroker, sent: bytes) -> None:
    def lines() -> int:
        return sum("PROXY protocol" in line for line in proxied.errors)

    before, deadline = lines(), time.monotonic() + 20
    assert talk(proxied, sent) == b""
    while lines() == before and time.monotonic() < deadline:  # a thread reads them
        time.sleep(0.01)
    assert lines() == before + 1


def test_b28_without_the_option_a_header_is_another_protocol(broker: RunningBroker) -> None:
    assert talk(broker, FROM_HERE) == HEADER
