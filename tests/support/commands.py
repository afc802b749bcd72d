"""The `rewindmq` command as tests run it, and what it answers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from click.testing import CliRunner

from rewindmq.engine.cli.main import rewindmq
from tests.support.forked import run
from tests.support.running import RunningBroker


def run_in_process(broker: RunningBroker, *arguments: str) -> tuple[int, str]:
    """Run the command on a broker. Returns its exit code and its output."""
    answer = CliRunner().invoke(rewindmq, arguments, env={"REWINDMQ_URL": broker.http_url})
    return answer.exit_code, answer.output + str(answer.exception or "")


def require_failure(done: "subprocess.CompletedProcess[str]", code: int, line: str) -> None:
    """Require that a command has failed with this code and one line on stderr, which begins so."""
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert done.stderr.rstrip("\n").startswith(line), done.stderr


def metadata_events(data: Path, event: str) -> list[dict[str, str]]:
    """Return the fields of each event of this type in the metadata log."""
    done = run("events", "--data", str(data), "--partition", "metadata-0", "--format", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [each["fields"] for each in found if each["event"] == event]


def cli(broker: RunningBroker, *arguments: str) -> "CompletedProcess[str]":
    return run(*arguments, "--url", broker.http_url, "-q")


def repartition_state(broker: RunningBroker) -> dict[str, Any]:
    """Return the state that `rewindmq repartition` reports."""
    done = cli(broker, "repartition", "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, "")
    [row] = json.loads(done.stdout)
    assert isinstance(row, dict)
    return row


Cli = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = Path(sys.executable).parent / "rewindmq"
