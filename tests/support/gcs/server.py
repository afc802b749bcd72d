"""A real server of Google Cloud Storage (fake-gcs-server) on loopback, for tests and for trying things out.

    with GcsServer(directory) as gcs:
        gcs.bucket("history")                    makes a bucket, which is a directory: gcs.files("history")
        gcs.environment                          endpoint and login

main.go says what is added to fake-gcs-server. Needs Go, which builds it once into tests/support/gcs/target
(`make gcs-server`).
"""

import hashlib
import os
import subprocess
from pathlib import Path

from tests.support.installed_once import installing
from tests.support.needs import needed
from tests.support.store_server import StoreServer

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
BINARY = TARGET / "gcs-server"
TOKEN = "test-bearer-token"


def require_gcs() -> None:
    """Skip the tests where the server cannot be built; fail in CI."""
    if not BINARY.exists():
        needed("go")


def build() -> None:
    """Build the server, once for each state of its source."""
    source = b"".join((HERE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    with installing(TARGET, hashlib.sha256(source).hexdigest()[:16]) as missing:
        if missing:
            environment = os.environ | {"GOFLAGS": "-mod=mod"}
            subprocess.run([needed("go"), "build", "-o", str(BINARY), "."], cwd=HERE, check=True, env=environment)


class GcsServer(StoreServer):
    """The server over one directory; each folder in it is a bucket."""

    scheme = "gs"
    secrets = (TOKEN,)

    @property
    def environment(self) -> dict[str, str]:
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_BEARER_TOKEN": TOKEN}

    @property
    def wrong_logins(self) -> tuple[dict[str, str], ...]:
        return ({"GOOGLE_BEARER_TOKEN": "a-wrong-secret"},)

    def build(self) -> None:
        build()

    def command(self) -> tuple[list[str], dict[str, str]]:
        command = [str(BINARY), "-address", f"127.0.0.1:{self.port}", "-root", str(self.directory / "buckets")]
        return command, {"TOKEN": TOKEN}

    def bucket(self, name: str) -> str:
        self.files(name).mkdir()
        return f"gs://{name}"


if __name__ == "__main__":
    build()
