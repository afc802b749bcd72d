"""`rewindmq try`: a broker with a history, three commands that it names, and nothing left behind."""

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.commands import COMMAND


def started(environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Start it with the signals of a terminal: the program that runs the tests may ignore some."""
    return subprocess.Popen(
        [str(COMMAND), "try"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    )


def guide_of(process: "subprocess.Popen[str]") -> str:
    """Return all that it prints for its user."""
    assert process.stdout is not None
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    return said


def test_its_commands_see_the_mistake_and_undo_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    process = started(environment)
    try:
        said = guide_of(process)
        asked = dict(re.findall(r"^(See it|Who was it|Undo it)[:?] +(.+)$", said, re.MULTILINE))

        def answer(question: str) -> str:
            command = shlex.split(asked[question])
            return subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=60, env=environment
            ).stdout

        assert "Queue cancelled had 992 messages" in said
        assert "992 ready" in answer("See it")
        assert answer("Who was it").count("purged") == 3
        assert "992 purged" in answer("Undo it")
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not list(tmp_path.iterdir()), "its data are still there"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_and_cleans_up_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    process = started({**os.environ, "TMPDIR": str(tmp_path)})
    guide_of(process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_configuration_of_the_machine_does_not_count(tmp_path: Path) -> None:
    """Nor does it print commands that would go to another broker."""
    settings = {"REWINDMQ_KAFKA": "127.0.0.1:1", "REWINDMQ_URL": "http://127.0.0.1:1", "REWINDMQ_USER": "ann"}
    process = started({**os.environ, **settings, "TMPDIR": str(tmp_path)})
    said = guide_of(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert re.search(r"Undo it: +.+ --http-port \d+ --user guest --password guest restore cancelled", said)


@pytest.mark.long
def test_the_broker_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    process = started({**os.environ, "TMPDIR": str(tmp_path)})
    said = guide_of(process)
    port = int(re.findall(r"port (\d+)", said)[0])
    process.kill()
    process.communicate(timeout=60)
    eventually_closed(port)


def eventually_closed(port: int) -> None:
    """Wait until nothing listens on a port. AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    raise AssertionError(f"something still listens on port {port}")
