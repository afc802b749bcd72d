"""A unit test starts no process and speaks to no other machine, so that `make check` stays a matter of a minute.

Whatever tries is refused, and the test fails even where the code that it tests swallows the refusal.
"""

import multiprocessing.process
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PROCESSES: tuple[tuple[Any, str], ...] = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (os, "fork"),
    (os, "posix_spawn"),
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Refused(Exception):
    """A unit test did what only a test of tests/system may do."""


def guarded() -> Iterator[None]:
    """Around one phase of a test: refuses, and raises at the end when something was refused."""
    met: list[str] = []

    def refuse(what: str) -> Refused:
        met.append(f"a unit test {what}: such a test belongs in tests/system (docs/development/testing.md)")
        return Refused(met[-1])

    def starts(name: str) -> Callable[..., None]:
        def start(*_: object, **__: object) -> None:
            raise refuse(f"starts a process ({name})")

        return start

    connect = socket.socket.connect

    def connects(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOOPBACK:
            raise refuse(f"connects to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in PROCESSES:
            patch.setattr(owner, name, starts(f"{owner.__name__}.{name}"))
        patch.setattr(socket.socket, "connect", connects)
        yield
    if met:
        raise Refused(met[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    return (yield from guarded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    return (yield from guarded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    return (yield from guarded())
