"""Watches Kafka's own retention, because records must be archived before it removes them.

    watch = RetentionWatch(KafkaLogReader(...))
    watch.look({"queues-0": manifest, ...})       in each pass of a node's archiver, of the partitions that it owns
    watch.topics["queues-0"]                      the part in Kafka, and the lost records
    watch.problem                                 a problem for a person to solve; None: none

Kafka removes records by their age (retention.ms) and by the size of a partition (retention.bytes), without asking. So:

- Unarchived records use a part of both. From `WARN` on the node warns. From `BRAKE` on it switches the topic's
  retention off (retention.ms=-1, retention.bytes=-1), and explains how to switch it on again, because full disks are
  better than lost history. It never switches one on.
- The metadata topic must stay whole. A retention of it is switched off at once.
- Records removed before they were archived are lost. Their offsets are reported, and the partition is not archived any
  further (topic_archiver.py).

While the archive is unreachable, its last known state counts. A process that starts then knows nothing, so it cannot
tell how much of a retention is used.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.progress import InTopic
from rewindmq.engine.keeping.archive.topic_archiver import first_waiting_ms
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.engine.log.kafka.topics import Retention

WARN: Final = 0.5  # the part of a retention in use
BRAKE: Final = 0.75
RECORD_BYTES: Final = 70  # of a record in Kafka besides key and value, if it is a separate batch
UNKNOWN_BYTES: Final = 500  # assumed for key and value while nothing is archived


class RetentionWatch:
    """The retention of the topics of one history. `wall_ms`: the wall clock, which Kafka also uses."""

    def __init__(self, log: KafkaLogReader, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.topics: dict[str, InTopic] = {}
        self.problem: str | None = None
        self._log = log
        self._wall_ms = wall_ms
        self._manifests: dict[str, Manifest] = {}  # as last read
        self._level = 0.0  # at which the problem was last reported: WARN, BRAKE
        self._switched_off: dict[str, str] = {}  # the former retention, by topic

    def look(self, manifests: Mapping[str, Manifest]) -> None:
        """Ask Kafka which records of these partitions it has, and which it may remove.

        Raises LogError, NoAnswer."""
        self._manifests |= manifests
        queues = self._log.topics.retention(self._log.topics.queues)
        partitions = {each.name: each for each in (self._log.metadata, *self._log.queues)}
        self.topics = {
            name: self._in_topic(partitions[name], manifest, Retention() if name == METADATA else queues)
            for name, manifest in self._manifests.items()
        }
        problems = [self._metadata_problem(), self._queues_problem(queues), self._lost()]
        self.problem = "; ".join(filter(None, problems)) or None

    def owned(self, names: frozenset[str]) -> None:
        """Forget the partitions that another node now owns."""
        self._manifests = {name: each for name, each in self._manifests.items() if name in names or name == METADATA}

    def _in_topic(self, partition: KafkaPartition, manifest: Manifest, retention: Retention) -> InTopic:
        start, end, archived = partition.start_offset, partition.next_offset, manifest.end
        waiting = max(0, end - max(start, archived))
        mean = UNKNOWN_BYTES
        if manifest.segments:
            last = manifest.segments[-1]
            mean = last.size_bytes // (last.next_offset - last.base_offset)
        size = waiting * mean
        for entry in reversed(manifest.segments):
            if entry.next_offset <= start:
                break
            size += entry.size_bytes
        used = None
        if retention.limits:
            used = 0.0
            if retention.size_bytes is not None:
                used = waiting * (mean + RECORD_BYTES) / max(1, retention.size_bytes)
            first_ms = first_waiting_ms(partition, max(start, archived)) if waiting else None
            if first_ms is not None and retention.ms is not None:
                used = max(used, (self._wall_ms() - first_ms) / max(1, retention.ms))
        return InTopic(start, size, used, (archived, start) if start > archived else None)

    def _metadata_problem(self) -> str | None:
        """Switch off a retention of the metadata topic."""
        topic = self._log.topics.metadata
        retention = self._log.topics.retention(topic)
        if retention.limits:
            self._switch_off(topic, retention)
        was = self._switched_off.get(topic)
        return None if was is None else f"{topic} must stay whole: its {was} was switched off"

    def _queues_problem(self, retention: Retention) -> str | None:
        """Report how much of the retention is used, and switch it off before it is used up."""
        topic = self._log.topics.queues
        used, name = max(((each.retention_used or 0.0, name) for name, each in self.topics.items()), default=(0.0, ""))
        if retention.limits:
            self._switched_off.pop(topic, None)  # somebody has switched it on again
            self._level = BRAKE if used >= BRAKE else WARN if used >= WARN else 0.0
            if self._level == BRAKE:
                self._switch_off(topic, retention)
        was = self._switched_off.get(topic)
        if was is not None:
            return (
                f"the retention of {topic} ({was}) was switched off, because the archive is behind: repair it,"
                f" then switch it on again: kafka-configs.sh --alter --topic {topic} --add-config {was}"
            )
        if not retention.limits or self._level < WARN:
            return None
        return (
            f"the unarchived records of {name} have used half of the retention of {topic} ({retention.text}): repair"
            f" the archive. At three quarters the node switches that retention off"
        )

    def _switch_off(self, topic: str, retention: Retention) -> None:
        try:
            self._log.topics.keep_all(topic)
        except NoAnswer:
            raise
        except LogError as error:
            hint = f"kafka-configs.sh --alter --topic {topic} --add-config retention.ms=-1,retention.bytes=-1"
            raise LogError(
                f"the retention of {topic} ({retention.text}) is about to remove unarchived records, and cannot be"
                f" switched off: {error}: switch it off: {hint}"
            ) from None
        self._switched_off[topic] = retention.text

    def _lost(self) -> str | None:
        """Describe the history that Kafka removed before it was archived; None if there is none."""
        holes = [
            f"{name}: {each.lost[1] - each.lost[0]} offsets, {each.lost[0]} to {each.lost[1] - 1}"
            for name, each in self.topics.items()
            if each.lost is not None
        ]
        return f"history is lost: Kafka removed unarchived records: {'; '.join(holes)}" if holes else None
