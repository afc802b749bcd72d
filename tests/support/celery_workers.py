"""Celery's worker as a process of its own, with a journal of what its tasks did."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.running import ROOT, RunningBroker
from tests.system.clients import celery_app

CELERY = [sys.executable, "-m", "celery", "-A"]


class Worker:
    """A worker process. Its tasks write lines into the journal."""

    def __init__(
        self, broker: RunningBroker, journal: Path, app: str = "tests.system.clients.celery_app", concurrency: int = 2
    ) -> None:
        self.journal = journal
        journal.touch()
        self.log = journal.with_suffix(".log")
        environment = {**os.environ, "CELERY_BROKER": broker.amqp_url, "CELERY_JOURNAL": str(journal)}
        environment["C_FORCE_ROOT"] = "1"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *CELERY,
                    app,
                    "worker",
                    "--concurrency",
                    str(concurrency),
                    "--loglevel",
                    "INFO",
                    "-n",
                    f"{app}.{os.getpid()}@localhost",
                ],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.until(lambda: b" ready." in self.log.read_bytes())

    def lines(self, word: str) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines() if line.startswith(word + " ")]

    def until(self, condition: Callable[[], bool], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.journal.read_text()[-1000:] + self.log.read_text()[-3000:]
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def worker(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker of the module's broker; this process publishes there as well."""
    running = Worker(broker, tmp_path_factory.mktemp("celery") / "journal")
    celery_app.app.conf.broker_url = broker.amqp_url
    celery_app.app.conf.broker_write_url = broker.amqp_url
    celery_app.app.amqp._producer_pool = None  # it outlives `close`, with the connection to the broker of before
    yield running
    celery_app.app.close()
    running.stop()


def require_tasks_on_several_queues(worker: Worker) -> None:
    for number in range(50):
        celery_app.send.delay(number)
        celery_app.report.delay(number)
        celery_app.send.apply_async((1_000 + number,), exchange="steady", routing_key="steady")
    worker.until(lambda: len(worker.lines("send")) >= 100 and len(worker.lines("report")) >= 50)
    assert sorted(int(line[1]) for line in worker.lines("send")) == [*range(50), *range(1_000, 1_050)]
    assert sorted(int(line[1]) for line in worker.lines("report")) == list(range(50))


def require_retries(worker: Worker) -> None:
    celery_app.flaky.delay(1)
    worker.until(lambda: len(worker.lines("flaky")) == 3)
    assert [line[2] for line in worker.lines("flaky")] == ["0", "1", "2"]


def require_return_of_a_lost_task(worker: Worker) -> None:
    """acks_late with reject_on_worker_lost: the task is requeued, and runs again."""
    celery_app.fatal.delay(1)
    worker.until(lambda: bool(worker.lines("survived")))
    assert len(worker.lines("dying")) == 1
