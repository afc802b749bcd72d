"""`rewindmq try`: a broker with a history, three commands that it names, and nothing left behind."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import COMMAND


def test_its_commands_see_the_mistake_and_undo_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [str(COMMAND), "try"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            said += line
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_and_cleans_up_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [str(COMMAND), "try"], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())
