"""Trims of the history beside a broker that runs: the broker's part of them, and what `status` says.

process beside the broker (engine/embedded/keep_history.py)      this broker, in its loop
    base written and proven     ->     HistoryTrimmed appended to the metadata log, folded
                                <-     answered when it is durable
    segments removed

With several processes the one that writes the log does this (engine/processes/log_care.py), and workers show it.

On Kafka the process appends the event itself (engine/cluster/keep_topics.py), and the node reads it as all nodes do.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.log.archive.progress import Kept
from rewindmq.engine.runtime.metadata import Metadata
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


class TrimEvents(Protocol):
    """The metadata log, as far as trims are concerned."""

    @property
    def floors(self) -> Mapping[str, Floor]:
        """The last trim of each partition, by name."""

    def append(self, event: HistoryTrimmed, durable: Callable[[], None]) -> None:
        """Log the event. `durable` is called when no crash takes it back."""


class MetadataTrims:
    """The metadata log of a broker. Implements `TrimEvents`."""

    def __init__(self, metadata: Metadata, turns: Turns) -> None:
        self._metadata = metadata
        self._turns = turns

    @property
    def floors(self) -> Mapping[str, Floor]:
        return self._metadata.topology.history.floors

    def append(self, event: HistoryTrimmed, durable: Callable[[], None]) -> None:
        self._metadata.append(BROKER, event)
        self._turns.when_durable(durable)
        self._turns.end()


class HistoryTrims:
    """The last look at --keep-history. `keep_ms`: how much of the history stays; None: there is no limit."""

    def __init__(self, keep_ms: int | None, events: TrimEvents, partitions: Sequence[TrimmedLog]) -> None:
        self.keep_ms = keep_ms
        self.before_ms: int | None = None  # what is older goes; None: not known yet
        self.stays: dict[str, str] = {}  # why older segments of partitions are not trimmed
        self.freed_bytes = 0  # of segments that were removed
        self.failures = 0  # looks that failed, and processes that ended
        self.error: str | None = None  # why the last look failed
        self._events = events
        self._partitions = {each.name: each for each in partitions}
        self._stopped = False

    @property
    def floors(self) -> Mapping[str, Floor]:
        """The last trim of each partition that was trimmed, by an operator too."""
        return self._events.floors

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
        self._events.append(event, lambda: answer(None))
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

    def state(self) -> dict[str, Any]:
        """The findings of the looks, as JSON. Another process shows them."""
        return {
            "keep_ms": self.keep_ms,
            "before_ms": self.before_ms,
            "stays": self.stays,
            "freed_bytes": self.freed_bytes,
            "failures": self.failures,
            "error": self.error,
        }

    def take(self, state: dict[str, Any]) -> None:
        """Take what the `HistoryTrims` of another process has found."""
        self.keep_ms, self.before_ms, self.stays = state["keep_ms"], state["before_ms"], state["stays"]
        self.freed_bytes, self.failures, self.error = state["freed_bytes"], state["failures"], state["error"]

    def item(self) -> Item:
        """The limit and the floors as JSON."""
        return {
            "keep_seconds": None if self.keep_ms is None else self.keep_ms // 1_000,
            "before": None if self.before_ms is None else format_time(self.before_ms),
            "floors": [
                {
                    "partition": name,
                    "offset": floor.event.offset,
                    "until": format_time(floor.event.until_ms),
                    "trimmed": format_time(floor.time_ms),
                    "user": floor.user,
                    "reason": floor.event.reason,
                    "findings": list(floor.event.findings),
                }
                for name, floor in sorted(self.floors.items())
            ],
            "stays": self.stays,
            "freed_bytes": self.freed_bytes,
            "failures": self.failures,
            "error": self.error,
        }


def _tell(event: HistoryTrimmed) -> None:
    """Log a trim."""
    until = format_time(event.until_ms)
    logger.info("%s: the history is trimmed below offset %d, of %s and before", event.partition, event.offset, until)
