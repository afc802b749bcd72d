"""A history as its keeping sees it, wherever the log is. Two implementations: in_directory.py and in_topics.py.

for name in history.names:
    partition = history.partition(name)
    [cut.offset for cut in partition.cuts()]      where it may be cut: a segment begins, or an archived stretch
    partition.end_trim(event)                     what lies below a floor goes, once the history says so
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

    `size_bytes`: of its records. `here_bytes`: what their removal frees where the log is. `newest_ms`: the largest time
    up to its end."""

    offset: int
    size_bytes: int
    here_bytes: int
    newest_ms: int


class KeptPartition(Protocol):
    """A queue partition. Every member raises LogError where the log or the archive can't be read, and NoAnswer."""

    name: str

    @property
    def log(self) -> PartitionLog:
        """The partition from its floor on, wherever its records are."""

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of its archive, as of the last look; None: there is no archive."""

    @property
    def start_offset(self) -> int:
        """The floor: where the history begins."""

    @property
    def base_bytes(self) -> int:
        """The size of the base at the floor; 0 if there is none."""

    def cuts(self) -> Sequence[CutPoint]:
        """The offsets at which it may be cut, in order. The last one lies before what has to stay."""

    def chain_at(self, offset: int) -> bytes:
        """The hash chain at one of the cuts."""

    def audited(self, end: int, between: Callable[[], object]) -> Audited:
        """Audit the records from the floor up to a cut. `between` is called again and again.

        Raises CorruptLog, NewerHistory; OtherHistory where the archive has other records."""

    def queued(self, offsets: Sequence[int], end: int) -> Iterator[tuple[int, bytes]]:
        """Yields offset and record of these publishes, which are queued at the cut `end`.

        Raises BaseError, too."""

    def bases(self) -> AbstractContextManager[Bases]:
        """The bases beside the log, or a place for one on its way to the archive."""

    def end_trim(self, event: HistoryTrimmed) -> int:
        """Remove what lies below a floor. Returns the bytes of the archived objects that went.

        The event is durable. It may be called again at any time. Raises OtherBase where the base is not whole."""


class KeptHistory(Protocol):
    """All partitions of a history. Members raise as those of `KeptPartition`.

    `place`: for people. `shared`: others append, too; then `append` writes to the log itself, and nobody else tells of
    it."""

    place: str
    shared: bool

    @property
    def names(self) -> Sequence[str]:
        """The names of the partitions that may be trimmed."""

    def partition(self, name: str) -> KeptPartition: ...

    def logs(self) -> Sequence[PartitionLog]:
        """All partitions, the metadata log first: what is known of their times."""

    def newest_ms(self) -> int:
        """The newest time of a record; 0 if there is none."""

    def append(self, events: Sequence[HistoryTrimmed]) -> None:
        """Append events to the metadata log, durably.

        Raises TrimRefused."""

    def floors(self) -> Mapping[str, Floor]:
        """The last trim of each partition, as far as it is durable, and archived if the archive has the only base."""
