"""Fixtures for tests that need a whole broker: a process of its own, on free ports, with a data directory of its own.

    broker          one started broker for a test module; ends with it, and must end cleanly
    start_broker    a function that starts more, or starts one again in the same directory
    kafka, kafka3   a real Kafka of one node, of three (tests/support/kafka/fixtures.py)

Where tests run in several processes (`make test`), a file's tests stay together and in order, for what they share; and
so does each half of tests/system/kafka and of tests/system/spark, since each process that has one of their tests starts
a Kafka, or a Spark.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from xdist.scheduler import LoadScopeScheduling

from rewindmq import builds
from tests.support import examples
from tests.support.cpu_times import pytest_runtest_setup, pytest_runtest_teardown, pytest_terminal_summary
from tests.support.kafka.fixtures import kafka, kafka3
from tests.support.running import RunningBroker
from tests.support.tiers import belongs, pytest_addoption, pytest_ignore_collect

__all__ = [
    "broker",
    "kafka",
    "kafka3",
    "pytest_addoption",
    "pytest_ignore_collect",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "start_broker",
]
# How long a test's own HTTP client waits for an answer. httpx2's 5 s are too few on a machine with other work: for
# reading the past the broker starts a process.
httpx2._config.DEFAULT_TIMEOUT_CONFIG.read = 60.0
KAFKA, SPARK = "tests/system/kafka/", "tests/system/spark/"
# Files from here on take as long as those before.
SECOND_HALVES = {SPARK: f"{SPARK}test_spark_e", KAFKA: f"{KAFKA}test_kafka_l"}
# Long files come first, and short ones fill the processes up at the end.
FIRST = (SPARK, KAFKA, "tests/install/", "tests/simulation/", "tests/system/")


def pytest_report_header() -> str:
    return f"build: {builds.running()}"


def pytest_configure(config: pytest.Config) -> None:
    examples.load(examples.DEV if config.getoption("--tier") == "quick" else examples.FULL)
    if config.getoption("--build") not in ("", builds.running().kind):
        raise pytest.UsageError(f"--build {config.getoption('--build')}: the build is {builds.running()}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        (kept if belongs(item, tier) else dropped).append(item)
    items[:] = sorted(kept, key=_rank)
    config.hook.pytest_deselected(items=dropped)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))


class Grouped(LoadScopeScheduling):
    """xdist's own groups are names at the end of node ids, which pytest 9.2 does not hand on."""

    def _split_scope(self, nodeid: str) -> str:
        for folder, second in SECOND_HALVES.items():
            if nodeid.startswith(folder):
                return f"{folder}, {'second' if nodeid >= second else 'first'} half"
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped:
    return Grouped(config, log)


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
