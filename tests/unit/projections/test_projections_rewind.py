"""A partition as it was, from snapshots and the log (B-01): any offset, any moment; and what is no moment at all."""

import time
from pathlib import Path

import fastavro
import pytest

from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.rewind import (
    At,
    OutsideHistory,
    RewindError,
    UnreadableTime,
    absolute,
    format_time,
    parse_time,
    require_in_history,
    state_at,
)
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots, load
from rewindmq.schemas.values import Argument, Route
from tests.support.traffic import ANN, START_MS, ListLog, Traffic, published, queue_declared


def snapshots_on_the_way(directory: Path, traffic: Traffic, every: int) -> Snapshots:
    snapshots = Snapshots(directory)
    machine = Machine("queues-0")
    for offset in range(every, traffic.log.next_offset, every):
        fold(machine, traffic.log, offset)
        snapshots.take(machine)
    return snapshots


@pytest.mark.parametrize("seed", range(4))
def test_the_state_at_every_offset_is_the_state_that_was(tmp_path: Path, seed: int) -> None:
    traffic = Traffic(seed)
    digests = {}
    for _ in range(150):
        digests[traffic.log.next_offset] = traffic.machine.digest()
        traffic.run(1)
    snapshots = snapshots_on_the_way(tmp_path, traffic, 40)
    for offset, digest in digests.items():
        machine = state_at(traffic.log, snapshots, At(offset=offset))
        machine.validate()
        assert machine.digest() == digest
        assert machine.next_offset == offset


def test_the_nearest_snapshot_saves_the_fold_before_it(tmp_path: Path) -> None:
    traffic = Traffic(1)
    traffic.run(300)
    snapshots = snapshots_on_the_way(tmp_path, traffic, 100)
    assert snapshots.offsets("queues-0") == [100, 200, 300]
    traffic.listed.read_from.clear()
    state_at(traffic.log, snapshots, At(offset=250))
    assert traffic.listed.read_from == [200]


def test_the_clock_stands_at_the_moment_asked_for(tmp_path: Path) -> None:
    """A message that was due by that moment has expired, though nothing was logged in between (S-034)."""
    traffic = Traffic(0)
    traffic.append(ANN, queue_declared("brief", (Argument("x-message-ttl", "long", 1_000),)))
    traffic.append(ANN, published(Route("/", "", "brief", ("brief",)), b"x"))
    then = traffic.now_ms
    traffic.now_ms += 60_000
    traffic.append(ANN, queue_declared("later"))
    snapshots = Snapshots(tmp_path)
    for passed, ready in ((0, 1), (999, 1), (1_000, 0), (59_999, 0)):
        machine = state_at(traffic.log, snapshots, At(time_ms=then + passed))
        brief = machine.queue("/", "brief")
        assert brief is not None
        assert brief.messages_ready == ready
        assert machine.clock_ms == then + passed
        assert machine.queue("/", "later") is None
    assert state_at(traffic.log, snapshots, At(time_ms=then + 60_000)).queue("/", "later") is not None


def test_moments_outside_the_history_are_refused(tmp_path: Path) -> None:
    traffic = Traffic(0)
    traffic.run(20)
    end = traffic.log.next_offset
    with pytest.raises(OutsideHistory, match=f"queues-0 has offsets 0 to {end}, not {end + 1}"):
        state_at(traffic.log, Snapshots(tmp_path), At(offset=end + 1))
    with pytest.raises(OutsideHistory, match="not -1"):
        state_at(traffic.log, Snapshots(tmp_path), At(offset=-1))
    later = ListLog()
    with pytest.raises(OutsideHistory, match=r"is before the history, which begins 2025-11-21T03:00:00\.000"):
        require_in_history([later, traffic.log], START_MS - 1)
    require_in_history([later, traffic.log], START_MS)
    with pytest.raises(OutsideHistory, match="the history is empty"):
        require_in_history([later], START_MS)


def test_history_no_longer_kept_is_refused_unless_a_snapshot_bridges_it(tmp_path: Path) -> None:
    traffic = Traffic(2)
    traffic.run(200)
    snapshots = snapshots_on_the_way(tmp_path, traffic, 100)
    traffic.listed.start_offset = 90
    with pytest.raises(OutsideHistory, match="what lies below offset 90 is no longer kept"):
        state_at(traffic.log, snapshots, At(offset=95))
    assert state_at(traffic.log, snapshots, At(offset=150)).next_offset == 150


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2025-11-21T03:00:00.678+00:00", START_MS + 678),
        ("2025-11-21T03:00:00.678999Z", START_MS + 678),
        (" 2025-11-21 04:00:00+01:00 ", START_MS),
        ("1763694000678", START_MS + 678),
        ("253402300799999", 253_402_300_799_999),
    ],
)
def test_times_are_read(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms
    assert parse_time(format_time(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("-30s", 30),
        ("-10m", 600),
        ("-2h", 7_200),
        ("-3d", 259_200),
        ("-1w", 604_800),
        (" -1h30m ", 5_400),
        ("30s", 30),
        ("2h", 7_200),
        (" 1h30m ", 5_400),
        ("0s", 0),
    ],
)
def test_a_time_before_now(text: str, seconds: int) -> None:
    before = time.time_ns() // 1_000_000
    found = parse_time(text)
    assert before <= found + seconds * 1_000 <= time.time_ns() // 1_000_000
    once = absolute(text)
    assert abs(parse_time(once) - found) < 1_000
    assert absolute(once) == once
    assert absolute("mark:a") == "mark:a"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "is not a time: give ISO 8601 with a zone"),
        ("", "is not a time"),
        ("2025-13-01T00:00:00Z", "is not a time"),
        ("2025-11-21T03:00:00", "has no zone: add Z"),
        ("2025-11-21", "has no zone"),
        ("9" * 30, "is out of range: the last time is 9999-12-31T23:59:59.999"),
        ("253402300800000", "is out of range"),
        ("9999-12-31T23:59:59-01:00", "is out of range"),
        ("0001-01-01T00:00:00+01:00", "is out of range"),
        ("-5", "is not a time"),
        ("-5x", "is not a time: .* or how long ago, e.g. 10m"),
        ("-m", "is not a time"),
        ("5x", "is not a time"),
        ("--5m", "is not a time"),
        ("+5m", "is not a time"),
        ("5m ago", "is not a time"),
        ("-999999999w", "is out of range: the first time is 0001-01-01"),
        ("999999999w", "is out of range: the first time is 0001-01-01"),
        ("१२३", "is not a time"),
    ],
)
def test_what_is_no_time_is_refused(text: str, why: str) -> None:
    with pytest.raises(UnreadableTime, match=why) as caught:
        parse_time(text)
    assert isinstance(caught.value, RewindError)


def test_a_snapshot_is_a_plain_avro_file(tmp_path: Path) -> None:
    traffic = Traffic(3)
    traffic.run(200)
    path = Snapshots(tmp_path).take(traffic.machine)
    assert path == tmp_path / "queues-0" / f"{traffic.log.next_offset:020d}.snapshot"
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        metadata = reader.metadata
        kinds = [piece["kind"] for piece in reader if isinstance(piece, dict)]
    assert metadata["rewindmq.partition"] == "queues-0"
    assert metadata["rewindmq.offset"] == str(traffic.log.next_offset)
    assert metadata["rewindmq.digest"] == traffic.machine.digest()
    assert kinds[0] == "head"
    assert kinds[-1] == "end"
    assert kinds.count("queue") == len(traffic.machine.by_id)


def test_taking_a_snapshot_disturbs_nothing(tmp_path: Path) -> None:
    traffic, undisturbed = Traffic(3), Traffic(3)
    for _ in range(10):
        traffic.run(20)
        undisturbed.run(20)
        Snapshots(tmp_path).take(traffic.machine)
    dirty, other = traffic.machine.take_dirty(), undisturbed.machine.take_dirty()
    assert [(q.queue_id, q.meta, q.chunks, q.vanished) for q in dirty.queues] == [
        (q.queue_id, q.meta, q.chunks, q.vanished) for q in other.queues
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_loaded_snapshot_goes_on_like_the_machine_it_was_taken_of(tmp_path: Path, seed: int) -> None:
    traffic = Traffic(seed)
    traffic.run(200)
    loaded = load(Snapshots(tmp_path).take(traffic.machine))
    loaded.validate()
    assert loaded.digest() == traffic.machine.digest()
    traffic.run(200)
    fold(loaded, traffic.log)
    assert loaded.digest() == traffic.machine.digest()


def test_every_damaged_byte_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    traffic = Traffic(1)
    traffic.run(60)
    path = Snapshots(tmp_path).take(traffic.machine)
    whole = path.read_bytes()
    digest = traffic.machine.digest()
    refused = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            loaded = load(path)
        except SnapshotError:
            refused += 1
        else:  # a byte of the schema that the file brings along, say in a doc
            assert loaded.digest() == digest
            assert loaded.partition == "queues-0"
    assert refused > 100
    path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    with pytest.raises(SnapshotError, match=str(path)):
        load(path)


def test_a_snapshot_cut_short_is_refused_and_rewind_takes_the_one_before(tmp_path: Path) -> None:
    traffic = Traffic(1)
    traffic.run(250)
    snapshots = snapshots_on_the_way(tmp_path, traffic, 100)
    newest = snapshots.nearest("queues-0", 220)
    assert newest is not None
    assert newest.name == f"{200:020d}.snapshot"
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(SnapshotError):
        load(newest)
    traffic.listed.read_from.clear()
    machine = state_at(traffic.log, snapshots, At(offset=220))
    assert traffic.listed.read_from == [100]
    straight = Machine("queues-0")
    fold(straight, traffic.log, 220)
    assert machine.digest() == straight.digest()


def test_a_missing_snapshot_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"nothing\.snapshot: No such file"):
        load(tmp_path / "nothing.snapshot")


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    traffic = Traffic(1)
    traffic.run(20)
    snapshots = Snapshots(tmp_path)
    (tmp_path / "queues-0" / f"{traffic.log.next_offset:020d}.snapshot").mkdir(parents=True)  # in the way
    with pytest.raises(OSError, match="directory"):
        snapshots.take(traffic.machine)
    assert [path.suffix for path in (tmp_path / "queues-0").iterdir()] == [".snapshot"]
