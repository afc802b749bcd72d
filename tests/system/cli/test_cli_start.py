"""The command line starts without the broker: it imports what prints help and asks the API, and nothing else."""

import os
import re
import subprocess
import sys

import pytest

CLOSED = "http://127.0.0.1:1"
MAY_IMPORT = re.compile(
    r"rewindmq(\.(__main__|builds|schemas(\.(json_values|views))?|engine(\.file_modes|\.cli(\.\w+|\.commands\.\w+)?)?))?"
)


def imported(*arguments: str) -> set[str]:
    """The modules of ours that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rewindmq", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"REWINDMQ_URL": CLOSED},
        check=False,
    )
    assert done.returncode in (0, 69), done.stderr[-500:]
    return set(re.findall(r"^import time:.*\| +(rewindmq\S*)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize("arguments", [("--help",), ("version",), ("list_queues",), ("set_mark", "a"), ("ping",)])
def test_a_command_that_asks_the_broker_imports_nothing_of_it(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    assert {"rewindmq.engine.cli.main", "rewindmq.engine.cli.rows"} <= found
    assert {name for name in found if MAY_IMPORT.fullmatch(name) is None} == set()


def test_a_command_that_reads_a_history_imports_it() -> None:
    """So the test above sees imports where there are some."""
    assert "rewindmq.projections.rewind" in imported("rewind", "--help")
