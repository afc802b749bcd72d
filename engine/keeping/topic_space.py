"""Keeps Kafka small, by removing the oldest records of this node's queue partitions once the archive has them.

    space = TopicSpace(KafkaLogReader(...), open_objects(url), data_dir)
    report = space.keep(SpaceLimits(age_ms=7 * 86_400_000, size_bytes=50_000_000_000), {"queues-0"})

1  decide    on the portions to remove: `removable`, as for an embedded log (engine/keeping/local_space.py)
2  prove     that the archive's objects are whole, and each removed record is the same in Kafka and in the archive,
             read from both
3  base      the state at the cut, and the record of each message queued there, are archived and read back
4  remove    Kafka drops the records below the cut (DeleteRecords)

- A portion is a number of archived stretches: an hour, or 256 MiB, or a tenth of the limit if that is less, so that not
  every stretch needs a base. The last whole portion of each partition stays, with all later records.
- A portion is removed when it is older than the limit of age, or the records exceed the limit of size; the oldest in
  any partition goes first. Together with the other removed portions, it frees more than the base takes.
- Age is measured in log time, as for an embedded log (embedded/steady_time.py), in `DIR/keep_local.json`.
- The metadata log stays whole. Records that this node does not own are left to their owner.
- Two nodes may remove records at once while the ownership moves: each proves its removal, and Kafka keeps the later
  start.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.archive.manifest import BaseEntry, Manifest, OtherHistory, SegmentEntry
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.state_files import archive_file, prove_file
from rewindmq.engine.keeping.archive.topic_archiver import archived_topics
from rewindmq.engine.keeping.archive_states import state_at_offset
from rewindmq.engine.keeping.in_topics import require_archived
from rewindmq.engine.keeping.local_space import (
    NOTE,
    CutPartition,
    LocalPartition,
    LocalSegment,
    SpaceLimits,
    SpaceReport,
    expected_bytes,
    removable,
)
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.topic_tiers import TieredTopics
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.embedded.steady_time import steady_now
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets

PORTION_MS: Final = 3_600_000
PORTION_BYTES: Final = 256 << 20
_OF_LIMIT: Final = 10  # a portion is at most this part of a limit


class TopicSpace:
    """The removal of the oldest records of a node's partitions from Kafka. `data_dir`: the node's directory."""

    def __init__(
        self, log: KafkaLogReader, objects: Objects, data_dir: Path, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._log = log
        self._objects = objects
        self._data_dir = data_dir
        self._bases = Bases(data_dir / "bases")
        self._tiers = {each.name: each for each in TieredTopics(log, objects.url).queues}
        self._manifests: dict[str, Manifest] = {}
        self._too_large: dict[str, tuple[int, int, str]] = {}  # as in local_space.py, by partition

    def keep(self, limits: SpaceLimits, owned: Collection[str]) -> SpaceReport:
        """Remove archived records beyond the limits, in the partitions with these names.

        Raises OtherHistory, ArchiveError, NoAnswer, LogError, NewerHistory, OSError."""
        archived = archived_topics(self._objects, self._log, self._manifest(METADATA))
        topics = self._log.queues[: archived.queue_partitions]
        manifests = {each.name: self._manifest(each.name) for each in topics}
        starts = {each.name: each.start_offset for each in topics}
        newest_ms = max(each.max_timestamp_ms for each in manifests.values())
        steady_ms = None
        if limits.age_ms is not None:
            steady_ms = steady_now(self._data_dir / NOTE, newest_ms, newest_ms, self._monotonic())
        counting = limits if steady_ms is not None else replace(limits, age_ms=None)
        portions = {name: portions_of(each.segments, starts[name], limits) for name, each in manifests.items()}
        here = [_as_local(name, whole) for name, (whole, _) in portions.items()]
        goes = removable(here, counting, steady_ms or 0, sum(rest for _, rest in portions.values()))
        report = SpaceReport(age_counts=limits.age_ms is None or steady_ms is not None)
        for topic in topics:
            if topic.name not in owned:
                continue
            going = portions[topic.name][0][: goes[topic.name]]
            if going:
                report.partitions.append(self._cut(topic, manifests[topic.name], starts[topic.name], going))
            else:
                report.partitions.append(CutPartition(topic.name, starts[topic.name]))
        sizes = (sum(each.size_bytes for each in whole) + rest for whole, rest in portions.values())
        report.local_bytes = sum(sizes) - report.freed_bytes
        return report

    def _manifest(self, name: str) -> Manifest:
        """Return the current manifest of a partition; later calls read only new entries."""
        known = self._manifests.pop(name, None)  # after an error, the next look reads all entries again
        if known is None:
            known = Manifest.load(self._objects, name)
        else:
            known.refresh()
        self._manifests[name] = known
        return known

    def _cut(
        self, topic: KafkaPartition, manifest: Manifest, start: int, portions: Sequence[SegmentEntry]
    ) -> CutPartition:
        """Remove these portions, after the necessary proofs."""
        name, last = topic.name, portions[-1]
        offset, freed_bytes = last.next_offset, sum(each.size_bytes for each in portions)
        report = CutPartition(name, start)
        known = self._too_large.get(name, (0, 0, ""))
        if known[:2] == (start, offset):
            report.why = known[2]
            return report
        entry = next((each for each in manifest.bases if each.offset == offset), None)
        if entry is None:
            machine = state_at_offset(self._tiers[name], offset, self._data_dir)
            queued = queued_offsets(machine)
            base_bytes = expected_bytes(machine, len(queued))
            if base_bytes >= freed_bytes:
                report.why = f"a base would need {base_bytes} bytes for the queued messages, but free {freed_bytes}"
                self._too_large[name] = start, offset, report.why
                return report
            require_archived(topic, manifest, start, offset)
            self._bases.remove_leftovers(name)  # of a killed node
            self._bases.discard_below(name, offset + 1)
            path = self._bases.write(machine, last.chain, queued_records(self._tiers[name], queued))
            try:
                self._bases.open(name, offset).machine()
                entry = archive_file(manifest, path, BaseEntry)
            except BaseError as error:
                raise OtherHistory(f"{name}: its base cannot be used: {error}") from None
            finally:
                path.unlink(missing_ok=True)
        else:
            require_archived(topic, manifest, start, offset)
            prove_file(manifest, entry)
        topic.delete_below(offset)
        report.base_bytes, report.freed_bytes = entry.object.size_bytes, freed_bytes
        report.segments, report.start_offset = len(portions), offset
        return report


def portions_of(segments: Sequence[SegmentEntry], start: int, limits: SpaceLimits) -> tuple[list[SegmentEntry], int]:
    """Return the archived stretches after `start`, combined to portions, and the size in bytes of the last, incomplete
    one, which is left out."""
    most_ms = min(PORTION_MS, (limits.age_ms or PORTION_MS * _OF_LIMIT) // _OF_LIMIT)
    most_bytes = min(PORTION_BYTES, (limits.size_bytes or PORTION_BYTES * _OF_LIMIT) // _OF_LIMIT)
    whole: list[SegmentEntry] = []
    portion: SegmentEntry | None = None
    for entry in segments:
        if entry.next_offset <= start:
            continue
        portion = entry if portion is None else _joined(portion, entry)
        if portion.size_bytes >= most_bytes or portion.max_timestamp_ms - portion.first_ms >= most_ms:
            whole.append(portion)
            portion = None
    return whole, 0 if portion is None else portion.size_bytes


def _joined(portion: SegmentEntry, entry: SegmentEntry) -> SegmentEntry:
    return replace(
        portion,
        next_offset=entry.next_offset,
        max_timestamp_ms=max(portion.max_timestamp_ms, entry.max_timestamp_ms),
        chain=entry.chain,
        size_bytes=portion.size_bytes + entry.size_bytes,
    )


def _as_local(name: str, portions: Sequence[SegmentEntry]) -> LocalPartition:
    """Return portions as segments that are both local and archived."""
    here = [
        LocalSegment(
            each.base_offset, each.next_offset, each.size_bytes, each.size_bytes, each.chain_before, each.chain
        )
        for each in portions
    ]
    return LocalPartition(name, here, portions)
