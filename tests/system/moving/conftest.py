"""A RabbitMQ with the plugins that move messages, and a broker of ours; both can be killed and started again.

RABBITMQ=4.3 python -m pytest tests/system/moving       with the RabbitMQ of `make rabbitmq43`, as root
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import debian_unstable
from tests.support.management_peer import HERE, INSTALLED, MOVERS, NOT_INSTALLED, rabbitmqctl, start_management
from tests.support.needs import require
from tests.support.running import RunningBroker

NEWEST = os.environ.get("RABBITMQ") == "4.3"
WITHOUT_PROC = "total_memory_available_override_value = 4GB\nvm_memory_calculation_strategy = erlang\n"
SETTINGS = WITHOUT_PROC if NEWEST else ""


class Rabbit:
    """Debian's RabbitMQ, or 4.3 (`root`), on the same ports after each start."""

    def __init__(self, home: Path, root: Path) -> None:
        self.home = home
        self.root = root
        self.process = start_management(home, plugins=MOVERS, settings=SETTINGS, root=root)

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def uri(self) -> str:
        """As RabbitMQ's plugins take it: the vhost is /."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process = start_management(
            self.home, plugins=MOVERS, settings=SETTINGS, before=self.process, root=self.root
        )

    def api(self, method: str, path: str, content: Any = None) -> Any:
        """The answer of its management API."""
        with httpx2.Client(auth=("guest", "guest"), trust_env=False) as client:
            url = f"http://127.0.0.1:{self.process.http_port}/api{path}"
            answer = client.request(method, url, json=content)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def definitions(self) -> Any:
        """All definitions. RabbitMQ 4.3 leaves internal exchanges out; they are taken from its list of exchanges."""
        document = self.api("GET", "/definitions")
        known = {(each["vhost"], each["name"]) for each in document["exchanges"]}
        columns = "name,vhost,type,durable,auto_delete,internal,arguments"
        for each in self.api("GET", f"/exchanges?columns={columns}"):
            internal = each["internal"] and not each["name"].startswith("amq.")
            if internal and (each["vhost"], each["name"]) not in known:
                document["exchanges"].append(each)
        return document

    def control(self, *arguments: str) -> str:
        return rabbitmqctl(self.home, *arguments, root=self.root)

    def exported(self) -> str:
        """The file that `rabbitmqctl export_definitions` writes."""
        file = self.home / "exported.json"
        self.control("export_definitions", str("/" / file.relative_to(self.root)))
        return file.read_text()

    def import_from(self, content: str) -> None:
        """`rabbitmqctl import_definitions` of a file with this content."""
        file = self.home / "imported.json"
        file.write_text(content)
        self.control("import_definitions", str("/" / file.relative_to(self.root)))


class Ours:
    """A broker of ours, on the same ports after each start."""

    def __init__(self, data: Path) -> None:
        self.process = RunningBroker(data)

    @property
    def port(self) -> int:
        return self.process.amqp_port

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def kill_and_start(self) -> None:
        before = self.process
        before.kill()
        self.process = RunningBroker(before.data, ports=(before.amqp_port, before.http_port))


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    if NEWEST:
        root = debian_unstable.install()
        home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=root / "tmp"))
    else:
        require(INSTALLED, NOT_INSTALLED)
        root, home = HERE, tmp_path_factory.mktemp("rabbit")
    running = Rabbit(home, root)
    yield running
    running.process.kill()
    if NEWEST:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    running = Ours(tmp_path_factory.mktemp("ours"))
    yield running
    assert running.process.stop() == 0, "".join(running.process.errors)
    assert "Traceback" not in "".join(running.process.errors), "".join(running.process.errors)
