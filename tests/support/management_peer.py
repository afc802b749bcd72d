"""RabbitMQ with its management plugin, as a process of its own: Debian's, or another one below a `root`.

`root`: the directory with another Debian, which is entered with chroot (tests/support/debian_unstable.py). Then `home`
is below it.
"""

import os
import subprocess
import time
import zlib
from pathlib import Path

import httpx2

from tests.bench.peers import RABBITMQ, Broker, started
from tests.support.needs import found
from tests.support.ports import free_port

TOKENS = "rabbitmq_auth_backend_oauth2"
HERE = Path("/")


def has_plugin(name: str) -> bool:
    """Return True if Debian's package has this plugin."""
    plugins = RABBITMQ.parent.parent.glob(f"lib/rabbitmq_server-*/plugins/{name}-*")
    return found("rabbitmq-server") is not None and any(plugins)


INSTALLED = has_plugin("rabbitmq_management")
NOT_INSTALLED = "Debian's package rabbitmq-server, with its management plugin, is not installed"
MOVERS = ("rabbitmq_shovel", "rabbitmq_shovel_management", "rabbitmq_federation", "rabbitmq_federation_management")


def start_management(
    home: Path,
    seconds: float = 60,
    plugins: tuple[str, ...] = (),
    settings: str = "",
    before: Broker | None = None,
    root: Path = HERE,
) -> Broker:
    """Start RabbitMQ, with further plugins and settings. Returns when the management API answers.

    `before`: the broker that ran in `home`, whose ports it has again."""
    port, http_port = (before.port, before.http_port) if before else (free_port(), free_port())
    (home / "plugins").write_text(f"[{','.join(('rabbitmq_management', *plugins))}].\n")
    (home / "rabbit.conf").write_text(
        f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http_port}\ncollect_statistics_interval = 1000\n"
        + settings
    )
    inside = _inside(home, root)
    env = {
        **_environment(home, root),
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(inside / "mnesia"),
        "RABBITMQ_LOG_BASE": str(inside / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(inside / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONFIG_FILE": str(inside / "rabbit.conf"),
    }
    broker = started("RabbitMQ", [*_enter(root), str(RABBITMQ)], port, home, http_port, env, seconds)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"http://127.0.0.1:{http_port}/api/overview", auth=("guest", "guest"), trust_env=False)
            return broker
        except httpx2.HTTPError:
            time.sleep(0.2)
    broker.stop()
    raise RuntimeError("the management API did not answer")


def rabbitmqctl(home: Path, *arguments: str, root: Path = HERE) -> str:
    """Return the output of rabbitmqctl for the RabbitMQ in `home`. Give it paths as that RabbitMQ sees them."""
    command = [*_enter(root), str(RABBITMQ.with_name("rabbitmqctl")), *arguments]
    return subprocess.run(command, env=_environment(home, root), check=True, capture_output=True, text=True).stdout


def _enter(root: Path) -> list[str]:
    return [] if root == HERE else ["chroot", str(root)]


def _inside(home: Path, root: Path) -> Path:
    """The directory as the RabbitMQ sees it."""
    return "/" / home.absolute().relative_to(root)


def _environment(home: Path, root: Path) -> dict[str, str]:
    """Of the server and of its tools. The node's name is the same after a restart."""
    home = _inside(home, root)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": f"shapes{zlib.crc32(str(home).encode())}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
    }
