"""A broker as a child process on the loopback address, for `rewindmq try` and rewindmq.testing.

broker = ChildBroker(directory)
try:
    broker.await_ready()
    ...                        # broker.amqp_port, broker.client()
finally:
    broker.stop()
"""

import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError

LOOPBACK = "127.0.0.1"
OTHERS = range(29_000, 32_000)  # which systems give to no outgoing connection
SECONDS = 60.0  # to wait for an answer


def free_port(wanted: int | None = None) -> int:
    """Return this port of the loopback address, or another one if it is taken. CliError."""
    others = random.sample(OTHERS, 100)
    for port in others if wanted is None else (wanted, *others):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise CliError(UNAVAILABLE, f"there is no free port on {LOOPBACK}")


class ChildBroker:
    """A broker on a data directory. The ports are other ones if they are taken."""

    def __init__(self, data: Path, amqp_port: int | None = None, http_port: int | None = None) -> None:
        self.amqp_port, self.http_port = free_port(amqp_port), free_port(http_port)
        ports = ("--amqp-port", str(self.amqp_port), "--http-port", str(self.http_port))
        options = ("--data", str(data), "--host", LOOPBACK, "--log-level", "error")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rewindmq", "start", *options, *ports],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C at a terminal is for the parent, which then stops it
        )

    def await_ready(self) -> None:
        """Wait until clients may come. CliError: it did not start."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise CliError(
                UNAVAILABLE, f"the broker did not start (exit status {self._process.wait()}); its error is above"
            )

    def client(self) -> Client:
        """Return a client of the management API."""
        return Client(f"http://{LOOPBACK}:{self.http_port}", "guest", "guest", SECONDS)

    def wait(self) -> int:
        """Wait until it ends. Returns its exit status."""
        return self._process.wait()

    def stop(self) -> None:
        """End it cleanly."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()
