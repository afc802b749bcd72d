"""The interface of a history to keep, wherever its log is, implemented by in_directory.py and in_topics.py.

for name in history.names:
    partition = history.partition(name)
    [cut.offset for cut in partition.cuts()]      possible cuts: the beginnings of segments or archived stretches
    partition.end_trim(event)                     removes everything below a floor, once the history permits it
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.trim_audit import Audited
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.topology.about_history import Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed


@dataclass(frozen=True, slots=True)
class CutPoint:
    """An offset at which a partition may be cut, and what lies from there to the next one.

    `size_bytes`: of its records. `here_bytes`: the space that their removal frees in the log. `newest_ms`: the largest
    time up to its end."""

    offset: int
    size_bytes: int
    here_bytes: int
    newest_ms: int


class KeptPartition(Protocol):
    """A queue partition. Every member raises LogError if the log or the archive cannot be read, and NoAnswer."""

    name: str

    @property
    def log(self) -> PartitionLog:
        """Return the partition from its floor on, wherever its records are."""

    @property
    def manifest(self) -> Manifest | None:
        """Return the manifest of its archive, as of the last look; None: there is no archive."""

    @property
    def start_offset(self) -> int:
        """Return the floor, where the history begins."""

    @property
    def base_bytes(self) -> int:
        """Return the size of the base at the floor in bytes; 0 if there is none."""

    def cuts(self) -> Sequence[CutPoint]:
        """The offsets at which it may be cut, in order. The last one lies before what has to stay."""

    def chain_at(self, offset: int) -> bytes:
        """Return the hash chain at one of the cuts."""

    def audited(self, end: int, between: Callable[[], object]) -> Audited:
        """Audit the records from the floor up to a cut. `between` is called repeatedly.

        Raises CorruptLog, NewerHistory; OtherHistory if the archive has other records."""

    def queued(self, offsets: Sequence[int], end: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and record of these publishes, which are queued at the cut `end`.

        Also raises BaseError."""

    def bases(self) -> AbstractContextManager[Bases]:
        """Return the bases beside the log, or a place for one on its way to the archive."""

    def end_trim(self, event: HistoryTrimmed) -> int:
        """Remove everything below a floor, and return the bytes of the removed archived objects.

        The event is durable. It may be repeated at any time. Raises OtherBase if the base is not whole."""


class KeptHistory(Protocol):
    """All partitions of a history. Members raise as those of `KeptPartition`.

    `place`: for people. `shared`: others also append; then `append` writes to the log itself, and nobody else reports
    it."""

    place: str
    shared: bool

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the partitions that may be trimmed."""

    def partition(self, name: str) -> KeptPartition: ...

    def logs(self) -> Sequence[PartitionLog]:
        """Return all partitions, the metadata log first, for their times."""

    def newest_ms(self) -> int:
        """Return the newest time of a record; 0 if there is none."""

    def append(self, events: Sequence[HistoryTrimmed]) -> None:
        """Append events to the metadata log, durably.

        Raises TrimRefused."""

    def floors(self) -> Mapping[str, Floor]:
        """Return the last trim of each partition that is durable, and archived if only the archive has the base."""
