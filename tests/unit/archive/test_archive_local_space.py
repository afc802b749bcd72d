"""Only segments that the archive has, entry by entry, leave the local disk, and none leaves because a clock jumped."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.keeping import local_space
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory, SegmentEntry, StoredObject
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.keeping.local_limits import local_limits
from rewindmq.engine.keeping.local_space import (
    STAY,
    LocalPartition,
    LocalSegment,
    SpaceLimits,
    SpaceReport,
    keep_local,
    removable,
)
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.steady_time import steady_ms
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.bases import Bases, queued_offsets
from tests.support.examples import rounds
from tests.support.failing_objects import FailingObjects, Killed
from tests.support.records import START_MS, fill
from tests.support.traffic import Traffic

OBJECT = StoredObject("x", 1, "0" * 64)


def entry_of(
    base: int, end: int, first_ms: int, newest_ms: int, before: bytes, chain: bytes, size: int
) -> SegmentEntry:
    return SegmentEntry(base, end, base, first_ms, newest_ms, False, before, chain, end, chain, size, OBJECT, OBJECT, 0)


HOUR_MS = 3_600_000


def write(data: Path, rounds: int = 40, seed: int = 5, events: int = 15) -> Machine:
    """Add traffic to a log of small segments. Returns the machine at its end."""
    log = EmbeddedLog.open(data, 1, segment_bytes=4_000)
    fill(log.metadata, range(3))
    traffic = Traffic(seed, start_ms=START_MS + 10, log=log.queues[0])
    for _ in range(rounds):
        traffic.run(events)
        log.commit_and_wait()
    log.close()
    return traffic.machine


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def archive(data: Path, objects: Objects) -> Objects:
    Archiver(objects, data).run()
    return objects


class Clock:
    """The monotonic clock."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


# -- the decision --------------------------------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn) -> LocalPartition:
    """Local segments, and a manifest that has some of them, some of these wrongly."""
    segments, archived = [], []
    offset, time = draw(st.integers(0, 5)), draw(st.integers(0, 1_000))
    for number in range(draw(st.integers(0, 7))):
        end = offset + draw(st.integers(1, 9))
        time += draw(st.integers(-20, 100))
        chain, behind = bytes([number]) * 32, bytes([number + 1]) * 32
        size = draw(st.integers(1, 90))
        segments.append(LocalSegment(offset, end, size, size + draw(st.integers(0, 9)), chain, behind))
        entry = entry_of(offset, end, time, time, chain, behind, size)
        wrong = draw(
            st.sampled_from([{}] * 8 + [{"next_offset": end + 1}, {"size_bytes": size + 1}, {"chain": b"x" * 32}, None])
        )
        if wrong is not None:
            archived.append(dataclasses.replace(entry, **wrong))
        offset = end
    return LocalPartition(draw(st.sampled_from("ab")), segments, archived)


def named(found: list[LocalPartition]) -> list[LocalPartition]:
    return [dataclasses.replace(each, name=f"queues-{number}") for number, each in enumerate(found)]


limits = st.builds(SpaceLimits, st.none() | st.integers(1, 500), st.none() | st.integers(0, 800))


@given(st.lists(partitions(), max_size=3).map(named), limits, st.integers(0, 2_000), st.integers(0, 100))
def test_b24_only_what_the_manifest_covers_entry_by_entry_may_go(
    found: list[LocalPartition], limit: SpaceLimits, now_ms: int, other_bytes: int
) -> None:
    goes = removable(found, limit, now_ms, other_bytes)
    assert goes.keys() == {each.name for each in found}
    for each in found:
        entries = {entry.base_offset: entry for entry in each.archived}
        count = goes[each.name]
        assert count == 0 or count <= len(each.segments) + 1 - STAY
        for segment in each.segments[:count]:
            entry = entries[segment.base_offset]
            assert (entry.next_offset, entry.size_bytes) == (segment.next_offset, segment.file_bytes)
            assert (entry.chain_before, entry.chain) == (segment.chain_before, segment.chain)


@given(st.lists(partitions(), max_size=3).map(named), limits, st.integers(0, 2_000), st.integers(0, 100))
def test_no_more_goes_than_the_limits_ask_for(
    found: list[LocalPartition], limit: SpaceLimits, now_ms: int, other_bytes: int
) -> None:
    goes = removable(found, limit, now_ms, other_bytes)
    left = other_bytes + sum(each.local_bytes for p in found for each in p.segments[goes[p.name] :])
    for each in found:
        if not goes[each.name]:
            continue
        last = each.segments[goes[each.name] - 1]
        entry = next(entry for entry in each.archived if entry.base_offset == last.base_offset)
        for_age = limit.age_ms is not None and entry.max_timestamp_ms < now_ms - limit.age_ms
        for_size = limit.size_bytes is not None and left + last.local_bytes > limit.size_bytes
        assert for_age or for_size or len(found) > 1
    if limit == SpaceLimits():
        assert not any(goes.values())


def test_of_several_partitions_the_oldest_records_go_first() -> None:
    def made(name: str, times: list[int]) -> LocalPartition:
        segments = [LocalSegment(n, n + 1, 10, 10, bytes([n]) * 32, bytes([n + 1]) * 32) for n in range(len(times))]
        entries = [
            entry_of(n, n + 1, 0, time, bytes([n]) * 32, bytes([n + 1]) * 32, 10) for n, time in enumerate(times)
        ]
        return LocalPartition(name, segments, entries)

    both = [made("queues-0", [1, 5, 6, 7]), made("queues-1", [2, 3, 4, 9])]
    assert removable(both, SpaceLimits(size_bytes=40), 0) == {"queues-0": 1, "queues-1": 3}
    assert removable(both, SpaceLimits(age_ms=6), 10) == {"queues-0": 1, "queues-1": 2}


@given(st.integers(0, 10**13), st.floats(0, 10**7), st.integers(0, 10**15))
def test_the_time_that_counts_never_jumps(noted: int, elapsed: float, newest: int) -> None:
    found = steady_ms(noted, elapsed, newest)
    assert found <= newest
    assert found <= noted + 2_000 * elapsed


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("7d", SpaceLimits(age_ms=7 * 24 * HOUR_MS)),
        ("50GB", SpaceLimits(size_bytes=50_000_000_000)),
        ("7d,50GB", SpaceLimits(7 * 24 * HOUR_MS, 50_000_000_000)),
        ("1GiB, 12h", SpaceLimits(12 * HOUR_MS, 1 << 30)),
    ],
)
def test_limits_as_operators_write_them(text: str, limit: SpaceLimits) -> None:
    assert local_limits(text) == limit


@pytest.mark.parametrize("text", ["", "7", "0d", "7d,8d", "5GB,6GB", "many", "7d,", "-1d", "0GB"])
def test_text_that_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"7d, 50GB or 7d,50GB"):
        local_limits(text)


# -- the cut -------------------------------------------------------------------------------------------------------


def size_of_log(data: Path) -> int:
    return sum(path.stat().st_size for path in (data / "log" / "queues-0").iterdir())


def test_a_size_is_kept_and_the_base_holds_what_is_queued(data: Path, archive: Objects) -> None:
    before = size_of_log(data)
    report = keep_local(data, archive, SpaceLimits(size_bytes=400_000))
    [done] = report.partitions
    assert (done.partition, done.start_offset > 0, done.segments > 5, done.why) == ("queues-0", True, True, "")
    assert report.local_bytes <= 400_000
    assert before - size_of_log(data) + 1_000 >= report.freed_bytes > 1_000_000
    reader = PartitionReader(data / "log" / "queues-0")
    assert reader.start_offset == done.start_offset
    [offset] = Bases(data / "bases").offsets("queues-0")
    base = Bases(data / "bases").open("queues-0", offset)
    machine = base.machine()
    assert offset == done.start_offset == machine.next_offset
    assert [each for each, _ in base.records()] == queued_offsets(machine)
    assert [entry.offset for entry in Manifest.load(archive, "queues-0").bases] == [offset]
    assert all(error is None for _, error in verify(archive, "queues-0"))
    assert keep_local(data, archive, SpaceLimits(size_bytes=400_000)).freed_bytes == 0


def test_a_later_cut_takes_records_from_the_base_not_the_archive(
    data: Path, archive: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_local(data, archive, SpaceLimits(size_bytes=900_000))
    first = PartitionReader(data / "log" / "queues-0").start_offset

    def away(url: str) -> Objects:
        raise NoAnswer(f"{url} is away")

    monkeypatch.setattr("rewindmq.engine.keeping.archive.objects.open_objects", away)
    report = keep_local(data, archive, SpaceLimits(size_bytes=1))
    [done] = report.partitions
    assert done.start_offset > first
    assert Bases(data / "bases").offsets("queues-0") == [done.start_offset]  # the older one is in the archive
    assert [entry.offset for entry in Manifest.load(archive, "queues-0").bases] == [first, done.start_offset]


def test_two_segments_stay_and_so_does_the_metadata_log(data: Path, archive: Objects) -> None:
    metadata = segment_files(data / "log" / "metadata-0")
    keep_local(data, archive, SpaceLimits(size_bytes=1))
    assert len(segment_files(data / "log" / "queues-0")) == STAY
    assert segment_files(data / "log" / "metadata-0") == metadata


def test_what_is_not_archived_stays(data: Path, objects: Objects) -> None:
    Archiver(objects, data).run()
    end = Manifest.load(objects, "queues-0").end
    write(data, rounds=20, seed=6)
    keep_local(data, objects, SpaceLimits(size_bytes=1))
    assert PartitionReader(data / "log" / "queues-0").start_offset <= end
    assert len(segment_files(data / "log" / "queues-0")) > STAY


def test_another_archive_removes_nothing(data: Path, archive: Objects, tmp_path: Path) -> None:
    write(tmp_path / "other")
    with pytest.raises(OtherHistory, match="not the archive of the history"):
        keep_local(tmp_path / "other", archive, SpaceLimits(size_bytes=1))
    with pytest.raises(OtherHistory, match="not the archive of the history"):
        keep_local(data, open_objects(str(tmp_path / "nothing"), make=True), SpaceLimits(size_bytes=1))


def test_a_base_that_would_take_more_than_goes_is_not_made(data: Path, archive: Objects) -> None:
    monkeypatched = pytest.MonkeyPatch()
    with monkeypatched.context() as patch:
        patch.setattr(local_space, "RECORD_BYTES", 1 << 30)
        [done] = keep_local(data, archive, SpaceLimits(size_bytes=1)).partitions
        patch.setattr(local_space, "state_at", None)  # it is not folded again
        assert keep_local(data, archive, SpaceLimits(size_bytes=1)).partitions == [done]
    assert (done.segments, done.freed_bytes, done.start_offset) == (0, 0, 0)
    assert "bytes for the queued messages" in done.why
    assert not Bases(data / "bases").offsets("queues-0")


def newest_ms(data: Path) -> int:
    return max(block.max_timestamp_ms for block in EmbeddedLogReader(data).queues[0].read())


def aged(data: Path, objects: Objects, clock: Clock, age_ms: int = 100) -> SpaceReport:
    return keep_local(data, objects, SpaceLimits(age_ms=age_ms), clock)


def test_the_first_run_notes_the_time_and_the_next_removes_by_age(data: Path, archive: Objects) -> None:
    clock = Clock()
    first = aged(data, archive, clock)
    assert (first.age_counts, first.freed_bytes) == (False, 0)
    clock.seconds += 5
    assert not aged(data, archive, clock).age_counts  # too soon for another opinion
    clock.seconds += 60
    second = aged(data, archive, clock)
    assert second.age_counts
    assert second.freed_bytes > 0
    start = PartitionReader(data / "log" / "queues-0").start_offset
    assert state_time(data, start) <= newest_ms(data) - 100


def state_time(data: Path, offset: int) -> int:
    """The time of the record before an offset."""
    log = InDirectory(data).open().queues[0]
    return max(block.max_timestamp_ms for block in log.read(offset - 1, offset))


def test_b24_a_clock_that_jumps_ahead_removes_nothing(data: Path, objects: Objects) -> None:
    clock = Clock()
    Archiver(objects, data).run()
    aged(data, objects, clock, HOUR_MS)
    log = EmbeddedLog.open(data, 1, segment_bytes=4_000)
    ten_years = newest_ms(data) + 10 * 365 * 24 * HOUR_MS
    traffic = Traffic(9, log=log.queues[0], start_ms=ten_years)
    for _ in range(20):
        traffic.run(15)
        log.commit_and_wait()
    log.close()
    Archiver(objects, data).run()
    for _ in range(10):  # ten runs in half an hour agree that the records before the jump are not an hour old
        clock.seconds += 180
        report = aged(data, objects, clock, 2 * HOUR_MS)
        assert report.age_counts
        assert report.freed_bytes == 0
    clock.seconds += 3_600  # half as much later as the limit, they are
    assert aged(data, objects, clock, 2 * HOUR_MS).freed_bytes > 0


def test_a_machine_that_was_booted_anew_counts_the_time_since(data: Path, archive: Objects) -> None:
    clock = Clock()
    clock.seconds = 1e6
    aged(data, archive, clock)
    clock.seconds = 40.0
    assert aged(data, archive, clock).age_counts


@pytest.mark.long
def test_b24_a_run_that_is_killed_anywhere_loses_nothing(data: Path, tmp_path: Path) -> None:
    """At each call of the store, before it does anything or when it has done it; then the next run ends the work."""
    Archiver(open_objects(str(tmp_path / "archive"), make=True), data).run()
    whole = [record for block in EmbeddedLogReader(data).queues[0].read() for record in block.records]
    number, done, killed = 1, False, True
    while killed or done:
        copy = tmp_path / f"{number}-{done}"
        shutil.copytree(data, copy / "data")
        shutil.copytree(tmp_path / "archive", copy / "archive")
        objects = open_objects(str(copy / "archive"))
        failing = FailingObjects(objects, number, done, Killed())
        killed = False
        try:
            keep_local(copy / "data", failing, SpaceLimits(size_bytes=1))
        except Killed:
            killed = True
        log = InDirectory(copy / "data").open().queues[0]
        assert [record for block in log.read() for record in block.records] == whole
        keep_local(copy / "data", objects, SpaceLimits(size_bytes=1))
        assert len(segment_files(copy / "data" / "log" / "queues-0")) == STAY
        assert [record for block in log.read() for record in block.records] == whole
        assert all(error is None for _, error in verify(objects, "queues-0"))
        shutil.rmtree(copy)
        number, done = (number, True) if not done else (number + rounds(1, 3), False)
    assert number > 5


# -- beside the others ---------------------------------------------------------------------------------------------


def test_b24_the_state_of_any_moment_is_as_before(tmp_path: Path, objects: Objects) -> None:
    data = tmp_path / "data"
    machine = write(data)
    Archiver(objects, data).run()
    whole = EmbeddedLogReader(data).queues[0]
    moments = list(range(0, whole.next_offset + 1, 97))
    digests = [state_at(whole, None, At(offset=each)).digest() for each in moments]
    keep_local(data, objects, SpaceLimits(size_bytes=1))
    history = InDirectory(data)
    log = history.open().queues[0]
    assert [state_at(log, history.snapshots, At(offset=each)).digest() for each in moments] == digests
    assert state_at(log, history.snapshots, At(offset=log.next_offset)).digest() == machine.digest()


def test_the_state_behind_the_cut_needs_no_archive(data: Path, archive: Objects) -> None:
    keep_local(data, archive, SpaceLimits(size_bytes=1))
    Path(archive.url.removeprefix("file://")).rename(data.with_name("gone"))
    history = InDirectory(data)
    log = history.open().queues[0]
    start = PartitionReader(data / "log" / "queues-0").start_offset
    for offset in (start, start + 3, log.next_offset):
        assert state_at(log, history.snapshots, At(offset=offset)).next_offset == offset
    with pytest.raises(NoAnswer):
        state_at(log, history.snapshots, At(offset=start - 1))


def test_recovery_and_snapshots_live_with_bases_in_the_archive(data: Path, archive: Objects, tmp_path: Path) -> None:
    keep_local(data, archive, SpaceLimits(size_bytes=1))
    close_segments(data)
    Archiver(archive, data).run()  # the snapshot at the cut goes there, too
    start = PartitionReader(data / "log" / "queues-0").start_offset
    assert start in ArchivedSnapshots(archive.url).offsets("queues-0")
    recover(archive, tmp_path / "recovered")
    there = EmbeddedLogReader(tmp_path / "recovered").queues[0]
    assert there.start_offset == 0
    assert there.next_offset == Manifest.load(archive, "queues-0").end
