"""The broker notifies a service manager (sd_notify), here through a real datagram socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.service_manager import ServiceManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def test_b48_each_step_is_one_datagram(manager: socket.socket) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    told.status("opening /data")
    told.ready("running")
    told.reloading()
    told.stopping()
    assert manager.recv(1000) == b"STATUS=opening /data"
    assert manager.recv(1000) == b"READY=1\nSTATUS=running"
    reloading, _, time_us = manager.recv(1000).partition(b"\nMONOTONIC_USEC=")
    assert reloading == b"RELOADING=1"
    assert int(time_us) > 0
    assert manager.recv(1000) == b"STOPPING=1\nSTATUS=stopping"


def test_b48_an_abstract_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0rewindmq-test-{tmp_path.name}-{os.getpid()}")
        listening.settimeout(10)
        address = listening.getsockname().decode().replace("\0", "@")
        ServiceManager({"NOTIFY_SOCKET": address}).status("here")
        assert listening.recv(1000) == b"STATUS=here"


def test_b48_a_manager_that_is_not_there_is_no_error(manager: socket.socket, tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "none"), str(tmp_path / ("x" * 200)), "a\0b"):
        ServiceManager({"NOTIFY_SOCKET": address}).ready("running")
    told = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    for number in range(10_000):  # nobody reads: the socket is full soon, and nothing blocks
        told.status(str(number))
    assert manager.recv(1000) == b"STATUS=0"


@pytest.mark.parametrize(
    ("environment", "hears"),
    [
        ({"WATCHDOG_USEC": "100000"}, True),
        ({"WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "nonsense"}, False),
        ({}, False),
    ],
)
def test_b48_the_watchdog_hears_of_the_loop(manager: socket.socket, environment: dict[str, str], hears: bool) -> None:
    async def story() -> list[bytes]:
        told = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), **environment})
        told.begin_watchdog()
        await asyncio.sleep(0.3)
        told.stopping()
        await asyncio.sleep(0.2)
        heard: list[bytes] = []
        while not heard or not heard[-1].startswith(b"STOPPING=1"):
            heard.append(manager.recv(1000))
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(1000)
        return heard[:-1]

    heard = asyncio.run(story())
    assert set(heard) == ({b"WATCHDOG=1"} if hears else set())
    assert len(heard) > 2 or not hears
