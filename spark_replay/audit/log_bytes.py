"""Proves that the bytes of an embedded log are those that were written: segment by segment, in many Spark tasks.

    segment files ->tasks-> a row a segment ->driver-> the segments joined in order, a finding a partition

A segment states the hash chain at its beginning, so a task proves it by itself (engine/log/embedded/verify.py). The
driver compares each beginning with the end of the segment before.

    OWN/chain.json     {"queues-0": [a segment that an audit has proven, ...], ...}: all but the last one, which grows

Rules
- A task proves one segment, or as many small ones as make `TASK_BYTES`: a task costs 0.05 s besides.
- With an auditor's own directory each proven segment must be the one that an earlier audit proved, by its hash chain.
- `--since-last` does not read a segment again if an earlier audit proved it and its size is still the same. It reads
  the others, and joins all of them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import VerifiedSegment, follow_on, verify_segment
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.schemas.formats import formatted, values_in
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.fold import for_each
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.snapshots.external import PROVEN, write_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHAIN = "chain"
TASK_BYTES = 32 << 20
_NUMBERS = ("base_offset", "next_offset", "records", "blocks", "torn_bytes")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment's file, as a task gets it. `last`: no segment follows it in its partition."""

    partition: str
    file: str
    last: bool


# The segments of one partition that one task proves, in the order of their offsets
SegmentGroup = tuple[SegmentFile, ...]


class ProvenSegments:
    """The segments that earlier audits with this directory of an auditor have proven.

    Raises BadRequest when the file is damaged."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / PROVEN
        self._segments: dict[str, dict[str, dict[str, Any]]] = {}  # by partition and name of the file
        try:
            noted = values_in(self.path.read_text(), self.path, BadRequest)
            for partition, segments in noted["segments"].items():
                self._segments[partition] = {fields["file"]: fields for fields in segments}
                for fields in segments:
                    _unpacked(fields, Path(fields["file"])), int(fields["size"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadRequest(f"{self.path}: not as an audit writes it: remove it, and audit the whole log") from None

    def unchanged(self, file: SegmentFile) -> VerifiedSegment | None:
        """Return the segment, if it was proven and still has the same size; else None."""
        path = Path(file.file)
        fields = self._segments.get(file.partition, {}).get(path.name)
        if fields is None or file.last or fields["size"] != path.stat().st_size:
            return None
        return _unpacked(fields, path)

    def require_same(self, partition: str, segments: Sequence[VerifiedSegment]) -> None:
        """Check that every proven segment exists and is unchanged. Those below the start of the log were trimmed.

        Raises CorruptLog."""
        found = {segment.file.name: segment for segment in segments}
        for name, fields in self._segments.get(partition, {}).items():
            before = _unpacked(fields, segments[0].file.with_name(name))
            now = found.get(name)
            if now is None and before.next_offset <= segments[0].base_offset:
                if before.next_offset == segments[0].base_offset and before.chain != segments[0].chain_before:
                    why = f"the log begins with another chain than {before.chain.hex()[:16]}, which was proven"
                    raise CorruptLog(segments[0].file, 0, before.next_offset, why)
                continue
            if now is None:
                raise CorruptLog(before.file, 0, before.base_offset, "an earlier audit has proven it, and it is gone")
            if (now.next_offset, now.chain) != (before.next_offset, before.chain):
                why = f"an earlier audit has proven another segment here, with the chain {before.chain.hex()[:16]}"
                raise CorruptLog(before.file, 0, before.base_offset, why)

    def take(self, partition: str, segments: Sequence[VerifiedSegment]) -> None:
        """Note the proven segments. `segments`: all of the partition, proven and joined."""
        self._segments[partition] = {
            segment.file.name: _packed(segment) | {"size": segment.file.stat().st_size} for segment in segments[:-1]
        }

    def save(self) -> Path:
        """Write the file. Returns its path."""
        content = {name: list(segments.values()) for name, segments in self._segments.items()}
        write_whole(self.path, formatted({"segments": content}) + "\n")
        return self.path


def prove(
    spark: "SparkSession", data: Path, partitions: Iterable[str], proven: ProvenSegments | None, since_last: bool
) -> list[Finding]:
    """Return a finding for each partition.

    Raises LogError when one has no segment."""
    files = {name: segment_files_of(data, name) for name in partitions}
    known: dict[SegmentFile, VerifiedSegment] = {}
    if proven is not None and since_last:
        held = ((file, proven.unchanged(file)) for each in files.values() for file in each)
        known = {file: segment for file, segment in held if segment is not None}
    groups = [group for each in files.values() for group in in_groups(file for file in each if file not in known)]
    rows = for_each(spark, groups, group_rows, columns.AUDIT).collect()
    return [joined(name, each, rows, known, proven) for name, each in files.items()]


def segment_files_of(data: Path, partition: str) -> list[SegmentFile]:
    """Return the segments as they are now, in the order of their offsets.

    Raises LogError when there is none."""
    directory = partition_directory(data, partition)
    paths = segment_files(directory) if directory.is_dir() else []
    if not paths:
        raise LogError(f"{directory}: no segment of a log is here")
    return [SegmentFile(partition, str(path), path == paths[-1]) for path in paths]


def in_groups(files: Iterable[SegmentFile]) -> Iterator[SegmentGroup]:
    """Yield the files of a partition in groups of about TASK_BYTES."""
    group: list[SegmentFile] = []
    size = 0
    for file in files:
        group.append(file)
        size += Path(file.file).stat().st_size
        if size >= TASK_BYTES:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def group_rows(group: SegmentGroup) -> "Iterator[pa.RecordBatch]":
    """The rows of some segments, in a Spark task."""
    for file in group:
        yield from segment_rows(file)


def segment_rows(file: SegmentFile) -> "Iterator[pa.RecordBatch]":
    """One segment, read and proven, as a row of AUDIT for the driver."""
    try:
        segment = verify_segment(Path(file.file), file.last)
        ok, offset, fields = True, segment.base_offset, _packed(segment)
    except CorruptLog as broken:
        ok, offset = False, broken.offset
        fields = {"file": Path(file.file).name, "position": broken.position, "why": broken.why}
    yield batch_of([(CHAIN, ok, file.partition, offset, None, None, canonical_json(fields))], columns.AUDIT)


def joined(
    partition: str,
    files: Sequence[SegmentFile],
    rows: Iterable[Any],
    known: Mapping[SegmentFile, VerifiedSegment],
    proven: ProvenSegments | None,
) -> Finding:
    """The finding for one partition: the tasks' rows about its segments, and whether these follow on each other."""
    by_file = {}
    for row in rows:
        if row.partition == partition:
            of_segment = json.loads(row.detail)
            by_file[of_segment["file"]] = (row, of_segment)
    try:
        segments = list(follow_on(_in_order(files, by_file, known)))
        if proven is not None:
            proven.require_same(partition, segments)
            proven.take(partition, segments)
    except CorruptLog as broken:
        return Finding(CHAIN, False, partition, broken.offset, None, None, str(broken), corrupt=True)
    return Finding(CHAIN, True, partition, None, None, None, _in_words(segments, len(known.keys() & set(files))))


def _in_order(
    files: Iterable[SegmentFile],
    by_file: Mapping[str, tuple[Any, dict[str, Any]]],
    known: Mapping[SegmentFile, VerifiedSegment],
) -> Iterator[VerifiedSegment]:
    for file in files:
        if file in known:
            yield known[file]
            continue
        path = Path(file.file)
        row, of_segment = by_file[path.name]
        if not row.ok:
            raise CorruptLog(path, of_segment["position"], row.offset, of_segment["why"])
        yield _unpacked(of_segment, path)


def _in_words(segments: Sequence[VerifiedSegment], not_read: int) -> str:
    records, blocks = (sum(getattr(each, name) for each in segments) for name in ("records", "blocks"))
    detail = f"{records} records in {blocks} blocks, chain {segments[-1].chain.hex()[:16]}"
    if torn := segments[-1].torn_bytes:
        detail += f", {torn} bytes behind the last whole block"
    if not_read:
        detail += f", {not_read} of {len(segments)} segments not read again: an earlier audit proved them"
    return detail


def _packed(segment: VerifiedSegment) -> dict[str, Any]:
    chains = {"chain": segment.chain.hex(), "chain_before": segment.chain_before.hex()}
    return {"file": segment.file.name, **chains, **{name: getattr(segment, name) for name in _NUMBERS}}


def _unpacked(fields: Mapping[str, Any], path: Path) -> VerifiedSegment:
    found: dict[str, Any] = {name: fields[name] for name in _NUMBERS}
    found |= {name: bytes.fromhex(fields[name]) for name in ("chain", "chain_before")}
    return VerifiedSegment(file=path, **found)
