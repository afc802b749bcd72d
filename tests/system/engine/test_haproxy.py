"""A real HAProxy before the broker: over TLS, too, the history has the client's address (B-47)."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.amqp_wire import HEADER
from tests.support.certificates import Authority
from tests.support.commands import metadata_events
from tests.support.deadlines import until
from tests.support.needs import needed
from tests.support.pika_clients import connect
from tests.support.ports import free_port
from tests.support.running import RunningBroker, start_process

CLIENT, BALANCER = "127.0.0.9", "127.0.0.3"
GUEST = ("guest", "guest")
OTHER = ("other", "secret")


class Balanced:
    """A broker whose listeners over TLS are behind a HAProxy at `BALANCER`. It passes TLS on as it is."""

    def __init__(self, haproxy: str, home: Path) -> None:
        authority = Authority(home)
        server = authority.issue("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost,DNS:queue.example.org")
        self.trusted = ssl.create_default_context(cafile=authority.certificate)
        self.tls_port, self.https_port = free_port(), free_port()
        tls = ("--tls-port", str(self.tls_port), "--https-port", str(self.https_port))
        files = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
        self.broker = RunningBroker(home / "data", *tls, *files, "--proxy-protocol-from", f"{BALANCER}/32,10.0.0.0/8")
        with httpx2.Client(base_url=self.broker.http_url, auth=GUEST) as api:
            api.put("/api/users/other", json={"password": "secret", "tags": "administrator"}).raise_for_status()
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            api.put("/api/permissions/%2F/other", json=rights).raise_for_status()
        self.amqps, self.https = free_port(), free_port()
        config = home / "haproxy.cfg"
        config.write_text(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n"
            + "".join(
                f"listen at{front}\n  bind 127.0.0.1:{front}\n"
                f"  server broker 127.0.0.1:{back} send-proxy-v2 source {BALANCER}\n"
                for front, back in ((self.amqps, self.tls_port), (self.https, self.https_port))
            )
        )
        self.process = start_process([haproxy, "-f", str(config), "-db"], stderr=subprocess.PIPE)
        until(lambda: listens(self.https), "haproxy did not listen")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.broker.stop() == 0


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    made = Balanced(needed("haproxy"), tmp_path_factory.mktemp("balanced"))
    yield made
    made.stop()


def connected(balanced: Balanced, port: int, source: str, sent_before: bytes = b"") -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", port), 10, (source, 0))
    sock.sendall(sent_before)
    return balanced.trusted.wrap_socket(sock, server_hostname="localhost")


def test_b47_amqp_over_tls_behind_haproxy(balanced: Balanced) -> None:
    import pika

    options = pika.SSLOptions(balanced.trusted, "localhost")
    there = ("127.0.0.1", balanced.amqps)
    login = pika.PlainCredentials(*OTHER)
    with pika.BlockingConnection(pika.ConnectionParameters(*there, credentials=login, ssl_options=options)):
        pass
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):  # guest, who may not come through a balancer
        pika.BlockingConnection(pika.ConnectionParameters(*there, ssl_options=options))
    opened = metadata_events(balanced.broker.data, "SessionOpened")[-1]
    assert opened["address"].startswith("127.0.0.1:")
    assert opened["proxy"].startswith(f"{BALANCER}:")
    with connected(balanced, balanced.amqps, CLIENT) as sock:
        sock.sendall(HEADER)
        assert b"RewindMQ" in sock.recv(65_536)


def test_b47_https_behind_haproxy(balanced: Balanced) -> None:
    transport = httpx2.HTTPTransport(verify=balanced.trusted, local_address=CLIENT)
    url = f"https://localhost:{balanced.https}/api/queues/%2F/behind"
    with httpx2.Client(transport=transport, auth=OTHER) as client:
        assert client.put(url, json={}, headers={"host": "queue.example.org"}).status_code == 403  # rebinding
    refused = [each for each in metadata_events(balanced.broker.data, "LoginRefused") if each["host"] == CLIENT]
    assert refused == []
    transport = httpx2.HTTPTransport(verify=balanced.trusted, local_address=CLIENT)
    with httpx2.Client(transport=transport) as client:
        assert client.put(url, json={}, auth=GUEST).status_code == 401, "guest comes from this machine only"
        assert client.put(url, json={}, auth=OTHER).status_code == 201
    session = metadata_events(balanced.broker.data, "SessionOpened")[-1]
    assert session["address"].startswith(f"{CLIENT}:")
    assert session["proxy"].startswith(f"{BALANCER}:")


def test_b47_others_come_without_a_header_and_forge_none(balanced: Balanced) -> None:
    with connected(balanced, balanced.tls_port, CLIENT) as sock:
        sock.sendall(HEADER)
        assert b"RewindMQ" in sock.recv(65_536)
    forged = b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"
    for port in (balanced.tls_port, balanced.https_port):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(balanced, port, CLIENT, forged)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(balanced, port, BALANCER)
        connected(balanced, port, BALANCER, forged).close()
    with connect(balanced.broker):
        pass
    assert httpx2.get(f"{balanced.broker.http_url}/api/whoami", auth=GUEST).status_code == 200


def test_b47_a_client_unnamed_by_the_balancer_is_a_stranger_over_https(balanced: Balanced) -> None:
    with connected(balanced, balanced.https_port, BALANCER, b"PROXY TCP4 10.9.8.7 127.0.0.1 51230 443\r\n") as sock:
        request = (
            b"GET /api/whoami HTTP/1.1\r\nHost: queue.example.org\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        )
        sock.sendall(request)
        assert b"401" in sock.recv(65_536).split(b"\r\n")[0], "guest may come from this machine only"
    refused = [each for each in metadata_events(balanced.broker.data, "LoginRefused") if each["host"] == "10.9.8.7"]
    assert len(refused) == 1
