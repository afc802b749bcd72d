"""A configuration file of a broker process (B-48): its start, SIGHUP, and what a manager of services is told."""

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.exceptions import ProbableAuthenticationError

from rewindmq.engine.cli.main import run
from tests.support.certificates import Authority, Pair
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

SECONDS = 20


class Configured(RunningBroker):
    """A broker with a configuration file, certificates and a manager of services."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        self.authority = Authority(home)
        self.tls_port, self.https_port = free_port(), free_port()
        self.file = home / "rewindmq.toml"
        self.show_certificate("first")
        self.settings: dict[str, Any] = {
            "tls_port": self.tls_port,
            "https_port": self.https_port,
            "tls_cert": "server.pem",
            "tls_key": "server.key",
            "default_user": "operator",
            "default_pass_file": "pass",
            **settings,
        }
        (home / "pass").write_text("geheim\n")
        self.write()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(home / "notify"))
        self.manager.settimeout(SECONDS)
        super().__init__(home / "data", "--config", str(self.file))

    def command(self, command: list[str]) -> list[str]:
        return ["env", f"NOTIFY_SOCKET={self.home / 'notify'}", *command]

    def write(self, **settings: Any) -> None:
        """Write the file, with changed settings."""
        self.settings |= settings
        self.file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in self.settings.items()))

    def show_certificate(self, name: str) -> Pair:
        """Put another certificate into the place that the file names."""
        made = self.authority.issue(name, f"/CN={name}", "IP:127.0.0.1,DNS:localhost")
        shutil.copy(made.certificate, self.home / "server.pem")
        shutil.copy(made.key, self.home / "server.key")
        return made

    def shown(self, port: int) -> str:
        """The name in the certificate that a new connection is shown."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as tls,
        ):
            certificate: Any = tls.getpeercert()
            return str(certificate["subject"][0][0][1])

    def told(self) -> str:
        return self.manager.recv(10_000).decode()

    def reload(self) -> list[str]:
        """Send SIGHUP, wait until the broker is ready again, and return what it logged."""
        before = len(self.errors)
        self.process.send_signal(signal.SIGHUP)
        assert self.told().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert self.told().startswith("READY=1\nSTATUS=running")
        until(lambda: any("read again" in line for line in self.errors[before:]))
        time.sleep(0.2)  # the line of what needs a restart follows
        return self.errors[before:]

    def connect(self, user: str = "operator", password: str = "geheim") -> pika.BlockingConnection:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.tls_port,
                credentials=pika.PlainCredentials(user, password),
                ssl_options=pika.SSLOptions(context, "localhost"),
            )
        )

    def get(self, path: str, user: str = "operator", password: str = "geheim") -> Any:
        return httpx2.get(f"{self.http_url}/api/{path}", auth=(user, password)).json()


def until(fine: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not fine():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Configured]:
    made = Configured(tmp_path)
    try:
        yield made
    finally:
        code = made.stop()
        made.manager.close()
    assert code == 0
    assert "Traceback" not in "".join(made.errors), "".join(made.errors)


def test_b48_a_broker_starts_from_a_file_and_tells_its_manager(broker: Configured) -> None:
    assert broker.told() == f"STATUS=opening {broker.data}"
    assert broker.told().startswith("READY=1\nSTATUS=running: amqp 127.0.0.1:")
    assert broker.get("whoami")["name"] == "operator"
    assert "error" in broker.get("whoami", "guest", "guest")
    broker.connect().close()
    assert broker.stop() == 0
    assert broker.told().startswith("STOPPING=1")


def test_b48_certificates_are_renewed_and_connections_stay(broker: Configured) -> None:
    broker.told(), broker.told()
    connection = broker.connect()
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    with httpx2.Client(
        base_url=f"https://127.0.0.1:{broker.https_port}",
        verify=ssl.create_default_context(cafile=str(broker.authority.certificate)),
        auth=("operator", "geheim"),
    ) as api:
        assert api.get("/api/whoami").status_code == 200
        ports = (broker.tls_port, broker.https_port)
        assert [broker.shown(port) for port in ports] == ["first", "first"]
        broker.show_certificate("second")
        [line] = broker.reload()
        assert "taken over: certificates" in line
        assert [broker.shown(port) for port in ports] == ["second", "second"]
        channel.basic_publish("", "q", b"still here")
        assert channel.queue_declare("q", passive=True).method.message_count == 1
        assert api.get("/api/whoami").status_code == 200
    (broker.home / "server.pem").write_text("nonsense")
    [line] = broker.reload()
    assert "[error] the configuration was read again and is bad; all stays as it was: " in line
    assert [broker.shown(port) for port in ports] == ["second", "second"]
    connection.close()


def test_b48_limits_log_level_and_users_are_taken_over(broker: Configured) -> None:
    broker.told(), broker.told()
    definitions = broker.home / "users.json"
    definitions.write_text(json.dumps({"users": [{"name": "ann", "password": "one", "tags": ["monitoring"]}]}))
    broker.write(
        disk_free_limit="123MB",
        vm_memory_high_watermark="3GB",
        loopback_users=["guest", "ann"],
        load_definitions="users.json",
        consumer_timeout=60_000,
        log_level="warning",
        node="another",
    )
    lines = broker.reload()
    said = "".join(lines)
    assert "changed, but in force after a restart only: node = another" in said
    assert f"({broker.file}:" in said
    node = broker.get("nodes")[0]
    assert (node["disk_free_limit"], node["mem_limit"]) == (123_000_000, 3_000_000_000)
    assert node["name"] == "rewindmq@localhost"
    assert broker.get("whoami", "ann", "one")["name"] == "ann"
    before = len(broker.errors)
    broker.connect().close()
    time.sleep(0.3)
    assert broker.errors[before:] == [], "the level is warning: a login is no line"
    broker.write(log_level="info", disk_free_limit="124MB")
    assert "taken over: " not in "".join(broker.errors[before:])
    said = "".join(broker.reload())
    assert "disk_free_limit = 124MB" in said
    assert "log_level = info" in said
    assert "node = another" in said, "it waits still"
    assert broker.get("nodes")[0]["disk_free_limit"] == 124_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp_prot = 1\n", "rewindmq.toml:1: 'amqp_prot' is not a setting of RewindMQ; do you mean amqp_port?"),
        ("log_level = 'error'\ndisk_free_limit = 'x'\n", "rewindmq.toml:2: disk_free_limit: 'x' is not a size"),
        ("log_level = 'error'\nkeep_local = '7d'\n", "--keep-local needs --archive"),
    ],
)
def test_b48_a_bad_file_changes_nothing(broker: Configured, text: str, said: str) -> None:
    broker.told(), broker.told()
    broker.file.write_text(text)
    [line] = broker.reload()
    assert said in line
    broker.file.write_text("log_level = 'error'\nload_definitions = 'users.json'\n")
    (broker.home / "users.json").write_text('{"users": [{"name": 1}]}')
    [line] = broker.reload()
    assert "definitions: " in line
    before = len(broker.errors)
    broker.connect().close()
    until(lambda: any("connected to vhost" in line for line in broker.errors[before:]))
    broker.file.unlink()
    assert "rewindmq.toml: No such file or directory" in broker.reload()[0]


def test_b48_a_limit_that_was_set_by_hand_stays(broker: Configured) -> None:
    broker.told(), broker.told()
    login = ("--http-port", str(broker.http_port), "--user", "operator", "--password-file", str(broker.home / "pass"))
    assert run(["set_disk_free_limit", "77MB", *login]) == 0
    broker.write(loopback_users=["operator"])
    broker.reload()
    assert broker.get("nodes")[0]["disk_free_limit"] == 77_000_000


def test_b48_a_user_is_restricted_from_the_next_login_on(tmp_path: Path) -> None:
    """The users of the loopback address are those of the file; the past of a login does not matter."""
    made = Configured(tmp_path, loopback_users=[])
    try:
        made.told(), made.told()
        with pytest.raises(ProbableAuthenticationError):
            made.connect("operator", "wrong")
        assert made.get("whoami")["name"] == "operator"
    finally:
        assert made.stop() == 0
        made.manager.close()


def test_b48_a_json_log_is_one_object_a_line(tmp_path: Path) -> None:
    made = RunningBroker(tmp_path / "data", "--log-format", "json", "--keep-history", "400d")
    try:
        pika.BlockingConnection(pika.URLParameters(made.amqp_url)).close()
        until(lambda: any("connected to vhost" in line for line in made.errors))
    finally:
        assert made.stop() == 0
    lines = [json.loads(line) for line in made.errors]
    assert {"time", "level", "logger", "message"} <= lines[0].keys()
    assert all(line["logger"].startswith("rewindmq") for line in lines)
    command = [sys.executable, "-m", "rewindmq.engine", "--data", str(tmp_path / "data"), "--log-format", "json"]
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        ended = subprocess.run(
            [*command, "--amqp-port", str(port)], cwd=ROOT, capture_output=True, text=True, env=os.environ
        )
    assert ended.returncode == 69
    [line] = ended.stderr.splitlines()
    assert json.loads(line)["message"].startswith(f"amqp 127.0.0.1:{port}: Address already in use, by ")


def test_b48_a_terminal_that_is_closed_stops_the_broker(tmp_path: Path) -> None:
    """A SIGHUP while it is open is a reload."""
    ours, theirs = pty.openpty()
    ports = ("--amqp-port", str(free_port()), "--http-port", str(free_port()))
    process = subprocess.Popen(
        [sys.executable, "-m", "rewindmq.engine", "--data", str(tmp_path / "data"), *ports],
        cwd=ROOT,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stderr is not None
        assert "is ready" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert "the configuration was read again; taken over: nothing new" in process.stderr.readline()
        os.close(ours)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_b48_a_wrong_configuration_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rewindmq.toml"
    file.write_text("data = 'data'\namqp_prot = 1\n")
    command = [sys.executable, "-m", "rewindmq.engine", "--config", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (78, "")
    said = "'amqp_prot' is not a setting of RewindMQ; do you mean amqp_port?"
    assert ended.stderr == f"Error: {file}:2: {said}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rewindmq.toml"]
