"""Runs the programs and commands of a page, as its reader does, and compares what they print.

A block ```python NAME is a file. A block ```console has commands ($ ...) and what they print at a terminal on stdout:
in it `...` stands for any text in a line, and on a line of its own for any lines. Several blanks count as
one. A command with & at its end runs in the background, where %1 is the first one of the page. Programs find the
broker under test. A page that starts brokers gives them the ports of OWN_PORTS, for which others are taken.
"""

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.running import RunningBroker

BLOCK = re.compile(r"^```(python|console)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
LOCALHOST = 'pika.ConnectionParameters("localhost")'
OWN_PORTS = re.compile(r"\b1?568[0-9]\b")
REPEATABLE = ("cat ", *(f"rewindmq -q {each}" for each in ("find", "history", "list", "rewind")))  # they change nothing
COLUMNS = 200  # of the terminal
SECONDS = 60.0
PATIENCE_SECONDS = 20.0  # until a command prints what the page says: what it shows may be on its way


@dataclass
class Page:
    """A page at work. `directory`: where its programs are written and run."""

    directory: Path
    broker: RunningBroker
    background: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def run(self, text: str) -> int:
        """Run all blocks. Returns the number of commands. AssertionError: a command prints something else."""
        count = 0
        text = OWN_PORTS.sub(self._free_port, text)
        try:
            for kind, name, content in BLOCK.findall(text):
                if kind == "python":
                    own = any(f'"localhost", {port})' in content for port in self.ports.values())
                    assert own or "import pika" not in content or LOCALHOST in content, f"{name}: another broker"
                    here = LOCALHOST.replace(")", f", {self.broker.amqp_port})")
                    (self.directory / name).write_text(content.replace(LOCALHOST, here))
                    continue
                for command, expected in commands_of(content):
                    self._check(command, expected)
                    count += 1
        finally:
            for process in self.background:
                process.kill()
                process.wait()
        return count

    def _free_port(self, named: re.Match[str]) -> str:
        return str(self.ports.setdefault(named[0], free_port()))

    def _check(self, command: str, expected: list[str]) -> None:
        if command.endswith("&"):
            self._start(command.removesuffix("&"))
            return
        if killed := re.fullmatch(r"kill (-9 )?%(\d+)", command):
            process = self.background[int(killed[2]) - 1]
            process.send_signal(signal.SIGKILL if killed[1] else signal.SIGTERM)
            process.wait(SECONDS)
            return
        is_repeatable = command.startswith(REPEATABLE)
        deadline = time.monotonic() + (PATIENCE_SECONDS if is_repeatable else 0)
        while True:
            printed, errors = self._printed(command)
            if matches(printed, expected):
                return
            if time.monotonic() > deadline:
                told = [f"$ {command}", *printed, errors, "instead of", *expected]
                raise AssertionError("\n".join(told))
            time.sleep(0.2)

    def _start(self, command: str) -> None:
        words, _, file = command.partition(">")
        with (self.directory / file.strip()).open("wb") as out:
            process = subprocess.Popen(
                shlex.split(words), cwd=self.directory, stdout=out, env=self._environment(), start_new_session=True
            )
        self.background.append(process)

    def _printed(self, command: str) -> tuple[list[str], str]:
        """Return the lines that a command prints at a terminal, and what it says on stderr."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self.directory, stdout=theirs, stderr=subprocess.PIPE, env=self._environment()
        )
        os.close(theirs)
        output = b""
        while piece := _read(ours):
            output += piece
        os.close(ours)
        _, errors = process.communicate(timeout=SECONDS)
        return ESCAPES.sub("", output.decode()).splitlines(), errors.decode()

    def _environment(self) -> dict[str, str]:
        here = os.path.dirname(sys.executable)
        ours = {"PATH": f"{here}:{os.environ['PATH']}", "REWINDMQ_URL": self.broker.http_url, "COLUMNS": str(COLUMNS)}
        return {**os.environ, **ours}


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65_536)
    except OSError:  # Linux says so when the last process has closed the terminal
        return b""


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a block, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(printed: list[str], expected: list[str]) -> bool:
    """Return True if the lines are those of the page."""
    parts = [r"(?:[^\n]*\n)*?" if line.strip() == "..." else f"{_line(line)} *\n" for line in expected]
    text = "".join(f"{' '.join(line.split())}\n" for line in printed)
    return re.fullmatch("".join(parts), text) is not None


def _line(line: str) -> str:
    """Return a pattern of a line whose words are separated by one blank."""
    words = [r"[^\n]*?" if word == "..." else re.escape(word).replace(r"\.\.\.", r"[^\n]*?") for word in line.split()]
    return " ?".join(words)
