"""The management API over TLS: with the certificate of the AMQP listener; plain HTTP only where it is asked for."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.cli.main import run
from rewindmq.engine.config import Config
from rewindmq.engine.process import Failure, _listen_http
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker, start_process

GUEST = ("guest", "guest")


class Tls:
    """A CA, a certificate that it gave the broker, and a broker that has the management API over TLS only."""

    def __init__(self, home: Path) -> None:
        authority = Authority(home)
        self.ca = authority.certificate
        server = authority.issue("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
        self.options = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
        self.port, self.metrics_port = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        self.process = start_process(
            [
                sys.executable,
                "-m",
                "rewindmq.engine",
                "--data",
                str(home / "data"),
                "--amqp-port",
                str(free_port()),
                "--https-port",
                str(self.port),
                "--prometheus-port",
                str(self.metrics_port),
                *self.options,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    made = Tls(tmp_path_factory.mktemp("https"))
    yield made
    made.process.terminate()
    errors = made.process.communicate(timeout=30)[1]
    assert (made.process.returncode, "Traceback" in errors) == (0, False), errors


def test_requests_over_tls(tls: Tls) -> None:
    with httpx2.Client(base_url=f"{tls.url}/api", auth=GUEST, verify=ssl.create_default_context(cafile=tls.ca)) as api:
        assert api.put("/queues/%2F/q", json={"durable": True}).status_code == 201
        listeners = {each["protocol"]: each["port"] for each in api.get("/overview").json()["listeners"]}
        assert listeners["https"] == tls.port
        assert "http" not in listeners, "plain HTTP was not asked for"
        expiring = api.get("/health/checks/certificate-expiration/1/months").json()["expired"]
        assert {(each["protocol"], each["port"]) for each in expiring} == {("https", tls.port)}
    assert f", https 127.0.0.1:{tls.port}, " in tls.ready_line
    assert f", http/prometheus 127.0.0.1:{tls.metrics_port}, " in tls.ready_line


def test_b30_the_cookie_of_a_login_over_tls_goes_nowhere_else(tls: Tls) -> None:
    with httpx2.Client(base_url=f"{tls.url}/api", verify=ssl.create_default_context(cafile=tls.ca)) as browser:
        answer = browser.post("/login", json={"username": "guest", "password": "guest"})
        assert answer.status_code == 204
        assert "secure" in {word.strip().lower() for word in answer.headers["set-cookie"].split(";")}
        assert browser.get("/whoami").json()["name"] == "guest"


def test_the_port_of_the_metrics_stays_plain(tls: Tls) -> None:
    assert httpx2.get(f"http://127.0.0.1:{tls.metrics_port}/metrics").status_code == 200
    assert httpx2.get(f"http://127.0.0.1:{tls.metrics_port}/api/overview", auth=GUEST).status_code == 404


def test_who_does_not_trust_the_certificate_asks_nothing(tls: Tls) -> None:
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(f"{tls.url}/api/overview", auth=GUEST)
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"http://localhost:{tls.port}/api/overview", auth=GUEST)


def test_the_command_line_over_tls(
    tls: Tls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["status", "--url", tls.url, "--tls-ca-cert-file", str(tls.ca)]) == 0
    shown = capsys.readouterr().out
    assert f"port: {tls.port}, protocol: https, purpose: HTTP API over TLS (HTTPS)\n" in shown
    assert run(["ping", "--url", tls.url]) == 69
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    monkeypatch.setenv("REWINDMQ_TLS_CA", str(tls.ca))
    assert run(["ping", "--url", tls.url]) == 0
    (tmp_path / "empty").touch()
    assert run(["ping", "--url", tls.url, "--tls-ca-cert-file", str(tmp_path / "empty")]) == 64
    assert "no certificates to trust" in capsys.readouterr().err


def test_plain_http_beside_it(tls: Tls, tmp_path: Path) -> None:
    port = free_port()
    broker = RunningBroker(tmp_path / "data", "--https-port", str(port), *tls.options)
    try:
        assert httpx2.get(f"{broker.http_url}/api/whoami", auth=GUEST).status_code == 200
        trusting = ssl.create_default_context(cafile=tls.ca)
        assert httpx2.get(f"https://localhost:{port}/api/whoami", auth=GUEST, verify=trusting).status_code == 200
    finally:
        assert broker.stop() == 0


@pytest.mark.parametrize("option", ["--https-port", "--prometheus-port"])
def test_a_port_that_is_taken_is_named(tls: Tls, tmp_path: Path, option: str) -> None:
    protocol = {"--https-port": "https", "--prometheus-port": "http/prometheus"}[option]
    options = tls.options if option == "--https-port" else ()
    taken = f"ended with 69: rewindmq: {protocol} 127.0.0.1:{tls.port}: Address already in use"
    with pytest.raises(AssertionError, match=taken):
        RunningBroker(tmp_path / "data", option, str(tls.port), *options)


def test_it_needs_a_certificate_and_asks_for_none(tls: Tls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["start", "--data", str(tmp_path / "data"), "--https-port", "1"]
    assert run(start) == 64
    assert "--tls-port and --https-port need --tls-cert and --tls-key" in capsys.readouterr().err
    assert run([*start, *tls.options, "--tls-ca", str(tls.ca)]) == 64
    assert "the management API asks for no certificate" in capsys.readouterr().err


def test_a_port_for_https_without_a_certificate_is_never_served_plain(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="https needs a certificate"):
        _listen_http(Config(tmp_path, http_port=None, https_port=free_port()), [])
