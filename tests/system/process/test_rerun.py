"""CI's second try for tests that fail (tests/support/rerun.py), on suites of a few lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT

# It fails in the first of its runs.
FLAKY = """
from pathlib import Path

def test_flaky_{number}():
    notes = Path(__file__).with_name("ran-{number}")
    ran = notes.exists()
    notes.touch()
    assert ran, "not yet"
"""
GOOD = "def test_good():\n    pass\n"
BAD = "def test_bad():\n    assert False\n"
ENDS = "import os\n\ndef test_ends():\n    os._exit(9)\n"
ERROR = """
import pytest
from pathlib import Path

@pytest.fixture
def late():
    yield
    notes = Path(__file__).with_name("ended")
    ran = notes.exists()
    notes.touch()
    assert ran

def test_late(late):
    pass
"""


def rerun(directory: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    for name, text in files.items():
        (directory / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "tests.support.rerun", *options, "--rootdir", str(directory), str(directory)]
    environment = {**os.environ, "PYTEST_ADDOPTS": f"-c {directory / 'pytest.ini'}"}
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "2", "--dist", "loadscope")])
def test_a_test_that_passes_alone_is_flaky(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, said = rerun(tmp_path, {"good": GOOD, "one": FLAKY.format(number=1), "late": ERROR}, *options)
    assert status == 0, said
    lines = [line for line in said.splitlines() if line.startswith("FLAKY")]
    assert lines == ["FLAKY: test_late.py::test_late", "FLAKY: test_one.py::test_flaky_1"]
    assert "1 failed, 2 passed, 1 error in" in said
    assert "2 passed in" in said


def test_a_test_that_fails_again_fails(tmp_path: Path) -> None:
    status, said = rerun(tmp_path, {"good": GOOD, "bad": BAD, "one": FLAKY.format(number=1)}, "-n", "2")
    assert status == 1
    assert said.count("FLAKY:") == 1
    assert "2 failed, 1 passed in" in said
    assert "1 failed, 1 passed in" in said


@pytest.mark.long
def test_more_than_three_failures_are_not_run_again(tmp_path: Path) -> None:
    files = {f"flaky_{number}": FLAKY.format(number=number) for number in range(4)}
    status, said = rerun(tmp_path, files, "-n", "2")
    assert status == 1
    assert "FLAKY" not in said
    assert said.count("4 failed in") == 1
    assert "4 tests failed: more than 3 are not run again" in said


@pytest.mark.long
def test_what_passes_and_what_cannot_begin_has_pytests_status(tmp_path: Path) -> None:
    assert rerun(tmp_path, {"good": GOOD})[0] == 0
    status, said = rerun(tmp_path, {"good": GOOD, "broken": "import nothing_of_the_kind\n"}, "-n", "2")
    assert status != 0
    assert "FLAKY" not in said


@pytest.mark.long
def test_a_process_that_a_test_ends_is_a_failure_of_that_test(tmp_path: Path) -> None:
    status, said = rerun(tmp_path, {"good": GOOD, "ends": ENDS}, "-n", "2")
    assert status != 0
    assert "FLAKY" not in said
