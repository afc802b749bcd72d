"""Snapshots of the metadata fold (the topology), from which a start continues.

    DIR/snapshots/metadata-0/00000000000000010000.snapshot    state after every event below offset 10,000

The file has the form of a queue partition's snapshot (snapshots.py): one record `head`, then records `chunk`
(topology/fold_image.py defines their content), and the record `end` with the checksum. Its metadata:

    rewindmq.format, rewindmq.partition, rewindmq.offset, rewindmq.clock_ms, rewindmq.digest (of the state) as there
    rewindmq.latest_ms           the largest timestamp below the offset
    rewindmq.topology_version    the version of the fold's rules (TOPOLOGY_VERSION)
    rewindmq.history             names the history up to the offset: the hash chain of the block with the last record,
                                 or, in a log without a chain (Kafka), the SHA-256 of that record

Rules
- A snapshot only saves time. One that is damaged, of another version, of another history, or beyond the end of the log
  is skipped with a line in the program's log. Then an older one is used, or the whole log is folded.
- `load` checks the checksum, and that the loaded state has the digest in the file. `rewindmq verify` compares each
  snapshot with the fold from the beginning.
- All snapshots are kept, because they are history's index. Any of them may be deleted by hand at any time.
- They hold the password hashes of users, as the metadata log does.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rewindmq.projections.replay import Block, PartitionLog
from rewindmq.projections.store.snapshots import (
    CUT_SHORT,
    SnapshotError,
    Snapshots,
    add_piece,
    begin_sum,
    metadata_in,
    require_sum,
    write_snapshot,
)
from rewindmq.projections.topology.fold_image import Image, digest_of, image_of, restored
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.projections.topology.topology import TOPOLOGY_VERSION

logger = logging.getLogger(__name__)

_METADATA = (
    "rewindmq.partition",
    "rewindmq.offset",
    "rewindmq.clock_ms",
    "rewindmq.latest_ms",
    "rewindmq.topology_version",
    "rewindmq.history",
    "rewindmq.digest",
)


class OtherVersion(SnapshotError):
    """The snapshot was folded by other rules than this code's."""


@dataclass(frozen=True, slots=True)
class About:
    """A snapshot's description of itself: the metadata of the file."""

    partition: str
    offset: int
    clock_ms: int
    latest_ms: int
    version: int
    history: str
    digest: str


def write(snapshots: Snapshots, partition: str, image: Image, pieces: Sequence[bytes], history: str) -> Path:
    """Write a snapshot, durably. `pieces`: those of the image. `history`: `history_mark` at the image's offset.

    Raises OSError if the disk refuses the write."""
    path = snapshots.path(partition, image.offset)
    values = (partition, image.offset, image.clock_ms, image.latest_ms, TOPOLOGY_VERSION, history, digest_of(pieces))
    write_snapshot(path, dict(zip(_METADATA, map(str, values), strict=True)), _records(pieces))
    return path


def _records(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(pieces):
        yield {"kind": "chunk" if number else "head", "queue_id": -1, "number": max(0, number - 1), "content": piece}


def history_mark(log: PartitionLog, offset: int) -> str:
    """Return the text that identifies the log's history up to `offset`. Empty: there is no record before `offset`.

    Raises CorruptLog, LogError."""
    for block in log.read(offset - 1, offset):
        return mark_in(block, offset)
    return ""


def mark_in(block: Block, offset: int) -> str:
    """Return `history_mark` from the block that holds the record before `offset`."""
    return block.chain.hex() or mark_by(block.records[offset - 1 - block.first_offset])


def mark_by(record: bytes) -> str:
    """Return `history_mark` in a log without a chain, from the record before the offset."""
    return hashlib.sha256(record).hexdigest()


def newest(snapshots: Snapshots | None, log: PartitionLog, before_ms: int | None = None) -> MetadataFold:
    """Return the fold of the newest usable snapshot; an empty fold if there is none.

    `before_ms`: only a snapshot whose events all have lower timestamps. Raises CorruptLog, LogError."""
    offsets = [] if snapshots is None else snapshots.offsets(log.name)
    end = log.next_offset if offsets else 0
    for offset in reversed(offsets):
        assert snapshots is not None, "there are offsets"
        path = snapshots.path(log.name, offset)
        try:
            said = about(path)
            if before_ms is not None and said.latest_ms >= before_ms:
                continue
            require_of(log, end, path, said)
            return load(path)
        except SnapshotError as error:
            logger.warning("%s: the snapshot is passed over", error)
    return MetadataFold()


def require_of(log: PartitionLog, end: int, path: Path, said: About) -> None:
    """Raise SnapshotError unless a snapshot is of this log's history, which ends at offset `end`.

    Raises CorruptLog, LogError."""
    if (said.partition, f"{said.offset:020d}") != (log.name, path.stem):
        raise SnapshotError(f"{path}: it is of {said.partition} at offset {said.offset}")
    if said.offset > end:
        raise SnapshotError(f"{path}: the log of {log.name} ends at offset {end}")
    if said.offset <= log.start_offset:
        raise SnapshotError(f"{path}: the log of {log.name} begins at offset {log.start_offset}")
    if history_mark(log, said.offset) != said.history:
        raise SnapshotError(f"{path}: it is of another history")


def about(path: Path) -> About:
    """Return the snapshot's description of itself.

    Raises SnapshotError when it cannot be read, OtherVersion."""
    import fastavro

    try:
        with path.open("rb") as file:
            return _about(fastavro.reader(file))
    except Exception as error:
        raise _problem(path, error) from error


def load(path: Path) -> MetadataFold:
    """Return the fold as a snapshot holds it.

    Raises SnapshotError for a file that is damaged, cut short or not a snapshot; OtherVersion."""
    try:
        with path.open("rb") as file:
            fold, said = _load(file)
    except Exception as error:
        raise _problem(path, error) from error
    found = digest_of(image_of(fold).pieces())
    if found != said.digest:
        raise SnapshotError(f"{path}: its state has the digest {found}, and says it were {said.digest}")
    if (fold.next_offset, fold.clock_ms, fold.latest_ms) != (said.offset, said.clock_ms, said.latest_ms):
        raise SnapshotError(f"{path}: offset or times of its state are not those in its metadata")
    return fold


def _load(file: BinaryIO) -> tuple[MetadataFold, About]:
    import fastavro

    reader = fastavro.reader(file)
    said = _about(reader)
    sha = begin_sum(metadata_in(reader, _METADATA))
    contents: list[bytes] = []
    for record in reader:
        assert isinstance(record, dict), "the schema is that of a record"
        if record["kind"] == "end":
            require_sum(sha, record)
            return restored(contents), said
        add_piece(sha, record)
        contents.append(record["content"])
    raise SnapshotError(CUT_SHORT)


def _about(reader: Any) -> About:
    partition, offset, clock_ms, latest_ms, version, history, digest = metadata_in(reader, _METADATA).values()
    if int(version) != TOPOLOGY_VERSION:
        raise OtherVersion(f"its topology is of version {int(version)}, and this program folds {TOPOLOGY_VERSION}")
    return About(partition, int(offset), int(clock_ms), int(latest_ms), int(version), history, digest)


def _problem(path: Path, error: Exception) -> SnapshotError:
    """Return the error to raise; damaged bytes can fail in any way."""
    if isinstance(error, SnapshotError):
        return type(error)(f"{path}: {error}")
    if isinstance(error, OSError):
        return SnapshotError(f"{path}: {error.strerror}")
    return SnapshotError(f"{path}: not a readable snapshot ({type(error).__name__}: {error})")
