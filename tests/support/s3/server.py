"""A real S3 server (versitygw) on loopback, for tests and for trying things out.

    with S3Server(directory) as s3:
        s3.bucket("history")                     makes a bucket, which is a directory: s3.files("history")
        s3.environment                           endpoint and login, as AWS's own tools take them

    python -m tests.support.s3.server DIRECTORY --port 31900

Needs Go, which builds the server once into tests/support/s3/target (`make s3-server`). The server dies with the process
that started it.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.installed_once import installing
from tests.support.needs import found, needed, require
from tests.support.store_server import StoreServer

VERSION = "v1.8.0"
TARGET = Path(__file__).resolve().parent / "target"
BINARY = TARGET / "versitygw"
ACCESS_KEY, SECRET_KEY = "test-key", "test-secret-key"


def missing() -> str | None:
    """The program that has to be installed before a server can be started here; None: none."""
    if found("go") is None and not (TARGET / VERSION).exists():
        return "install Go (go is not on the path), which builds the S3 server that is tested with"
    return None


def require_s3() -> None:
    """Skip the tests where no S3 server can be started; fail in CI."""
    reason = missing()
    require(reason is None, str(reason))


def build() -> None:
    """Build the server, once for this checkout."""
    with installing(TARGET, VERSION) as missing:
        if missing:
            package = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
            environment = os.environ | {"GOBIN": str(TARGET), "GOFLAGS": "-mod=mod"}
            subprocess.run([needed("go"), "install", package], check=True, env=environment)


class S3Server(StoreServer):
    """The server over one directory; each folder in it is a bucket."""

    scheme = "s3"
    secrets = (SECRET_KEY,)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    @property
    def wrong_logins(self) -> tuple[dict[str, str], ...]:
        return {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"}, {"AWS_ACCESS_KEY_ID": "nobody"}

    def build(self) -> None:
        build()

    def command(self) -> tuple[list[str], dict[str, str]]:
        command = [str(BINARY), "--port", f"127.0.0.1:{self.port}", "posix", str(self.directory / "buckets")]
        return command, {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def bucket(self, name: str) -> str:
        self.files(name).mkdir()
        return f"s3://{name}"


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
