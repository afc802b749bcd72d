"""Proves that the bytes of an embedded log are those that were written: segment by segment, in many Spark tasks.

    parts ->tasks-> a row a segment ->driver-> the segments joined in order, a finding a partition

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
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.log.embedded.verify import VerifiedSegment, follow_on, unchecked_before, verify_segment
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.findings import Finding
from rewindmq.spark_replay.fold import for_each
from rewindmq.spark_replay.history.events import canonical_json
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.snapshots.external import PROVEN, write_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHAIN = "chain"
TASK_BYTES = 32 << 20
_NUMBERS = ("base_offset", "next_offset", "records", "blocks", "unproven_blocks", "torn_bytes", "checked")


@dataclass(frozen=True, slots=True)
class SegmentFile(OffsetRange):
    """A segment's file, which begins at offset `start`; `end` is not used. `last`: no segment follows."""

    file: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class SegmentGroup(OffsetRange):
    """The segments of a partition that one task proves: the first begins at `start`, the last at `end`."""

    parts: tuple[SegmentFile, ...] = ()


class Proven:
    """The segments that earlier audits with this directory of an auditor have proven.

    Raises BadRequest when the file is damaged."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / PROVEN
        self._segments: dict[str, dict[str, dict[str, Any]]] = {}  # by partition and name of the file
        try:
            for partition, segments in json.loads(self.path.read_text()).items():
                self._segments[partition] = {told["file"]: told for told in segments}
                for told in segments:
                    _unpacked(told, Path(told["file"])), int(told["size"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadRequest(f"{self.path}: not as an audit writes it: remove it, and audit the whole log") from None

    def unchanged(self, part: SegmentFile) -> VerifiedSegment | None:
        """The segment, if it was proven and still has the same size; else None."""
        told = self._segments.get(part.partition, {}).get(Path(part.file).name)
        if told is None or part.last or told["size"] != Path(part.file).stat().st_size:
            return None
        return _unpacked(told, Path(part.file))

    def require_same(self, partition: str, segments: Sequence[VerifiedSegment]) -> None:
        """Check that every proven segment exists and is unchanged.

        Raises CorruptLog."""
        found = {segment.file.name: segment for segment in segments}
        for name, told in self._segments.get(partition, {}).items():
            before = _unpacked(told, segments[0].file.with_name(name))
            now = found.get(name)
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
        write_whole(self.path, json.dumps(content, sort_keys=True) + "\n")
        return self.path


def prove(
    spark: "SparkSession", data: str, partitions: Iterable[str], proven: Proven | None, since_last: bool
) -> list[Finding]:
    """A finding for each partition.

    Raises LogError when one has no segment."""
    parts = {name: segment_files_of(data, name) for name in partitions}
    known: dict[SegmentFile, VerifiedSegment] = {}
    if proven is not None and since_last:
        held = ((part, proven.unchanged(part)) for each in parts.values() for part in each)
        known = {part: segment for part, segment in held if segment is not None}
    shares = [
        share for each in parts.values() for share in groups_of_segments(part for part in each if part not in known)
    ]
    rows = for_each(spark, shares, group_rows, columns.AUDIT).collect()
    return [joined(name, each, rows, known, proven) for name, each in parts.items()]


def segment_files_of(data: str, partition: str) -> list[SegmentFile]:
    """The segments as they are now, in the order of their offsets.

    Raises LogError when there is none."""
    directory = partition_directory(Path(data), partition)
    files = segment_files(directory) if directory.is_dir() else []
    if not files:
        raise LogError(f"{directory}: no segment of a log is here")
    bases = [base_offset_of(path) for path in files]
    return [SegmentFile(partition, at, at, str(path), path == files[-1]) for at, path in zip(bases, files, strict=True)]


def groups_of_segments(parts: Iterable[SegmentFile]) -> Iterator[SegmentGroup]:
    some: list[SegmentFile] = []
    size = 0
    for part in parts:
        some.append(part)
        size += Path(part.file).stat().st_size
        if size >= TASK_BYTES:
            yield SegmentGroup(part.partition, some[0].start, part.start, tuple(some))
            some, size = [], 0
    if some:
        yield SegmentGroup(some[0].partition, some[0].start, some[-1].start, tuple(some))


def group_rows(share: SegmentGroup) -> "Iterator[pa.RecordBatch]":
    """The rows of some segments, in a Spark task."""
    for part in share.parts:
        yield from segment_rows(part)


def segment_rows(part: SegmentFile) -> "Iterator[pa.RecordBatch]":
    """One segment, read and proven, as a row of AUDIT for the driver."""
    try:
        segment = verify_segment(Path(part.file), part.last)
        ok, offset, told = True, segment.base_offset, _packed(segment)
    except CorruptLog as broken:
        ok, offset = False, broken.offset
        told = {"file": Path(part.file).name, "position": broken.position, "why": broken.why}
    yield batch_of([(CHAIN, ok, part.partition, offset, None, None, canonical_json(told))], columns.AUDIT)


def joined(
    partition: str,
    parts: Sequence[SegmentFile],
    rows: Iterable[Any],
    known: Mapping[SegmentFile, VerifiedSegment],
    proven: Proven | None,
) -> Finding:
    """The finding for one partition: the tasks' rows about its segments, and whether these follow on each other."""
    told = {}
    for row in rows:
        if row.partition == partition:
            content = json.loads(row.detail)
            told[content["file"]] = (row, content)
    try:
        segments = list(follow_on(_in_order(parts, told, known)))
        if proven is not None:
            proven.require_same(partition, segments)
            proven.take(partition, segments)
    except CorruptLog as broken:
        return Finding(CHAIN, False, partition, broken.offset, None, None, str(broken), corrupt=True)
    return Finding(CHAIN, True, partition, None, None, None, _in_words(segments, len(known.keys() & set(parts))))


def _in_order(
    parts: Iterable[SegmentFile],
    told: Mapping[str, tuple[Any, dict[str, Any]]],
    known: Mapping[SegmentFile, VerifiedSegment],
) -> Iterator[VerifiedSegment]:
    for part in parts:
        if part in known:
            yield known[part]
            continue
        path = Path(part.file)
        row, content = told[path.name]
        if not row.ok:
            raise CorruptLog(path, content["position"], row.offset, content["why"])
        yield _unpacked(content, path)


def _in_words(segments: Sequence[VerifiedSegment], not_read: int) -> str:
    records, blocks = (sum(getattr(each, name) for each in segments) for name in ("records", "blocks"))
    detail = f"{records} records in {blocks} blocks, chain {segments[-1].chain.hex()[:16]}"
    if unproven := sum(each.unproven_blocks for each in segments):
        detail += f", {unproven} blocks whole but unproven (their index was lost)"
    if unchecked := unchecked_before(segments):
        detail += f", blocks before offset {unchecked} have no checksum"
    if torn := segments[-1].torn_bytes:
        detail += f", {torn} bytes behind the last whole block"
    if not_read:
        detail += f", {not_read} of {len(segments)} segments not read again: an earlier audit proved them"
    return detail


def _packed(segment: VerifiedSegment) -> dict[str, Any]:
    chains = {"chain": segment.chain.hex(), "chain_before": segment.chain_before and segment.chain_before.hex()}
    return {"file": segment.file.name, **chains, **{name: getattr(segment, name) for name in _NUMBERS}}


def _unpacked(told: Mapping[str, Any], path: Path) -> VerifiedSegment:
    before = told["chain_before"]
    numbers: dict[str, Any] = {name: told[name] for name in _NUMBERS}
    chain, chain_before = bytes.fromhex(told["chain"]), None if before is None else bytes.fromhex(before)
    return VerifiedSegment(file=path, chain=chain, chain_before=chain_before, **numbers)
