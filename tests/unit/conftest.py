"""A unit test starts no process and speaks to no other machine, so that `make check` stays a matter of a minute.

Such an attempt is refused, and the test fails even where the code that it tests swallows the refusal.

`tmp_path` is in memory where the machine has room for that: a sync costs nothing there. Tests of tests/system sync to a
real disk.
"""

import multiprocessing.process
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.log.embedded.reserve import RESERVE_BYTES
from rewindmq.projections import system_calls
from tests.support.broker_harness import Harness
from tests.support.moving_clients import play as play
from tests.support.other_schema import released
from tests.support.quick_hashes import hashed_once

PROCESSES: tuple[tuple[Any, str], ...] = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (os, "fork"),
    (os, "posix_spawn"),
)
MEMORY, ROOM = Path("/dev/shm"), 1 << 30  # bytes that must be free: many times what one test writes
WITH_BLOCKS = ("test_log_reserve.py",)  # they look at the blocks of the reserve
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of the test's own, in memory if it can be; then it goes with the test."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield tmp_path_factory.mktemp(request.node.name[:30], numbered=True)
        return
    with tempfile.TemporaryDirectory(prefix="rewindmq-test-", dir=MEMORY, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="module", autouse=True)
def undisturbed() -> Iterator[None]:
    """Let a broker share its loop by the CPU time that work takes. On a busy machine a slice takes long without doing
    much, and what the test sent would wait for the line to rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewindmq.engine.broker.broker.LoopShare", partial(LoopShare, time.thread_time))
        yield


@pytest.fixture(scope="module", autouse=True)
def quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spare each broker the 20 ms of a hash, and the 6 ms that 16 MiB of blocks take in memory."""
    allocate = system_calls.allocate
    memory = MEMORY.stat().st_dev if MEMORY.is_dir() and request.path.name not in WITH_BLOCKS else None

    def extend(descriptor: int, offset: int, length: int) -> None:
        status = os.fstat(descriptor)
        if status.st_dev == memory and length >= RESERVE_BYTES:
            os.ftruncate(descriptor, max(status.st_size, offset + length))
        else:
            allocate(descriptor, offset, length)

    with hashed_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_calls, "allocate", extend)
        yield


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    """A broker on a data directory of its own, without sockets."""
    with Harness(tmp_path) as harness:
        yield harness


@pytest.fixture(scope="module")
def earlier_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """There are two released schemas (tests/support/other_schema.py)."""
    with released(tmp_path_factory.mktemp("released")):
        yield


class Refused(Exception):
    """A unit test did what only a test of tests/system may do."""


def guarded() -> Iterator[None]:
    """Around one phase of a test: refuses, and raises at the end when something was refused."""
    met: list[str] = []

    def refuse(what: str) -> Refused:
        met.append(f"a unit test {what}: such a test belongs in tests/system (docs/development/writing-tests.md)")
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
