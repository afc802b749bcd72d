"""The compiled build in a checkout: it runs, it is switched off, it is stale, it is replaced."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.compiler import MODULES
from tests.install.installed import clean, copy_source
from tests.support.running import ROOT, RunningBroker

CODEC = "rewindmq.schemas.codec"
WHERE = f"import json, sys, rewindmq, {CODEC}\nprint(rewindmq.builds.running().kind, {CODEC}.__file__)"


def python(program: str, root: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with the RewindMQ of a checkout."""
    env = {**clean(), "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, with this one's compiled build."""
    copied = copy_source(tmp_path / "checkout")
    shutil.copytree(ROOT / "rewindmq" / "compiled", copied / "rewindmq" / "compiled")
    return copied


def test_the_compiled_modules_run_and_the_switch_turns_them_off(checkout: Path) -> None:
    for root in (ROOT, checkout):
        kind, file = python(WHERE, root).stdout.split()
        assert (kind, Path(file).parent) == ("compiled", root / "rewindmq" / "compiled")
        kind, file = python(WHERE, root, REWINDMQ_PURE="1").stdout.split()
        assert (kind, file) == ("pure", str(root / "rewindmq" / "schemas" / "codec.py"))


def test_every_compiled_module_is_imported() -> None:
    program = (
        f"import importlib, json\nmodules = {MODULES!r}\n"
        "print([name for name in modules if not importlib.import_module(name).__file__.endswith('.so')])"
    )
    done = python(program)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_traceback_has_file_line_and_text_of_the_source() -> None:
    done = python("from rewindmq.schemas.codec import HEADER, Decoder\nDecoder().decode(HEADER)")
    lines = done.stderr.splitlines()
    at = next(number for number, line in enumerate(lines) if 'File "rewindmq/schemas/shapes.py", line ' in line)
    line = int(lines[at].split("line ")[1].partition(",")[0])
    assert lines[at + 1].strip() == (ROOT / "schemas" / "shapes.py").read_text().splitlines()[line - 1].strip()


@pytest.mark.parametrize("changed", ["schemas/codec.py", "schemas/events.py", "rewindmq/compiler.py"])
def test_a_changed_source_makes_all_pure(checkout: Path, changed: str) -> None:
    """Also one that is not compiled itself: its constants may be in the code."""
    with (checkout / changed).open("a") as file:
        file.write("# changed\n")
    program = WHERE + "\nprint(*[name for name in sys.modules if 'mypyc' in name])\nprint(rewindmq.builds.running())"
    kind_and_file, libraries, build = python(program, checkout).stdout.splitlines()
    assert kind_and_file == f"pure {checkout}/rewindmq/schemas/codec.py"
    assert libraries == ""
    why = f"{changed.removeprefix('rewindmq/')} is not the source that it was made of"
    assert build == f"pure (the compiled build is stale: {why}; `make compile` makes it anew)"


class CheckoutBroker(RunningBroker):
    """The broker of another checkout."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root = root
        super().__init__(data)

    def command(self, command: list[str]) -> list[str]:
        return ["env", f"PYTHONPATH={self.root}", f"--chdir={self.root}", command[0], "-P", *command[1:]]


def test_the_broker_and_status_say_that_a_build_is_stale(checkout: Path, tmp_path: Path) -> None:
    with (checkout / "schemas" / "codec.py").open("a") as file:
        file.write("# changed\n")
    broker = CheckoutBroker(checkout, tmp_path / "data")
    try:
        assert broker.ready_line.endswith(", pure build\n")
        why = "the compiled build is stale: schemas/codec.py is not the source that it was made of; `make compile`"
        status = [sys.executable, "-m", "rewindmq", "status", "--url", broker.http_url]
        shown = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f"Build: pure ({why} makes it anew)\n" in shown
    finally:
        assert broker.stop() == 0, "".join(broker.errors)
    said = [line for line in broker.errors if "the compiled build" in line]
    assert len(said) == 1, broker.errors
    assert f"[warning] the pure build runs: {why} makes it anew" in said[0]


def test_the_broker_and_status_say_that_they_are_compiled(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    try:
        assert broker.ready_line.endswith(", compiled build\n")
        status = [sys.executable, "-m", "rewindmq", "status", "--url", broker.http_url]
        shown = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f"Build: compiled ({len(MODULES)} modules, mypy " in shown
        as_json = subprocess.run([*status, "--formatter", "json"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert '"build":"compiled"' in as_json.stdout.replace(" ", "")
    finally:
        assert broker.stop() == 0, "".join(broker.errors)
    assert "build" not in "".join(broker.errors)


def test_a_build_that_is_replaced_meanwhile_is_refused(checkout: Path) -> None:
    """The next import of a compiled module fails, and says what to do. No second library is loaded."""
    program = (
        "import os, rewindmq, rewindmq.schemas.walk\n"
        "directory = 'rewindmq/compiled'\n"
        "os.rename(directory, 'old')\n"
        "import shutil; shutil.copytree('old', directory)\n"
        "import rewindmq.schemas.shapes\n"
    )
    done = python(program, checkout)
    assert done.returncode == 1
    assert "changed while this process ran: a process does not mix two builds; start it again" in done.stderr


def test_a_program_that_was_started_before_goes_on(checkout: Path) -> None:
    """A program keeps the modules that it has loaded, although their files are deleted."""
    program = (
        "import shutil\nfrom rewindmq.schemas.codec import Decoder, Encoder\n"
        "from rewindmq.schemas.events import Tick\nfrom rewindmq.schemas.values import BROKER\n"
        "shutil.rmtree('rewindmq/compiled')\n"
        "encoder = Encoder()\n"
        "print(Decoder().decode(encoder.encode(encoder.prefix(1, BROKER), Tick()))[0])\n"
    )
    done = python(program, checkout)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_make_compile_is_done_when_all_is_as_it_was() -> None:
    command = [sys.executable, "-m", "rewindmq.compiler"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is up to date" in done.stdout
