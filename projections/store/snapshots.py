"""Snapshots: the folded state of one partition at one offset, as a start for later folds.

    DIR/snapshots/queues-0/00000000000001000000.snapshot      state after every event below offset 1,000,000
    DIR/snapshots/metadata-0/...                              the topology: see metadata_snapshots.py

A snapshot is an Avro Object Container File, which any Avro tool reads:

    file metadata   rewindmq.format, rewindmq.partition, rewindmq.offset, rewindmq.clock_ms,
                    rewindmq.machine_version,
                    rewindmq.digest (of the state: `Machine.digest`, as `Checkpointed` events claim it)
                        record 1        kind head:  the machine's state that belongs to no queue
    then a queue    kind queue: its settings, counters, consumers, unacked, outbox; then kind chunk: its ready messages
    last record     kind end:   SHA-256 over the metadata above and all records before; without it the file is not whole

Rules
- A file appears whole or not at all: it is written under another name, fsynced, renamed, and the directory is fsynced.
- A snapshot holds no bodies (about 30 bytes a message), so all snapshots are kept as history's index. Any of them may
  be deleted by hand at any time; a fold then starts from the previous one.
- `load` checks both the checksum and the state's digest.
- A snapshot beyond the end of its log proves that the log lost its end: the broker does not start, or puts it aside
  (engine/embedded/beside_log.py).
- A waypoint (`.waypoint`) is a file of the same form between two snapshots, for a fold that begins near it. The running
  broker writes and removes waypoints (engine/partition/waypoint_writer.py). A waypoint has no digest, is not synced,
  and is not part of backups and archives.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.schemas.formats import IN_METADATA, other_format

logger = logging.getLogger(__name__)

SUFFIX = ".snapshot"
WAYPOINT = ".waypoint"
PART = ".part"
CUT_SHORT = "cut short, its last record is missing"
FILE_METADATA = (
    "rewindmq.partition",
    "rewindmq.offset",
    "rewindmq.clock_ms",
    "rewindmq.machine_version",
    "rewindmq.digest",
)


def schema_of(namespace: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a file with pieces of these kinds."""
    return {
        "type": "record",
        "name": "Piece",
        "namespace": namespace,
        "doc": "One piece of a partition's folded state.",
        "fields": [
            {
                "name": "kind",
                "type": {"type": "enum", "name": "Kind", "symbols": list(kinds)},
                "doc": "head, queue, chunk (of the queue before it), or end: the SHA-256 of everything before",
            },
            {"name": "queue_id", "type": "long", "doc": "offset of the QueueDeclared that made it; -1 without a queue"},
            {"name": "number", "type": "long", "doc": "the chunk's number, ascending in delivery order; else 0"},
            {"name": "content", "type": "bytes", "doc": "packed by the queue machine"},
        ],
    }


_VERSION = "1"  # of a file of pieces
_SCHEMA = schema_of("rewindmq.snapshot", ("head", "queue", "chunk", "end"))
_BLOCK_BYTES = 16_000  # of an Avro block, before it is compressed


class SnapshotError(Exception):
    """The snapshot cannot be used; the text names the file and the fault."""


class SnapshotSet(Protocol):
    """Snapshots in a directory or in an archive."""

    def partitions(self) -> list[str]:
        """Names of the partitions that have snapshots."""

    def offsets(self, partition: str) -> list[int]:
        """Return the offsets of the partition's snapshots, ascending."""

    def place(self, partition: str, offset: int) -> str:
        """Where a snapshot is, for people."""

    def load(self, partition: str, offset: int) -> Machine:
        """Return the machine as a snapshot holds it.

        Raises SnapshotError."""


class Snapshots:
    """The snapshots of a data directory. `directory` is DIR/snapshots; it need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def take(self, machine: Machine) -> Path:
        """Write the machine's current state, and return the file.

        Raises OSError when the disk does not take it."""
        path = self.path(machine.partition, machine.next_offset)
        write_snapshot(path, metadata_of(machine), state_of(machine))
        return path

    def offsets(self, partition: str) -> list[int]:
        """Return the offsets of the partition's snapshots, ascending."""
        return self._numbers(partition, SUFFIX)

    def partitions(self) -> list[str]:
        """Names of the partitions that have snapshots."""
        found = {path.parent.name for path in self.directory.glob(f"queues-*/{'[0-9]' * 20}{SUFFIX}")}
        return sorted(found)

    def remove_leftovers(self, partition: str) -> None:
        """Remove the unfinished snapshot files of a killed broker. Only the partition's broker may call it."""
        for path in (self.directory / partition).glob(f"{'[0-9]' * 20}.*{PART}"):
            path.unlink()

    def files_beyond(self, partition: str, end: int) -> list[Path]:
        """Return the snapshots and waypoints of states after offset `end`."""
        found = ((offset, kind) for kind in (SUFFIX, WAYPOINT) for offset in self._numbers(partition, kind))
        return [self._path(partition, offset, kind) for offset, kind in found if offset > end]

    def discard_below(self, partition: str, start: int) -> None:
        """Remove the snapshots of states before offset `start`, because the events after them are gone."""
        for offset in self.offsets(partition):
            if offset < start:
                self.path(partition, offset).unlink(missing_ok=True)
        for offset in self._numbers(partition, WAYPOINT):
            if offset < start:
                self.remove_waypoint(partition, offset)

    def nearest(self, partition: str, offset: int) -> Path | None:
        """Return the file of the newest snapshot or waypoint at or before `offset`; None if there is none."""
        at = max((each for each in self.offsets(partition) if each <= offset), default=None)
        near = max((each for each in self._numbers(partition, WAYPOINT) if each <= offset), default=None)
        if near is not None and (at is None or near > at):
            return self._path(partition, near, WAYPOINT)
        return None if at is None else self.path(partition, at)

    # -- waypoints ----------------------------------------------------------------------------------------------------

    def waypoints(self, partition: str) -> list[tuple[int, int]]:
        """Return the offsets of the partition's waypoints, ascending, with the bytes of their files."""
        found = []
        for offset in self._numbers(partition, WAYPOINT):
            with suppress(FileNotFoundError):
                found.append((offset, self._path(partition, offset, WAYPOINT).stat().st_size))
        return found

    def leave_waypoint(
        self, partition: str, offset: int, metadata: Mapping[str, str], pieces: Iterable[dict[str, Any]]
    ) -> int:
        """Write a waypoint, and return the size of its file in bytes. Raises OSError."""
        path = self._path(partition, offset, WAYPOINT)
        write_pieces(path, metadata, pieces, _SCHEMA, _BLOCK_BYTES, durably=False)
        return path.stat().st_size

    def remove_waypoint(self, partition: str, offset: int) -> None:
        """Remove a waypoint, if it is there."""
        self._path(partition, offset, WAYPOINT).unlink(missing_ok=True)

    def load(self, partition: str, offset: int) -> Machine:
        """Return the machine as the snapshot at exactly this offset holds it.

        Raises SnapshotError."""
        return load(self.path(partition, offset))

    def place(self, partition: str, offset: int) -> str:
        """Where a snapshot is, for people."""
        return str(self.path(partition, offset))

    def path(self, partition: str, offset: int) -> Path:
        """Return the path of a snapshot at `offset`, whether the file exists or not."""
        return self._path(partition, offset, SUFFIX)

    def _path(self, partition: str, offset: int, suffix: str) -> Path:
        return self.directory / partition / f"{offset:020d}{suffix}"

    def _numbers(self, partition: str, suffix: str) -> list[int]:
        try:
            names = os.listdir(self.directory / partition)
        except (FileNotFoundError, NotADirectoryError):
            return []
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())


def metadata_of(machine: Machine) -> dict[str, str]:
    """Return the metadata of a file that holds this machine's state."""
    values = (machine.partition, machine.next_offset, machine.clock_ms, machine.machine_version, machine.digest())
    return dict(zip(FILE_METADATA, map(str, values), strict=True))


def waypoint_metadata(machine: Machine) -> dict[str, str]:
    """Return the metadata of a waypoint, without a digest, which would take as long as packing the state."""
    values = (machine.partition, machine.next_offset, machine.clock_ms, machine.machine_version, "")
    return dict(zip(FILE_METADATA, map(str, values), strict=True))


def write_snapshot(path: Path, metadata: Mapping[str, str], pieces: Iterable[dict[str, Any]]) -> None:
    """Write a snapshot, durably. The pieces are those before the last record.

    Raises OSError when the disk does not take it."""
    write_pieces(path, metadata, pieces, _SCHEMA, _BLOCK_BYTES)


def write_pieces(
    path: Path,
    metadata: Mapping[str, str],
    pieces: Iterable[dict[str, Any]],
    schema: dict[str, Any],
    block_bytes: int,
    durably: bool = True,
) -> None:
    """Write a file of pieces, whole or not at all. The pieces are those before the last record.

    `durably`: it survives a power failure.

    Raises OSError when the disk does not take it."""
    import fastavro

    parsed = fastavro.parse_schema(schema)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    try:
        with beside.open("wb") as file:
            records = _with_end(pieces, begin_sum(metadata))
            fastavro.writer(file, parsed, records, "zstandard", block_bytes, {IN_METADATA: _VERSION, **metadata})
            if durably:
                file.flush()
                system_calls.sync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if durably:
        system_calls.sync_directory(folder)


def load(path: Path) -> Machine:
    """Return the machine as a snapshot holds it.

    Raises SnapshotError for a file that is damaged, cut short or not a snapshot."""
    try:
        with path.open("rb") as file:
            return load_from(file, str(path))
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from error


def load_from(file: BinaryIO, place: str) -> Machine:
    """Return the machine as the snapshot in an open file holds it. `place`: names the snapshot for people.

    Raises SnapshotError, OSError."""
    try:
        machine, said = _load(file)
    except (SnapshotError, NewerHistory) as error:
        raise SnapshotError(f"{place}: {error}") from error
    except OSError:
        raise
    except Exception as error:  # damaged bytes can fail in any way at all
        raise SnapshotError(f"{place}: not a readable snapshot ({type(error).__name__}: {error})") from error
    if said and machine.digest() != said:  # a waypoint has none
        raise SnapshotError(f"{place}: its state has the digest {machine.digest()}, and says it were {said}")
    return machine


def _load(file: BinaryIO) -> tuple[Machine, str]:
    """Return the machine, and its expected digest. Besides the machine, one queue at a time is in memory."""
    import fastavro

    reader = fastavro.reader(file)
    metadata = metadata_in(reader, FILE_METADATA)
    pieces = _checked(reader, begin_sum(metadata))
    head = next(pieces)
    machine = Machine.load(metadata["rewindmq.partition"], head["content"], queues_in(pieces))
    return machine, metadata["rewindmq.digest"]


def _checked(pieces: Iterable[Any], sha: "hashlib._Hash") -> Iterator[Any]:
    """Yield the pieces up to the end record, whose checksum must match.

    Raises SnapshotError."""
    for piece in pieces:
        if piece["kind"] == "end":
            require_sum(sha, piece)
            return
        add_piece(sha, piece)
        yield piece
    raise SnapshotError(CUT_SHORT)


def queues_in(pieces: Iterable[Any]) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Yield each queue with its chunks. `pieces`: those of the queues."""
    queue: tuple[bytes, dict[int, bytes]] | None = None
    for piece in pieces:
        if piece["kind"] == "queue":
            if queue is not None:
                yield queue
            queue = (piece["content"], {})
        elif queue is not None:
            queue[1][piece["number"]] = piece["content"]
    if queue is not None:
        yield queue


def _with_end(pieces: Iterable[dict[str, Any]], sha: "hashlib._Hash") -> Iterator[dict[str, Any]]:
    for piece in pieces:
        add_piece(sha, piece)
        yield piece
    yield {"kind": "end", "queue_id": -1, "number": 0, "content": sha.digest()}


def state_of(machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield the pieces of the machine's state."""
    yield {"kind": "head", "queue_id": -1, "number": 0, "content": machine.head()}
    for queue_id, meta, chunks in machine.pieces():
        yield {"kind": "queue", "queue_id": queue_id, "number": 0, "content": meta}
        for number, packed in chunks.items():
            yield {"kind": "chunk", "queue_id": queue_id, "number": number, "content": packed}


def metadata_in(reader: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the metadata with these names in a file of pieces that fastavro reads.

    Raises SnapshotError for another format; KeyError."""
    if (found := reader.metadata.get(IN_METADATA)) != _VERSION:
        raise SnapshotError(other_format(found, _VERSION))
    return {name: reader.metadata[name] for name in names}


def begin_sum(metadata: Mapping[str, str]) -> "hashlib._Hash":
    """Begin the checksum of a snapshot with its metadata."""
    return hashlib.sha256("\n".join(f"{name}={value}" for name, value in metadata.items()).encode())


def require_sum(sha: "hashlib._Hash", end: dict[str, Any]) -> None:
    """Raise SnapshotError unless the last record has the checksum of everything before it."""
    if sha.digest() != end["content"]:
        raise SnapshotError(f"damaged: contents of SHA-256 {sha.hexdigest()}, not the one at their end")


def add_piece(sha: "hashlib._Hash", piece: dict[str, Any]) -> None:
    """Add a record to the checksum."""
    sha.update(f"\n{piece['kind']} {piece['queue_id']} {piece['number']} {len(piece['content'])}\n".encode())
    sha.update(piece["content"])
