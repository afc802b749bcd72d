"""A pytest plugin for the suites of aio-pika and aiormq, which want their RabbitMQ from Docker.

The container that all tests share is the broker that AMQP_PORT and AMQPS_PORT name. A container of a test's own, which
the test kills and starts again, is a RewindMQ process of its own, made by the interpreter REWINDMQ_PYTHON. Loaded
(`-p`) before their conftest.py, from the folder above their tests.

aiormq's source distribution lacks the conftest.py of its root: what that gives is here. aio-pika's own goes first.
"""

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, os.getcwd())

import pytest
from yarl import URL

from tests import docker_client  # type: ignore[attr-defined]  # aio-pika's own tests, which this runs among

SHARED = {"5672/tcp": "AMQP_PORT", "5671/tcp": "AMQPS_PORT"}
ROOT = Path(__file__).resolve().parents[2]
numbers = itertools.count(1)


class Container:
    """A broker with a data directory and ports that outlive its process. Shared: another program runs it."""

    def __init__(self, is_shared: bool) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.home = None if is_shared else Path(tempfile.mkdtemp(prefix="rewindmq-container-"))
        self.ports = {} if is_shared else {"5672/tcp": reserved.free_port(), "15672/tcp": reserved.free_port()}

    def start(self) -> None:
        if self.home is not None:
            if "REWINDMQ_PYTHON" not in os.environ:
                raise RuntimeError("only RewindMQ, not RabbitMQ, is restarted here")
            ports = [f"--amqp-port={self.ports['5672/tcp']}", f"--http-port={self.ports['15672/tcp']}"]
            command = [os.environ["REWINDMQ_PYTHON"], "-m", "rewindmq.engine", "--data", str(self.home / "data")]
            with open(self.home / "out", "ab") as out:
                self.process = subprocess.Popen([*command, *ports], cwd=ROOT, stdout=out, stderr=out)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def remove(self) -> None:
        self.kill()
        if self.home is not None:
            shutil.rmtree(self.home)

    def control(self, arguments: list[str]) -> int:
        """Runs rabbitmqctl. Returns its exit code."""
        command = [os.environ["REWINDMQ_PYTHON"], "-m", "rewindmq", "--http-port", str(self.ports["15672/tcp"])]
        return subprocess.run([*command, *arguments], cwd=ROOT).returncode

    def as_docker_tells_it(self) -> dict[str, Any]:
        ports = self.ports or {port: int(os.environ[name]) for port, name in SHARED.items()}
        bindings = {port: [{"HostPort": str(number)}] for port, number in ports.items()}
        return {"NetworkSettings": {"Ports": bindings}}


def load(path: Path) -> ModuleType:
    """Load a module of our tests: aio-pika's package `tests` hides them."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reserved = load(ROOT / "tests" / "support" / "ports.py")
containers: dict[str, Container] = {}
exit_codes: dict[str, int] = {}


class DockerClient(docker_client.DockerClient):  # type: ignore[misc]
    """Theirs, with what Docker's API does here."""

    def _request_stream(self, method: str, path: str) -> None:
        pass

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        kind, identity, *verb = path.partition("?")[0].strip("/").split("/")
        match method, kind, verb:
            case "POST", "containers", [] if identity == "create":
                assert body is not None
                name = f"container-{next(numbers)}"
                containers[name] = Container("5671/tcp" in body["ExposedPorts"])
                return {"Id": name}
            case "POST", "containers", ["start"]:
                containers[identity].start()
            case "GET", "containers", ["json"]:
                return containers[identity].as_docker_tells_it()
            case "POST", "containers", ["kill"]:
                containers[identity].kill()
            case "DELETE", "containers", []:
                containers.pop(identity).remove()
            case "POST", "containers", ["exec"]:
                assert body is not None
                name = f"exec-{next(numbers)}"
                exit_codes[name] = containers[identity].control(body["Cmd"][1:])
                return {"Id": name}
            case "POST", "exec", ["start"]:
                pass
            case "GET", "exec", ["json"]:
                return {"Running": False, "ExitCode": exit_codes[identity]}
            case _:
                raise NotImplementedError(f"{method} {path}")
        return None


docker_client.DockerClient = DockerClient
docker_client.check_docker_available = lambda: docker_client.parse_docker_host("")


@pytest.fixture(scope="session")
def rabbitmq_container() -> object:
    return DockerClient().run("", list(SHARED))


@pytest.fixture(scope="session")
def amqp_direct_url() -> URL:
    return URL(f"amqp://guest:guest@127.0.0.1:{os.environ['AMQP_PORT']}//")
