"""History cut at snapshots, folded and verified chunk by chunk; snapshots of an auditor's own (B-01, B-09, B-18)."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rewindmq import builds
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import read_header
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive, events_of, fold
from rewindmq.projections.store import keys, rocks
from rewindmq.projections.store.metadata_snapshots import about, write
from rewindmq.projections.store.metadata_snapshots import load as load_metadata
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.topology.fold_image import image_of
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Acked, Checkpointed
from rewindmq.schemas.metadata_events import Unbound
from rewindmq.schemas.values import BROKER, Actor
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.commands.report import not_checked
from rewindmq.spark_replay.fold import FoldInput, from_snapshot, groups_up_to
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import plan_chunks, verify, verify_snapshots
from tests.bench.generated_history import write_history
from tests.support.broker_harness import Harness
from tests.support.events_for_tests import declared
from tests.support.rocks import flipped, stored
from tests.support.spark.histories import Recorder, plain_fold

pytestmark = pytest.mark.long

EVERY = 100


@pytest.fixture(scope="module")
def own(spark: SparkSession, busy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snapshots of the busy history, every hundred events."""
    directory = tmp_path_factory.mktemp("auditor") / "own"
    cut(spark, str(busy), EVERY, directory)
    return directory


@pytest.fixture
def copy(own: Path, tmp_path: Path) -> Path:
    shutil.copytree(own, tmp_path / "own")
    return tmp_path / "own"


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


def forge(directory: Path, machine: Machine, at: int | None = None) -> None:
    """A snapshot whose own checksums are right."""
    machine.next_offset = machine.next_offset if at is None else at
    Snapshots(directory).take(machine)


def planted(data: Path, at: int) -> Machine:
    """As queues-0 stood at an offset, but with a queue that nobody declared."""
    machine = plain_fold(data, 0, at)
    event = declared("/", "planted", durable=True, semantics="rabbitmq-3.13")
    machine.apply(at - 1, machine.clock_ms, BROKER, event, [])
    return machine


# -- cutting -----------------------------------------------------------------------------------------------------------


def test_a_cut_makes_snapshots_that_all_jobs_can_begin_from(spark: SparkSession, busy: Path, own: Path) -> None:
    for number, partition in enumerate(EmbeddedLogReader(busy).queues):
        offsets = Snapshots(own).offsets(partition.name)
        assert offsets == list(range(EVERY, partition.next_offset + 1, EVERY))
        assert len(offsets) > 3
        assert Snapshots(own).nearest(partition.name, 250) == own / partition.name / f"{200:020d}.snapshot"
        assert plain_fold(busy, number, 200).digest() in (
            own / partition.name / f"{200:020d}.snapshot"
        ).read_bytes().decode("latin-1")
    whole = history(spark, str(busy))
    pieces = history(spark, str(busy), snapshots=own)
    assert (whole.rdd.getNumPartitions(), pieces.rdd.getNumPartitions()) == (2, 2 + len(list(own.glob("*/*.snapshot"))))
    assert pieces.collect() == whole.collect()
    at = '{"queues-0": 433, "queues-1": 207}'
    assert state_at(spark, str(busy), offsets=at, snapshots=own).rows.collect() == (
        state_at(spark, str(busy), offsets=at).rows.collect()
    )


def test_a_state_costs_the_events_since_the_snapshot_before(busy: Path, own: Path, tmp_path: Path) -> None:
    """The events before the snapshot are not even read: here their bytes are no longer a log."""
    from rewindmq.spark_replay.fold import log_task
    from rewindmq.spark_replay.location.ranges import OffsetRange

    data = tmp_path / "data"
    shutil.copytree(busy, data)
    segment = next((data / "log" / "queues-0").glob("*.avro"))
    with segment.open("rb") as file:
        begin = len(read_header(segment, file.fileno()).raw)
    content = bytearray(segment.read_bytes())
    content[begin : begin + 5_000] = bytes(5_000)
    segment.write_bytes(bytes(content))

    def folded(feed: FoldInput) -> list[int]:
        return [offset for offsets, _, _ in feed.groups for offset in offsets]

    [*read] = log_task(OffsetRange("queues-0", 433, 433), InDirectory(data), Snapshots(own), folded, {})
    assert read == list(range(400, 433))
    with pytest.raises(CorruptLog):
        [*log_task(OffsetRange("queues-0", 433, 433), InDirectory(data), None, folded, {})]


def test_a_cut_goes_on_where_it_stopped_and_its_sums_fit(spark: SparkSession, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "own"
    told = Recorder(data, partitions=1)
    told.declare("orders")
    for n in range(20):
        told.publish("orders", b"%d" % n)
    told.close()
    assert cut(spark, str(data), 10, out).up_to == {"queues-0": 22}
    first = (out / "queues-0" / f"{10:020d}.snapshot").stat().st_mtime_ns
    told = Recorder(data, partitions=1)
    for machine, partition in zip(told.machines, EmbeddedLogReader(data).queues, strict=True):
        fold(machine, partition)
    for n in range(20):
        told.publish("orders", b"%d" % n)
    told.close()
    done = cut(spark, str(data), 10, out)
    assert (done.snapshots, done.in_all) == (2, 4)
    assert (out / "queues-0" / f"{10:020d}.snapshot").stat().st_mtime_ns == first
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True, capture_output=True)
    assert done.sha256 == hashlib.sha256((out / "SHA256SUMS").read_bytes()).hexdigest()
    assert bad(verify(spark, str(data), out)) == []
    assert cut(spark, str(data), 10, out).sha256 == done.sha256


def test_snapshots_of_another_log_and_other_directories_are_refused(
    spark: SparkSession, busy: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(own, strange)
    about = json.loads((strange / "cut.json").read_text())
    about["begins"]["queues-0"] = "0" * 64
    (strange / "cut.json").write_text(json.dumps(about))
    (tmp_path / "empty" / "queues-0").mkdir(parents=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "cut.json").write_text("{}")
    for arguments, line in (
        (["verify", "--snapshots", strange], "has snapshots of another log"),
        (["state-at", "--snapshots", strange], "has snapshots of another log"),
        (["audit", "--snapshots", tmp_path / "none"], "no such directory"),
        (["audit", "--snapshots", tmp_path / "empty"], "there are no snapshots in it"),
        (["verify", "--snapshots", tmp_path / "full"], "there are no snapshots in it"),
        (["history", "--snapshots", tmp_path / "odd"], "not as `cut` writes it"),
        (["cut", "--out", tmp_path / "full"], "not a directory of `cut`"),
        (["cut", "--out", own, "--every", "50"], "was cut every 100 events"),
        (["cut", "--out", strange, "--every", "100"], "has snapshots of another log"),
    ):
        assert cli.run([*map(str, arguments), "--data", str(busy)]) == 64
        printed = capsys.readouterr()
        assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        assert line in printed.err
    with pytest.raises(BadRequest):
        cut(spark, str(busy), EVERY, tmp_path / "full")
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


@pytest.fixture
def shortened(spark: SparkSession, tmp_path: Path) -> tuple[Path, Path]:
    """A history whose end was cut off after a group commit, so that nothing shows, and snapshots from before that."""
    whole, short, own = tmp_path / "whole", tmp_path / "short", tmp_path / "own"
    for data, messages in ((whole, 30), (short, 20)):
        told = Recorder(data, partitions=1)
        told.declare("orders")
        for n in range(messages):
            told.publish("orders", b"%d" % n)
        told.close()
    assert cut(spark, str(whole), 10, own).up_to == {"queues-0": 32}
    return short, own


@pytest.mark.parametrize("beside", [False, True])
def test_a_log_that_lost_its_end_is_convicted_by_the_snapshots_behind_it(
    spark: SparkSession, shortened: tuple[Path, Path], beside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    short, own = shortened
    options = [] if beside else ["--snapshots", str(own)]
    if beside:
        shutil.copytree(own / "queues-0", short / "snapshots" / "queues-0")
    for command in ("audit", "verify"):
        assert cli.run([command, "--data", str(short), *options]) == 1
        printed = capsys.readouterr().out
        assert "snapshots: queues-0 offset 30: a snapshot is of offset 30, but the log ends at 22" in printed
        assert f"{command} FAILED: 1 finding" in printed


def test_a_log_that_lost_its_end_is_not_cut_on(
    shortened: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    short, own = shortened
    before = (own / "cut.json").read_bytes()
    assert cli.run(["cut", "--data", str(short), "--every", "10", "--out", str(own)]) == 65
    assert "queues-0: a snapshot is of offset 30, but the log ends at 22" in capsys.readouterr().err
    assert (own / "cut.json").read_bytes() == before


def test_snapshots_of_a_partition_that_is_no_more_are_found(
    spark: SparkSession, shortened: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody took it out of layout.json, too."""
    short, own = shortened
    (own / "queues-0").rename(own / "queues-1")
    found = bad(verify(spark, str(short), own))
    assert [(f.check, f.partition, f.offset) for f in found] == [("snapshots", "queues-1", at) for at in (10, 20, 30)]
    assert found[0].detail == "a snapshot is of offset 10, but there is no such partition"
    assert bad(audit(spark, str(short), own)) == found


def test_a_snapshot_that_a_broker_takes_meanwhile_is_no_finding(
    busy: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is looked at after the snapshots are listed."""
    listed: list[str] = []
    offsets = Snapshots.offsets
    next_offset: Callable[[PartitionReader], int] = vars(PartitionReader)["next_offset"].fget

    def listing(snapshots: Snapshots, partition: str) -> list[int]:
        listed.append("snapshots")
        return offsets(snapshots, partition)

    def ending(partition: PartitionReader) -> int:
        listed.append("end")
        return next_offset(partition)

    monkeypatch.setattr(Snapshots, "offsets", listing)
    monkeypatch.setattr(PartitionReader, "next_offset", property(ending))
    plan_chunks(InDirectory(busy), Snapshots(own))
    assert listed == ["snapshots", "snapshots", "end", "end"]


# -- verifying ---------------------------------------------------------------------------------------------------------


def test_a_sound_history_is_verified_in_chunks(
    spark: SparkSession, busy: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["verify", "--data", str(busy), "--snapshots", str(own)]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # long cells are folded
    assert printed.endswith("verify passed")
    for partition in EmbeddedLogReader(busy).queues:
        name, end = partition.name, partition.next_offset
        chunks = end // EVERY + bool(end % EVERY)
        assert f"{name}: {end // EVERY} snapshots, {end} events in {chunks} chunks" in printed
        claims = sum(type(event) is Checkpointed for _, _, _, event in events_of(partition))
        assert claims > 0
        assert f"{name}: {claims} claims" in printed


def test_without_snapshots_there_is_one_chunk(spark: SparkSession, busy: Path) -> None:
    findings = verify(spark, str(busy))
    assert bad(findings) == []
    assert findings[0].detail.startswith("not checked: there is no snapshot; 0 snapshots, ")
    assert " events in 1 chunks, " in findings[0].detail
    folded = f", folded by the {builds.running().kind} build"
    assert all(each.detail.endswith(folded) for each in findings if each.check == "claims")


class Noted:
    """Counts the publishes that a fold applied together."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, *told: Any) -> None:
        self.count += len(told[4])


def test_it_is_said_how_many_events_were_in_runs(spark: SparkSession, busy: Path, own: Path) -> None:
    """Each chunk begins anew, so these are the runs of folds that begin at the snapshots."""
    said = {each.partition: each.detail for each in verify(spark, str(busy), own) if each.check == "snapshots"}
    snapshots = Snapshots(own)
    for log in EmbeddedLogReader(busy).queues:
        noted = Noted()
        bounds = [0, *snapshots.offsets(log.name), log.next_offset]
        for start, end in pairwise(bounds):
            machine, decoder = from_snapshot(snapshots, log, start), Decoder()
            drive(machine, groups_up_to(log, start, end), decoder, run=noted.run)
        assert noted.count > 0
        assert said[log.name].endswith(f" chunks, {noted.count} of them in runs")


def test_a_damaged_snapshot_is_named_and_passed_over(spark: SparkSession, busy: Path, copy: Path) -> None:
    path = Snapshots(copy).path("queues-0", 300)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    [found] = bad(verify(spark, str(busy), copy))
    assert (found.check, found.partition, found.offset) == ("snapshots", "queues-0", 300)
    assert path.name in found.detail
    assert "cannot be used" in found.detail


FORGERIES: dict[str, Callable[[Path], Machine]] = {
    "a queue that nobody declared": lambda busy: planted(busy, 300),
    "the state of another offset": lambda busy: plain_fold(busy, 0, 290),
    "another clock": lambda busy: other_clock(busy),
}


def other_clock(busy: Path) -> Machine:
    machine = plain_fold(busy, 0, 300)
    machine.clock_ms += 1
    return machine


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_snapshot_is_one_finding_though_its_checksums_are_right(
    spark: SparkSession, busy: Path, copy: Path, forgery: str
) -> None:
    forge(copy, FORGERIES[forgery](busy), 300)
    [found] = bad(verify(spark, str(busy), copy))
    assert (found.check, found.partition, found.offset) == ("snapshots", "queues-0", 300)
    assert "the events of offsets 200 to 299, folded from the snapshot at offset 200, do not lead to" in found.detail
    if forgery != "the state of another offset":
        assert found.queue == (None if forgery == "another clock" else "//planted")


def test_forged_snapshots_one_behind_the_other_are_each_found(
    spark: SparkSession, busy: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at in (100, 300, 400):
        forge(copy, planted(busy, at))
    assert cli.run(["verify", "--data", str(busy), "--snapshots", str(copy), "--format", "json"]) == 1
    found = [row for row in json.loads(capsys.readouterr().out) if not row["ok"]]
    assert [(row["check"], row["offset"]) for row in found] == [("snapshots", at) for at in (100, 300, 400)]


def test_a_history_that_was_changed_does_not_lead_to_the_snapshot_behind(spark: SparkSession, tmp_path: Path) -> None:
    """Somebody rewrites the log with another ack, chain and all; the snapshots were made before."""

    def write(data: Path, acked: int) -> None:
        told = Recorder(data, partitions=1)
        told.declare("orders")
        told.consume("orders", 9, prefetch=50)
        ids = [told.publish("orders", b"%d" % n) for n in range(30)]
        told.append(0, Actor("ann", 7), Acked("/", "orders", 9, ((ids[acked], ids[acked]),)))
        for n in range(30):
            told.publish("orders", b"%d" % n)
        told.close()

    write(tmp_path / "true", 3)
    write(tmp_path / "forged", 4)
    cut(spark, str(tmp_path / "true"), 10, tmp_path / "own")
    assert bad(verify(spark, str(tmp_path / "true"), tmp_path / "own")) == []
    found = bad(verify(spark, str(tmp_path / "forged"), tmp_path / "own"))
    assert found[0].offset == 40  # the ack is at offset 33
    assert found[0].queue == "//orders"
    assert {finding.check for finding in found} == {"snapshots"}


def test_claims_are_compared_inside_of_the_chunks(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path / "data", partitions=1)
    told.declare("orders")
    for n in range(30):
        told.publish("orders", b"%d" % n)
        if n % 5 == 0:
            told.claim(0)
    lied = told.claim(0, "0" * 64)
    told.publish("orders", b"last")
    told.close()
    cut(spark, str(tmp_path / "data"), 10, tmp_path / "own")
    found = bad(verify(spark, str(tmp_path / "data"), tmp_path / "own"))
    assert [(finding.check, finding.offset) for finding in found] == [("claims", lied)]


@pytest.mark.rare
def test_the_live_state_is_what_the_last_chunk_leads_to(spark: SparkSession, live: Path, copy: Path) -> None:
    findings = verify(spark, str(live), copy)
    assert bad(findings) == []
    ends = [partition.next_offset for partition in EmbeddedLogReader(live).queues]
    assert [f.offset for f in findings if f.check == "state"] == ends
    # A forged snapshot right before it misleads nobody
    forge(copy, planted(live, ends[0] // EVERY * EVERY))
    assert [f.check for f in bad(verify(spark, str(live), copy))] == ["snapshots"]
    queue = next(queue for queue in plain_fold(live, 0, ends[0]).queues() if queue.name == "rest")
    key = keys.queue(keys.partition_prefix("queues-0"), queue.queue_id)
    db = rocks.open_database(live / "state")
    db[key] = flipped(stored(db, key))
    db.close()
    found = bad(verify(spark, str(live)))
    assert [(f.check, f.partition) for f in found] == [("state", "queues-0")]


def test_a_file_in_the_place_of_the_state_is_no_missing_state(spark: SparkSession, live: Path) -> None:
    shutil.rmtree(live / "state")
    (live / "state").write_text("x")
    for findings, check in ((verify(spark, str(live)), "state"), (audit(spark, str(live)), "store")):
        assert [(f.check, f.partition) for f in bad(findings)] == [(check, "queues-0"), (check, "queues-1")]
        assert "there is no state store here" in bad(findings)[0].detail


def test_a_state_that_lost_a_file_is_found_and_an_empty_one_is_empty(spark: SparkSession, live: Path) -> None:
    next((live / "state").glob("*.sst")).unlink()
    for findings, check in ((verify(spark, str(live)), "state"), (audit(spark, str(live)), "store")):
        assert [(f.check, f.partition) for f in bad(findings)] == [(check, "queues-0"), (check, "queues-1")]
        assert "No such file" in bad(findings)[0].detail
    shutil.rmtree(live / "state")
    StateStore.open(live / "state").close()
    for findings, check in ((verify(spark, str(live)), "state"), (audit(spark, str(live)), "store")):
        assert bad(findings) == []
        of_check = [f for f in findings if f.check == check]
        assert [f.checked for f in of_check] == [False, False]
        assert all("nothing is stored yet" in f.detail for f in of_check)
        assert check in not_checked(findings)


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_verify_needs_the_metadata_log(
    spark: SparkSession, live: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if harm == "deleted":
        shutil.rmtree(live / "log" / "metadata-0")
    else:
        segment = next((live / "log" / "metadata-0").glob("*.avro"))
        content = bytearray(segment.read_bytes())
        content[-30] ^= 1
        segment.write_bytes(bytes(content))
    assert cli.run(["verify", "--data", str(live)]) == 65
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "metadata-0" in printed.err


def test_the_audit_looks_at_the_snapshots_beside_the_log(
    spark: SparkSession, busy: Path, own: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    shutil.copytree(own / "queues-0", data / "snapshots" / "queues-0")
    findings = audit(spark, str(data))
    assert bad(findings) == []
    [looked] = [f for f in findings if f.check == "snapshots"]
    offsets = Snapshots(own).offsets("queues-0")
    assert looked.detail == f"{len(offsets)} snapshots, {offsets[-1]} events in {len(offsets)} chunks"
    assert all(each.detail.endswith(", folded by the pure build") for each in findings if each.check == "records")
    forge(data / "snapshots", planted(busy, 200))
    assert [(f.check, f.offset) for f in bad(audit(spark, str(data)))] == [("snapshots", 200)]
    assert bad(audit(spark, str(data), own)) == []


def test_the_audits_fold_finds_what_folds_between_snapshots_find(
    spark: SparkSession, busy: Path, own: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(busy, data)
    shutil.copytree(own, data / "snapshots", ignore=shutil.ignore_patterns("*.json"))
    snapshots = data / "snapshots"

    def found() -> list[Finding]:
        of_audit = [finding for finding in audit(spark, str(data)) if finding.check == "snapshots"]
        assert of_audit == verify_snapshots(spark, InDirectory(data), set())
        return bad(of_audit)

    assert found() == []
    forge(snapshots, planted(busy, 200))
    forge(snapshots, planted(busy, 300))
    damaged = snapshots / "queues-1" / f"{100:020d}.snapshot"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    assert [(each.partition, each.offset) for each in found()] == [
        ("queues-0", 200),
        ("queues-0", 300),
        ("queues-1", 100),
    ]
    damaged.unlink()
    forge(snapshots, planted(busy, 100), 10**6)
    last = found()
    assert [(each.partition, each.offset) for each in last] == [
        ("queues-0", 200),
        ("queues-0", 300),
        ("queues-0", 10**6),
    ]
    assert "folded from the snapshot at offset 100, do not lead" in last[1].detail


# -- histories for measuring -------------------------------------------------------------------------------------------


def test_a_generated_history_makes_sense_and_is_the_same_each_time(tmp_path: Path) -> None:
    """The history that tests/bench/bench_spark_scale.py measures is sound and reproducible."""
    found = []
    for name in ("one", "other"):
        write_history(tmp_path / name, 20_000, seed=7)
        [partition] = EmbeddedLogReader(tmp_path / name).queues
        machine = Machine(partition.name)
        assert fold(machine, partition).count == 0
        assert machine.next_offset == 20_000
        counters = {queue.name: queue.counters for queue in machine.queues()}
        assert counters["hot"]["acked"] > 5_000
        assert counters["steps"]["rejected"] > 0
        found.append(machine.digest())
    assert found[0] == found[1]


def test_a_forged_snapshot_of_the_topology_is_found(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Harness(data) as h:
        session = h.session()
        for number in range(20):
            h.declare(session, f"q{number}")
            h.bind(session, "amq.topic", f"q{number}", "key")
    found = verify(spark, str(data))
    assert bad(found) == []
    [sound] = [finding for finding in found if finding.partition == "metadata-0"]
    assert sound.detail.startswith("1 equal, ")
    [path] = (data / "snapshots" / "metadata-0").iterdir()
    fold = load_metadata(path)
    mark = about(path).history
    fold.topology.on_unbound(0, Unbound("/", "amq.topic", "queue", "q7", "key", (), bound_id(fold, "q7")))
    image = image_of(fold)
    write(Snapshots(data / "snapshots"), "metadata-0", image, list(image.pieces()), mark)
    [lie] = bad(verify(spark, str(data)))
    assert (lie.check, lie.partition, lie.offset) == ("snapshots", "metadata-0", int(path.stem))


def bound_id(fold: MetadataFold, queue: str) -> int:
    [bound] = fold.topology.bindings_to("/", "queue", queue)
    return bound.queue_id
