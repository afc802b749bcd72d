"""Brokers under measurement: each started as plain processes in a directory of its own, with its CPU time and memory.

    with PEERS["rabbitmq"].fresh() as broker:  ...broker.port, broker.cpu_seconds(), broker.rss_bytes()

CPU seconds are those of the broker's whole process tree, user and system, from the kernel's accounting.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rewindmq import builds
from tests.support import debian_unstable
from tests.support.needs import found
from tests.support.ports import free_port, free_ports
from tests.support.processes import cpu_seconds_of, tree_of
from tests.support.running import start_process

RABBITMQ = "/" / debian_unstable.RABBITMQ


@dataclass
class Broker:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    data: Path
    http_port: int = 0

    def cpu_seconds(self) -> float:
        """User + system time of the tree's living processes so far."""
        return sum(map(cpu_seconds_of, tree_of(self.process.pid)))

    def rss_bytes(self) -> int:
        total = 0
        for pid in tree_of(self.process.pid):
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


def wait_for_amqp(port: int, process: subprocess.Popen[bytes], seconds: float = 180) -> None:
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
    if found("rabbitmq-server") is None:
        raise RuntimeError("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    return _start_rabbitmq("RabbitMQ " + rabbitmq_version(), home, Path("/"), [str(RABBITMQ)], "")


def start_rabbitmq43(home: Path) -> Broker:
    """RabbitMQ 4.3 in `home`, its defaults, without plugins.

    `home` is in /tmp of the directory with Debian unstable. /proc is not there, so RabbitMQ is told how much memory
    this machine has. Else it takes 1 GB for all, and its limit is a share of that."""
    root = debian_unstable.DIRECTORY
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    settings = f"total_memory_available_override_value = {memory}\nvm_memory_calculation_strategy = erlang\n"
    command = ["chroot", str(root), f"/{debian_unstable.RABBITMQ}"]
    return _start_rabbitmq("RabbitMQ " + rabbitmq_version(root), home, root, command, settings)


def _start_rabbitmq(name: str, home: Path, root: Path, command: list[str], settings: str) -> Broker:
    """RabbitMQ with all its files in `home`, which is below `root`. `settings`: lines of rabbitmq.conf."""
    inside = "/" / home.absolute().relative_to(root)
    home.mkdir(parents=True, exist_ok=True)
    port, dist = free_port(), free_port()
    node = f"bench{zlib.crc32(str(home).encode())}@localhost"  # the same after a restart, which may change ports
    (home / "plugins").write_text("[].\n")
    (home / "rabbitmq.conf").write_text(settings)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(inside),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_MNESIA_BASE": str(inside / "mnesia"),
        "RABBITMQ_LOG_BASE": str(inside / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(inside / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": str(inside / "none"),
        "RABBITMQ_CONFIG_FILE": str(inside / "rabbitmq.conf"),
    }
    return started(name, command, port, home, env=env)


def rabbitmq_version(root: Path = Path("/")) -> str:
    """The version of the package in the Debian at `root`."""
    asked = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f=${Version}", "rabbitmq-server"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.split("-")[0]


def start_lavinmq(home: Path) -> Broker:
    """LavinMQ in `home`, its defaults, on ports of its own."""
    home.mkdir(parents=True, exist_ok=True)
    names = ("amqp-port", "http-port", "mqtt-port", "metrics-http-port")
    free = free_ports(len(names))
    ports = [f"--{name}={port}" for name, port in zip(names, free, strict=True)]
    env = {**os.environ, "LAVINMQ_CONTROL_UNIX_PATH": str(home / "control.sock")}
    command = [os.environ["LAVINMQ"], f"--data-dir={home / 'data'}", *ports]
    return started("LavinMQ " + lavinmq_version(), command, free[0], home, free[1], env)


def lavinmq_version() -> str:
    said = subprocess.run([os.environ["LAVINMQ"], "--version"], capture_output=True, text=True).stdout
    return said.split()[-1] if said else ""


def start_rewindmq(home: Path, *options: str, build: str = "", seconds: float = 60) -> Broker:
    """`rewindmq start` with its defaults and `options`. `build`: pure or compiled; empty: the one that runs here.

    `seconds`: until it answers."""
    home.mkdir(parents=True, exist_ok=True)
    port, http_port = free_port(), free_port()
    command = Path(sys.executable).with_name("rewindmq")
    ports = ["--amqp-port", str(port), "--http-port", str(http_port)]
    start = [str(command), "start", "--data", str((home / "data").absolute()), *ports, *options]
    env = {**os.environ, **switch(build)} if build else None
    return started(f"RewindMQ {build}".strip(), start, port, home, http_port, env, seconds)


def _rewindmq_version() -> str:
    """With the commit of this checkout."""
    asked = ["git", "-C", builds.PACKAGE, "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return f"{metadata.version('rewindmq')} ({commit})" if commit else metadata.version("rewindmq")


def switch(build: str) -> dict[str, str]:
    """Return the environment variables with which a process runs this build."""
    return {builds.SWITCH: "1" if build == builds.PURE else "0"}


def _without_rabbitmq() -> str:
    return "" if found("rabbitmq-server") else "Debian's package rabbitmq-server is not installed"


def _without_rabbitmq43() -> str:
    return "" if debian_unstable.is_installed() else f"no RabbitMQ in {debian_unstable.DIRECTORY}: make rabbitmq43"


def _without_lavinmq() -> str:
    path = os.environ.get("LAVINMQ", "")
    if not path:
        return "LAVINMQ=PATH names its binary"
    return "" if os.access(path, os.X_OK) else f"LAVINMQ={path} is no program"


def _without_compiled() -> str:
    directory = os.path.join(builds.PACKAGE, builds.DIRECTORY)
    build = builds.chosen(builds.PACKAGE, directory, "0")
    return "" if build.kind == builds.COMPILED else build.unused or "no compiled build here: make compile"


@dataclass(frozen=True)
class Peer:
    """A broker that can be measured.

    `start`: with a home. `missing`: why it is not run here; empty if it is. `syncs`: when it syncs the persistent
    messages of a durable classic queue, in its default settings. `build`: which one, of RewindMQ."""

    title: str
    start: Callable[[Path], Broker]
    missing: Callable[[], str]
    version: Callable[[], str]
    syncs: str
    build: str = ""

    @contextlib.contextmanager
    def home(self) -> Iterator[Path]:
        """A new directory in which it can run, removed at the end."""
        parent = debian_unstable.DIRECTORY / "tmp" if self.start is start_rabbitmq43 else None
        with tempfile.TemporaryDirectory(dir=parent) as home:
            yield Path(home)

    @contextlib.contextmanager
    def running(self, home: Path) -> Iterator[Broker]:
        """The broker, started in `home`, and stopped at the end."""
        broker = self.start(home)
        try:
            yield broker
        finally:
            broker.stop()

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Broker]:
        """The broker without any data, and stopped at the end."""
        with self.home() as home, self.running(home) as broker:
            yield broker


def _rewindmq(build: str, missing: Callable[[], str]) -> Peer:
    start = functools.partial(start_rewindmq, build=build)
    syncs = "Messages are synced to the disk (fdatasync), in groups, before each confirm, and without confirms as well."
    return Peer(f"RewindMQ {build}", start, missing, _rewindmq_version, syncs, build)


# docs/benchmarks/brokers.md says how it was counted what each syncs.
PEERS = {
    "rabbitmq": Peer(
        "RabbitMQ 3.10.8",
        start_rabbitmq,
        _without_rabbitmq,
        rabbitmq_version,
        "Messages are synced to the disk (fsync), in groups, before each confirm, and not without confirms.",
    ),
    "rabbitmq43": Peer(
        "RabbitMQ 4.3",
        start_rabbitmq43,
        _without_rabbitmq43,
        lambda: rabbitmq_version(debian_unstable.DIRECTORY),
        "Messages of classic queues are not synced to the disk, not even before a confirm.",
    ),
    "lavinmq": Peer(
        "LavinMQ",
        start_lavinmq,
        _without_lavinmq,
        lavinmq_version,
        "Version 2.9 syncs the whole file system (syncfs), for groups, before each confirm, and not without confirms.",
    ),
    "rewindmq": _rewindmq(builds.PURE, str),
    "compiled": _rewindmq(builds.COMPILED, _without_compiled),
}
