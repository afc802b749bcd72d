"""The location of a history, for programs that read it without the broker: rewinds, `verify`, Spark jobs.

    InDirectory(data).open()                                  a data directory's log, and below its start its archive
    InKafka("localhost:9092").open()                          the topics of a Kafka
    InKafka("localhost:9092", archive="s3://bucket/prefix")   Kafka, and below its start the archive of the topics
    InArchive("s3://bucket/prefix")                           an archive alone

A location can be pickled, and every process then opens the history. The content of a data directory (a state,
snapshots) must belong to the history that is read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

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
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.formats import values_in

if TYPE_CHECKING:
    from rewindmq.engine.keeping.topic_tiers import TieredTopics
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

# The time that Kafka has for its first answer, because a user is waiting. Later answers may take longer, for example
# while a leader is being elected.
FIRST_ANSWER_SECONDS = 10.0
TRIMS = 2  # while a question is answered
T = TypeVar("T")


class HistoryMismatch(LogError):
    """The data directory does not belong to the history."""


@dataclass(frozen=True, slots=True)
class InDirectory:
    """A history in the data directory of a broker, and in the archive that the directory names.

    `placement`: the placement of queues, from a broker that knows it; None: the metadata log is folded for it."""

    data: Path
    placement: Placement | None = field(default=None, compare=False, repr=False)

    may_answer_later: ClassVar[bool] = False  # a failed read may succeed later if the log is remote

    def __str__(self) -> str:
        return str(self.data)

    def open(self) -> "HistoryReader":
        """Open the history for reading.

        Raises LogError when there is no log."""
        log = TieredLogReader(self.data)
        return HistoryReader(self, log.metadata, log.queues)

    @property
    def snapshots(self) -> Snapshots:
        """Return the snapshots beside the log.

        Raises LogError for snapshots of another history."""
        require_own(self.data / "snapshots", self.data)
        return Snapshots(self.data / "snapshots")


@dataclass(frozen=True, slots=True)
class InKafka:
    """A history in the topics `<prefix>.metadata` and `<prefix>.queues` of a Kafka.

    `bootstrap`: host:port; several are separated by commas. `settings`: more of librdkafka's, for example for security;
    they may be secret, so nothing prints them. `archive`: the URL of the archive with the records that Kafka no longer
    has; None: the archive noted in `data`, if any. `data`: a node's directory, if available. `partitions`: use only
    this number of the queues' partitions; None: all. `placement`: as in InDirectory."""

    bootstrap: str
    prefix: str = "rewindmq"
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    archive: str | None = None
    data: Path | None = None
    partitions: int | None = None
    placement: Placement | None = field(default=None, compare=False, repr=False)

    may_answer_later: ClassVar[bool] = True

    def __str__(self) -> str:
        archive = f", and their archive at {self.archive}" if self.archive else ""
        return f"topics {self.metadata} and {self.queues} of the Kafka at {self.bootstrap}{archive}"

    @property
    def name(self) -> str:
        """Return the topics in a few words, for people."""
        return f"{self.prefix}.* at {self.bootstrap}"

    @property
    def metadata(self) -> str:
        """Return the topic of the metadata log."""
        return f"{self.prefix}.metadata"

    @property
    def queues(self) -> str:
        """Return the topic of the queue partitions."""
        return f"{self.prefix}.queues"

    @property
    def archive_url(self) -> str | None:
        """Return the URL of the topics' archive: the given one, or the one noted in the node's directory."""
        return self.archive or (None if self.data is None else archive_of(self.data))

    @property
    def snapshots(self) -> Snapshots | None:
        """Return the snapshots in the node's directory; None without a directory."""
        return None if self.data is None else Snapshots(self.data / "snapshots")

    def connect(self) -> "KafkaLogReader":
        """Return a reader of the topics with its own connections.

        Raises KafkaNotInstalled when no Kafka client is installed."""
        from rewindmq.engine.log.kafka.reader import KafkaLogReader

        return KafkaLogReader(self.bootstrap, self.prefix, dict(self.settings))

    def open(self) -> "HistoryReader":
        """Open the history for reading, over this process's shared connections.

        Raises LogError when Kafka does not answer or has no such topics, KafkaNotInstalled, HistoryMismatch when `data`
        belongs to another history."""
        topics = InKafka(self.bootstrap, self.prefix, self.settings)
        log = _kept(topics)
        log.clients.require_answer(FIRST_ANSWER_SECONDS)
        if len(log.queues) != log.topics.partitions():  # partitions were added since the log was opened
            _kept.cache_clear()
            log = _kept(topics)
        if self.data is not None:
            self._require_same(self.data, log.identity)
        archive = self.archive_url
        queues: Sequence[HistoryPartition] = log.queues if archive is None else _tiered(log, archive).queues
        partitions = self.partitions
        if partitions is not None and self.placement is not None:  # some may have been added since the node started
            partitions = max(partitions, self.placement.count, self.placement.wanted)
        return HistoryReader(self, log.metadata, queues[:partitions])

    def _require_same(self, data: Path, identity: str) -> None:
        known = noted_identity(data)
        if known is None:
            raise HistoryMismatch(f"{data}: not the data directory of a node whose log is in Kafka")
        if known != identity:
            raise HistoryMismatch(
                f"{data}: holds the state of another history than {self.name} ({known}; there {identity})"
            )


@dataclass(frozen=True, slots=True)
class InArchive:
    """A history in the archive at a URL (engine/keeping/archive/objects.py).

    Every process reads its objects with the credentials in its own environment."""

    url: str

    placement: ClassVar[None] = None
    snapshots: ClassVar[None] = None
    may_answer_later: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"the archive at {self.url}"

    def open(self) -> "HistoryReader":
        """Open the history for reading.

        Raises ArchiveError where there is no archive, NoAnswer."""
        from rewindmq.engine.keeping.archive.reader import ArchivedLog

        log = ArchivedLog(self.url)
        return HistoryReader(self, log.metadata, log.queues)


Location = InDirectory | InKafka | InArchive


def noted_identity(data: Path) -> str | None:
    """Return the history in Kafka whose state is in a node's directory; None: it notes none.

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
    """A readable partition of either log.

    Raises LogError if it cannot be read."""

    @property
    def durable_offset(self) -> int:
        """Return the end (exclusive) of the records that no crash takes back."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks, as `LogPartition.read`."""

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yield the blocks of many short ranges (first offset, end) in order, as `read`."""


@dataclass(frozen=True)
class HistoryReader:
    """The readable partitions of an opened history."""

    location: Location
    metadata: HistoryPartition
    queues: Sequence[HistoryPartition]

    @cached_property
    def placement(self) -> Placement:
        """Return the placement of queues, now and in the past.

        Raises CorruptLog, LogError."""
        return self.location.placement or self.topology().placement

    def topology(self) -> Topology:
        """Fold the metadata log to its end, from the newest of the snapshots beside it.

        Raises CorruptLog, LogError."""
        return topology_of(self.metadata, self.location.snapshots)


def retry_if_trimmed(ask: Callable[[], T]) -> T:
    """Return the answer to a question about a history, which is repeated if a trim intervenes.

    Raises what `ask` raises."""
    for _ in range(TRIMS):
        with suppress(BelowStart, BaseGone, TrimmedMeanwhile):
            return ask()
    return ask()


@lru_cache(maxsize=1)
def _kept(topics: InKafka) -> "KafkaLogReader":
    """Return the reader of these topics, with one set of connections per process."""
    return topics.connect()


@lru_cache(maxsize=1)
def _tiered(log: "KafkaLogReader", archive: str) -> "TieredTopics":
    """Return the reader of the same topics with their archive, which is verified once."""
    from rewindmq.engine.keeping.topic_tiers import TieredTopics

    return TieredTopics(log, archive)
