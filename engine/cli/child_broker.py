"""A broker as a child process on the loopback address, for `rewindmq try` and rewindmq.testing.

    broker = ChildBroker(directory)
    try:
        broker.start()
        ...                        # broker.amqp_port, broker.client()
    finally:
        broker.stop()

It has default settings: neither the configuration of this machine nor the environment counts. It ends with its parent.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from rewindmq import builds
from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError

LOOPBACK = "127.0.0.1"
OTHERS = range(29_000, 32_000)  # ports that systems give to no outgoing connection
SECONDS = 60.0  # to wait for an answer
STOP_SECONDS = 30.0
STARTS = 3  # a port may be taken between the choice of it and the start
OF_SERVICES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # what a manager of services tells its own service
PR_SET_PDEATHSIG = 1


def free_ports(*wanted: int) -> list[int]:
    """Return these ports of the loopback address, and another one for each that is taken. CliError."""
    chosen: list[int] = []
    with ExitStack() as held:
        for first in wanted:
            for port in (first, *random.sample(OTHERS, 100)):
                sock = held.enter_context(socket.socket())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind((LOOPBACK, port))
                    sock.listen(1)
                except OSError:
                    continue
                chosen.append(port)
                break
            else:
                raise CliError(UNAVAILABLE, f"there is no free port on {LOOPBACK}")
    return chosen


class ChildBroker:
    """A broker on a data directory. It has other ports than the wanted ones if these are taken."""

    def __init__(self, data: Path, amqp_port: int = 5672, http_port: int = 15672) -> None:
        self._data = data
        self._wanted = (amqp_port, http_port)
        self._process: subprocess.Popen[str] | None = None
        self.amqp_port, self.http_port = self._wanted

    def start(self) -> None:
        """Start it, and wait until clients may come. CliError: it did not start."""
        for attempt in range(1, STARTS + 1):
            self.amqp_port, self.http_port = free_ports(*self._wanted)
            ports = ("--amqp-port", str(self.amqp_port), "--http-port", str(self.http_port))
            options = ("--config", os.devnull, "--data", str(self._data), "--host", LOOPBACK, "--log-level", "error")
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rewindmq", "start", *options, *ports],  # -P: nothing of this directory
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
                start_new_session=True,  # Ctrl-C at a terminal is for the parent, which then stops it
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            assert process.stdout is not None
            if process.stdout.readline():
                return
            if process.wait() != UNAVAILABLE or attempt == STARTS:
                text = f"the broker did not start (exit status {process.returncode}); its error is above"
                raise CliError(UNAVAILABLE, text)

    def client(self) -> Client:
        """Return a client of the management API."""
        return Client(f"http://{LOOPBACK}:{self.http_port}", "guest", "guest", SECONDS)

    def wait(self) -> int:
        """Wait until it ends. Returns its exit status."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """End it cleanly, if it was started."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _environment() -> dict[str, str]:
    ours = {name for name in os.environ if name.startswith("REWINDMQ_")} - {builds.SWITCH}
    return {name: value for name, value in os.environ.items() if name not in ours and name not in OF_SERVICES}


_libc = ctypes.CDLL(None)  # loaded here: between fork and exec a process loads nothing


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
