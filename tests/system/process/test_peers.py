"""A broker under comparison whose start fails leaves no process behind (tests/bench/peers.py)."""

import os
import time
from pathlib import Path

import pytest

from tests.bench.peers import started
from tests.support.ports import free_port

# As RabbitMQ's script does: another process is the broker. It writes its own number, and answers nothing.
SCRIPT = "sh -c 'echo $$ > child; exec sleep 600' & {}"


@pytest.mark.parametrize(("then", "error"), [("wait", "no AMQP answer"), ("exit 3", "the broker ended with 3")])
def test_a_start_that_fails_leaves_no_process(tmp_path: Path, then: str, error: str) -> None:
    script = SCRIPT.format(f"while ! test -s child; do sleep 0.01; done; {then}")
    with pytest.raises(RuntimeError, match=error):
        started("RabbitMQ", ["sh", "-c", script], free_port(), tmp_path, seconds=3)
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while time.monotonic() < until and runs(child):
        time.sleep(0.01)
    assert not runs(child)


def runs(pid: int) -> bool:
    """A process that was killed and that init has not waited for does not run."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
