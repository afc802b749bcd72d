"""Trims what is older than --keep-history on Kafka while nodes run: in the process beside a node (archive_process.py).

    looks at the start, then every ten minutes      of the partitions that this node owns, stretch by stretch:
    floor -> audit -> base, proven -> HistoryTrimmed, durable -> metadata archived -> Kafka's records -> objects

- The steps are those of `rewindmq trim --kafka` (topic_trim.py). The process appends the event itself: any program may
  append to a topic.
- Whole archived stretches go, the last one of a partition stays. A trim takes 256 MiB of them, or four times as much as
  the base before it, if that is more. The archiver gets its turn between two trims.
- Two nodes may trim a partition at once while the ownership moves: a floor only rises, and both bases are archived.
- After a kill before the event is durable all is there still. After it, the next look ends the trim, or the archiver of
  the partition's next owner.
- Findings of the audit, and a record that Kafka has otherwise than the archive, stop the trim of that partition. They
  are told, and the stretch is not audited again until its end moves.

What counts as now: trim_schedule.py, by archived times. Each node notes it in DIR/keep_history.json, also while it owns
nothing. A node that never looked before trims nothing for half a minute.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rewindmq.engine.host.durations import in_words
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.progress import TopicsOrder
from rewindmq.engine.keeping.topic_trim import TopicTrimming
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, refusal
from rewindmq.engine.keeping.trim_schedule import NOTE, TrimSchedule
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.steady_time import APART_SECONDS
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.floors import KEEP_HISTORY
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError

STRETCH_BYTES: Final = 256 << 20
BASES: Final = 4  # a trim takes so many times as much as the base before it


class KeepTopics(TrimSchedule):
    """The trims of the partitions that a node owns. `data_dir`: the node's.

    `owned`: their names; the caller sets them when they change."""

    def __init__(
        self,
        topics: TopicsOrder,
        data_dir: Path,
        objects: Objects,
        keep_ms: int,
        alive: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(topics.prefix, keep_ms, alive, monotonic, wall_ms)
        self.owned: frozenset[str] = frozenset()
        self._log = KafkaLogReader(topics.servers, topics.prefix, dict(topics.settings))
        self._note = data_dir / NOTE
        self._objects = objects
        self._trimming: TopicTrimming | None = None

    def _look(self) -> None:
        trimming = self._opened()
        if trimming is None:
            return
        if not self._more:
            self._stays = {}
            self._before_ms = self._kept_ms(trimming)
            trimming.end(self._mine(trimming))
        self._more = False
        if self._before_ms is None:
            self._next = self._monotonic() + APART_SECONDS
            return
        for name in self._mine(trimming):
            try:
                if self._trim(trimming, name, self._before_ms):
                    self._more = True  # the archiver gets its turn
                    return
            except NoAnswer:
                raise
            except (LogError, OutsideHistory, BaseError) as error:  # the other partitions go on
                self._stays[name] = str(error)

    def _opened(self) -> TopicTrimming | None:
        """Return the trimming; None if this node owns nothing and no other node has begun the archive.

        Raises LogError, NoAnswer."""
        if self._trimming is None:
            try:
                self._trimming = TopicTrimming(self._log, self._objects, self._wall_ms)
            except LogError:
                if self.owned:
                    raise
        return self._trimming

    def _kept_ms(self, trimming: TopicTrimming) -> int | None:
        """The time before which history goes; None: not known yet."""
        trimming.look()
        newest_ms = trimming.newest_ms()
        return self._oldest_kept(self._note, newest_ms, trimming.archived()) if newest_ms else None

    def _mine(self, trimming: TopicTrimming) -> list[str]:
        """The partitions to trim, the one with the oldest history first."""

        def oldest_ms(name: str) -> int:
            return next((each.first_ms for each in trimming.manifest(name).segments), 0)

        return sorted(self.owned.intersection(trimming.names), key=oldest_ms)

    def _trim(self, trimming: TopicTrimming, name: str, before_ms: int) -> bool:
        """Trim the next stretches of a partition. Returns whether any were due.

        Raises LogError, OutsideHistory, BaseError, NoAnswer, OSError."""
        manifest = trimming.manifest(name)
        report = TrimReport(name, manifest.floor, trimming.floor(name, before_ms, _most_bytes(manifest)))
        stretch = report.start, report.offset
        if report.offset <= report.start or self._was_refused(name, stretch):
            return False
        try:
            machine = trimming.audit(report, self._alive)
            if report.findings:
                raise TrimRefused(refusal(report.findings))
        except (CorruptLog, OtherHistory, TrimRefused) as error:
            self._refuse(name, stretch, str(error))
            return False
        event = trimming.write_base(report, machine, f"{KEEP_HISTORY} {in_words(self._keep_ms)}")
        trimming.append([event])
        self._trimmed.append(event)
        trimming.end([name])
        self._freed_bytes += report.freed_bytes
        return True


def _most_bytes(manifest: Manifest) -> int:
    """Return the number of bytes that one trim may take."""
    base_bytes = next((each.object.size_bytes for each in manifest.bases if each.offset == manifest.floor), 0)
    return max(STRETCH_BYTES, BASES * base_bytes)
