"""A fork: the history up to a moment, from the archive alone, with the state of that moment and an identity (B-19)."""

import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import pack as packs
from rewindmq.engine.keeping.archive import recovery as recoveries
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.descriptions import decode_checked, encode_checked
from rewindmq.engine.keeping.archive.identity import identity_of, read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import RECOVERY, layout_file, read_fork, write_layout
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections import system_calls
from rewindmq.projections.marks import NoSuchMark
from rewindmq.projections.replay import events_of
from rewindmq.projections.rewind import At, OutsideHistory, format_time, state_at
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.schemas.metadata_events import HistoryForked, MarkDeleted
from tests.support.archiving import archive_all
from tests.support.broker_harness import Harness
from tests.support.examples import examples
from tests.support.failing_objects import Killed
from tests.support.other_schema import EARLIER
from tests.support.records import SCHEMA_BYTES, START_MS, contents, expected, fill
from tests.support.spark.histories import Recorder, random_history


def busy(data: Path, seed: int = 3, events: int = 150, segment_bytes: int = SCHEMA_BYTES + 2_000) -> Recorder:
    """A closed history of two partitions with the marks `early`, `late` and one that was cleared."""
    history = Recorder(data, digests=True, segment_bytes=segment_bytes)
    random_history(history, seed, events)
    history.wait(1)
    history.mark("early")
    history.wait(1)
    random_history(history, seed + 1, events)
    history.mark("cleared")
    history.mark("late")
    history.metadata(MarkDeleted("cleared"))
    random_history(history, seed + 2, events // 3)
    history.close()
    return history


@pytest.fixture
def data(tmp_path: Path) -> Path:
    busy(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def archive(data: Path, tmp_path: Path) -> Objects:
    return archive_all(data, str(tmp_path / "archive"))


def times_of(data: Path) -> list[int]:
    return sorted({each[1] for partition in EmbeddedLogReader(data).partitions for each in events_of(partition)})


def forked(data: Path) -> HistoryForked:
    """The event with which a fork begins: the last one of a metadata log that no broker has opened yet."""
    event = list(events_of(EmbeddedLogReader(data).metadata))[-1][3]
    assert isinstance(event, HistoryForked)
    return event


def require_state(archive: Objects, data: Path, at: dict[str, At]) -> None:
    """Each partition of the fork ends in the state that the archive had at the moment, with the same records."""
    log = ArchivedLog(archive.url)
    for ours, theirs in zip(EmbeddedLogReader(data).queues, log.queues, strict=True):
        moment = at[ours.name]
        end = At(offset=ours.next_offset) if moment.offset is not None else moment
        assert state_at(ours, None, end).digest() == state_at(theirs, None, moment).digest()
        assert contents(ours.read()) == contents(theirs.read())[: ours.next_offset]
        list(verify_chain(data / "log" / ours.name))
    metadata = EmbeddedLogReader(data).metadata
    list(verify_chain(data / "log" / metadata.name))
    behind = metadata.next_offset - 1
    assert contents(metadata.read())[:behind] == contents(log.metadata.read())[:behind]


@pytest.mark.long
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 30),
    segment_bytes=st.sampled_from([1, SCHEMA_BYTES + 500, SCHEMA_BYTES + 2_000, 1 << 20]),
    block_bytes=st.sampled_from([1, 300, 4 << 20]),
)
def test_the_state_is_that_of_the_archive_at_the_moment(
    seed: int, segment_bytes: int, block_bytes: int, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_BYTES", block_bytes)
        data = Path(folder) / "data"
        history = busy(data, seed, 60, segment_bytes)
        archive = archive_all(data, f"{folder}/archive")
        chance = random.Random(seed)
        times = times_of(data)
        for number, time in enumerate(chance.sample(times, 3)):
            time += chance.choice((0, 0, 1, 30))
            time = min(time, times[-1])
            fork = Path(folder) / f"fork-{number}"
            recover(archive, fork, at=format_time(time))
            require_state(archive, fork, dict.fromkeys(("queues-0", "queues-1"), At(time_ms=time)))
        for name in ("early", "late"):
            fork = Path(folder) / name
            recover(archive, fork, at=f"mark:{name}")
            positions = dict(forked(fork).positions)
            require_state(archive, fork, {each: At(offset=end) for each, end in positions.items()})
            for partition, states in zip(EmbeddedLogReader(fork).queues, history.states, strict=True):
                end = positions[partition.name]
                assert partition.next_offset == end
                if end in states:
                    assert state_at(partition, None, At(offset=end)).digest() == states[end]


def test_segments_come_back_byte_for_byte_up_to_the_last_whole_block(
    archive: Objects, data: Path, tmp_path: Path
) -> None:
    recover(archive, tmp_path / "fork", at="mark:early")
    positions = dict(forked(tmp_path / "fork").positions)
    divided = 0
    for name, end in positions.items():
        stored = EmbeddedLogReader(data).queues[int(name[-1])]
        below = [block for block in stored.read(0, end) if block.first_offset + len(block.records) <= end]
        divided += below[-1].first_offset + len(below[-1].records) < end
        ours = [path for path in segment_files(tmp_path / "fork" / "log" / name) if int(path.stem) < end]
        theirs = segment_files(data / "log" / name)[: len(ours)]
        assert [path.read_bytes() for path in ours[:-1]] == [path.read_bytes() for path in theirs[:-1]]
        blocks = list(EmbeddedLogReader(tmp_path / "fork").queues[int(name[-1])].read())
        assert [block.chain for block in blocks[: len(below)]] == [block.chain for block in below]
        end_of_whole = below[-1].first_offset + len(below[-1].records)
        following = [block for block in stored.read(0, None) if block.first_offset == end_of_whole]
        length = following[0].position if following[0].file.name == ours[-1].name else theirs[-1].stat().st_size
        assert ours[-1].read_bytes()[:length] == theirs[-1].read_bytes()[:length]
    assert divided, "the mark divides no block: it proves little"


def test_a_fork_begins_with_the_event_that_says_where_it_branched(archive: Objects, data: Path, tmp_path: Path) -> None:
    report = recover(archive, tmp_path / "fork", at=" mark:early ")
    event, parent = forked(tmp_path / "fork"), identity_of(data).history
    assert (event.parent, event.moment, event.source) == (parent, "mark:early", archive.url)
    assert len(event.identity) == 64
    assert dict(event.positions) == {each.partition: each.next_offset for each in report[1:]}
    assert identity_of(tmp_path / "fork").history == event.identity != parent
    recover(archive, tmp_path / "other", at="mark:early")
    assert forked(tmp_path / "other").identity != event.identity
    metadata = EmbeddedLogReader(tmp_path / "fork").metadata
    assert metadata.next_offset == report[0].next_offset + 1
    assert [path.stem for path in segment_files(tmp_path / "fork" / "log" / "metadata-0")][-2:] == [
        f"{report[0].next_offset + more:020d}" for more in (0, 1)
    ]


def test_a_fork_is_archived_to_a_url_of_its_own_and_recovered_from_there(
    archive: Objects, data: Path, tmp_path: Path
) -> None:
    fork = tmp_path / "fork"
    recover(archive, fork, at="mark:late")
    with pytest.raises(OtherHistory, match=r"the archive of another history .* archive to another URL"):
        Archiver(archive, fork).run()
    identity = identity_of(fork)
    with EmbeddedLogIn(fork) as log:
        fill(log.queues[0], range(3))
    close_segments(fork)
    own = open_objects(str(tmp_path / "own"), make=True)
    Archiver(own, fork).run()
    assert read_identity(own) == identity
    for name in ("metadata-0", "queues-0", "queues-1"):
        ours, theirs = Manifest.load(own, name).segments, Manifest.load(archive, name).segments
        shared = [one.avro for one, other in zip(ours, theirs, strict=False) if one.chain == other.chain]
        assert shared == [each.avro for each in theirs[: len(shared)]]
        assert shared or name == "metadata-0", name  # whose first segment has the moment
    recover(own, tmp_path / "again")
    assert identity_of(tmp_path / "again") == identity
    for name in ("metadata-0", "queues-0", "queues-1"):
        one, other = (segment_files(each / "log" / name)[:-1] for each in (fork, tmp_path / "again"))
        assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    recover(own, tmp_path / "fork-of-fork", at="mark:late")
    assert forked(tmp_path / "fork-of-fork").parent == identity_of(data).history  # it branches where that was history
    last = times_of(fork)[-1]
    recover(own, tmp_path / "later", at=format_time(last))
    assert forked(tmp_path / "later").parent == identity.history
    assert identity_of(tmp_path / "later").history == forked(tmp_path / "later").identity


class EmbeddedLogIn:
    """The log of a directory, closed at the end."""

    def __init__(self, data: Path) -> None:
        self.log = EmbeddedLog.open(data, None)

    def __enter__(self) -> EmbeddedLog:
        return self.log

    def __exit__(self, *problem: object) -> None:
        self.log.close()


def test_an_archive_with_another_identity_than_its_last_fork_is_refused(archive: Objects, tmp_path: Path) -> None:
    recover(archive, tmp_path / "fork", at="mark:late")
    close_segments(tmp_path / "fork")
    own = open_objects(str(tmp_path / "own"), make=True)
    Archiver(own, tmp_path / "fork").run()
    path = tmp_path / "own" / "archive.json"
    path.write_bytes(encode_checked(decode_checked(path.read_bytes(), str(path)) | {"history": "ab" * 32}))
    with pytest.raises(ArchiveError, match="belongs to another history"):
        recover(own, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# -- moments that the archive does not have ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ("1999-01-01T00:00:00Z", OutsideHistory, "is before the history, which begins 2025-11-21T03:00:00"),
        ("2999-01-01T00:00:00Z", OutsideHistory, "2999-01-01T00:00:00.000.00:00 is in the future"),
        ("mark:other", NoSuchMark, r"there is no mark 'other' in the archive \(its marks: early, late\)"),
        ("mark:cleared", NoSuchMark, "there is no mark 'cleared' in the archive"),
    ],
)
def test_a_moment_that_is_not_there(
    archive: Objects, tmp_path: Path, asked: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        recover(archive, tmp_path / "fork", at=asked)
    assert not (tmp_path / "fork").exists()


def test_a_mark_behind_the_archived_end_of_a_partition(tmp_path: Path) -> None:
    history = Recorder(tmp_path / "data")
    history.declare("orders")
    history.log.commit_and_wait()
    for partition in (history.log.metadata, *history.log.queues):
        partition.roll()
    for number in range(5):
        history.publish("orders", b"%d" % number)
    history.mark("later")
    history.log.commit_and_wait()
    history.log.metadata.roll()
    history.close()
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, tmp_path / "data").run()
    with pytest.raises(OutsideHistory, match="mark 'later' is after the archived end: it is at offset"):
        recover(objects, tmp_path / "fork", at="mark:later")


def test_a_time_behind_the_archived_end_is_the_end(archive: Objects, data: Path, tmp_path: Path) -> None:
    """Nothing that is archived came between. The broker may have written more since."""
    end = times_of(data)[-1]
    report = recover(archive, tmp_path / "fork", at=format_time(end + 3_600_000))
    assert [each.ends_early for each in report] == [True] * 3
    assert forked(tmp_path / "fork").moment == format_time(end + 3_600_000)
    require_state(archive, tmp_path / "fork", dict.fromkeys(("queues-0", "queues-1"), At(time_ms=end)))
    for ours, theirs in zip(EmbeddedLogReader(tmp_path / "fork").queues, EmbeddedLogReader(data).queues, strict=True):
        assert ours.next_offset == theirs.next_offset


def test_a_partition_that_is_archived_less_far_is_named(archive: Objects, data: Path, tmp_path: Path) -> None:
    report = recover(archive, tmp_path / "end", at=format_time(times_of(data)[-1]))
    assert [each.ends_early for each in report] == [True] * 3
    report = recover(archive, tmp_path / "early", at="mark:early")
    assert [each.ends_early for each in report] == [False] * 3


# -- what a fork does not fetch, and what it does when it is killed ---------------------------------------------------


def test_only_what_is_needed_is_fetched(archive: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "BLOCK_BYTES", 300)
    asked: set[str] = set()
    get, get_range = Objects.get, Objects.get_range

    def noted(self: Objects, key: str) -> bytes:
        asked.add(key)
        return get(self, key)

    def noted_range(self: Objects, key: str, start: int, end: int) -> bytes:
        asked.add(key)
        return get_range(self, key, start, end)

    monkeypatch.setattr(Objects, "get", noted)
    monkeypatch.setattr(Objects, "get_range", noted_range)
    recover(archive, tmp_path / "fork", at="mark:early")
    for name, end in forked(tmp_path / "fork").positions:
        entries = Manifest.load(archive, name).segments
        assert [entry for entry in entries if entry.base_offset >= end]
        for entry in entries:
            for stored in (entry.avro, entry.blocks):
                assert (f"{name}/segments/{stored.name}" in asked) == (entry.base_offset < end)


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Kill the recovery when it is about to do its n-th step on the disk."""
    done = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            nonlocal done
            if done == number:
                raise Killed
            done += 1
            return function(*args, **named)

        return call

    for owner, name in (
        (system_calls, "sync_directory"),
        (recoveries, "write_layout"),
        (PartitionWriter, "write"),
        (PartitionWriter, "roll"),
        (os, "fchmod"),
        (system_calls, "sync"),
        (Path, "replace"),
        (Path, "unlink"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.long
def test_a_fork_that_is_killed_at_any_step_is_begun_again(tmp_path: Path) -> None:
    busy(tmp_path / "data", events=40, segment_bytes=1 << 20)
    archive = archive_all(tmp_path / "data", str(tmp_path / "archive"))
    recover(archive, tmp_path / "whole", at="mark:early")
    wanted = [contents(partition.read()) for partition in EmbeddedLogReader(tmp_path / "whole").queues]
    number, finished, fork = 0, False, tmp_path / "fork"
    while not finished:
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, number)
            try:
                recover(archive, fork, at="mark:early")
                finished = True
            except Killed:
                pass
        begun = (fork / "log" / RECOVERY).exists()
        if begun or not layout_file(fork).exists():
            if begun:
                with pytest.raises(LogError, match="--at mark:early was begun here: ask for the same"):
                    recover(archive, fork, at="mark:late")
                with pytest.raises(LogError, match="--at mark:early was begun here"):
                    recover(archive, fork)
            recover(archive, fork, at="mark:early")
        assert [contents(partition.read()) for partition in EmbeddedLogReader(fork).queues] == wanted
        assert identity_of(fork).history == forked(fork).identity
        kinds = [type(each[3]) for each in events_of(EmbeddedLogReader(fork).metadata)]
        assert kinds.count(HistoryForked) == 1
        assert not list(fork.rglob("*.part"))
        for name in ("metadata-0", "queues-0", "queues-1"):
            list(verify_chain(fork / "log" / name))
        shutil.rmtree(fork)
        number += 1
    assert number > 30


# -- segments of other kinds ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("earlier_schema")
def test_a_moment_inside_a_block_of_an_older_schema(tmp_path: Path) -> None:
    """The rest of the block stays under it, as a broker's next block would."""
    data = tmp_path / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewindmq.engine.log.embedded.writer.envelope_fingerprint", lambda: EARLIER)
        log = EmbeddedLog.open(data, 1)
        fill(log.metadata, range(5))
        fill(log.queues[0], range(10))
        log.commit_and_wait()
        fill(log.queues[0], range(10, 20))
        log.close()
    archive = archive_all(data, str(tmp_path / "archive"))
    recover(archive, tmp_path / "fork", at=format_time(START_MS + 3))
    assert PartitionReader(tmp_path / "fork" / "log" / "queues-0").next_offset == 4
    recover(archive, tmp_path / "later", at=format_time(START_MS + 4))
    partition = PartitionReader(tmp_path / "later" / "log" / "queues-0")
    assert contents(partition.read()) == expected(20, EARLIER)[:5]


def test_moments_around_a_clock_that_was_set_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = EmbeddedLog.open(data, 1, 40_000)
    fill(log.metadata, range(100))
    for begin in (0, 40, 20):
        log.queues[0].begin_time_anew()
        for first in range(begin, begin + 50, 7):
            fill(log.queues[0], range(first, first + 7))
            log.commit_and_wait()
    log.close()
    archive = archive_all(data, str(tmp_path / "archive"))
    stored = EmbeddedLogReader(data).queues[0]
    for time in range(START_MS, START_MS + 99, 9):
        fork = tmp_path / f"fork-{time}"
        recover(archive, fork, at=str(time))
        ours = PartitionReader(fork / "log" / "queues-0")
        assert ours.next_offset == stored.offset_at(time)
        assert contents(ours.read()) == contents(stored.read())[: ours.next_offset]
        list(verify_chain(fork / "log" / "queues-0"))


def test_snapshots_behind_the_moment_stay_in_the_archive(data: Path, tmp_path: Path) -> None:
    positions = dict(forked_positions(data))
    for name, end in positions.items():
        log = EmbeddedLogReader(data).queues[int(name[-1])]
        for offset in (5, end - 20, end + 1):
            Snapshots(data / "snapshots").take(state_at(log, None, At(offset=offset)))
    archive = archive_all(data, str(tmp_path / "archive"))
    report = recover(archive, tmp_path / "fork", at="mark:early")
    for each in report[1:]:
        offsets = Snapshots(tmp_path / "fork" / "snapshots").offsets(each.partition)
        assert offsets == [5, positions[each.partition] - 20]
        assert each.snapshots == 2


def forked_positions(data: Path) -> tuple[tuple[str, int], ...]:
    fold = MetadataFold()
    fold_on(fold, EmbeddedLogReader(data).metadata)
    return fold.topology.marks["early"].positions


# -- a broker on a fork -----------------------------------------------------------------------------------------------


def test_a_broker_goes_on_with_the_queues_of_the_moment_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Harness(tmp_path / "data", partitions=2) as original:
        session = original.session()
        original.declare(session, "orders", durable=True)
        for number in range(50):
            original.publish(session, "", "orders", b"%d" % number)
        original.settle()
        moment = original.now_ms
        original.now_ms += 1_000
        original.fetch(session, "orders")
        original.publish(session, "", "orders", b"later")
        original.settle()
    close_segments(tmp_path / "data")
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, tmp_path / "data").run()
    recover(objects, tmp_path / "fork", at=format_time(moment))
    identity = identity_of(tmp_path / "fork")
    with caplog.at_level(logging.INFO), Harness(tmp_path / "fork") as fork:
        assert (
            f"as of {format_time(moment)}: it branched from {identity_of(tmp_path / 'data').history[:16]}"
            in caplog.text
        )
        assert fork.ready("orders") == [b"%d" % number for number in range(50)]
        fork.publish(fork.session(), "", "orders", b"own")
        fork.settle()
        assert fork.ready("orders")[-1] == b"own"
    assert identity_of(tmp_path / "fork") == identity
    assert newest(Snapshots(tmp_path / "fork" / "snapshots"), EmbeddedLogReader(tmp_path / "fork").metadata).topology
    close_segments(tmp_path / "fork")
    with pytest.raises(OtherHistory):
        Archiver(objects, tmp_path / "fork").run()


def test_the_start_makes_a_layout_anew_that_names_another_history(
    archive: Objects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recover(archive, tmp_path / "fork", at="mark:late")
    identity = identity_of(tmp_path / "fork")
    write_layout(tmp_path / "fork", 2)
    assert identity_of(tmp_path / "fork") != identity
    with Harness(tmp_path / "fork"):
        assert "its layout named another history than the log" in caplog.text
    assert identity_of(tmp_path / "fork") == identity
    assert read_fork(tmp_path / "fork") == identity.history
