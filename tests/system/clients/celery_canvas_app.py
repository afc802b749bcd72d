"""A Celery application with results (files), events and tasks that are built of others (run by `celery -A
tests.system.clients.celery_canvas_app worker`). A task is acked when it is done."""

import os
import time
from pathlib import Path

from celery import Celery
from kombu import Queue

app = Celery(
    "canvas",
    broker=os.environ.get("CELERY_BROKER", "memory://"),
    backend="file://" + os.environ.get("CELERY_RESULTS", "/nonexistent"),
)
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_send_task_events = True
app.conf.task_send_sent_event = True
app.conf.result_chord_retry_interval = 0.1
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry = True
app.conf.worker_cancel_long_running_tasks_on_connection_loss = False
app.conf.task_queues = [Queue("canvas", queue_arguments={"x-queue-type": "quorum"})]
app.conf.task_default_queue = "canvas"


@app.task(name="double")
def double(number: int) -> int:
    return 2 * number


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="slow")
def slow(name: str) -> None:
    """Says that it has begun; goes on only when the file `<name>.go` is there."""
    journal = Path(os.environ["CELERY_JOURNAL"])
    with open(journal, "a") as file:
        file.write(f"begun {name} {os.getpid()}\n")
    while not journal.with_name(f"{name}.go").exists():
        time.sleep(0.05)
    with open(journal, "a") as file:
        file.write(f"done {name} {os.getpid()}\n")
