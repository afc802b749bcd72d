"""A broker in a process of its own, as an operator starts it, on free ports."""

import ctypes
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.processes import cpu_seconds_of

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
LONG_WORK_MS = 250  # of processor time: no piece of work in the loop may take longer (docs/design.md)
LONG_WORK = re.compile(r"one piece of work for (\d+) at least.*")

# Linux ends a child with the *thread* that started it (PR_SET_PDEATHSIG), so one thread that lives as long as the test
# run starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
# Loaded here: between fork and exec the loader's lock may be held for ever, by a thread that the child does not have.
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def start_process(command: list[str], **how: Any) -> "subprocess.Popen[Any]":
    """Start a process that is killed when the test run ends, in any way. It heeds Ctrl-C: a test run in the background
    ignores it, and so would all that it starts."""

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def start() -> "subprocess.Popen[Any]":
        return subprocess.Popen(command, preexec_fn=die_with_parent, **how)

    return _starter.submit(start).result()


class RunningBroker:
    """A broker process that is ready. `errors` has its stderr, `stalls` what its watch of the loop says there. `ports`:
    for AMQP and HTTP, if not any that are free.

    Its end fails the test if a piece of work has held up the loop for too long. The broker's watch measures that in
    processor time, and never says too much, so a busy machine makes no difference. `long_work_expected`: the test knows
    it."""

    long_work_expected = False
    program_root = ROOT  # the source tree from which it runs
    program: tuple[str, ...] = ("-m", "rewindmq.engine")

    def __init__(self, data: Path, *options: str, ports: tuple[int, int] | None = None) -> None:
        self.data = data
        self.host = "127.0.0.1"
        self.amqp_port, self.http_port = ports or (free_port(), free_port())
        self.errors: list[str] = []
        self.stalls: list[str] = []
        self.process = start_process(
            self.command(
                [
                    sys.executable,
                    *self.program,
                    "--data",
                    str(data),
                    "--amqp-port",
                    str(self.amqp_port),
                    "--http-port",
                    str(self.http_port),
                    *options,
                ]
            ),
            cwd=self.program_root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.start()
        self.ready_line = self.process.stdout.readline()
        timer.cancel()
        if not self.ready_line:
            self.process.wait()
            self._reader.join()
            raise AssertionError(f"the broker ended with {self.process.returncode}: {''.join(self.errors)}")

    def command(self, command: list[str]) -> list[str]:
        """The command as it is started, unchanged."""
        return command

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.amqp_port}/"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the broker's process has used."""
        return cpu_seconds_of(self.process.pid)

    def stop(self) -> int:
        """End it as an operator does (SIGTERM). Returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> int:
        """End it as a power cut does."""
        self.process.kill()
        return self._ended()

    def _ended(self) -> int:
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the broker did not stop: {''.join(self.errors)}") from None
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if not self.long_work_expected:
            long = [each[0] for each in map(LONG_WORK.search, self.stalls) if each and int(each[1]) > LONG_WORK_MS]
            assert not long, f"work that kept all other clients waiting: {long}"
        return code

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            (self.stalls if LONG_WORK.search(line) else self.errors).append(line)


@contextmanager
def ended(broker: RunningBroker) -> Iterator[RunningBroker]:
    try:
        yield broker
    finally:
        broker.kill()
