"""A RabbitMQ with the plugins that move messages, and a broker of ours; both can be killed and started again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.management_peer import INSTALLED, MOVERS, NOT_INSTALLED, rabbitmqctl, start_management
from tests.support.needs import require
from tests.support.running import RunningBroker


class Rabbit:
    """Debian's RabbitMQ, on the same ports after each start."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = start_management(home, plugins=MOVERS)

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def uri(self) -> str:
        """As RabbitMQ's plugins take it: the vhost is /."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process = start_management(self.home, plugins=MOVERS, before=self.process)

    def api(self, method: str, path: str, content: Any = None) -> Any:
        """The answer of its management API."""
        with httpx.Client(auth=("guest", "guest"), trust_env=False) as client:
            url = f"http://127.0.0.1:{self.process.http_port}/api{path}"
            answer = client.request(method, url, json=content)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def control(self, *arguments: str) -> str:
        return rabbitmqctl(self.home, *arguments)


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
    require(INSTALLED, NOT_INSTALLED)
    running = Rabbit(tmp_path_factory.mktemp("rabbit"))
    yield running
    running.process.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    running = Ours(tmp_path_factory.mktemp("ours"))
    yield running
    assert running.process.stop() == 0, "".join(running.process.errors)
    assert "Traceback" not in "".join(running.process.errors), "".join(running.process.errors)
