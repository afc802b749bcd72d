"""The messages between a broker and the process beside it, through a pipe. This module imports nothing heavy.

ArchiveOrder ->     <- Opened or NoArchivePossible     None ->     <- ArchiveProgress, again and again: of the archive
                                                         <- Kept: of a look at --keep-history
                                                         <- TrimAsked     TrimAnswer ->

On Kafka the broker sends the names of its partitions instead of None, and again when they change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rewindmq.schemas.metadata_events import HistoryTrimmed

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import InKafka

FIRST_PAUSE_SECONDS: Final = 1.0  # after a failure; then twice as long each time
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ArchiveOrder:
    """An order to archive a data directory to a URL, with a pause of `pause_ms` between two passes.

    `url`: None: nothing is archived. `topics`: the log is in these topics, and the directory, a node's, has the
    snapshots. `age_ms`: a stretch of a partition is archived when its first record is this old. `keep_local`: the
    limits of the log in the directory, or in Kafka, as operators write them; empty: everything stays.
    `keep_history_ms`: older history is trimmed; None: everything stays."""

    data_dir: Path
    url: str | None
    pause_ms: int
    topics: "InKafka | None" = None
    age_ms: int = 0
    keep_local: str = ""
    keep_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The process can begin. `url`: of the archive, in its displayed form; empty: there is none.

    `ends`: the ends of the archive of the directory's own history, by partition; empty if not yet known."""

    url: str
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NoArchivePossible:
    """There can be no archive. `wrong_url`: the URL is to blame; otherwise this installation."""

    text: str
    wrong_url: bool


@dataclass(frozen=True, slots=True)
class InTopic:
    """The part of a partition that is in Kafka.

    `size_bytes`: of keys and values, without replicas; the size of unarchived records is an estimate.
    `retention_used`: the part of Kafka's own retention that these records use; None: the topic has none. `lost`: the
    first offset that Kafka removed before it was archived, and the one after the last."""

    start_offset: int
    size_bytes: int
    retention_used: float | None
    lost: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of a partition's archive.

    `archived_bytes`: size of its objects, including snapshots. `oldest_waiting_ms`: time of the first unarchived
    record; None: there was none. `waiting_bytes`: of the unarchived local segments, including the last one. `in_topic`:
    of a log in Kafka, once known."""

    partition: str
    archived_end: int
    archived_bytes: int
    oldest_waiting_ms: int | None
    waiting_bytes: int
    in_topic: InTopic | None = None


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """The progress of the archive. Empty `partitions`: not known yet. `ended`: the pass is over.

    `error`: why it failed. `freed_bytes`: of archived segments removed here since the last report. `stays`: why other
    due segments were not removed. `retention`: the remedy for a problem with Kafka's own retention."""

    partitions: tuple[PartitionProgress, ...]
    ended: bool
    error: str | None = None
    freed_bytes: int = 0
    stays: str | None = None
    retention: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a check of --keep-history. `before_ms`: older history is trimmed; None: not known yet.

    `stays`: partitions with older segments that were not trimmed, each with the reason. `freed_bytes`: of removed
    segments. `error`: why the check failed. `trimmed`: the events that the process itself has appended, on Kafka."""

    before_ms: int | None
    stays: tuple[tuple[str, str], ...] = ()
    freed_bytes: int = 0
    error: str | None = None
    trimmed: tuple[HistoryTrimmed, ...] = ()


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """A request to log this event, sent once the base at a floor is written and proven."""

    event: HistoryTrimmed


@dataclass(frozen=True, slots=True)
class TrimAnswer:
    """The event is durable in the metadata log, unless `refused`: the reason why it was not logged."""

    refused: str | None
