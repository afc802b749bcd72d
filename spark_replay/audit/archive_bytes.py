"""Proves that the objects of an archive are those that were archived: in many Spark tasks, a finding a partition.

    manifest ->tasks-> a row a group of segments with a harm ->driver-> a finding a partition

The driver reads the manifest. It proves that the segments follow on one another, up to the hash chain at the end. A
task proves that the objects of a segment are those of the manifest, and that they make its hash chain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.archive.manifest import Manifest, SegmentEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, open_objects
from rewindmq.engine.keeping.archive.unpack import CorruptObject, Unpacked
from rewindmq.engine.keeping.location import InArchive
from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding, of_row
from rewindmq.spark_replay.fold import for_each
from rewindmq.spark_replay.history.outcomes import batch_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHAIN = "chain"
TASK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ArchivedSegments:
    """Successive segments of a partition, which one task proves."""

    partition: str
    entries: tuple[SegmentEntry, ...]


def prove_archive(spark: "SparkSession", archive: InArchive, partitions: Sequence[str]) -> list[Finding]:
    """Return a finding for each partition.

    Raises NoAnswer."""
    objects = open_objects(archive.url)
    findings: list[Finding] = []
    manifests: list[Manifest] = []
    for name in partitions:
        try:
            manifests.append(Manifest.load(objects, name))
        except ArchiveError as error:
            findings.append(Finding(CHAIN, False, name, None, None, None, str(error), corrupt=True))
    groups = [ArchivedSegments(each.partition, group) for each in manifests for group in _grouped(each.segments)]
    rows = for_each(spark, groups, segment_rows, columns.AUDIT, archive=archive).collect()
    for manifest in manifests:
        harms = [of_row(row, corrupt=True) for row in rows if row.partition == manifest.partition]
        findings += harms or [Finding(CHAIN, True, manifest.partition, None, None, None, _in_words(manifest))]
    return findings


def segment_rows(group: ArchivedSegments, archive: InArchive) -> "Iterator[pa.RecordBatch]":
    """A row of AUDIT for each segment that does not hold, in a Spark task.

    Raises NoAnswer."""
    objects = open_objects(archive.url)
    for entry in group.entries:
        try:
            Unpacked(objects, group.partition, entry).prove()
        except CorruptObject as broken:
            row = (CHAIN, False, group.partition, broken.offset, None, None, str(broken))
            yield batch_of([row], columns.AUDIT)


def _grouped(segments: Sequence[SegmentEntry]) -> Iterator[tuple[SegmentEntry, ...]]:
    """Yield successive segments in groups of about TASK_BYTES."""
    group: list[SegmentEntry] = []
    for entry in segments:
        group.append(entry)
        if sum(each.size_bytes for each in group) >= TASK_BYTES:
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)


def _in_words(manifest: Manifest) -> str:
    if not manifest.segments:
        return f"{NOT_CHECKED}nothing of it is archived"
    return f"{manifest.end} records in {len(manifest.segments)} segments, chain {manifest.chain.hex()[:16]}"
