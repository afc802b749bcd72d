"""A Celery application with classic queues alone: then the worker sets basic.qos globally, and raises it for each task
that it holds until its time has come (run by `celery -A tests.system.clients.celery_later_app worker`)."""

import os
import time
from pathlib import Path

from celery import Celery
from kombu import Queue

app = Celery("later", broker=os.environ.get("CELERY_BROKER", "memory://"))
app.conf.task_ignore_result = True
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True
app.conf.task_queues = [Queue("later")]
app.conf.task_default_queue = "later"


@app.task(name="note")
def note(what: str) -> None:
    with open(Path(os.environ["CELERY_JOURNAL"]), "a") as file:
        file.write(f"{what} {time.time()}\n")
