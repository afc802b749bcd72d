"""Snapshots of the topology: a broker takes them while it runs and when it stops, and starts from the newest."""

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.partition import snapshot_writer
from rewindmq.engine.partition.snapshot_writer import MetadataSnapshots
from rewindmq.projections.marks import topology_of
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.store import metadata_snapshots as files
from rewindmq.projections.store.snapshots import Snapshots, write_snapshot
from rewindmq.projections.topology.fold_image import digest_of, image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from tests.support.broker_harness import Harness

NAME = "metadata-0"


def populate(h: Harness, first: int = 0, count: int = 60) -> None:
    """Bind queues: an event of the metadata log each."""
    session = h.session()
    for number in range(first, first + count):
        h.declare(session, f"q{number}")
        h.bind(session, "amq.topic", f"q{number}", f"key.{number}")
    h.settle()


def taken(data: Path) -> list[int]:
    return Snapshots(data / "snapshots").offsets(NAME)


def state_of(broker: Any) -> str:
    return digest_of(image_of(broker.metadata.state).pieces())


def from_the_beginning(data: Path, end: int | None = None) -> str:
    fold = MetadataFold()
    fold_on(fold, EmbeddedLogReader(data).metadata, end)
    return digest_of(image_of(fold).pieces())


def equal(data: Path) -> bool:
    return verify_metadata(EmbeddedLogReader(data).metadata, Snapshots(data / "snapshots")).equal


def differences(data: Path) -> list[tuple[int, str]]:
    return verify_metadata(EmbeddedLogReader(data).metadata, Snapshots(data / "snapshots")).differences


def pass_turns(h: Harness, until: Callable[[], bool]) -> None:
    """Let the loop turn until a snapshot is there."""

    async def turn() -> None:
        async with asyncio.timeout(30):
            while not until():
                await asyncio.sleep(0.001)

    h.loop.run_until_complete(turn())


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a broker that ran twice."""
    data = tmp_path / "stopped"
    with Harness(data) as h:
        populate(h)
        h.restart()
        populate(h, 100, 20)
    return data


def test_a_start_folds_only_the_events_behind_the_newest_snapshot(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Harness(data) as h:
        assert (h.broker.metadata.stored_offset, h.broker.metadata.replayed) == (0, 0)
        populate(h, count=300)
        end = h.broker.metadata.state.next_offset
        h.restart()
        assert (h.broker.metadata.stored_offset, h.broker.metadata.replayed) == (end, 0)
        populate(h, 500, 7)
        with h.killed_copy(tmp_path / "copy") as copy:
            assert copy.broker.metadata.stored_offset == end
            assert copy.broker.metadata.replayed == 1 + 7  # the start, and the bindings
            assert len(copy.broker.topology.bindings_in_order()) == 307
            assert state_of(copy.broker) == from_the_beginning(tmp_path / "copy")
    assert equal(data)


def test_a_running_broker_takes_snapshots_of_what_is_durable(tmp_path: Path) -> None:
    with Harness(tmp_path, metadata_snapshot_events=50) as h:
        for first in range(0, 400, 20):
            populate(h, first, 20)
            pass_turns(h, lambda: not h.broker.keeper._metadata_snapshots._under_way)
        assert len(taken(tmp_path)) >= 2
        assert taken(tmp_path)[-1] <= EmbeddedLogReader(tmp_path).metadata.durable_offset
        assert equal(tmp_path)
        h.restart()
        assert h.broker.metadata.replayed == 0


def test_a_large_topology_is_written_less_often(tmp_path: Path) -> None:
    with Harness(tmp_path, metadata_snapshot_events=5) as h:
        for first in range(0, 200, 2):
            populate(h, first, 2)
            pass_turns(h, lambda: not h.broker.keeper._metadata_snapshots._under_way)
        distances = [later - earlier for earlier, later in pairwise(taken(tmp_path))]
        assert distances == sorted(distances)
        assert distances[0] < 20 < 50 < distances[-1], "half as many events as the topology has items"


def test_a_snapshot_waits_until_its_last_event_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Harness(tmp_path, metadata_snapshot_events=10) as h:
        waiting: list[Callable[[], None]] = []
        take_if_due = MetadataSnapshots.take_if_due
        monkeypatch.setattr(MetadataSnapshots, "take_if_due", lambda *_: None)
        session = h.session()
        for number in range(40):
            h.bind(session, "amq.topic", h.declare(session, f"q{number}").name)
        h.in_loop(lambda: take_if_due(h.broker.keeper._metadata_snapshots, waiting.append))
        assert len(waiting) == 1
        assert taken(tmp_path) == []
        monkeypatch.undo()
        h.settle()
        h.in_loop(waiting[0])
        pass_turns(h, lambda: bool(taken(tmp_path)))
        assert equal(tmp_path)


def test_pieces_are_made_one_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does other work between two pieces of 500 items; compressing and writing are another thread's."""
    import threading

    threads: list[str] = []

    def write(*given: Any) -> Path:
        threads.append(threading.current_thread().name)
        return files.write(*given)

    monkeypatch.setattr(snapshot_writer, "write", write)
    with Harness(tmp_path, metadata_snapshot_events=1_000) as h:
        populate(h, count=1_600)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while not taken(tmp_path):
                turns += 1
                await asyncio.sleep(0)

        h.loop.run_until_complete(count())
        assert turns >= 3
        assert threads[0] != threading.main_thread().name


def test_a_change_while_it_is_made_is_not_in_it(tmp_path: Path) -> None:
    with Harness(tmp_path, metadata_snapshot_events=100) as h:
        populate(h, count=150)
        populate(h, 200, 50)  # perhaps between two pieces
        pass_turns(h, lambda: bool(taken(tmp_path)))
        assert equal(tmp_path)


def test_a_stop_while_one_is_made_takes_its_own(tmp_path: Path) -> None:
    with Harness(tmp_path, metadata_snapshot_events=30) as h:
        populate(h, count=60)
        end = h.broker.metadata.state.next_offset
    assert taken(tmp_path)[-1] == end
    assert equal(tmp_path)
    assert list((tmp_path / "snapshots" / NAME).glob("*.part")) == []


def test_a_full_disk_costs_only_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_writer, "write", refuse)
    with Harness(tmp_path) as h:
        populate(h)
    assert "metadata-0: no snapshot could be written" in caplog.text
    monkeypatch.undo()
    with Harness(tmp_path) as h:
        assert h.broker.metadata.stored_offset == 0
        assert len(h.broker.topology.bindings_in_order()) == 60


# -- what cannot be used -----------------------------------------------------------------------------------------------


def newest_file(data: Path) -> Path:
    return Snapshots(data / "snapshots").path(NAME, taken(data)[-1])


def rewritten(path: Path, change: Callable[[dict[str, str], list[bytes]], None]) -> None:
    """Write the snapshot again with a change, and with checksums that are right."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        metadata = {name: value for name, value in reader.metadata.items() if name.startswith("rewindmq.")}
        del metadata["rewindmq.format"]  # it is written again
        records: list[Any] = list(reader)
    contents = [record["content"] for record in records if record["kind"] != "end"]
    change(metadata, contents)
    kinds = ["head"] + ["chunk"] * (len(contents) - 1)
    write_snapshot(
        path,
        metadata,
        [
            {"kind": kind, "queue_id": -1, "number": max(0, number - 1), "content": content}
            for number, (kind, content) in enumerate(zip(kinds, contents, strict=True))
        ],
    )


def flip(path: Path) -> None:
    """Change eight bytes of the pieces. A byte of the schema's words decides nothing, and a single bit may not."""
    content = bytearray(path.read_bytes())
    at = len(content) * 3 // 4
    content[at : at + 8] = bytes(each ^ 0xFF for each in content[at : at + 8])
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_version(path: Path) -> None:
    rewritten(path, lambda metadata, _: metadata.update({"rewindmq.topology_version": "999"}))


def of_another_history(path: Path) -> None:
    rewritten(path, lambda metadata, _: metadata.update({"rewindmq.history": "00" * 32}))


def renamed(path: Path) -> None:
    path.rename(path.with_name(f"{int(path.stem) - 1:020d}.snapshot"))


def with_a_binding_less(path: Path) -> None:
    """Right checksum, wrong digest."""

    def less(_: dict[str, str], contents: list[bytes]) -> None:
        at = next(number for number, each in enumerate(contents) if each.startswith(b'{"of":"bindings"'))
        chunk = json.loads(contents[at])
        del chunk["items"][0]
        contents[at] = json.dumps(chunk, separators=(",", ":")).encode()

    rewritten(path, less)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip, "passed over"),
        (cut, "passed over"),
        (empty, "not a readable snapshot"),
        (of_another_version, "its topology is of version 999"),
        (of_another_history, "it is of another history"),
        (renamed, "it is of metadata-0 at offset"),
        (with_a_binding_less, "its state has the digest"),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_passed_over(
    stopped: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], told: str
) -> None:
    older, newer = taken(stopped)
    damage(newest_file(stopped))
    with caplog.at_level(logging.WARNING), Harness(stopped) as h:
        assert told in caplog.text
        assert h.broker.metadata.stored_offset == older
        assert h.broker.metadata.replayed == newer - older
        assert len(h.broker.topology.bindings_in_order()) == 80
        assert state_of(h.broker) == from_the_beginning(stopped)


def test_with_no_usable_snapshot_the_whole_log_is_folded(stopped: Path) -> None:
    for offset in taken(stopped):
        flip(Snapshots(stopped / "snapshots").path(NAME, offset))
    with Harness(stopped) as h:
        assert h.broker.metadata.stored_offset == 0
        assert len(h.broker.topology.bindings_in_order()) == 80


def test_snapshots_of_another_broker_are_passed_over(stopped: Path, tmp_path: Path) -> None:
    """Somebody copied the directory of another broker, whose log is longer here and shorter there."""
    other = tmp_path / "other"
    with Harness(other) as h:
        populate(h, 700, 90)
    shutil.rmtree(other / "snapshots")
    shutil.copytree(stopped / "snapshots" / NAME, other / "snapshots" / NAME)
    with Harness(other) as h:
        assert h.broker.metadata.stored_offset == 0
        assert len(h.broker.topology.bindings_in_order()) == 90


def test_a_log_from_a_backup_ends_before_the_snapshot(stopped: Path, tmp_path: Path) -> None:
    """The snapshot is removed: new events take its offsets."""
    older, newer = taken(stopped)
    backup = tmp_path / "backup"
    with Harness(backup) as h:
        populate(h, 900, 10)
    shutil.rmtree(stopped / "log")
    shutil.copytree(backup / "log", stopped / "log")
    with Harness(stopped) as h:
        assert h.broker.metadata.stored_offset == 0
        assert set(taken(stopped)) & {older, newer} == set()
        assert len(h.broker.topology.bindings_in_order()) == 10


def test_what_a_killed_broker_was_writing_is_removed(stopped: Path) -> None:
    path = newest_file(stopped)
    half = path.with_suffix(".4711.part")
    half.write_bytes(path.read_bytes()[:100])
    with Harness(stopped) as h:
        assert not half.exists()
        assert h.broker.metadata.replayed == 0


# -- other readers -----------------------------------------------------------------------------------------------------


def test_a_planted_lie_is_found(stopped: Path) -> None:
    """Every checksum of it is right, and a start believes it: `rewindmq verify` does not."""
    assert equal(stopped)
    path = newest_file(stopped)

    def lie(metadata: dict[str, str], contents: list[bytes]) -> None:
        contents[:] = [content.replace(b"key.7", b"key.x") for content in contents]
        metadata["rewindmq.digest"] = digest_of(contents)

    rewritten(path, lie)
    assert files.load(path).next_offset == int(path.stem)
    [(offset, what)] = differences(stopped)
    assert offset == int(path.stem)
    assert "the fold from the beginning of the log has" in what


def test_every_damage_is_a_difference_and_another_version_is_none(stopped: Path) -> None:
    first, second = (Snapshots(stopped / "snapshots").path(NAME, offset) for offset in taken(stopped))
    of_another_version(first)
    flip(second)
    report = verify_metadata(EmbeddedLogReader(stopped).metadata, Snapshots(stopped / "snapshots"))
    assert [offset for offset, _ in report.differences] == [int(second.stem)]
    assert report.other_versions == 1
    beyond = second.with_name(f"{10**9:020d}.snapshot")
    os.replace(second, beyond)
    assert [offset for offset, _ in differences(stopped)] == [10**9]


def test_a_program_without_a_broker_finds_the_same_topology(stopped: Path) -> None:
    log, snapshots = EmbeddedLogReader(stopped).metadata, Snapshots(stopped / "snapshots")
    assert topology_of(log, snapshots).digest() == topology_of(log).digest()
    assert files.newest(snapshots, log).next_offset == taken(stopped)[-1]


def test_a_moment_begins_with_a_snapshot_whose_events_are_all_before_it(stopped: Path) -> None:
    log, snapshots = EmbeddedLogReader(stopped).metadata, Snapshots(stopped / "snapshots")
    older, newer = taken(stopped)
    times = [files.about(snapshots.path(NAME, offset)).latest_ms for offset in (older, newer)]
    assert files.newest(snapshots, log, times[1] + 1).next_offset == newer
    assert files.newest(snapshots, log, times[0]).next_offset == 0, "an event of that very time is in the older one"
