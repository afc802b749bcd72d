"""Steps of tests of erasure: commands in this process, readers of the past, and the files that have a text."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rewindmq.engine.cli import main
from tests.support.running import RunningBroker


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """The command line, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main.run(list(arguments))
    return Done(code, out.getvalue(), errors.getvalue())


def cli(broker: RunningBroker, *arguments: str) -> Done:
    return run("--url", broker.http_url, *arguments)


def files_with(marker: bytes, *directories: Path) -> list[str]:
    """Return the files that contain a text."""
    return [
        str(path)
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and marker in path.read_bytes()
    ]


def read(channel: Any, queue: str, count: int, **arguments: object) -> list[tuple[bytes, dict[str, object]]]:
    """By a consumer that reads: a stream, or the past."""
    channel.basic_qos(prefetch_count=100)
    got: list[tuple[bytes, dict[str, object]]] = []
    for method, properties, body in channel.consume(queue, arguments=arguments, inactivity_timeout=10):
        assert method is not None, f"only {got}"
        channel.basic_ack(method.delivery_tag)
        got.append((body, {key: value for key, value in properties.headers.items() if key != "x-stream-offset"}))
        if len(got) == count:
            break
    channel.cancel()
    return got


def seal(data: Path) -> None:
    """Seal the current content of the log with a new key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (data.parent / "seal.key").write_bytes(private)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (data.parent / "seal.pub").write_bytes(public)
    done = run("seal", "--data", str(data), "--key", str(data.parent / "seal.key"))
    assert done.returncode == 0, done.stderr


def end_of(client: httpx2.Client, queue: str) -> int:
    """Return the durable end of a queue's partition."""
    partition = client.get(f"/queues/%2F/{queue}").json()["partition"]
    (log,) = [each for each in client.get("/overview").json()["log"] if each["partition"] == partition]
    return int(log["durable_offset"])
