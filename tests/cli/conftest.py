"""The real `rewindmq` command, run as a process against a real broker."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import RunningBroker

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = Path(sys.executable).parent / "rewindmq"


def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(COMMAND), *arguments], input=stdin, capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin", **environment},
    )  # fmt: skip


@pytest.fixture
def cli(broker: RunningBroker) -> Cli:
    """`cli("list_queues", "-q")`: the command on the broker."""

    def command(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return run(*arguments, stdin=stdin, REWINDMQ_URL=broker.http_url)

    return command
