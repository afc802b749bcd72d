"""A log withstands a second broker, a full disk, an I/O error and kill -9."""

import asyncio
import errno
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded import commit, segments
from rewindmq.engine.log.embedded.index import index_path
from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.projections import system_calls
from tests.support.log_listener import Listener
from tests.support.records import SCHEMA_BYTES, START_MS, contents, expected, fill, make_log, record, reopened


def note(offsets: list[int], queue: EmbeddedPartition) -> None:
    offsets.append(queue.durable_offset)


def test_the_number_of_partitions_is_for_ever(tmp_path: Path) -> None:
    EmbeddedLog.open(tmp_path, 3).close()
    with pytest.raises(
        LogError, match="made with 3 queue partitions, and a log keeps its number; this start asks for 2"
    ):
        EmbeddedLog.open(tmp_path, 2)
    for asked in (3, None):
        log = EmbeddedLog.open(tmp_path, asked)
        assert len(log.queues) == 3
        log.close()
    log = EmbeddedLog.open(tmp_path / "unasked", None)
    assert len(log.queues) == 2
    log.close()
    for wrong in (0, 100_000):
        with pytest.raises(LogError, match="1 to 1024 queue partitions"):
            EmbeddedLog.open(tmp_path / "new", wrong)


STRANGE = ["", "[]", "{}", '{"format": 2, "queue_partitions": 1}', '{"format": 1, "queue_partitions": 0}']


@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_layout_is_refused(tmp_path: Path, text: str) -> None:
    make_log(tmp_path, [1])
    (tmp_path / "log" / "layout.json").write_text(text)
    with pytest.raises(LogError, match=r"layout\.json"):
        EmbeddedLog.open(tmp_path, 1)
    with pytest.raises(LogError, match=r"layout\.json"):
        EmbeddedLogReader(tmp_path)


def test_a_layout_that_hides_a_partition_or_tells_of_none_is_refused(tmp_path: Path) -> None:
    EmbeddedLog.open(tmp_path, 2).close()
    layout = tmp_path / "log" / "layout.json"
    for partitions, line in ((1, r"log/queues-1 exists, but .*layout\.json"), (3, r"log/queues-2: .*is gone")):
        layout.write_text(json.dumps({"format": 1, "queue_partitions": partitions}))
        for open_log in (lambda: EmbeddedLog.open(tmp_path, None), lambda: EmbeddedLogReader(tmp_path)):
            with pytest.raises(LogError, match=line):
                open_log()
        with pytest.raises(LogError, match=line):
            segmented(tmp_path)  # what seals are checked in
    layout.write_text(json.dumps({"format": 1, "queue_partitions": 2}))
    shutil.rmtree(tmp_path / "log" / "metadata-0")
    with pytest.raises(LogError, match=r"log/metadata-0: .*is gone"):
        EmbeddedLogReader(tmp_path)


# --- a disk that refuses ----------------------------------------------------------------------------------------------


class Disk:
    """Stands between the log and the system calls: each may fail, and a failing write leaves half behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.rate = rate
        real_write, real_sync = os.pwrite, system_calls.sync_data

        def pwrite(descriptor: int, data: Any, position: int) -> int:
            if self.fails():
                real_write(descriptor, bytes(data)[: self.random.randrange(len(data) + 1)], position)
                raise OSError(errno.ENOSPC, "No space left on device")
            return real_write(descriptor, bytes(data)[: self.random.randint(1, len(data))], position)

        def fdatasync(descriptor: int) -> None:
            if self.fails():
                raise OSError(errno.EIO, "Input/output error")
            real_sync(descriptor)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(system_calls, "sync_data", fdatasync)

    def fails(self) -> bool:
        return self.random.random() < self.rate


@pytest.mark.parametrize("seed", range(8))
def test_errors_of_any_write_and_sync_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also those of the sidecars and of a new segment."""
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.001)
    log = EmbeddedLog.open(tmp_path, 1, segment_bytes=SCHEMA_BYTES + 2_000)
    queue = log.queues[0]

    async def run(disk: Disk) -> None:
        failures: list[Exception] = []
        log.start(Listener(commit_failed=failures.append))
        while len(failures) < 4 or queue.next_offset < 420:
            fill(queue, range(queue.next_offset, queue.next_offset + 7))
            log.commit()
            await asyncio.sleep(0.001)
            assert contents(queue.read()) == expected(queue.durable_offset)
        disk.rate = 0.0
        while queue.durable_offset < queue.next_offset:
            await asyncio.sleep(0.005)

    with monkeypatch.context() as patch:
        asyncio.run(run(Disk(patch, seed, 0.15)))
    appended = queue.next_offset
    assert contents(queue.read()) == expected(appended)
    log.close()
    assert reopened(tmp_path) == expected(appended)
    assert list(verify_chain(tmp_path / "log" / "queues-0"))[-1].next_offset == appended


def test_closing_on_a_broken_disk_says_so_and_frees_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EmbeddedLog.open(tmp_path, 1)
    fill(log.queues[0], range(5))
    log.commit_and_wait()
    fill(log.queues[0], range(5, 9))
    with monkeypatch.context() as patch:
        Disk(patch, 1, 1.0)
        with pytest.raises(LogError, match="4 records from offset 5 on could not be written, and wait"):
            log.close()
    assert reopened(tmp_path) == expected(5)


def test_a_defect_in_the_thread_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything that goes wrong beside the loop is reported like a disk's error, or the broker would wait for ever."""
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.001)
    log = EmbeddedLog.open(tmp_path, 1)

    async def run() -> list[str]:
        heard: list[str] = []
        log.start(Listener(commit_failed=lambda error: heard.append(str(error))))
        fill(log.queues[0], range(3))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *arguments: 1 // 0)
            log.commit()
            while not heard:
                await asyncio.sleep(0.001)
        while log.queues[0].durable_offset < 3:
            await asyncio.sleep(0.001)
        return heard

    assert "division" in asyncio.run(run())[0]
    log.close()
    assert reopened(tmp_path) == expected(3)


def test_a_new_segment_that_cannot_be_synced_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EmbeddedLog.open(tmp_path, 1, segment_bytes=1)
    fill(log.queues[0], range(5))
    log.commit_and_wait()
    fill(log.queues[0], range(5, 9))

    sync = system_calls.sync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(system_calls, "sync", refuse)
        with pytest.raises(LogError):
            log.commit_and_wait()
    assert contents(log.queues[0].read()) == expected(5)
    log.commit_and_wait()
    log.close()
    assert reopened(tmp_path) == expected(9)


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def test_what_is_appended_and_never_committed_is_not_there(tmp_path: Path) -> None:
    """So that the crash test could fail: durability is what `commit` gives."""
    log = EmbeddedLog.open(tmp_path, 1)
    log.queues[0].append(START_MS, record(0))
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "log", copy / "log")
    log.close()
    assert reopened(copy) == []
    assert reopened(tmp_path) == expected(1)


# --- loss of power ----------------------------------------------------------------------------------------------------


def keep_synced(patch: pytest.MonkeyPatch, data: Path, synced: dict[Path, bytes]) -> None:
    """Whatever is synced below `data`, as it was then."""

    def keeping(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            real(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_file() and path.is_relative_to(data):
                synced[path] = path.read_bytes()

        return sync

    patch.setattr(system_calls, "sync", keeping(system_calls.sync))
    patch.setattr(system_calls, "sync_data", keeping(system_calls.sync_data))


def test_what_a_killed_broker_left_unsynced_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between writing a block and syncing it: the next broker builds on the block, so it must be durable."""
    directory = make_log(tmp_path, [3, 4])
    [path] = segments.segment_files(directory)
    index_path(path).unlink()
    synced: dict[Path, bytes] = {}
    with monkeypatch.context() as patch:
        keep_synced(patch, tmp_path, synced)
        assert reopened(tmp_path) == expected(7)
    assert synced[path] == path.read_bytes()


def test_a_power_loss_loses_nothing_that_was_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that keeps only what was synced, and no sidecar: everything told durable is on it, at any moment."""
    data = tmp_path / "data"
    synced: dict[Path, bytes] = {}

    def survivors(number: int) -> list[bytes]:
        disk = tmp_path / f"disk{number}"
        for path, content in synced.items():
            new = disk / path.relative_to(data)
            new.parent.mkdir(parents=True, exist_ok=True)
            # a synced file that was renamed, whose directory was synced before anything was written behind its header
            name = new.name.removesuffix(".new").removeprefix("_")
            if len(content) > len(synced.get(path.with_name(name), b"")) or name == new.name:
                new.with_name(name).write_bytes(content)
        return reopened(disk)

    with monkeypatch.context() as patch:
        keep_synced(patch, data, synced)
        log = EmbeddedLog.open(data, 1, segment_bytes=SCHEMA_BYTES + 6_000)
        queue = log.queues[0]
        for number in range(25):
            fill(queue, range(queue.next_offset, queue.next_offset + 11))
            told: list[int] = []
            log.start(Listener(partial(note, told, queue)))
            log.commit_and_wait()
            fill(queue, range(queue.next_offset, queue.next_offset + 3))  # and not committed
            assert told == [queue.next_offset - 3]
            assert survivors(number) == expected(told[0])
        log.close()


def test_a_history_that_went_missing_is_not_begun_anew(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "a", [3])
    for path in directory.iterdir():
        path.unlink()
    with pytest.raises(LogError, match="partition queues-0 has no segment: its history is gone"):
        EmbeddedLog.open(tmp_path / "a", 1)
    with pytest.raises(LogError, match="no segment"):
        EmbeddedLogReader(tmp_path / "a").queues[0].next_offset  # noqa: B018
    make_log(tmp_path / "b", [3])
    (tmp_path / "b" / "log" / "layout.json").unlink()
    with pytest.raises(LogError, match=r"there is a history, but log/layout\.json"):
        EmbeddedLog.open(tmp_path / "b", 1)


def test_making_a_log_may_be_interrupted(tmp_path: Path) -> None:
    """Without its layout it is not made yet, and is made by the next start."""
    make_log(tmp_path, [])
    (tmp_path / "log" / "layout.json").unlink()
    shutil.rmtree(tmp_path / "log" / "queues-0")
    (tmp_path / "log" / "queues-1").mkdir()  # the start before was to make two
    with pytest.raises(LogError, match=r"log/queues-1 exists, but"):
        EmbeddedLog.open(tmp_path, 1)
    (tmp_path / "log" / "queues-1").rmdir()
    assert reopened(tmp_path) == []


def test_a_directory_that_cannot_be_used_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"the log can't be opened: .*Not a directory"):
        EmbeddedLog.open(tmp_path / "file", 1)
    with pytest.raises(LogError, match="Not a directory"):
        EmbeddedLogReader(tmp_path / "file")
