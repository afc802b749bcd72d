"""The contract of a log: partitions of records in a total order, durable when committed.

    metadata-0              vhosts, users, exchanges, bindings, policies
    queues-0 .. queues-N-1  everything that happens in queues; of a log that nobody repartitioned, a queue's partition
                            is murmur2("vhost/queue") mod N (projections/topology/placement.py `home` decides)

A record is one envelope as an Avro single object (`rewindmq.schemas.codec`). Its offset is its position in the
partition, from 0.

Appending is immediate, in memory. `commit` makes everything appended so far durable with one write and one fsync (group
commit) in a thread, and calls back in the loop. During a commit new records wait for the next one, so the group grows
with the load.

    offset = log.append(partition, timestamp_ms, record)
    log.commit()                         # starts a commit, now or a little later, unless one is in progress
    log.start(listener)                  # listener.durable() is called in the loop after each commit

A reader never sees records that are not yet written. Offsets are int, times are milliseconds since the epoch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rewindmq.projections.store.bases import Base

LARGE_RECORD_BYTES: Final = 1_048_576  # a record of this size alone keeps the disk busy


class LogError(Exception):
    """The log cannot be used as requested; the text names partition, file and offset."""


class BelowStart(LogError):
    """A read before the beginning of a log whose older segments were removed on purpose."""


class NoAnswer(LogError):
    """The server that has the log does not answer; the log may be sound, and can be read later."""


class NobodyAnswers(NoAnswer):
    """No server answers at the address, which may be wrong."""


class KafkaNotInstalled(LogError):
    """The log is in Kafka, and this installation has no Kafka client."""


class NewerSchema(LogError):
    """A part of the log has a schema that this version does not know: a newer version wrote it."""


class CorruptLog(LogError):
    """Bytes in the middle of the log are not the bytes that were written.

    `file`, byte `position` in it, first `offset` of the block."""

    def __init__(self, file: Path, position: int, offset: int, why: str) -> None:
        super().__init__(f"{file}: block at byte {position} (offset {offset}): {why}")
        self.file = file
        self.position = position
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[type["CorruptLog"], tuple[Path, int, int, str]]:
        """Make the error picklable, because it may be from another process."""
        return CorruptLog, (self.file, self.position, self.offset, self.why)


@dataclass(frozen=True, slots=True)
class Block:
    """One stored group commit.

    `records`: Avro single objects (schemas/single_object.py), one envelope each. `first_offset`: the offset of
    records[0]. `chain`: the hash chain up to and including this block (32 bytes)."""

    first_offset: int
    records: Sequence[bytes]
    max_timestamp_ms: int
    chain: bytes
    file: Path
    position: int
    timestamps_ms: Sequence[int] | None = None  # of each record, if the log has them; None: the envelopes' own


class LogPartition(Protocol):
    """One partition of a log.

    `shared`: other programs also append (engine/log/shared_contract.py). Then a record may be any bytes, or have no
    value; a publish may claim what only a broker may state; and an event's time is the log's. Otherwise this broker
    wrote each record, with its time."""

    name: str
    shared: bool
    next_offset: int  # offset of the next append
    durable_offset: int  # everything below is durable

    @property
    def start_offset(self) -> int:
        """Return the offset of the oldest remaining record."""

    def append(self, timestamp_ms: int, record: bytes) -> int:
        """Add a record to the current group, and return its offset. Timestamps do not go back."""

    def append_all(self, timestamp_ms: int, records: list[bytes]) -> int:
        """As `append`, for small records of one time. Returns the offset of the first."""

    def begin_time_anew(self) -> None:
        """Let records appended from here on have lower timestamps than earlier ones (the clock was set)."""

    @property
    def schema(self) -> str:
        """Return the fingerprint of the schema of appended records."""

    def write_under(self, schema: str) -> None:
        """Append records of the schema with this fingerprint from here on."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield the blocks from the one that holds `offset`, in order, up to `end`.

        `end`: exclusive; None: the current durable end. The first and last block may hold records outside the range.
        Raises CorruptLog."""

    def kept_record(self, offset: int) -> bytes | None:
        """Return the record below `start_offset` of a message that was queued there; None if no base has it.

        Raises LogError, and NoAnswer, after which the caller may ask again."""

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset with a timestamp above `timestamp_ms`: state at T is the fold of all below it.

        If a time occurs twice, because the clock was set back in between, its last occurrence counts."""

    def base(self) -> "Base | None":
        """Return the base with which the log begins; None if it begins at offset 0, or keeps no bases.

        Raises LogError if the base is missing or damaged."""


class LogListener(Protocol):
    """The user of a log. It is called in the loop."""

    @property
    def awaits_log(self) -> bool:
        """Return True if anything waits until appended records are durable."""

    def durable(self) -> None:
        """Note that a commit landed and the durable offsets have moved."""

    def commit_failed(self, error: Exception) -> None:
        """Note that a commit failed (disk full). The log retries it, and nothing is lost."""


class Log(Protocol):
    """A log: its metadata partition and its queue partitions."""

    @property
    def metadata(self) -> LogPartition: ...

    @property
    def queues(self) -> Sequence[LogPartition]: ...

    def start(self, listener: LogListener) -> None:
        """Notify the listener from now on.

        `open` does not take it, because the listener is made from the content of the log."""

    def commit(self) -> None:
        """Start a commit of all appended records, unless one is in progress.

        It may begin a little later, so that more records gather: commit.py."""

    def commit_and_wait(self) -> None:
        """Write and fsync everything appended, in this thread. For start, stop, tools and tests."""

    def full(self) -> bool:
        """Return True if the disk is full and the log is consuming its reserve. Publishers should then wait."""

    @property
    def crowded(self) -> bool:
        """Return True if publishing connections must wait until the disk has caught up."""

    def has_room(self, size: int) -> bool:
        """Return True if the log can accept this many bytes at once, so that later records need not wait."""

    @property
    def waiting_large_bytes(self) -> int:
        """Return the size of the large records (LARGE_RECORD_BYTES and more) that wait for the disk."""

    def close(self) -> None:
        """Make everything appended durable, then free the log."""
