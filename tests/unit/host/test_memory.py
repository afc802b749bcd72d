"""Limits as operators write them, what the machine or its container gives, and the account of bytes under way."""

import os
from pathlib import Path

import pytest

from rewindmq.engine.errors import ResourceError
from rewindmq.engine.host.memory import FULL, LEAST_REFUSABLE_BYTES, REFUSABLE_SHARE, MemoryAccount, MemoryKind
from rewindmq.engine.host.watermarks import Limit, disk_limit, memory_of_machine, memory_watermark

SIZES = {
    "1073741824": 1 << 30,
    "50MB": 50_000_000,
    "1GB": 1_000_000_000,
    "1GiB": 1 << 30,
    "1g": 1 << 30,
    "2k": 2_048,
    "2kiB": 2_048,
    "3kB": 3_000,
    "4 MiB": 4 << 20,
    "1TB": 10**12,
    "1tib": 1 << 40,
}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_have_rabbitmqs_units(text: str, size: int) -> None:
    assert memory_watermark(text) == disk_limit(text) == Limit(absolute=size)


def test_a_number_up_to_one_is_a_fraction_of_the_memory() -> None:
    found = [memory_watermark(text).of(1_000) for text in ("0.4", ".25", "0", "1", "1.0", "absolute:1", "2000000")]
    assert found == [400, 250, 0, 1_000, 1_000, 1, 2_000_000]
    assert disk_limit("mem_relative:1.5").of(1_000) == 1_500
    assert disk_limit("1").of(1_000) == 1


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "40", "999999", "0.4GB", "1XB", "mem_relative:1", "absolute:0.5", "inf", "nan"]
)
def test_no_memory_watermark(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|is not between|is neither"):
        memory_watermark(text)


@pytest.mark.parametrize("text", ["", "0.4", "mem_relative:", "mem_relative:-1", "mem_relative:nan", "absolute:1"])
def test_no_disk_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|is not between|is neither"):
        disk_limit(text)


def test_a_limit_as_text_is_one_that_is_understood() -> None:
    assert disk_limit(str(disk_limit("mem_relative:1.5"))) == disk_limit("mem_relative:1.5")
    assert memory_watermark(str(memory_watermark("2GB"))) == memory_watermark("2GB")


def test_a_container_has_what_its_groups_leave_it(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_of_machine(proc, groups) == built_in
    (proc / "self").mkdir(parents=True)
    (groups / "a/b").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (groups / "a/b/memory.max").write_text("max\n")
    assert memory_of_machine(proc, groups) == built_in
    (groups / "a/memory.max").write_text("300000000\n")  # of the group above
    assert memory_of_machine(proc, groups) == 300_000_000
    (groups / "memory").mkdir()
    (groups / "memory/memory.limit_in_bytes").write_text("200000000\n")  # version 1, seen from inside
    (proc / "self/cgroup").write_text("11:cpu,cpuacct:/x\n4:memory:/docker/0123\n")
    assert memory_of_machine(proc, groups) == 200_000_000


def test_the_account_tells_once_that_it_is_high_then_after_the_next_look() -> None:
    told: list[int] = []
    account = MemoryAccount(1_000)
    account.start(lambda: told.append(account.used_bytes))
    account.looked(600, {MemoryKind.UNACKED: 100})
    assert (account.rest_bytes, account.held_bytes, account.used_bytes) == (500, 100, 600)
    account.take(MemoryKind.BODY, 400)
    assert not told
    account.take(MemoryKind.BODY, 1)
    account.take(MemoryKind.BODY, 9)
    assert told == [1_001]
    account.looked(1_010, {MemoryKind.UNACKED: 50})
    assert account.used_bytes == 1_010
    account.take(MemoryKind.OUTPUT, 1)
    assert told == [1_001, 1_011]
    account.change(MemoryKind.OUTPUT, 1, 0)
    account.give_back(MemoryKind.BODY, 410)
    assert account.by_kind[MemoryKind.OUTPUT] == account.by_kind[MemoryKind.BODY] == 0
    assert not account.high


@pytest.mark.parametrize("limit", [0, 1_600, 1_600_000_000])
def test_room_for_work_that_can_be_refused(limit: int) -> None:
    account = MemoryAccount(limit)
    share = max(limit // REFUSABLE_SHARE, LEAST_REFUSABLE_BYTES)
    account.take(MemoryKind.BODY, limit)
    assert account.room(share)  # an operator can look
    assert not account.room(share + 1)
    account.take(MemoryKind.HTTP, share - 30)
    account.take(MemoryKind.PAST, 20)
    assert account.room(10)
    assert not account.room(11)


def test_room_below_the_limit_is_for_all() -> None:
    account = MemoryAccount(1 << 30)
    assert account.room(1 << 30)
    assert not account.room((1 << 30) + 1)


def test_full_is_well_above_the_limit() -> None:
    account = MemoryAccount(1 << 30)
    account.take(MemoryKind.BODY, int((1 << 30) * FULL))
    account.check()
    account.take(MemoryKind.BODY, 1)
    with pytest.raises(ResourceError, match="low on memory: 1610612737 bytes are used, the limit is 1073741824"):
        account.check()


def test_full_leaves_room_for_the_broker_and_ends_before_the_machine() -> None:
    mega = 1 << 20
    found = [
        MemoryAccount(limit * mega, machine * mega).full_bytes // mega
        for limit, machine in (
            (0, 4_000),
            (100, 300),
            (400, 1_000),
            (4_000, 10_000),
            (900, 1_000),
            (2_000, 1_000),
        )
    ]
    assert found == [512, 200, 600, 6_000, 950, 2_000]
