"""Runs a function in a process of its own, which is killed before its n-th change of a file below a directory.

    killed(directory, 7, trim_days, data, 2)                # True: it was killed; False: it ended before that
    killed_at_store(7, environment, trim_days, data, 2)     # before its n-th change of an object

A change is a file that is opened for writing, linked, renamed or removed, as Python's audit events tell. What is
written to an open file is not counted. So the kill comes between two steps of a program, each of them once.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewindmq.engine.keeping.archive.objects import Objects

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "rewindmq.engine.keeping.trim", "tests.support.forked"])
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SECONDS = 120


def killed(directory: Path, number: int, what: Callable[..., object], *arguments: object) -> bool:
    return _was_killed(_run, str(directory), number, what, arguments)


def killed_at_store(number: int, environment: dict[str, str], what: Callable[..., object], *arguments: object) -> bool:
    """As `killed`, before the n-th object that is created or deleted. `environment`: the login of the store."""
    return _was_killed(_run_with_store, number, environment, what, arguments)


def _was_killed(target: Callable[..., object], *arguments: object) -> bool:
    process = _context.Process(target=target, args=arguments)
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{arguments} does not end")
    assert process.exitcode in (0, -signal.SIGKILL), f"it failed: {process.exitcode}"
    return process.exitcode != 0


def _run(directory: str, number: int, what: Callable[..., object], arguments: tuple[object, ...]) -> None:
    left = number

    def hook(event: str, values: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open":
            changes = isinstance(values[2], int) and values[2] & _WRITING
        else:
            changes = event in ("os.rename", "os.remove", "os.link")
        if changes and str(values[0]).startswith(directory):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    what(*arguments)


def _run_with_store(
    number: int, environment: dict[str, str], what: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ.update(environment)
    left = number

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def called(*values: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*values)

        return called

    for name in ("create", "delete"):
        setattr(Objects, name, counted(getattr(Objects, name)))
    what(*arguments)
