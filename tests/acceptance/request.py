"""The request for a run of a suite, which runs the suite's own command, and the run's outcome.

The command's output goes to files below the user's cache, which can be read while it runs. The command and all
processes that it started are ended after the time limit, or when the run is interrupted.
"""

import os
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.brokers import Start
from tests.support.running import start_process

TAIL = 3_000  # characters of its output in an error


class NotRun(Exception):
    """A suite could not be run to its end, and why."""


@dataclass(frozen=True)
class Outcome:
    """`tests`: whether each test passed, by its name; without those that the suite skipped."""

    version: str
    tests: dict[str, bool]


def by_name(found: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Of tests that share a name, or end more than once, the name passes if each of them passes."""
    tests: dict[str, bool] = {}
    for name, passed in found:
        tests[name] = passed and tests.get(name, True)
    return tests


@dataclass(frozen=True)
class Request:
    """`tests`: a pattern of tests, as the suite's own runner takes it; None: all."""

    start: Start
    tests: str | None
    output: Path
    limit_seconds: float

    def printed(self, command: list[str], home: Path, environment: dict[str, str] | None = None) -> str:
        """Runs a command in `home` to its end. Returns what it wrote to stdout."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with open(self.output, "wb") as stdout, open(f"{self.output}.errors", "wb") as stderr:
            process = start_process(
                command,
                cwd=home,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                process.wait(self.limit_seconds)
            except subprocess.TimeoutExpired:
                raise NotRun(f"it did not end within {self.limit_seconds / 60:.0f} minutes: {self.output}") from None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return self.output.read_text(errors="replace")

    def no_outcome(self) -> NotRun:
        """The error of a command that named no test."""
        said = Path(f"{self.output}.errors").read_text(errors="replace") + self.output.read_text(errors="replace")
        return NotRun(f"no test ran, see {self.output}:\n{said[-TAIL:]}")
