"""Brokers under measurement: each started as plain processes in a directory of its own, with its CPU time and memory.

    with rabbitmq(tmp) as broker:  ...broker.port, broker.cpu_seconds(), broker.rss_bytes()

CPU seconds are those of the broker's whole process tree, user and system, from the kernel's accounting.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.running import start_process

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that is free now, below the ephemeral range, so that nobody takes it meanwhile, and none of
    those that other tests take (tests/support/running.py)."""
    for port in range(24000 + os.getpid() % 5000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


@dataclass
class Broker:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    data: Path
    http_port: int = 0

    def _tree(self) -> list[int]:
        pids, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            pids.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    todo += [int(child) for child in task.read_text().split()]
        return pids

    def cpu_seconds(self) -> float:
        """User + system time of the tree's living processes so far."""
        ticks = 0
        for pid in self._tree():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def rss_bytes(self) -> int:
        total = 0
        for pid in self._tree():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the broker with all its processes: RabbitMQ's script begins an Erlang machine that outlives it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_for_amqp(port: int, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Until the broker answers the protocol header with connection.start."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(b"AMQP\0\0\x09\x01")
            sock.settimeout(2)
            if sock.recv(7)[:1] == b"\x01":
                return
        time.sleep(0.05)
    raise RuntimeError(f"no AMQP answer on port {port}")


def started(
    name: str,
    command: list[str],
    port: int,
    home: Path,
    http_port: int = 0,
    env: dict[str, str] | None = None,
    seconds: float = 60,
) -> Broker:
    """Start a broker in a process group of its own, with its output in `home`/out. RuntimeError: it does not answer in
    this time; none of its processes is left then.

    No session of its own: Linux shares the CPU out by sessions (autogroup). A broker alone in one is run at once when
    it wakes, meets smaller batches, and takes 7 % more CPU a message."""
    with open(home / "out", "ab") as out:
        process = start_process(command, env=env, cwd=home, stdout=out, stderr=subprocess.STDOUT, process_group=0)
    broker = Broker(name, port, process, home, http_port)
    try:
        wait_for_amqp(port, process, seconds)
    except BaseException:
        broker.kill()
        print((home / "out").read_text(errors="replace")[-3000:])
        raise
    return broker


def start_rabbitmq(home: Path) -> Broker:
    """Debian's RabbitMQ in `home`, its defaults, without plugins."""
    if not RABBITMQ.exists():
        raise RuntimeError("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    dist = port + 1000 if port + 1000 < 32768 else port - 1000
    node = f"bench{zlib.crc32(str(home).encode())}@localhost"  # the same after a restart, which may change ports
    (home / "plugins").write_text("[].\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
    }
    return started("RabbitMQ " + rabbitmq_version(), [str(RABBITMQ)], port, home, env=env)


def rabbitmq_version() -> str:
    answer = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"], capture_output=True, text=True)
    return answer.stdout.split("-")[0]


def start_rewindmq(home: Path, *options: str) -> Broker:
    """`rewindmq start` with its defaults and `options`."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    http_port = port + 1
    command = Path(sys.executable).with_name("rewindmq")
    ports = ["--amqp-port", str(port), "--http-port", str(http_port)]
    start = [str(command), "start", "--data", str((home / "data").absolute()), *ports, *options]
    return started("RewindMQ", start, port, home, http_port)


STARTERS = {"rabbitmq": start_rabbitmq, "rewindmq": start_rewindmq}


@contextlib.contextmanager
def running(which: str, home: Path) -> Iterator[Broker]:
    """The broker `which` (rabbitmq, rewindmq), started in `home`, and stopped at the end."""
    broker = STARTERS[which](home)
    try:
        yield broker
    finally:
        broker.stop()
