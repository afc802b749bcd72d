"""A real server of Azure Blob Storage (Azurite) on loopback, for tests and for trying things out.

    with AzureServer(directory) as azure:
        azure.bucket("history")                  makes a container
        azure.environment                        endpoint and login

Needs npm and Node.js, which install Azurite once into tests/support/azure/target (`make azure-server`).
"""

import base64
import hashlib
import hmac
import signal
import urllib.request
from email.utils import formatdate
from pathlib import Path

from tests.support.installed_once import install_from_npm
from tests.support.needs import needed
from tests.support.store_server import StoreServer

VERSION = "3.35.0"
TARGET = Path(__file__).resolve().parent / "target"
PROGRAM = TARGET / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "testaccount"
KEY = base64.b64encode(b"the key of an account for tests, which no server else knows").decode()
WRONG_KEY = base64.b64encode(b"a wrong key").decode()


def require_azure() -> None:
    """Skip the tests where the server cannot be installed; fail in CI."""
    needed("npm")
    needed("node")


def build() -> None:
    """Install the server, once for this checkout."""
    install_from_npm(TARGET, "azurite", VERSION)


class AzureServer(StoreServer):
    """The server over one directory. It keeps blobs in its own way, so `files` has none of them."""

    scheme = "az"
    secrets = (KEY,)
    stop_signal = signal.SIGTERM  # killed, it forgets what it has confirmed in the last five seconds

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.endpoint}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    @property
    def wrong_logins(self) -> tuple[dict[str, str], ...]:
        return {"AZURE_STORAGE_ACCOUNT_KEY": WRONG_KEY}, {"AZURE_STORAGE_ACCOUNT_NAME": "nobody"}

    def build(self) -> None:
        build()

    def command(self) -> tuple[list[str], dict[str, str]]:
        where = ("--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.directory / "buckets"))
        quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        return [needed("node"), str(PROGRAM), *where, *quiet], {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}

    def bucket(self, name: str) -> str:
        """Make a container, by a signed request: obstore makes none. Returns its URL."""
        said = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        canonical = "".join(f"{header}:{value}\n" for header, value in sorted(said.items()))
        signed = "PUT\n" + "\n" * 11 + canonical + f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        proof = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        request = urllib.request.Request(
            f"{self.endpoint}/{ACCOUNT}/{name}?restype=container",
            method="PUT",
            headers=said | {"Authorization": f"SharedKey {ACCOUNT}:{proof}"},
        )
        urllib.request.urlopen(request, timeout=10).close()
        return f"az://{name}"


if __name__ == "__main__":
    build()
