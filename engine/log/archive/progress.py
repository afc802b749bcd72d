"""What a broker and the process beside it tell each other through a pipe. Nothing heavy is imported here.

ArchiveOrder ->     <- Opened or Refused     None ->     <- Progress, again and again: of the archive
                                                         <- Kept: of a look at --keep-history
                                                         <- TrimAsked     TrimAnswer ->

On Kafka the broker sends names in place of None, and again when they change: those of the partitions that it owns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rewindmq.schemas.metadata_events import HistoryTrimmed

FIRST_PAUSE_SECONDS: Final = 1.0  # after a failure; then twice as long each time
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class TopicsOrder:
    """Topics to archive. A stretch of a partition is archived when its first record is `age_ms` old.

    `settings`: of Kafka's clients; they may be secret, so nothing prints them."""

    servers: str
    prefix: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    age_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveOrder:
    """What to archive: a data directory, to a URL, with a pause of so many milliseconds between two passes.

    `url`: None: nothing is archived. `topics`: the log is there, and the directory, a node's, has the snapshots.
    `keep_local`: how much of the log stays in the directory, or in Kafka, as operators write it; empty: all.
    `keep_history_ms`: the history that is older is trimmed; None: all stays."""

    data_dir: Path
    url: str | None
    pause_ms: int
    topics: TopicsOrder | None = None
    keep_local: str = ""
    keep_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The process can begin. `url`: of the archive, as it is shown; empty: there is none.

    `ends`: where the archive of the directory's own history ends, by partition; empty where that is not known yet."""

    url: str
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """There can be no archive. `wrong_url`: the URL is to blame, else this installation."""

    text: str
    wrong_url: bool


@dataclass(frozen=True, slots=True)
class InTopic:
    """What Kafka has of a partition.

    `size_bytes`: of keys and values, without replicas; what is not archived is estimated. `retention_used`: the part
    that what is not archived uses of Kafka's own retention; None: the topic has none. `lost`: the first offset that
    Kafka removed and that is not archived, and the one behind the last."""

    start_offset: int
    size_bytes: int
    retention_used: float | None
    lost: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a partition is archived.

    `archived_bytes`: size of its objects, snapshots too. `oldest_waiting_ms`: time of the first record that is not
    archived; None: there was none. `waiting_bytes`: of the local segments that are not archived, the last one too.
    `in_topic`: of a log in Kafka, once it is known."""

    partition: str
    archived_end: int
    archived_bytes: int
    oldest_waiting_ms: int | None
    waiting_bytes: int
    in_topic: InTopic | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the archive is. Empty `partitions`: not known yet. `ended`: the pass is over. `error`: why it failed.

    `freed_bytes`: of archived segments that were removed here since the last report. `stays`: why others, which were
    due, were not. `retention`: what a person has to do about Kafka's own retention."""

    partitions: tuple[PartitionProgress, ...]
    ended: bool
    error: str | None = None
    freed_bytes: int = 0
    stays: str | None = None
    retention: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A look at --keep-history. `before_ms`: what is older goes; None: that is not known yet.

    `stays`: partitions with older segments that were not trimmed, each with the reason. `freed_bytes`: of segments that
    were removed. `error`: why the look failed. `trimmed`: what the process itself has appended, on Kafka."""

    before_ms: int | None
    stays: tuple[tuple[str, str], ...] = ()
    freed_bytes: int = 0
    error: str | None = None
    trimmed: tuple[HistoryTrimmed, ...] = ()


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """The base at a floor is written and proven: the broker is to log this event."""

    event: HistoryTrimmed


@dataclass(frozen=True, slots=True)
class TrimAnswer:
    """The event is durable in the metadata log. `refused`: it is not logged; the reason."""

    refused: str | None
