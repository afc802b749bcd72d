"""Celery as services use it: tasks, retries, countdowns, results by rpc replies, and the workers' remote control."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from tests.support.running import RunningBroker


@pytest.fixture
def own_logging() -> Iterator[None]:
    """A worker in the process sets the root logger's level, which other tests need as it was."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.mark.filterwarnings("ignore")  # Celery's own
@pytest.mark.usefixtures("own_logging")
def test_celery(broker: RunningBroker) -> None:
    app = Celery("tests", broker=broker.amqp_url, backend="rpc://")
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(bind=True, max_retries=2)
    def flaky(self: Any) -> str:
        if self.request.retries < 1:
            raise self.retry(countdown=0.1)
        return "second time"

    with start_worker(app, perform_ping_check=False, pool="solo"):
        results = [add.delay(number, number) for number in range(50)]
        assert [result.get(timeout=10) for result in results] == [2 * number for number in range(50)]
        assert flaky.delay().get(timeout=10) == "second time"
        assert add.apply_async((1, 2), countdown=0.2, expires=60, priority=3).get(timeout=10) == 3
        (answer,) = app.control.ping(timeout=1, limit=1)
        assert list(answer.values()) == [{"ok": "pong"}]
        waking = threading.Timer(0.2, add.delay, (0, 0))  # an idle worker looks whether to stop when something comes
        waking.start()
    waking.join()
    app.close()
