"""The real `rewindmq` command, run as a process against a real broker (forked.py)."""

import subprocess

import pytest

from tests.support.commands import Cli
from tests.support.forked import run
from tests.support.running import RunningBroker


@pytest.fixture
def cli(broker: RunningBroker) -> Cli:
    """`cli("list_queues", "-q")`: the command on the broker."""

    def command(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return run(*arguments, stdin=stdin, REWINDMQ_URL=broker.http_url)

    return command
