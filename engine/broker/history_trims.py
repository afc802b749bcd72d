"""Trims of the history beside a broker that runs: the broker's part of them, and what `status` says.

process beside the broker (engine/keeping/keep_history.py)      this broker, in its loop
    base written and proven     ->     HistoryTrimmed appended to the metadata log, folded
                                <-     answered when it is durable
    segments removed

On Kafka the process appends the event itself (engine/keeping/keep_history.py), and the node reads it as all nodes do.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.keeping.archive.progress import Kept
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.rewind import format_time
from rewindmq.projections.topology.about_history import Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.values import BROKER

Item = dict[str, object]

logger = logging.getLogger(__name__)


class TrimmedLog(Protocol):
    """A partition of the log, as far as trims are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def durable_offset(self) -> int: ...


class HistoryTrims:
    """The last look at --keep-history. `keep_ms`: how much of the history stays; None: there is no limit."""

    def __init__(self, keep_ms: int | None, metadata: Metadata, partitions: Sequence[TrimmedLog], turns: Turns) -> None:
        self.keep_ms = keep_ms
        self.before_ms: int | None = None  # what is older goes; None: not known yet
        self.stays: dict[str, str] = {}  # why older segments of partitions are not trimmed
        self.freed_bytes = 0  # of segments that were removed
        self.failures = 0  # looks that failed, and processes that ended
        self.error: str | None = None  # why the last look failed
        self._metadata = metadata
        self._partitions = {each.name: each for each in partitions}
        self._turns = turns
        self._stopped = False

    @property
    def floors(self) -> dict[str, Floor]:
        """The last trim of each partition that was trimmed, by an operator too."""
        return self._metadata.topology.history.floors

    @property
    def names(self) -> Sequence[str]:
        """The partitions that may be trimmed."""
        return tuple(self._partitions)

    def stop(self) -> None:
        """Log no more trims."""
        self._stopped = True

    def log(self, event: HistoryTrimmed, answer: Callable[[str | None], None]) -> None:
        """Append the event of a trim. `answer` is called when it is durable, or at once with the reason of a refusal.

        Nothing below the floor may be removed before."""
        refused = self._refused(event)
        if refused is not None:
            answer(refused)
            return
        self._metadata.append(BROKER, event)
        self._turns.when_durable(lambda: answer(None))
        self._turns.end()
        _tell(event)

    def _refused(self, event: HistoryTrimmed) -> str | None:
        if self._stopped:
            return "the broker stops"
        partition, floor = self._partitions.get(event.partition), self.floors.get(event.partition)
        if partition is None or event.offset > partition.durable_offset:
            return f"{event.partition} has no durable offset {event.offset}"
        if floor is not None and floor.event.offset >= event.offset:
            return f"{event.partition} was trimmed below offset {floor.event.offset} already"
        return None

    def looked(self, kept: Kept) -> None:
        """Take the result of a look."""
        stays = dict(kept.stays)
        for partition, why in stays.items():
            if self.stays.get(partition) != why:
                logger.warning("%s: older history is not trimmed: %s", partition, why)
        self.before_ms, self.stays = kept.before_ms, stays
        self.freed_bytes += kept.freed_bytes
        for event in kept.trimmed:
            _tell(event)
        if kept.error is not None:
            self.failed(kept.error)
        elif self.error is not None:
            logger.warning("the history is trimmed again")
            self.error = None

    def failed(self, why: str) -> None:
        """Take note of a look that failed, or of a process that ended."""
        self.failures += 1
        if self.error is None:
            logger.warning("the history is not trimmed, and is looked at again: %s", why)
        self.error = why


def _tell(event: HistoryTrimmed) -> None:
    """Log a trim."""
    until = format_time(event.until_ms)
    logger.info("%s: the history is trimmed below offset %d, of %s and before", event.partition, event.offset, until)
