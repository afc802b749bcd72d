"""The programs of examples/ run as their first lines say, against a real broker and its data directory."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.running import ROOT, RunningBroker


def run(*words: str) -> str:
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_service_runs_and_its_log_is_folded_and_audited(
    start_broker: Callable[..., RunningBroker],
) -> None:
    broker = start_broker()
    published = run("examples/service.py", "publish", "5", broker.amqp_url)
    assert published.splitlines() == [f"confirmed: order {n}" for n in range(1, 6)]
    consumed = run("examples/service.py", "consume", "3", broker.amqp_url)
    assert consumed.splitlines() == [f"done: order {n} (order-{n})" for n in range(1, 4)]
    assert broker.stop() == 0

    assert run("examples/fold_a_log.py", str(broker.data)) == "/ orders: 2 ready, 0 unacked, 5 ever published\n"

    tables = run("examples/auditors_job.py", str(broker.data))
    cells_of = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in tables.splitlines() if "|" in line}
    assert ("/", "orders", "published", "5") in cells_of, tables
    assert ("/", "orders", "acked", "3") in cells_of, tables
    assert "false" not in tables
