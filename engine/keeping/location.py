"""Opens a history for programs that read it without the broker: rewinds, `verify`, the process that reads the past.

    log = History(data).open()                                          the log of a data directory, and its archive
    log = History(data, "localhost:9092", "rewindmq", settings).open()  topics in Kafka, and their archive; `data` is a
                                                                        node's, if any

The content of `data` (a state, snapshots) has to belong to the history that is read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from rewindmq.engine.keeping.archive.directory_note import NODE, archive_of
from rewindmq.engine.keeping.tiers import TieredLogReader
from rewindmq.engine.log.contract import BelowStart, Block, LogError
from rewindmq.engine.log.embedded.root import require_own
from rewindmq.projections.marks import topology_of
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import TrimmedMeanwhile
from rewindmq.projections.store.bases import BaseGone
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.formats import values_in

if TYPE_CHECKING:
    from rewindmq.engine.keeping.topic_tiers import TieredTopics
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

# How long Kafka has for its first answer: a user waits for ours. Later answers may take longer, for example while a
# leader is being elected.
FIRST_ANSWER_SECONDS = 10.0
TRIMS = 2  # while a question is answered
T = TypeVar("T")


class OtherHistory(LogError):
    """The data directory does not belong to the history."""


@dataclass(frozen=True, slots=True)
class History:
    """The place of a history, and how to reach it.

    `kafka`: bootstrap servers; None for the embedded log. With Kafka `data` may be None: no node's directory is at
    hand. `partitions`: how many partitions of the queues' topic count, the first ones; None: all. `archive`: the URL of
    the archive that has what Kafka no longer has; None: the one that is noted in `data`, if any. `placement`: how
    queues are placed, from a broker that knows it; None: the metadata log is folded for it."""

    data: Path | None
    kafka: str | None = None
    prefix: str = "rewindmq"
    settings: tuple[tuple[str, str], ...] = ()
    partitions: int | None = None
    archive: str | None = None
    placement: Placement | None = field(default=None, compare=False)

    def open(self) -> "HistoryReader":
        """Open the history for reading.

        Raises LogError when there is no log or Kafka does not answer, KafkaNotInstalled when no Kafka client is
        installed, OtherHistory when `data` belongs to another history."""
        if self.kafka is None:
            assert self.data is not None, "a history is in a data directory or in Kafka"
            embedded = TieredLogReader(self.data)
            return HistoryReader(embedded.metadata, embedded.queues, self.placement, self.snapshots)
        log = _kafka(replace(self, partitions=None))
        log.clients.require_answer(FIRST_ANSWER_SECONDS)
        archive = self.archive
        if self.data is not None:
            self._require_same(self.data, log.identity)
            archive = archive or archive_of(self.data)
        queues: Sequence[HistoryPartition] = log.queues if archive is None else _tiered(log, archive).queues
        partitions = self.partitions
        if partitions is not None and self.placement is not None:  # some may have come since the node started
            partitions = max(partitions, self.placement.count, self.placement.wanted)
        return HistoryReader(log.metadata, queues[:partitions], self.placement, self.snapshots)

    @property
    def snapshots(self) -> Snapshots | None:
        """The snapshots in the data directory; None where no directory is at hand.

        Raises LogError for those of another history than the log beside them."""
        if self.data is not None and self.kafka is None:
            require_own(self.data / "snapshots", self.data)
        return None if self.data is None else Snapshots(self.data / "snapshots")

    @property
    def may_answer_later(self) -> bool:
        """Return True if the log is on other machines, so that a failed read may succeed another time."""
        return self.kafka is not None

    @property
    def may_have_grown(self) -> bool:
        """Return True if the log may have more partitions than the nodes use, because its owner may add some."""
        return self.kafka is not None and self.partitions is None

    def _require_same(self, data: Path, identity: str) -> None:
        known = noted_identity(data)
        if known is None:
            raise OtherHistory(f"{data}: not the data directory of a node whose log is in Kafka")
        if known != identity:
            raise OtherHistory(
                f"{data}: holds the state of another history than {self.prefix}.* at {self.kafka}"
                f" ({known}; there {identity})"
            )


def noted_identity(data: Path) -> str | None:
    """The history in Kafka whose state is in a node's directory; None: it notes none.

    Raises LogError."""
    path = data / NODE
    try:
        return str(values_in(path.read_text(), path, LogError)["history"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError):
        raise LogError(f"{path}: it does not name a history") from None


class HistoryPartition(PartitionLog, Protocol):
    """A partition of either log, to read.

    Raises LogError where it cannot be read."""

    @property
    def durable_offset(self) -> int:
        """The end (exclusive) of the records that no crash takes back."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yields blocks, as `LogPartition.read`."""

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yields the blocks of many short ranges (first offset, end) in order, as `read`."""


@dataclass(frozen=True)
class HistoryReader:
    """The partitions of a history, to read.

    `known_placement`: as `History.placement`. `snapshots`: of the metadata log, to fold it from."""

    metadata: HistoryPartition
    queues: Sequence[HistoryPartition]
    known_placement: Placement | None = None
    snapshots: Snapshots | None = None

    @cached_property
    def placement(self) -> Placement:
        """The placement of queues, now and before. Raises CorruptLog, LogError."""
        if self.known_placement is not None:
            return self.known_placement
        return topology_of(self.metadata, self.snapshots).placement


def retry_if_trimmed(ask: Callable[[], T]) -> T:
    """The answer to a question about a history; it is asked anew if the beginning is trimmed meanwhile.

    Raises what `ask` raises."""
    for _ in range(TRIMS):
        with suppress(BelowStart, BaseGone, TrimmedMeanwhile):
            return ask()
    return ask()


@lru_cache(maxsize=1)
def _kafka(history: History) -> "KafkaLogReader":
    """The reader of a history in Kafka: a process keeps one set of connections for all questions."""
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

    assert history.kafka is not None
    return KafkaLogReader(history.kafka, history.prefix, dict(history.settings))


@lru_cache(maxsize=1)
def _tiered(log: "KafkaLogReader", archive: str) -> "TieredTopics":
    """The same with the archive, which is proven once."""
    from rewindmq.engine.keeping.topic_tiers import TieredTopics

    return TieredTopics(log, archive)
