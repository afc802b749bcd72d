"""A real S3 server (versitygw) on loopback, for tests and for trying things out.

    with S3Server(directory) as s3:
        s3.bucket("history")                     makes a bucket, which is a directory: s3.files("history")
        s3.environment                           endpoint and login, as AWS's own tools take them

    python -m tests.support.s3.server DIRECTORY --port 31900

Needs Go, which builds the server once into tests/support/s3/target (`make s3-server`). The server dies with the process
that started it.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from tests.support.needs import require
from tests.support.ports import free_port
from tests.support.running import start_process

VERSION = "v1.8.0"
TARGET = Path(__file__).resolve().parent / "target"
BINARY = TARGET / "versitygw"
START_SECONDS = 30
ACCESS_KEY, SECRET_KEY = "test-key", "test-secret-key"


def missing() -> str | None:
    """The program that has to be installed before a server can be started here; None: none."""
    if shutil.which("go") is None and not (TARGET / VERSION).exists():
        return "install Go (go is not on the path), which builds the S3 server that is tested with"
    return None


def require_s3() -> None:
    """Skip the tests where no S3 server can be started; fail in CI."""
    reason = missing()
    require(reason is None, str(reason))


def build() -> None:
    """Build the server, once for this checkout, also when several test runs begin at the same time."""
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (TARGET / VERSION).exists():
            package = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
            environment = os.environ | {"GOBIN": str(TARGET), "GOFLAGS": "-mod=mod"}
            subprocess.run(["go", "install", package], check=True, env=environment)
            (TARGET / VERSION).touch()


class S3Server:
    """The server over one directory; each folder in it is a bucket."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def __enter__(self) -> Self:
        build()
        (self.directory / "buckets").mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or start it again, and wait until it answers."""
        assert self._process is None
        command = [str(BINARY), "--port", f"127.0.0.1:{self.port}", "posix", str(self.directory / "buckets")]
        login = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with (self.directory / "server.log").open("ab") as output:
            self._process = start_process(
                command, env=os.environ | login, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "server.log").read_text()
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def bucket(self, name: str) -> str:
        """Make a bucket. Returns its URL."""
        self.files(name).mkdir()
        return f"s3://{name}"

    def files(self, name: str) -> Path:
        """The directory with a bucket's objects."""
        return self.directory / "buckets" / name

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=1)
        except urllib.error.HTTPError:  # it wants a login
            return True
        except OSError:
            return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description="An S3 server on loopback, until it is interrupted.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=31_900)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with S3Server(options.directory.resolve(), options.port) as server:
        print("\n".join(f"export {name}={value}" for name, value in server.environment.items()), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
