"""The systemd units, as systemd's own tool judges them, and the process as the broker's unit starts it (B-48)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.engine.cli.exits import CONFIG, DATA, USAGE
from tests.support.needs import needed
from tests.support.running import ROOT, RunningBroker

UNIT = ROOT / "compose" / "rewindmq.service"
TEXT = UNIT.read_text()
SHOVEL = UNIT.with_name("rewindmq-shovel@.service")
MOST_EXPOSURE = 15  # of 100; systemd calls less than 20 fine, and a service without any of it has 96

ANALYZE = needed("systemd-analyze")

# As the unit has it: no new privileges, and no memory that is both written and executed (PR_SET_MDWE).
CONFINED = (
    "import ctypes, os, sys; prctl = ctypes.CDLL(None).prctl;"
    "assert prctl(38, 1, 0, 0, 0) == 0; prctl(65, 1, 0, 0, 0);"
    "os.umask(0o027); os.execv(sys.argv[1], sys.argv[1:])"
)


def analyzed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [ANALYZE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "SYSTEMD_COLORS": "0"})


@pytest.mark.parametrize("path", [UNIT, SHOVEL], ids=lambda path: path.name)
def test_b48_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "rewindmq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / path.name.replace("@", "@orders")
    unit.write_text(path.read_text().replace("/usr/bin/rewindmq", str(program)))
    done = analyzed("verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(re.sub("^Type=.*", "Type=nonsense", unit.read_text(), flags=re.M))
    assert analyzed("verify", "--man=no", str(unit)).stderr != ""


@pytest.mark.parametrize("path", [UNIT, SHOVEL], ids=lambda path: path.name)
def test_b48_the_unit_is_hardened(path: Path) -> None:
    done = analyzed("security", "--offline=yes", f"--threshold={MOST_EXPOSURE}", str(path))
    assert done.returncode == 0, done.stdout
    [exposure] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) * 10 <= MOST_EXPOSURE


def test_b48_the_lines_for_a_port_below_1024_are_as_the_page_has_them(tmp_path: Path) -> None:
    [lines] = re.findall(r"^    \[Service\]\n((?:    .*\n)+)", (ROOT / "docs/operators/start.md").read_text(), re.M)
    added = "".join(line.strip() + "\n" for line in lines.splitlines())
    unit = tmp_path / UNIT.name
    for line in added.splitlines():
        assert line in TEXT, "the unit's own comment names the same lines"
    unit.write_text(TEXT.replace("[Install]", f"{added}\n[Install]"))
    judged = json.loads(analyzed("security", "--offline=yes", "--json=short", str(unit)).stdout)
    found = {each["json_field"]: each["set"] for each in judged}
    assert found["PrivateUsers"] is False
    assert found["AmbientCapabilities"] is False, "ambient, so that a user who is not root has it"
    [only] = [name for name in found if name.startswith("CapabilityBoundingSet") and found[name] is not True]
    assert "NET_BIND_SERVICE" in only


def test_b48_a_restart_is_no_answer_to_a_wrong_configuration() -> None:
    [codes] = re.findall(r"^RestartPreventExitStatus=(.*)$", TEXT, re.M)
    assert {int(code) for code in codes.split()} == {USAGE, DATA, CONFIG}


def test_b48_the_broker_runs_confined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the archiver beside it, patterns of PCRE2 and a reload."""

    class Confined(RunningBroker):
        def command(self, command: list[str]) -> list[str]:
            return [sys.executable, "-c", CONFINED, *command]

    broker = Confined(tmp_path / "data", "--archive", str(tmp_path / "archive"))
    try:
        from rewindmq.engine.cli.main import run

        port = ("--http-port", str(broker.http_port))
        assert run(["set_policy", "p", "^a.*(?<!x)$", '{"max-length": 5}', *port]) == 0
        assert run(["status", *port]) == 0
        assert "Archive: file://" in capsys.readouterr().out
    finally:
        assert broker.stop() == 0
    assert "Traceback" not in "".join(broker.errors)
