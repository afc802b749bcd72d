"""Snapshots: the folded state of one partition at one offset, from which a later fold can begin.

    DIR/snapshots/queues-0/00000000000001000000.snapshot      state after every event below offset 1,000,000

A snapshot is an Avro Object Container File, which any Avro tool reads:

    file metadata   rewindmq.partition, rewindmq.offset, rewindmq.clock_ms, rewindmq.machine_version,
                    rewindmq.digest (of the state: `Machine.digest`, as `Checkpointed` events claim it)
                        record 1        kind head:  the machine's state that belongs to no queue
    then a queue    kind queue: its settings, counters, consumers, unacked, outbox; then kind chunk: its ready messages
    last record     kind end:   SHA-256 over the metadata above and all records before; without it the file is not whole

Rules
- A file appears whole or not at all: it is written under another name, fsynced, renamed, and the directory is fsynced.
- A snapshot holds no bodies (about 30 bytes a message). So all snapshots are kept: they are history's index. Any of
  them may be deleted by hand at any time; a fold then starts from the one before it.
- `load` checks both the checksum and the state's digest.
- A snapshot beyond the end of its log (the log lost its end, or came from a backup) belongs to a history that no longer
  exists: the broker removes it at start, before new events take the same offsets.
"""

import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rewindmq.projections.machine.machine import Machine, NewerHistory

logger = logging.getLogger(__name__)

SUFFIX = ".snapshot"
_METADATA = (
    "rewindmq.partition",
    "rewindmq.offset",
    "rewindmq.clock_ms",
    "rewindmq.machine_version",
    "rewindmq.digest",
)
_SCHEMA = {
    "type": "record",
    "name": "Piece",
    "namespace": "rewindmq.snapshot",
    "doc": "One piece of a partition's folded state.",
    "fields": [
        {
            "name": "kind",
            "type": {"type": "enum", "name": "Kind", "symbols": ["head", "queue", "chunk", "end"]},
            "doc": "head, queue, chunk (of the queue before it), or end: the SHA-256 of everything before",
        },
        {"name": "queue_id", "type": "long", "doc": "offset of the QueueDeclared that made it; -1 without a queue"},
        {"name": "number", "type": "long", "doc": "the chunk's number, ascending in delivery order; else 0"},
        {"name": "content", "type": "bytes", "doc": "packed by the queue machine"},
    ],
}


@functools.cache
def _parsed_schema() -> Any:
    """The schema, parsed for fastavro. A broker loads that with its first snapshot: it takes 3 MB."""
    import fastavro

    return fastavro.parse_schema(_SCHEMA)


class SnapshotError(Exception):
    """The snapshot cannot be used; the text names the file and says what is wrong with it."""


class Snapshots:
    """The snapshots of a data directory. `directory` is DIR/snapshots; it need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def take(self, machine: Machine) -> Path:
        """Write the machine's state as it is now. Returns the file.

        Raises OSError when the disk does not take it."""
        import fastavro

        path = self.path(machine.partition, machine.next_offset)
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}.part")
        values = (machine.partition, machine.next_offset, machine.clock_ms, machine.machine_version, machine.digest())
        metadata = dict(zip(_METADATA, map(str, values), strict=True))
        try:
            with beside.open("wb") as file:
                pieces = _pieces(machine, _begin(metadata))
                fastavro.writer(file, _parsed_schema(), pieces, codec="zstandard", metadata=metadata)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        _sync_directory(folder)
        return path

    def offsets(self, partition: str) -> list[int]:
        """The offsets of the partition's snapshots, ascending."""
        found = (self.directory / partition).glob(f"{'[0-9]' * 20}{SUFFIX}")
        return sorted(int(path.stem) for path in found)

    def partitions(self) -> list[str]:
        """Names of the partitions that have snapshots."""
        found = {path.parent.name for path in self.directory.glob(f"queues-*/{'[0-9]' * 20}{SUFFIX}")}
        return sorted(found)

    def discard_beyond(self, partition: str, end: int) -> None:
        """Remove the snapshots of states after offset `end`."""
        for offset in self.offsets(partition):
            if offset > end:
                path = self.path(partition, offset)
                logger.error("%s: removed, the log of %s ends at offset %d", path, partition, end)
                path.unlink()

    def nearest(self, partition: str, offset: int) -> Path | None:
        """The file of the newest snapshot at or before `offset`; None if there is none."""
        at = max((each for each in self.offsets(partition) if each <= offset), default=None)
        return None if at is None else self.path(partition, at)

    def path(self, partition: str, offset: int) -> Path:
        """The path of a snapshot at `offset`, whether the file exists or not."""
        return self.directory / partition / f"{offset:020d}{SUFFIX}"


def load(path: Path) -> Machine:
    """The machine as a snapshot holds it.

    Raises SnapshotError for a file that is damaged, cut short or not a snapshot."""
    try:
        with path.open("rb") as file:
            machine, said = _load(file)
    except (SnapshotError, NewerHistory) as error:
        raise SnapshotError(f"{path}: {error}") from error
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from error
    except Exception as error:  # damaged bytes can fail in any way at all
        raise SnapshotError(f"{path}: not a readable snapshot ({type(error).__name__}: {error})") from error
    if machine.digest() != said:
        raise SnapshotError(f"{path}: its state has the digest {machine.digest()}, and says it were {said}")
    return machine


def _load(file: BinaryIO) -> tuple[Machine, str]:
    """The machine, and the digest that it must have. Beside the machine one queue at a time is in memory."""
    import fastavro

    reader = fastavro.reader(file)
    metadata = {name: reader.metadata[name] for name in _METADATA}
    sha = _begin(metadata)
    pieces: Iterator[Any] = iter(reader)
    head = next(pieces)
    _add(sha, head)
    machine = Machine.load(metadata["rewindmq.partition"], head["content"], _queues(pieces, sha))
    return machine, metadata["rewindmq.digest"]


def _queues(pieces: Iterator[Any], sha: "hashlib._Hash") -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Yields queue after queue up to the end record, whose checksum must match.

    Raises SnapshotError."""
    queue: tuple[bytes, dict[int, bytes]] | None = None
    for piece in pieces:
        if piece["kind"] == "chunk" and queue is not None:
            queue[1][piece["number"]] = piece["content"]
        elif queue is not None:
            yield queue
            queue = None
        if piece["kind"] == "end":
            if sha.digest() != piece["content"]:
                raise SnapshotError(f"damaged: contents of SHA-256 {sha.hexdigest()}, not the one at their end")
            return
        if piece["kind"] == "queue":
            queue = (piece["content"], {})
        _add(sha, piece)
    raise SnapshotError("cut short, its last record is missing")


def _pieces(machine: Machine, sha: "hashlib._Hash") -> Iterator[dict[str, Any]]:
    for piece in _state(machine):
        _add(sha, piece)
        yield piece
    yield {"kind": "end", "queue_id": -1, "number": 0, "content": sha.digest()}


def _state(machine: Machine) -> Iterator[dict[str, Any]]:
    yield {"kind": "head", "queue_id": -1, "number": 0, "content": machine.head()}
    for queue_id, meta, chunks in machine.pieces():
        yield {"kind": "queue", "queue_id": queue_id, "number": 0, "content": meta}
        for number, packed in chunks.items():
            yield {"kind": "chunk", "queue_id": queue_id, "number": number, "content": packed}


def _begin(metadata: dict[str, str]) -> "hashlib._Hash":
    return hashlib.sha256("\n".join(f"{name}={metadata[name]}" for name in _METADATA).encode())


def _add(sha: "hashlib._Hash", piece: dict[str, Any]) -> None:
    sha.update(f"\n{piece['kind']} {piece['queue_id']} {piece['number']} {len(piece['content'])}\n".encode())
    sha.update(piece["content"])


def _sync_directory(path: Path) -> None:
    """Fsync a directory, so that a new name survives a power failure too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
