"""The topics of a log in Kafka as a source for a node's archiver process (engine/keeping/archive_process.py).

The node archives the partitions that it owns, and the metadata log with them. During a change of owners two nodes may
archive a partition, which does no harm, or none, and then the next owner catches up. With --keep-local the owner also
removes archived records from Kafka (topic_space.py). After each pass it checks Kafka's own retention (retention.py).
"""

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.progress import PartitionProgress
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.local_space import SpaceLimits, SpaceReport
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.retention import RetentionWatch
from rewindmq.engine.keeping.topic_space import TopicSpace
from rewindmq.engine.keeping.topic_tiers import TopicArchive
from rewindmq.engine.log.contract import LogError

WATCH_SECONDS: Final = 60.0  # between two checks of Kafka's own retention, during a long pass


class TopicSource:
    """Topics in Kafka. `data_dir`: the node's, which has snapshots."""

    def __init__(self, topics: InKafka, age_ms: int, data_dir: Path, objects: Objects) -> None:
        self._log = topics.connect()
        self._data_dir = data_dir
        self._objects = objects
        snapshots = data_dir / "snapshots"
        self._archiver = TopicArchiver(objects, self._log, frozenset(), snapshots, age_ms)
        self._watch = RetentionWatch(self._log)
        self._watched = 0.0  # by the monotonic clock
        self._noted = False

    def owned(self, names: frozenset[str] | None) -> None:
        """Archive these partitions from now on; None: all."""
        self._archiver.partitions = names
        self._watch.owned(names or frozenset())

    def archive(self, until: Callable[[], bool], progress: Callable[[int, int], None]) -> None:
        """Archive stretches that are large or old enough, if this node owns any partition."""
        if self._archiver.partitions != frozenset():
            try:
                self._archiver.run(until=lambda: self._is_over(until), progress=progress)
            finally:  # also while the archive is unreachable
                self._look_at_retention()
        elif not self._noted:
            try:
                TopicArchive(self._objects.url, self._log.metadata).open()
            except LogError:
                return  # no node has begun it; or it is another one, which the owner of a partition reports
        if not self._noted:
            note_archive(self._data_dir, self._objects.url)
            self._noted = True

    def _is_over(self, until: Callable[[], bool]) -> bool:
        if time.monotonic() - self._watched >= WATCH_SECONDS:
            self._look_at_retention()
        return until()

    def _look_at_retention(self) -> None:
        self._watch.look(self._archiver.manifests)
        self._watched = time.monotonic()

    @property
    def retention(self) -> str | None:
        """Return the problem with Kafka's own retention, and the remedy; or None."""
        return self._watch.problem

    @cached_property
    def _space(self) -> TopicSpace:
        return TopicSpace(self._log, self._objects, self._data_dir)

    def keep_local(self, limits: SpaceLimits) -> SpaceReport:
        """Remove archived records beyond the limits from Kafka, for the partitions that this node owns.

        Raises as `TopicSpace.keep`."""
        owned = self._archiver.partitions
        return self._space.keep(limits, owned) if owned else SpaceReport()

    def known(self) -> tuple[PartitionProgress, ...]:
        """Return the archive's progress in the partitions that the last pass read."""
        archiver = self._archiver
        return tuple(
            PartitionProgress(
                name,
                manifest.end,
                manifest.archived_bytes,
                *archiver.waiting(name),
                self._watch.topics.get(name),
            )
            for name, manifest in archiver.manifests.items()
        )
