"""A real OpenID provider (the npm package oidc-provider) on loopback, for tests and for trying things out.

    with OpenIdProvider(redirect) as provider:        `redirect`: the desk's address, as the provider knows it
        provider.issuer

Needs npm and Node.js, which install the package once into tests/support/openid/target (`make openid-provider`).
"""

import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.installed_once import install_from_npm
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import start_process

VERSION = "9.13.3"
HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
CLIENT = "desk"
BRIEF, SECRET = "brief", "a secret of services"  # the login of a service whose tokens are valid for BRIEF_SECONDS
BRIEF_SECONDS = 8
SCOPES = "openid rabbitmq.tag:administrator rabbitmq.configure:*/* rabbitmq.read:*/* rabbitmq.write:*/*"


def require_openid() -> None:
    """Skip the tests where the provider cannot be installed; fail in CI."""
    needed("npm")
    needed("node")


def build() -> None:
    """Install the provider, once for this checkout."""
    install_from_npm(TARGET, "oidc-provider", VERSION)


class OpenIdProvider:
    """The provider. Its host, localhost, is another site than the desk's, 127.0.0.1."""

    def __init__(self, redirect: str) -> None:
        self.port = free_port()
        self.issuer = f"http://localhost:{self.port}"
        self._redirect = redirect
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        build()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, or start it again; then it knows no sign-in of before."""
        command = [needed("node"), str(HERE / "provider.mjs"), str(self.port), self.issuer, CLIENT, self._redirect]
        command += [BRIEF, SECRET, str(BRIEF_SECONDS)]
        self._process = start_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the provider did not start"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


if __name__ == "__main__":
    build()
