"""A tutorial's program fails its tutorial if it prints something else, ends badly, or does not end."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import tutorials
from tests.acceptance.tutorials import Failed, Terminal


@pytest.mark.parametrize(
    ("program", "seconds", "expected", "reason"),
    [
        ("print(' [x] Received Hello')", 1, lambda ran: ran.wait_for("Received .*Hello World!"), "no 'Received"),
        ("import sys; print('refused'); sys.exit(1)", 60, Terminal.ended, "ended with 1: 'refused"),
        ("import time; time.sleep(600)", 1, Terminal.ended, "did not end"),
    ],
)
def test_a_program_that_does_not_do_what_its_tutorial_says(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    seconds: float,
    expected: Callable[[Terminal], object],
    reason: str,
) -> None:
    monkeypatch.setattr(tutorials, "SECONDS", seconds)
    ran = Terminal([sys.executable, "-c", program], tmp_path)
    try:
        with pytest.raises(Failed, match=reason):
            expected(ran)
    finally:
        ran.stop()


def test_a_program_that_does_what_its_tutorial_says(tmp_path: Path) -> None:
    ran = Terminal([sys.executable, "-c", "print(' [x] Received Hello World!')"], tmp_path)
    try:
        ran.wait_for("Received .*Hello World!")
        assert ran.ended() == " [x] Received Hello World!\r\n"
    finally:
        ran.stop()
