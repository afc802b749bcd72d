"""A real witness on loopback, for tests: litewitness, which cosigns checkpoints of C2SP.

    with WitnessProcess(directory) as witness:
        witness.add(verifier_key)          it knows a register from now on
        witness.url, witness.key           its address, and its key as the witness itself shows it

Go builds litewitness once into tests/support/witness/target (`make witness`). Its key is in an ssh-agent of its own.
Both die with the process that started them.
"""

import base64
import hashlib
import os
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Self

from tests.support.deadlines import until
from tests.support.installed_once import installing
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import start_process

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
BINARY = TARGET / "litewitness"
NAME = "witness.example/w1"
NOTHING = base64.b64encode(hashlib.sha256(b"").digest()).decode()  # the root of an empty tree


def require_witness() -> None:
    """Skip the tests where no witness can be built or run; fail in CI."""
    if not BINARY.exists():
        needed("go")
    needed("ssh-agent")


def build() -> None:
    """Build the witness, once for this checkout."""
    with installing(TARGET, "built") as missing:
        if missing:
            environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false"}
            package = "filippo.io/torchwood/cmd/litewitness"
            command = [needed("go"), "build", "-ldflags", "-s -w", "-o", str(BINARY), package]
            subprocess.run(command, check=True, env=environment, cwd=HERE)


class WitnessProcess:
    """The witness, with its database and its output in a directory."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._agent_socket = directory / "agent"
        self._database = directory / "witness.db"
        self._output = directory / "witness.log"

    def __enter__(self) -> Self:
        build()
        secret = self._directory / "key"
        subprocess.run([needed("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(secret)], check=True)
        shown = subprocess.run(
            [needed("ssh-keygen"), "-l", "-f", str(secret)], check=True, capture_output=True, text=True
        )
        self._agent = start_process(
            [needed("ssh-agent"), "-D", "-a", str(self._agent_socket)], stdout=subprocess.DEVNULL
        )
        until(self._agent_socket.exists, "ssh-agent does not answer")
        environment = os.environ | {"SSH_AUTH_SOCK": str(self._agent_socket)}
        subprocess.run([needed("ssh-add"), "-q", str(secret)], check=True, env=environment)
        self._start(shown.stdout.split()[1])
        return self

    def _start(self, fingerprint: str) -> None:
        options = {"name": NAME, "db": self._database, "ssh-agent": self._agent_socket, "key": fingerprint}
        command = [str(BINARY), "-listen", f"127.0.0.1:{self.port}", *(f"-{k}={v}" for k, v in options.items())]
        with self._output.open("wb") as output:
            self._process = start_process(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(self._is_there, "the witness does not answer")

    def __exit__(self, *_: object) -> None:
        for process in (self._process, self._agent):
            process.kill()
            process.wait()

    @property
    def key(self) -> str:
        found = re.search(r"vkey=\"?([^\s\"]+)", self.printed())
        assert found is not None, self.printed()
        return found[1]

    def printed(self) -> str:
        return self._output.read_text()

    def add(self, verifier_key: str) -> None:
        """Let the witness know a register. The project's own program for that needs a package that is not published."""
        origin = verifier_key.partition("+")[0]
        with closing(sqlite3.connect(self._database)) as database, database:
            database.execute("INSERT OR IGNORE INTO log VALUES (?, 0, ?)", (origin, NOTHING))
            database.execute("INSERT INTO key (origin, key) VALUES (?, ?)", (origin, verifier_key))

    def _is_there(self) -> bool:
        assert self._process.poll() is None, self.printed()
        return "listening" in self.printed()
