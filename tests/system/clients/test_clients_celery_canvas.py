"""Celery's larger parts with a real worker process: groups, chains and chords with results, remote control (pidbox),
events, a worker that is killed with a task in hand, and a broker that is started anew."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from celery import chain, chord, group

from tests.support.celery_workers import Worker
from tests.support.running import RunningBroker
from tests.system.clients import celery_canvas_app

pytestmark = pytest.mark.long

APP = "tests.system.clients.celery_canvas_app"
app = celery_canvas_app.app


def point(broker: RunningBroker, results: Path) -> None:
    """This process publishes there, too."""
    app.conf.broker_url = app.conf.broker_write_url = app.conf.broker_read_url = broker.amqp_url
    app.conf.result_backend = f"file://{results}"
    app.amqp._producer_pool = None


def messages(broker: RunningBroker) -> int:
    """Messages in the queue of tasks, those at a worker included."""
    return int(httpx2.get(f"{broker.http_url}/api/queues/%2F/canvas", auth=("guest", "guest")).json()["messages"])


@pytest.fixture(scope="module")
def worker(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    home = tmp_path_factory.mktemp("canvas")
    (home / "results").mkdir()
    os.environ["CELERY_RESULTS"] = str(home / "results")
    point(broker, home / "results")
    running = Worker(broker, home / "journal", APP, 2)
    yield running
    app.close()
    running.stop()
    del os.environ["CELERY_RESULTS"]


def test_groups_chains_and_chords(worker: Worker) -> None:
    double, total = celery_canvas_app.double, celery_canvas_app.total
    assert group(double.s(number) for number in range(10))().get(timeout=30) == [2 * n for n in range(10)]
    assert chain(double.s(3), double.s(), double.s())().get(timeout=30) == 24
    assert chord((double.s(number) for number in range(10)), total.s())().get(timeout=30) == 90


def test_remote_control_reaches_the_worker_and_its_answer_comes_back(worker: Worker) -> None:
    """A fanout exchange for what is asked, a reply queue for the answers."""
    inspect = app.control.inspect(timeout=20, limit=1)
    (name,) = inspect.ping()
    assert [queue["name"] for queue in inspect.active_queues()[name]] == ["canvas"]
    asked = {"task_name": "double", "rate_limit": "1000/s"}
    (answer,) = app.control.broadcast("rate_limit", asked, reply=True, limit=1, timeout=20)
    assert answer == {name: {"ok": "new rate limit set successfully"}}


def test_events_tell_the_life_of_a_task(worker: Worker) -> None:
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context() as (listening, _, _):
            uuid = celery_canvas_app.double.delay(4).id
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not any(each["type"] == "task-succeeded" for each in seen):
                with contextlib.suppress(TimeoutError):
                    listening.drain_events(timeout=1)
    types = {each["type"] for each in seen if each.get("uuid") == uuid}
    assert types == {"task-sent", "task-received", "task-started", "task-succeeded"}


def test_tasks_of_a_killed_worker_run_at_another_after_a_restart_too(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    (tmp_path / "results").mkdir()
    point(broker, tmp_path / "results")
    first = Worker(broker, tmp_path / "journal", APP, 1)
    celery_canvas_app.slow.delay("a")
    first.until(lambda: len(first.lines("begun")) == 1)
    # With its child, at once: nobody says goodbye.
    os.killpg(first.process.pid, 9)
    first.process.wait()
    second = Worker(broker, tmp_path / "journal", APP, 1)
    try:
        second.until(lambda: len(second.lines("begun")) == 2)
        (tmp_path / "a.go").touch()
        second.until(lambda: len(second.lines("done")) == 1)
        second.until(lambda: messages(broker) == 0)  # the worker acks what it has done
        assert broker.stop() == 0
        again = broker.amqp_port
        broker = RunningBroker(tmp_path / "data", "--amqp-port", str(again))
        broker.amqp_port = again
        (tmp_path / "b.go").touch()
        app.amqp._producer_pool = None
        celery_canvas_app.slow.delay("b")
        second.until(lambda: len(second.lines("done")) == 2)
        assert [line[1] for line in second.lines("begun")] == ["a", "a", "b"]
    finally:
        second.stop()
        app.close()
        broker.stop()
