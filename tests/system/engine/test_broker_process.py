"""The broker as a process: what it says when it is ready, clean stop, one line and an exit code for what prevents a
start."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rewindmq
from rewindmq import builds
from rewindmq.engine.cli.main import run as command_line
from rewindmq.engine.config import Config, bracketed
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.replay import recover
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.values import BROKER
from tests.support.next_version import NEXT, know_next
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


class Process:
    def __init__(self, data: Path, amqp_port: int | None = None, http_port: int | None = None) -> None:
        self.data = data
        self.amqp_port, self.http_port = amqp_port or free_port(), http_port or free_port()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rewindmq.engine",
                "--data",
                str(data),
                "--amqp-port",
                str(self.amqp_port),
                "--http-port",
                str(self.http_port),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def name(self) -> str:
        """Its name and its id, as the system has them."""
        return f"{Path(f'/proc/{self.process.pid}/comm').read_text().strip()} (process {self.process.pid})"

    def ready(self) -> str:
        line = self.line()
        assert line, self.process.communicate()[1]
        return line

    def line(self) -> str:
        """The next line on its stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def get(self, path: str) -> Any:
        return json.loads(self.ask("GET", path))

    def ask(self, method: str, path: str, content: object = None) -> bytes:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/api{path}", body, method=method)
        request.add_header("authorization", "Basic " + b64encode(b"guest:guest").decode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            answered: bytes = answer.read()
            return answered

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors

    def failed(self) -> tuple[int, list[str]]:
        output, errors = self.process.communicate(timeout=30)
        assert output == ""
        return self.process.returncode, errors.splitlines()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "data")
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_and_clean_stop(running: Process, number: signal.Signals) -> None:
    line = running.ready()
    where = ", ".join(
        f"{protocol} {bracketed(address)}:{port}"
        for protocol, port in (("amqp", running.amqp_port), ("http", running.http_port))
        for address in Config(running.data).addresses
    )
    ready = f"RewindMQ {rewindmq.__version__} is ready: {where}"
    assert line == f"{ready}, data {running.data}, {builds.running().kind} build\n"
    assert running.line() == f"The desk is at http://localhost:{running.http_port}/, user guest, password guest\n"
    assert running.get("/whoami")["name"] == "guest"
    with socket.create_connection(("127.0.0.1", running.amqp_port)) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert client.recv(4096)[:1] == b"\x01"
    running.ask("PUT", "/users/guest", {"password": "another", "tags": "administrator"})
    code, errors = running.end(number)
    assert (code, "Traceback" in errors) == (0, False), errors
    again = Process(running.data)
    again.ready()
    assert again.line() == f"The desk is at http://localhost:{again.http_port}/\n", "it told a password"
    assert again.end()[0] == 0


@pytest.mark.long
def test_what_prevents_a_start_is_one_line_and_an_exit_code(running: Process, tmp_path: Path) -> None:
    running.ready()
    code, lines = Process(running.data).failed()
    assert (code, len(lines)) == (69, 1)
    assert "in use by another broker" in lines[0]
    code, lines = Process(tmp_path / "other", amqp_port=running.amqp_port).failed()
    by = f"Address already in use, by {running.name}: stop it, or give"
    assert (code, lines) == (69, [f"rewindmq: amqp 127.0.0.1:{running.amqp_port}: {by} --amqp-port another number"])
    code, lines = Process(tmp_path / "other", http_port=running.http_port).failed()
    assert (code, lines) == (69, [f"rewindmq: http 127.0.0.1:{running.http_port}: {by} --http-port another number"])
    (tmp_path / "file").write_text("not a directory")
    code, lines = Process(tmp_path / "file" / "below").failed()
    assert (code, len(lines)) == (78, 1)


@pytest.mark.parametrize("name", ["log", "state", "snapshots"])
def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a backup that went wrong")
    code, lines = Process(tmp_path).failed()
    said = f"rewindmq: {tmp_path / name}: not a directory: move it away, and start again"
    assert (code, lines) == (78, [said])
    assert (tmp_path / name).read_text() == "a backup that went wrong"


def test_damaged_data_is_65_with_file_and_offset(running: Process) -> None:
    running.ready()
    assert running.end()[0] == 0
    segment = sorted((running.data / "log" / "metadata-0").glob("*.avro"))[0]
    content = bytearray(segment.read_bytes())
    block = next(EmbeddedLogReader(running.data).metadata.read())
    content[block.position + 10] ^= 0xFF
    segment.write_bytes(content)
    code, lines = Process(running.data).failed()
    assert (code, len(lines)) == (65, 1)
    assert str(segment) in lines[0]
    assert "offset 0" in lines[0]


@pytest.mark.long
def test_a_history_of_a_newer_version_is_78_and_who_reads_it_says_so_too(
    running: Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running.ready()
    assert running.end()[0] == 0
    log = EmbeddedLog.open(running.data, None, 1 << 20)
    encoder = Encoder()
    log.queues[1].append(1, encoder.encode(encoder.prefix(1, BROKER), MachineUpgraded(NEXT)))
    log.commit_and_wait()
    log.close()
    line = f"queues-1 goes on from offset {log.queues[1].next_offset - 1} under machine version {NEXT}"
    code, lines = Process(running.data).failed()
    assert (code, len(lines)) == (78, 1), lines
    assert lines[0].startswith(f"rewindmq: {line}")
    command = [sys.executable, "-m", "spark_replay", "audit", "--data", str(running.data)]
    audit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (audit.returncode, audit.stderr.count("\n")) == (65, 1), audit.stderr
    assert line in audit.stderr
    with monkeypatch.context() as newer:
        know_next(newer)
        store = StateStore.open(running.data / "state")
        projector = recover(EmbeddedLogReader(running.data).queues[1], store).projector
        projector.write(projector.prepare())
        store.close()
    assert command_line(["verify", "--data", str(running.data)]) == 65
    errors = capfd.readouterr().err
    assert errors.startswith(f"Error: {line}")
    assert errors.count("\n") == 1
