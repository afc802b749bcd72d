"""Celery as it is (kombu, py-amqp) and a real worker process: routing, retries, countdown, lost worker processes."""

import time
from pathlib import Path

import pytest

from tests.support.celery_workers import (
    Worker,
    require_retries,
    require_return_of_a_lost_task,
    require_tasks_on_several_queues,
    worker,
)
from tests.support.running import RunningBroker
from tests.system.clients import celery_app, celery_later_app

__all__ = ["worker"]


def test_tasks_on_several_queues(worker: Worker) -> None:
    require_tasks_on_several_queues(worker)


def test_a_large_task(worker: Worker) -> None:
    celery_app.send.delay(7_000, padding="ä" * 1_000_000)
    worker.until(lambda: any(line[1] == "7000" for line in worker.lines("send")))


def test_retries(worker: Worker) -> None:
    require_retries(worker)


def test_countdown(worker: Worker) -> None:
    """Celery holds tasks with an ETA unacked, and raises its prefetch count for them."""
    started = time.time()
    for number in range(20):
        celery_app.send.apply_async((2_000 + number,), countdown=1)
    celery_app.send.delay(2_100)
    worker.until(lambda: sum(2_000 <= int(line[1]) <= 2_100 for line in worker.lines("send")) == 21)
    ran = {int(line[1]): float(line[2]) for line in worker.lines("send")}
    assert all(ran[2_000 + number] >= started + 1 for number in range(20))


def test_a_lost_worker_process_gives_its_task_back(worker: Worker) -> None:
    require_return_of_a_lost_task(worker)


@pytest.mark.long
def test_tasks_for_later_do_not_keep_one_for_now_waiting(broker: RunningBroker, tmp_path: Path) -> None:
    """One worker with a prefetch of one, which it raises (basic.qos global) for each task that it holds for later."""
    app = celery_later_app.app
    app.conf.broker_url = app.conf.broker_write_url = broker.amqp_url
    worker = Worker(broker, tmp_path / "journal", "tests.system.clients.celery_later_app", 1)
    try:
        for _ in range(10):  # it is later than a slow machine takes to send them all
            celery_later_app.note.apply_async(("later",), countdown=15)
        celery_later_app.note.delay("now")
        worker.until(lambda: len(worker.lines("later")) == 10)
        order = [line.split()[0] for line in worker.journal.read_text().splitlines()]
        assert order == ["now"] + ["later"] * 10
    finally:
        app.close()
        worker.stop()
