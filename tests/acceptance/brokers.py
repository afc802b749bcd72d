"""The broker that a suite runs against: ours, or the RabbitMQ that is installed here, to see what fails there, too."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import RABBITMQ
from tests.clients import brokers
from tests.running import RunningBroker, free_port


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

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/"


# With these certificates, and the management API at this port, or at any (None).
Start = Callable[[Certificates, int | None], contextlib.AbstractContextManager[Address]]


@contextlib.contextmanager
def rewindmq(certificates: Certificates, http_port: int | None) -> Iterator[Address]:
    """It has to end well."""
    home = Path(tempfile.mkdtemp(prefix="rewindmq-acceptance-"))
    port = free_port()
    there = () if http_port is None else ("--http-port", str(http_port))  # the later one counts
    broker = RunningBroker(
        home / "data", "--tls-port", str(port), "--tls-cert", str(certificates.certificate), "--tls-key",
        str(certificates.key), "--tls-ca", str(certificates.ca), "--tls-verify-peer", *there,
    )  # fmt: skip
    try:
        yield Address(broker.amqp_port, port)
    finally:
        code = broker.stop()
        shutil.rmtree(home)
    said = "".join(broker.errors)
    assert code == 0, said[-3000:]
    assert "Traceback" not in said, said[-3000:]


@contextlib.contextmanager
def rabbitmq(certificates: Certificates, http_port: int | None) -> Iterator[Address]:
    home = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
    port = free_port()
    settings = (
        f"listeners.ssl.default = 127.0.0.1:{port}\nssl_options.certfile = {certificates.certificate}\n"
        f"ssl_options.keyfile = {certificates.key}\nssl_options.cacertfile = {certificates.ca}\n"
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
    )
    if http_port is not None:
        settings += f"management.tcp.port = {http_port}\n"
    broker = brokers.start([str(RABBITMQ)], Path("/"), home, settings)
    try:
        yield Address(broker.port, port)
    finally:
        broker.stop()
        shutil.rmtree(home, ignore_errors=True)
