"""Fixtures for tests that need a whole broker: a process of its own, on free ports, with a data directory of its own.

    broker          one started broker for a test module; ends with it, and must end cleanly
    start_broker    a function that starts more, or starts one again in the same directory
    kafka, kafka3   a real Kafka of one node, of three (tests/kafka/fixtures.py)

Where tests run in several processes (`make test`), a file's tests stay together, for what they share; and so do those
of all files that need Kafka, since one of it is enough for two cores, and those that need Spark.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.fixtures import kafka, kafka3
from tests.running import RunningBroker

__all__ = ["broker", "kafka", "kafka3", "start_broker"]
KAFKAS = {"kafka", "kafka3"}


@pytest.hookimpl(tryfirst=True)  # before xdist, which makes use of the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.parent.name
        group = "kafka" if folder == "kafka" or KAFKAS & set(getattr(item, "fixturenames", ())) else str(item.path)
        item.add_marker(pytest.mark.xdist_group("spark" if folder == "spark" else group))


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """`start_broker(data=None, *options)`: a running broker; all are ended after the test."""
    started: list[RunningBroker] = []

    def start(data: Path | None = None, *options: str) -> RunningBroker:
        running = RunningBroker(data or tmp_path / f"data-{len(started)}", *options)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.kill()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    yield running
    code = running.stop()
    assert code == 0, "".join(running.errors)
    assert "Traceback" not in "".join(running.errors), "".join(running.errors)
