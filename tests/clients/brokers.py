"""The RabbitMQs under comparison, by the profile of ours that is held to them, each with its management API.

3.13    Debian's package rabbitmq-server (3.10.8) as it is installed on this machine
4.3     Debian unstable's package in a directory of its own, made once (tests/support/debian_unstable.py)

with running("4.3") as broker:  broker.port, broker.http_port;   with ours("4.3") as broker: the same of RewindMQ
"""

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import RABBITMQ, Broker, start_rewindmq, started
from tests.support import debian_unstable
from tests.support.debian_unstable import NotInstalled
from tests.support.needs import found
from tests.support.ports import free_port

PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
)


@dataclass(frozen=True)
class Profile:
    """A version of RabbitMQ, and how ours is asked to be like it."""

    version: str  # of the recorded outcomes, rabbitmq-<version>.json
    options: tuple[str, ...]

    @property
    def recorded(self) -> Path:
        return Path(__file__).with_name(f"rabbitmq-{self.version}.json")


PROFILES = {
    "3.13": Profile("3.10.8", ()),
    "4.3": Profile("4.3", ("--semantics", "rabbitmq-4.3")),
}


@contextlib.contextmanager
def running(profile: str) -> Iterator[Broker]:
    """RabbitMQ of `profile`, until the end of the block."""
    if profile == "4.3":
        root = debian_unstable.install()
        home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=root / "tmp"))
        command = ["chroot", str(root), str(RABBITMQ)]
    else:
        if found("rabbitmq-server") is None:
            raise NotInstalled("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
        root = Path("/")
        home = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
        command = [str(RABBITMQ)]
    broker = start(command, root, home)
    try:
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def ours(profile: str, home: Path) -> Iterator[Broker]:
    """RewindMQ, which has to end well."""
    broker = start_rewindmq(home, *PROFILES[profile].options)
    try:
        yield broker
    finally:
        broker.stop()
    said = (home / "out").read_text()
    assert broker.process.returncode == 0, said[-3000:]
    assert "Traceback" not in said, said[-3000:]


def start(command: list[str], root: Path, home: Path, settings: str = "", port: int | None = None) -> Broker:
    """RabbitMQ with its defaults and `settings` (rabbitmq.conf), listening on loopback, all its files in `home` (below
    `root`, as it sees it)."""
    inside = "/" / home.relative_to(root)
    port = port or free_port()
    http_port, dist = free_port(), free_port()
    (home / "plugins").write_text(f"[{','.join(PLUGINS)}].\n")
    (home / "rabbitmq.conf").write_text(
        f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http_port}\n"
        "vm_memory_calculation_strategy = erlang\n" + settings  # the directory with Debian unstable has no /proc
    )
    # An at-least-once dead letter that found no target is tried again after three minutes otherwise.
    (home / "advanced.config").write_text("[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 1000}]}].\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(inside),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": f"compare{zlib.crc32(str(home).encode())}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_MNESIA_BASE": str(inside / "data"),
        "RABBITMQ_LOG_BASE": str(inside / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(inside / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": str(inside / "none"),
        "RABBITMQ_CONFIG_FILE": str(inside / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(inside / "advanced.config"),
    }
    return started("RabbitMQ", command, port, home, http_port, env, seconds=180)  # on a busy machine it takes minutes


def version(broker: Broker) -> str:
    """Return the version that the broker announces to clients."""
    import pika

    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as connection:
        return str(connection._impl.server_properties["version"])
