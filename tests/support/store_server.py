"""A server of object storage on loopback, as a process that dies with the one that started it."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tests.support.ports import free_port
from tests.support.running import start_process

START_SECONDS = 120


class StoreServer(ABC):
    """The server over one directory.

    `scheme`: of its URLs. `secrets`: texts that must be in no output."""

    scheme: ClassVar[str]
    secrets: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[int] = signal.SIGKILL

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Endpoint and login, as the store's own tools take them."""

    @property
    @abstractmethod
    def wrong_logins(self) -> tuple[dict[str, str], ...]:
        """Changes of the environment that the server refuses."""

    @abstractmethod
    def build(self) -> None:
        """Build or install the server, once for this checkout."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """The command that serves the directory, and what its environment has besides."""

    @abstractmethod
    def bucket(self, name: str) -> str:
        """Make a bucket. Returns its URL."""

    def __enter__(self) -> Self:
        self.build()
        (self.directory / "buckets").mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or start it again, and wait until it answers."""
        assert self._process is None
        command, more = self.command()
        with (self.directory / "server.log").open("ab") as output:
            self._process = start_process(
                command, env=os.environ | more, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "server.log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            self._process.wait()
            self._process = None

    def files(self, name: str) -> Path:
        """The directory with a bucket's objects, of a server that keeps one object in one file."""
        return self.directory / "buckets" / name

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=1)
        except urllib.error.HTTPError:  # it wants a login
            return True
        except OSError:
            return False
        return True
