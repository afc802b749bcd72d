"""The program as it was before the newest schema of history, installed from git into a directory of its own.

program = install(directory)        raises NoHistory
older_broker(program)               a class of `RunningBroker`s that run it
"""

import os
import subprocess
import sys
from pathlib import Path

from rewindmq.schemas.registry import envelope_fingerprint
from tests.support.needs import needed
from tests.support.running import ROOT, RunningBroker


class NoHistory(Exception):
    """The checkout has no git history back to the older program."""


def commit_before_schema() -> str:
    """The last commit without today's schema. Raises NoHistory."""
    added = f"schemas/released/{envelope_fingerprint()}.avsc"
    said = _git("log", "--diff-filter=A", "--format=%H", "--", added).decode().split()
    if not said:
        raise NoHistory(f"git does not know the commit that added {added}")
    return _git("rev-parse", f"{said[-1]}^").decode().strip()


def install(directory: Path) -> Path:
    """Install that commit's program. Returns the directory from which Python imports it. Raises NoHistory."""
    source, target = directory / "source", directory / "installed"
    source.mkdir()
    packed = _git("archive", commit_before_schema())
    subprocess.run(["tar", "x", "-C", str(source)], input=packed, check=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, cwd=source)
    return target


def older_broker(program: Path) -> type[RunningBroker]:
    """The kind of broker that runs this program."""

    class OlderBroker(RunningBroker):
        def command(self, command: list[str]) -> list[str]:
            own = f"import os, sys; os.chdir({str(program)!r}); sys.path.insert(0, {str(program)!r});"
            run = " import runpy; runpy.run_module('rewindmq.engine', run_name='__main__')"
            start = command.index("--data")
            return [command[0], "-c", own + run, *command[start:]]

    return OlderBroker


def _git(*arguments: str) -> bytes:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    done = subprocess.run([needed("git"), *arguments], cwd=ROOT, env=environment, capture_output=True)
    if done.returncode != 0:
        raise NoHistory(done.stderr.decode())
    return done.stdout
