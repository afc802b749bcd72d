"""A Celery application as services write them, run by a real worker (`celery
-A tests.system.clients.celery_app worker`).

Each task appends a line to the file named by CELERY_JOURNAL: what ran, and when.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

app = Celery("tests", broker=os.environ.get("CELERY_BROKER", "memory://"))
app.conf.task_ignore_result = True
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 2
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.task_queues = [
    Queue("mail", Exchange("mail", type="direct"), routing_key="mail"),
    Queue("reports", Exchange("reports", type="topic"), routing_key="report.#"),
    Queue("steady", Exchange("steady"), routing_key="steady", queue_arguments={"x-queue-type": "quorum"}),
]
app.conf.task_default_queue = "mail"
app.conf.task_routes = {"report": {"exchange": "reports", "routing_key": "report.daily"}}


def note(line: str) -> None:
    with open(Path(os.environ["CELERY_JOURNAL"]), "a") as file:
        file.write(f"{line} {time.time()}\n")


@app.task(name="send")
def send(number: int, padding: str = "") -> None:
    note(f"send {number}")


@app.task(name="report")
def report(number: int) -> None:
    note(f"report {number}")


@app.task(name="flaky", bind=True, max_retries=3)
def flaky(self: Any, number: int) -> None:
    note(f"flaky {number} {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)


@app.task(name="fatal")
def fatal(number: int) -> None:
    """Kills its worker process the first time; acks_late gives it to another."""
    with open(os.environ["CELERY_JOURNAL"]) as file:
        died = f"dying {number}" in file.read()
    if not died:
        note(f"dying {number}")
        os._exit(9)
    note(f"survived {number}")
