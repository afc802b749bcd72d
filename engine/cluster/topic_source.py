"""The topics of a log in Kafka as what a node's archiver process archives (engine/embedded/archive_process.py).

The node archives the partitions that it owns, and the metadata log with them. During a change of owners two nodes may
archive a partition, or none: two do no harm, and what none has archived, the next owner archives.
"""

from collections.abc import Callable
from pathlib import Path

from rewindmq.engine.log.archive.objects import Objects
from rewindmq.engine.log.archive.progress import PartitionProgress, TopicsOrder
from rewindmq.engine.log.archive.topic_archiver import TopicArchiver
from rewindmq.engine.log.kafka.reader import KafkaLogReader


class TopicSource:
    """Topics of a Kafka. `data_dir`: the node's, which has snapshots."""

    def __init__(self, topics: TopicsOrder, data_dir: Path, objects: Objects) -> None:
        log = KafkaLogReader(topics.servers, topics.prefix, dict(topics.settings))
        snapshots = data_dir / "snapshots"
        self._archiver = TopicArchiver(objects, log, frozenset(), snapshots, topics.age_ms)

    def owned(self, names: frozenset[str] | None) -> None:
        """Archive these partitions from now on; None: all."""
        self._archiver.partitions = names

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> None:
        """Archive what is large or old enough, if this node owns any partition."""
        if self._archiver.partitions != frozenset():
            self._archiver.run(until=until, progress=progress)

    def known(self) -> tuple[PartitionProgress, ...]:
        """How far the partitions are archived that the last pass has read."""
        archiver = self._archiver
        return tuple(
            PartitionProgress(
                name,
                manifest.end,
                manifest.archived_bytes,
                *archiver.waiting(name),
            )
            for name, manifest in archiver.manifests.items()
        )
