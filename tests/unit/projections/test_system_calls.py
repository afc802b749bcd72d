"""projections/system_calls.py on Linux, and as it is when it is imported on macOS, which doubles stand for.

The doubles take away what Python lacks there, and add what it has: Apple's man pages fsync(2), fcntl(2), setrlimit(2)
and getrusage(2), and the notes on availability in the documentation of Python's os, fcntl and time.
"""

import errno
import fcntl
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rewindmq.projections import system_calls

F_FULLFSYNC = 51
INFINITE = 2**63 - 1
Calls = list[tuple[str, int]]


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, as it is when it is imported on macOS."""
    for module, missing in (
        (os, "fdatasync"),
        (os, "posix_fallocate"),
        (time, "CLOCK_BOOTTIME"),
        (time, "pthread_getcpuclockid"),
    ):
        monkeypatch.delattr(module, missing)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    spec = importlib.util.spec_from_file_location("system_calls_of_a_mac", system_calls.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calls_of(monkeypatch: pytest.MonkeyPatch, refusal: OSError | None = None) -> Calls:
    """Note the calls that reach a file. F_FULLFSYNC is refused with an error."""
    calls: Calls = []

    def control(descriptor: int, command: int, argument: int = 0) -> int:
        assert command == F_FULLFSYNC
        calls.append(("F_FULLFSYNC", descriptor))
        if refusal is not None:
            raise refusal
        return 0

    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(("fsync", descriptor)))
    return calls


def test_on_linux_nothing_stands_between_the_log_and_the_system() -> None:
    assert system_calls.sync is os.fsync
    assert system_calls.sync_data is os.fdatasync


def test_a_mac_empties_the_cache_of_the_drive(mac: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = calls_of(monkeypatch)
    mac.sync(7)
    mac.sync_data(8)
    mac.sync_directory(tmp_path)
    assert calls[:2] == [("F_FULLFSYNC", 7), ("F_FULLFSYNC", 8)]
    assert [call for call, _ in calls[2:]] == ["F_FULLFSYNC"]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_that_is_synced_as_well_as_it_can_be(
    mac: ModuleType, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = calls_of(monkeypatch, OSError(number, os.strerror(number)))
    mac.sync_data(7)
    assert calls == [("F_FULLFSYNC", 7), ("fsync", 7)]


def test_an_error_of_the_drive_is_not_hidden_by_a_second_sync(mac: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may report a lost write once; the sync after it would succeed."""
    calls = calls_of(monkeypatch, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        mac.sync_data(7)
    assert calls == [("F_FULLFSYNC", 7)]


@pytest.mark.parametrize("allocate", ["allocate", "write_zeros"])
def test_allocated_blocks_are_there_and_change_no_byte(tmp_path: Path, allocate: str) -> None:
    function: Callable[[int, int, int], None] = getattr(system_calls, allocate)
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    with file.open("r+b") as opened:
        function(opened.fileno(), 0, 3_000_000)
        function(opened.fileno(), 0, 1_000)  # shorter than the file: nothing changes
    assert file.read_bytes() == b"abc" + bytes(2_999_997)
    assert file.stat().st_blocks * 512 >= 3_000_000


def test_a_mac_allocates_by_writing_and_meets_a_full_disk(mac: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Path("/dev/null").open("rb") as file, pytest.raises(OSError, match="No space"):
        mac.allocate(file.fileno(), 0, 100)


def test_a_mac_has_clocks(mac: ModuleType) -> None:
    elapsed = mac.elapsed_clock()
    assert elapsed.args == (time.CLOCK_MONOTONIC_RAW,)
    assert 0 < elapsed() <= elapsed()
    assert mac.processor_clock(1) is time.process_time


def test_a_mac_takes_a_number_of_descriptors(mac: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the hard limit is infinite, and an infinite soft limit is an error."""
    taken = []
    monkeypatch.setattr(resource, "RLIM_INFINITY", INFINITE)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, INFINITE))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: taken.append(limits))
    assert mac.take_descriptors() == 10_240
    assert taken == [(10_240, INFINITE)]


def test_a_mac_counts_memory_in_bytes(mac: ModuleType) -> None:
    counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert mac.most_resident_bytes() < counted * 2 < system_calls.most_resident_bytes()


def test_descriptors_are_counted(tmp_path: Path) -> None:
    before, most = system_calls.open_descriptors()
    with (tmp_path / "file").open("w"):
        assert system_calls.open_descriptors() == (before + 1, most)
