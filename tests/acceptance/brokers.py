"""The broker that a suite runs against: ours, or the RabbitMQ that is installed here, to see what fails there, too."""

import base64
import contextlib
import json
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.peers import RABBITMQ
from tests.clients import brokers
from tests.support.ports import free_port
from tests.support.running import RunningBroker

AMQP_PORT = 5672
TLS_PORT = 5671
MANAGEMENT_PORT = 15672


@dataclass(frozen=True)
class Certificates:
    """Of the broker, and of who signs clients'."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Address:
    amqp_port: int
    tls_port: int
    http_port: int
    is_ours: bool

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def manage(self, path: str, body: dict[str, str] | None = None) -> Any:
        """Return the management API's answer to a GET, or to a PUT if there is a body."""
        login = base64.b64encode(b"guest:guest").decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        method = "GET" if data is None else "PUT"
        call = urllib.request.Request(f"{self.http_url}/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(call, timeout=60) as answer:
            said = answer.read()
        return json.loads(said) if said else None


@dataclass(frozen=True)
class Ports:
    """The ports that a suite hard-codes. None: any free port."""

    amqp: int | None = None
    http: int | None = None
    tls: int | None = None


ANY = Ports()
USUAL = Ports(AMQP_PORT, MANAGEMENT_PORT)
SECURE = Ports(AMQP_PORT, MANAGEMENT_PORT, TLS_PORT)
Start = Callable[[Certificates, Ports], contextlib.AbstractContextManager[Address]]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextlib.contextmanager
def rewindmq(certificates: Certificates, ports: Ports, options: Sequence[str] = ()) -> Iterator[Address]:
    """It has to end well. `options`: of `rewindmq start`."""
    home = Path(tempfile.mkdtemp(prefix="rewindmq-acceptance-"))
    port = ports.tls or free_port()
    fixed = {"--amqp-port": ports.amqp, "--http-port": ports.http}
    there = [each for name, number in fixed.items() if number is not None for each in (name, str(number))]
    broker = RunningBroker(
        home / "data",
        "--tls-port",
        str(port),
        "--tls-cert",
        str(certificates.certificate),
        "--tls-key",
        str(certificates.key),
        "--tls-ca",
        str(certificates.ca),
        "--tls-verify-peer",
        *there,  # the later one counts
        *options,
    )
    try:
        yield Address(ports.amqp or broker.amqp_port, port, ports.http or broker.http_port, is_ours=True)
    finally:
        code = broker.stop()
        shutil.rmtree(home)
    said = "".join(broker.errors)
    assert code == 0, said[-3000:]
    assert "Traceback" not in said, said[-3000:]


@contextlib.contextmanager
def rabbitmq(certificates: Certificates, ports: Ports) -> Iterator[Address]:
    home = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
    port = ports.tls or free_port()
    settings = (
        f"listeners.ssl.default = 127.0.0.1:{port}\nssl_options.certfile = {certificates.certificate}\n"
        f"ssl_options.keyfile = {certificates.key}\nssl_options.cacertfile = {certificates.ca}\n"
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
    )
    if ports.http is not None:
        settings += f"management.tcp.port = {ports.http}\n"
    broker = brokers.start([str(RABBITMQ)], Path("/"), home, settings, ports.amqp)
    try:
        yield Address(broker.port, port, ports.http or broker.http_port, is_ours=False)
    finally:
        broker.stop()
        shutil.rmtree(home, ignore_errors=True)
