"""A run of acceptance suites is judged by the known failures, and a suite that does not end by itself is ended."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance import run
from tests.acceptance.brokers import rewindmq
from tests.acceptance.known import KNOWN, Known
from tests.acceptance.request import NotRun, Outcome, Request, by_name
from tests.acceptance.suites import SUITES, Suite


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        KNOWN, "amqp", (Known("^always$", "a reason"), Known("^seldom$", "another reason", now_and_then=True))
    )


@pytest.mark.parametrize(
    ("tests", "failed", "gone"),
    [
        ({"well": True, "always": False, "seldom": False}, [], []),
        ({"well": True, "always": False, "seldom": True}, [], []),
        ({"well": False, "always": False, "seldom": True}, ["well"], []),
        ({"well": True, "always": True, "seldom": True}, [], ["^always$"]),
        ({"well": True, "always": False}, [], ["^seldom$"]),  # the suite has no such test any more
    ],
)
def test_a_run_is_good_if_exactly_the_known_tests_fail(
    tests: dict[str, bool], failed: list[str], gone: list[str]
) -> None:
    judgement = run.judged("amqp", Outcome("1", tests), whole=True)
    assert (judgement.failed, judgement.gone) == (failed, gone)
    assert judgement.is_good == (not failed and not gone)


def test_a_known_failure_that_was_not_asked_for_is_not_gone() -> None:
    assert run.judged("amqp", Outcome("1", {"well": True}), whole=False).is_good


def test_a_name_passes_if_each_of_its_tests_passes() -> None:
    assert by_name([("a", False), ("a", True), ("b", True), ("b", True)]) == {"a": False, "b": True}


def test_a_suite_that_could_not_be_run_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def breaks(request: Request) -> Outcome:
        raise NotRun("it did not end within 1 minutes")

    monkeypatch.setattr(run, "CACHE", tmp_path)
    monkeypatch.setitem(SUITES, "amqp", Suite("", breaks))
    monkeypatch.setitem(SUITES, "kombu", Suite("", lambda request: Outcome("5.7.0", {"well": True})))
    monkeypatch.setitem(SUITES, "rascal", Suite("", breaks, programs=("no-such-program",)))
    assert run.main(["amqp", "kombu", "rascal"]) == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert re.fullmatch("amqp +not run: it did not end within 1 minutes", lines[0])
    assert lines[1].split()[:3] == ["kombu", "5.7.0", "1"]
    assert re.fullmatch("rascal +not run: no-such-program is not installed", lines[2])


@pytest.mark.parametrize("arguments", [["no-such-suite"], ["--tests", "one"], ["kombu", "amqp", "--tests", "one"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(arguments)
    assert ended.value.code == 2


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    request = Request(rewindmq, None, tmp_path / "output" / "amqp", limit_seconds=3)
    began = time.monotonic()
    with pytest.raises(NotRun, match="did not end"):
        request.printed([sys.executable, "-c", parent], tmp_path)
    assert time.monotonic() - began < 60
    pid = int(request.output.read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, f"process {pid} is left"
        time.sleep(0.05)


def test_each_known_failure_names_a_suite_and_has_a_pattern_and_a_reason() -> None:
    assert set(KNOWN) <= set(SUITES)
    for entry in (entry for entries in KNOWN.values() for entry in entries):
        re.compile(entry.tests)
        assert entry.reason
