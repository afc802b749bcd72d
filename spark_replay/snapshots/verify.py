"""`verify`: checks that the events lead from each snapshot to the next one, and to the live state.

    findings = verify(spark, "DATA");  all(finding.ok for finding in findings)

Snapshots cut a partition's history into chunks, which are folded all at once, a Spark task each:

    nothing ->events-> snapshot 1     snapshot 1 ->events-> snapshot 2     ...     snapshot n ->events-> the end

Each fold has to arrive at the next snapshot (at every queue and the state that belongs to none). So together they prove
as much as one long fold. Inside a chunk the claims of brokers are compared; RocksDB is compared with a fold from the
snapshot before. A snapshot is believed while it is used, and convicted by the chunk that ends at it, if it is damaged,
forged (whatever its own checksums say) or of another history. A chunk that begins at a convicted snapshot is folded
once more from the last one that held. So one forged snapshot is one finding, with the offsets of the chunk whose events
do not lead to it.

The snapshots of the topology are compared in the driver, with one fold of the metadata log from its beginning.

`audit` checks that the events themselves are those that were written, and obey the rules; it also checks bodies.
"""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq import builds
from rewindmq.engine.keeping.location import InArchive, InDirectory, Location
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.claims import Claims
from rewindmq.projections.claims import in_words as claims_in_words
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.serialization.digest import queue_digest
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.replay import PartitionLog, decoder_for, drive
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots, SnapshotSet
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import NOT_CHECKED, stored_offset, verify_state
from rewindmq.schemas.events import CheckpointAsked, Checkpointed, Event
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import CLAIMS, Finding, not_all_ok, of_row
from rewindmq.spark_replay.fold import broker_snapshots, for_each, from_snapshot, groups_up_to
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import located, partition_of
from rewindmq.spark_replay.location.ranges import OffsetRange
from rewindmq.spark_replay.location.trims import beside_trims
from rewindmq.spark_replay.snapshots.external import beyond_the_end, external_snapshots, offsets_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SNAPSHOTS, STATE = "snapshots", "state"
# By such a row a task tells the driver how much it checked; it is not a finding
CHUNK = "chunk"
_Row = tuple[str, bool, str, int | None, str | None, int | None, str]


@dataclass(frozen=True, slots=True)
class CheckedRange(OffsetRange):
    """Events `start` to `end`, folded from the snapshot at `start` (0: from nothing).

    `meets`: ascending offsets at which the fold has to arrive at the snapshot there. `store`: instead, the partition's
    RocksDB is compared with a fold that begins at a snapshot not behind `start`. `event_by_event`: nothing is applied
    together."""

    meets: tuple[int, ...] = ()
    store: bool = False
    event_by_event: bool = False


def verify(spark: "SparkSession", location: Location | str, directory: Path | None = None) -> list[Finding]:
    """Return the findings of all comparisons, in the order of partitions.

    `directory`: compare the snapshots there, and not those beside the log. Raises LogError when there is no log or its
    beginning is gone; BadRequest, CorruptLog."""
    location = located(location)
    snapshots = external_snapshots(location, directory) or broker_snapshots(location)
    findings = beside_trims(location, lambda: _verified_history(spark, location, snapshots), not_all_ok)
    lineage.found(findings)
    return findings


def _verified_history(spark: "SparkSession", location: Location, snapshots: SnapshotSet | None) -> list[Finding]:
    if isinstance(location, InArchive):
        return _verified_archive(spark, location, snapshots)
    metadata = metadata_findings(location, snapshots)
    chunks, beyond = plan_chunks(location, snapshots)
    if isinstance(location, InDirectory) and (location.data / "state").exists():
        ends = {chunk.partition: chunk.end for chunk in chunks}
        chunks += [CheckedRange(name, end, end, store=True) for name, end in ends.items()]
    return _verified(spark, location, snapshots, chunks, beyond) + metadata


def _verified_archive(spark: "SparkSession", archive: InArchive, snapshots: SnapshotSet | None) -> list[Finding]:
    """Return the findings about an archive: its objects are proven first, and only sound partitions are folded.

    RocksDB is a broker's, so nothing can be said of it."""
    from rewindmq.spark_replay.audit.archive_bytes import prove_archive

    log = archive.open()
    names = [each.name for each in log.queues]
    found = prove_archive(spark, archive, [log.metadata.name, *names])
    chunks, beyond = plan_chunks(archive, snapshots, {each.partition for each in found if not each.ok})
    no_store = f"{NOT_CHECKED}an archive has no RocksDB"
    found += [Finding(STATE, True, name, None, None, None, no_store) for name in names]
    return found + _verified(spark, archive, snapshots, chunks, beyond)


def verify_snapshots(
    spark: "SparkSession", location: Location, broken: Set[str], directory: Path | None = None
) -> list[Finding]:
    """Verify only the snapshots, of all partitions but the `broken` ones; no findings when there are none.

    For the audit, which folds event by event."""
    snapshots = external_snapshots(location, directory) or broker_snapshots(location)
    chunks, beyond = plan_chunks(location, snapshots, broken)
    cut = [replace(chunk, event_by_event=True) for chunk in chunks if chunk.meets]
    return [finding for finding in _verified(spark, location, snapshots, cut, beyond) if finding.check == SNAPSHOTS]


def plan_chunks(
    location: Location, snapshots: SnapshotSet | None, broken: Set[str] = frozenset()
) -> tuple[list[CheckedRange], list[Finding]]:
    """Return the chunks of all partitions but the `broken` ones, up to the end of the log now.

    The findings are about snapshots behind that end."""
    taken = {name: offsets for name, offsets in offsets_of(snapshots).items() if name not in broken}
    logs = {each.name: each for each in location.open().queues if each.name not in broken}
    ends = {name: log.next_offset for name, log in logs.items()}
    chunks = []
    for name, end in ends.items():
        start = logs[name].start_offset
        inside = [at for at in taken.get(name, ()) if start < at <= end]
        chunks += [CheckedRange(name, a, b, (b,)) for a, b in pairwise([start, *inside])]
        last = inside[-1] if inside else start
        if last < end or not inside:
            chunks.append(CheckedRange(name, last, end))
    beyond = beyond_the_end(taken, ends)
    return chunks, [Finding(SNAPSHOTS, False, name, offset, None, None, why) for name, offset, why in beyond]


def metadata_findings(location: Location, snapshots: SnapshotSet | None) -> list[Finding]:
    """The findings about the snapshots of the topology, if there are some: one fold from the beginning, in the driver.

    Those of an archive are not folded: its objects are proven. Raises LogError when the metadata log cannot be read."""
    report = verify_metadata(location.open().metadata, snapshots if isinstance(snapshots, Snapshots) else None)
    if not report.compared:
        return []
    lineage.read([OffsetRange(report.partition, 0, report.end)])
    if report.equal:
        return [Finding(SNAPSHOTS, True, report.partition, None, None, None, f"{report.result}, {report.end} events")]
    return [
        Finding(SNAPSHOTS, False, report.partition, offset, None, None, f"the snapshot {what}")
        for offset, what in report.differences
    ]


def _verified(
    spark: "SparkSession",
    location: Location,
    snapshots: SnapshotSet | None,
    chunks: Sequence[CheckedRange],
    beyond: list[Finding],
) -> list[Finding]:
    rows = _fold(spark, location, snapshots, chunks)
    again = doubtful(chunks, rows)
    if again:
        replaced = _fold(spark, location, snapshots, again)
        rows = [row for row in rows if not any(_is_of(row, chunk) for chunk in again)] + replaced
    found = sorted(
        beyond + [of_row(row) for row in rows if row.check != CHUNK],
        key=lambda finding: (finding.partition, finding.offset or 0, finding.check),
    )
    return [*_sums(chunks, rows, found), *found]


def _fold(
    spark: "SparkSession", location: Location, snapshots: SnapshotSet | None, chunks: Sequence[CheckedRange]
) -> list[Any]:
    lineage.read(chunks)
    return for_each(spark, chunks, fold_chunk, columns.AUDIT, location=location, snapshots=snapshots).collect()


# -- in the driver -----------------------------------------------------------------------------------------------------


def doubtful(chunks: Sequence[CheckedRange], rows: Sequence[Any]) -> list[CheckedRange]:
    """Return the chunks to be folded again, from the last snapshot that held.

    A chunk that began at a convicted snapshot and has findings is joined with the chunk before it. RocksDB of such a
    partition is also compared again."""
    bad = [row for row in rows if not row.ok]
    convicted = {(row.partition, row.offset) for row in bad if row.check == SNAPSHOTS}
    again: list[CheckedRange] = []
    run: list[CheckedRange] = []
    for chunk in [chunk for chunk in chunks if any(_is_of(row, chunk) for row in bad)]:
        begins = (chunk.partition, chunk.start)
        if chunk.store:
            firsts = [offset for partition, offset in convicted if partition == chunk.partition]
            again += [CheckedRange(chunk.partition, min(firsts) - 1, chunk.end, store=True)] if firsts else []
            continue
        if not (run and begins == (run[-1].partition, run[-1].end) and begins in convicted):
            again += _joined(run)
            run = []
        run.append(chunk)
    return again + _joined(run)


def _joined(run: Sequence[CheckedRange]) -> list[CheckedRange]:
    if len(run) < 2:
        return []
    meets = tuple(at for chunk in run for at in chunk.meets)
    return [replace(run[0], end=run[-1].end, meets=meets)]


def _is_of(row: Any, chunk: CheckedRange) -> bool:
    """Return True if this chunk made the row.

    A snapshot belongs to the chunk that ends at it, a claim to the chunk of its event."""
    if row.partition != chunk.partition or (row.check == STATE) != chunk.store:
        return False
    return chunk.store or chunk.start < row.offset + (row.check == CLAIMS) <= chunk.end


def _sums(chunks: Sequence[CheckedRange], rows: Sequence[Any], found: Sequence[Finding]) -> list[Finding]:
    """Return a finding for each partition and check without findings, with how much was looked at."""
    sums = []
    for name in dict.fromkeys(chunk.partition for chunk in chunks):
        chunk_counts = [json.loads(row.detail) for row in rows if row.check == CHUNK and row.partition == name]
        met = sum(len(chunk.meets) for chunk in chunks if chunk.partition == name)
        events, claims = (sum(each[what] for each in chunk_counts) for what in ("events", "claims"))
        passed_by = sum(each["passed_by"] for each in chunk_counts)
        folded = " and the ".join(sorted({each["build"] for each in chunk_counts}))
        details = {
            SNAPSHOTS: ("" if met else f"{NOT_CHECKED}there is no snapshot; ")
            + f"{met} snapshots, {events} events in {len(chunk_counts)} chunks"
            + _runs_in_words(chunk_counts),
            CLAIMS: f"{claims_in_words(claims, passed_by)}, folded by the {folded} build",
        }
        for check, detail in details.items():
            if not any(finding.check == check and finding.partition == name for finding in found):
                sums.append(Finding(check, True, name, None, None, None, detail))
    return sums


def _runs_in_words(chunk_counts: Sequence[dict[str, Any]]) -> str:
    """Return the number of events that were applied together, in words; empty where the fold was event by event."""
    in_runs = [each["in_runs"] for each in chunk_counts if each["in_runs"] is not None]
    return f", {sum(in_runs)} of them in runs" if in_runs else ""


# -- in a Spark task -------------------------------------------------------------------------------------------------


def fold_chunk(chunk: CheckedRange, location: Location, snapshots: SnapshotSet | None) -> "Iterator[pa.RecordBatch]":
    """The rows of AUDIT of one chunk."""
    log = partition_of(location, chunk.partition)
    if chunk.store:
        assert isinstance(location, InDirectory), "a store lies beside the log of a data directory"
        rows = list(_compare_store(log, chunk, location.data / "state", snapshots))
    else:
        rows = list(_compare_snapshots(log, chunk, snapshots))
    if rows:
        yield batch_of(rows, columns.AUDIT)


def _compare_snapshots(log: PartitionLog, chunk: CheckedRange, snapshots: SnapshotSet | None) -> Iterator[_Row]:
    machine = from_snapshot(snapshots, log, chunk.start)
    begun = machine.next_offset
    claims, decoder = Claims(), decoder_for(log)
    in_runs = 0
    claims.begin(machine)
    wrong: list[tuple[int, str]] = []

    def before_claim(offset: int, _timestamp_ms: int, event: Checkpointed) -> None:
        if (said := claims.compare(machine, event)) is not None:
            wrong.append((offset, said))

    def after(offset: int, _timestamp_ms: int, _actor: Actor, event: Event, _effects: list[Effect]) -> None:
        if type(event) is CheckpointAsked:
            claims.claim_requested(offset, machine)

    def run(
        _offset: int,
        _timestamp_ms: int,
        _actor: Actor,
        _event: Event,
        sizes: Sequence[int],
        _records: Sequence[bytes],
        _effects: list[Effect],
    ) -> None:
        nonlocal in_runs
        in_runs += len(sizes)

    run_seen = None if chunk.event_by_event else run
    for end in chunk.meets or (chunk.end,):
        groups = groups_up_to(log, machine.next_offset, end)
        drive(machine, groups, decoder, before={Checkpointed: before_claim}, after=after, run=run_seen)
        summary = StateSummary.of(machine)
        if end == chunk.end:
            machine = Machine(log.name)  # only one state at a time is in memory
        if chunk.meets:
            assert snapshots is not None, "an offset to meet is that of a snapshot"
            yield from compare(summary, snapshots, log.name, end, begun)
    for offset, said in wrong:
        yield (CLAIMS, False, log.name, offset, None, None, said)
    seen = {"events": chunk.end - chunk.start, "claims": claims.count, "passed_by": claims.passed_by}
    folded = {"build": builds.running().kind, "in_runs": None if chunk.event_by_event else in_runs}
    yield (CHUNK, True, log.name, chunk.end, None, None, canonical_json(seen | folded))


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The compared part of a state: the head, and of each queue (by its id) name, digest and epoch.

    `head`: the state that belongs to no queue."""

    head: bytes
    queues: dict[int, tuple[str, str, int]]

    @classmethod
    def of(cls, machine: Machine) -> "StateSummary":
        """Return the summary of a machine's state."""
        queues = {
            queue_id: (f"{queue.vhost}/{queue.name}", queue_digest(queue), queue.epoch)
            for queue_id, queue in machine.by_id.items()
        }
        return cls(machine.head(), queues)


def compare(summary: StateSummary, snapshots: SnapshotSet, partition: str, offset: int, begun: int) -> Iterator[_Row]:
    """Yield how the snapshot at `offset` differs from the state that the fold from offset `begun` has there."""
    try:
        said = StateSummary.of(snapshots.load(partition, offset))
    except SnapshotError as error:
        yield (SNAPSHOTS, False, partition, offset, None, None, f"cannot be used: {error}")
        return
    if said == summary:
        return
    differ = sorted(
        {*summary.queues.items()} ^ {*said.queues.items()}, key=lambda item: item[1][0]
    )  # by name; a queue that differs in both is there twice
    names = list(dict.fromkeys(name for _, (name, _, _) in differ))
    what = ", ".join(names[:5]) + (f" and {len(names) - 5} more queues" if len(names) > 5 else "")
    since = f"the snapshot at offset {begun}" if begun else "nothing"
    name = snapshots.place(partition, offset).rpartition("/")[2]
    detail = (
        f"the events of offsets {begun} to {offset - 1}, folded from {since}, do not lead to {name}:"
        f" other is {what or 'what belongs to no queue (clock, next offset, limits)'}"
    )
    yield (SNAPSHOTS, False, partition, offset, names[0] if names else None, None, detail)


def _compare_store(log: PartitionLog, chunk: CheckedRange, path: Path, snapshots: SnapshotSet | None) -> Iterator[_Row]:
    """Compare RocksDB, read-only, at its own offset."""
    try:
        store = StateStore.open(path, read_only=True)
    except StoreError as error:
        yield (STATE, False, log.name, None, None, None, str(error))
        return
    try:
        begun = from_snapshot(snapshots, log, min(chunk.start, stored_offset(log, store)))
        report = verify_state(begun, log, store)
    except StoreError as error:
        yield (STATE, False, log.name, None, None, None, str(error))
        return
    finally:
        store.close()
    if report.equal:
        compared = f"{report.queues} queues, {report.result} at offset {report.offset}"
        detail = compared if report.stored else report.result
        yield (STATE, True, log.name, report.offset, None, None, detail)
    for each in report.differences:
        yield (STATE, False, log.name, report.offset, each.queue or None, None, f"{each.key} {each.what}")
