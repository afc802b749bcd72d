"""Bases: the state of a partition at an offset, with the records of all messages that were queued there.

    DIR/bases/queues-0/00000000000001000000.base      queues-0 can begin at offset 1,000,000: older records may go

    base = Bases(data_dir / "bases").open("queues-0", 1_000_000)
    machine = base.machine()                           # a fold continues from here with the record 1,000,000
    for offset, record in base.records(): ...          # the publish of each message that the machine holds

A base is a file like a snapshot (snapshots.py), with one more kind of piece:

    file metadata   that of a snapshot; rewindmq.chain (the log's hash chain before the offset)
    pieces          head, then queue and its chunks, as in a snapshot
    then a message  kind record: number = its offset, content = its publish, as the log had it
    last record     kind end, as in a snapshot

Rules
- A base holds the records of exactly the messages that are ready, unacked or in an outbox, so that a queued message
  keeps its body when the log below the offset is removed.
- A record of a schema newer than the machine's version is written under that version's schema, because a program that
  knows no later one may have to read the base.
- `open` reads the whole file and checks its checksum. `machine` checks the state's digest.
- A file appears whole or not at all, and is durable when `write` returns.
"""

import io
import mmap
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.machine.rules import versions
from rewindmq.projections.store.projector import live_ids
from rewindmq.projections.store.snapshots import (
    CUT_SHORT,
    FILE_METADATA,
    PART,
    SnapshotError,
    add_piece,
    begin_sum,
    metadata_in,
    metadata_of,
    queues_in,
    require_sum,
    schema_of,
    state_of,
    write_pieces,
)
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.registry import released_in_order
from rewindmq.schemas.single_object import header_of

SUFFIX = ".base"
_SCHEMA = schema_of("rewindmq.base", ("head", "queue", "chunk", "record", "end"))
_METADATA = (*FILE_METADATA, "rewindmq.chain")
BLOCK_BYTES = 64 << 10  # of an Avro block, before it is compressed: `Base.record` reads one


class BaseError(Exception):
    """The base cannot be used; the text names the file and the fault."""


class BaseGone(BaseError):
    """The base no longer exists: the history was trimmed past it, or a person removed the file."""


class Base:
    """A checked base in a file. `chain`: the log's hash chain before `offset`. `digest`: that of the state."""

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        """Read and check the file. `file`: its bytes, if they are elsewhere; `path` then only names it.

        Raises BaseError."""
        self.path = path
        self._file = file
        self._blocks: list[tuple[int, int, int]] = []  # of those with records: offset of the first, position, size
        self._header_bytes = 0
        self._recent: tuple[int, dict[int, bytes]] = (-1, {})  # number of the block that was read last, its records
        try:
            metadata = self._check()
            partition, offset, clock_ms, _, digest, chain = metadata.values()
            self.partition, self.offset, self.clock_ms = partition, int(offset), int(clock_ms)
            self.digest, self.chain = digest, bytes.fromhex(chain)
        except OSError as error:
            raise self._unreadable(error) from error
        except SnapshotError as error:
            raise BaseError(f"{path}: {error}") from error
        except Exception as error:  # damaged bytes can fail in any way at all
            raise BaseError(f"{path}: not a readable base ({type(error).__name__}: {error})") from error
        if (self.partition, f"{self.offset:020d}") != (path.parent.name, path.stem):
            raise BaseError(f"{path}: it is of {self.partition} at offset {self.offset}")

    def _unreadable(self, error: OSError) -> BaseError:
        gone = isinstance(error, FileNotFoundError)
        return (BaseGone if gone else BaseError)(f"{self.path}: {error.strerror}")

    def _opened(self) -> AbstractContextManager[Any]:
        """Return the bytes, with their own position."""
        if self._file is None:
            return self.path.open("rb")
        return closing(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def _check(self) -> dict[str, str]:
        """Read all pieces, note where the records are, and check the sum. Returns the metadata.

        Raises SnapshotError."""
        import fastavro

        with self._opened() as file:
            reader = fastavro.block_reader(file)
            metadata = metadata_in(reader, _METADATA)
            sha = begin_sum(metadata)
            for block in reader:
                self._header_bytes = self._header_bytes or block.offset
                first = -1
                for piece in block:
                    assert isinstance(piece, dict), "the schema is that of a record"
                    if piece["kind"] == "end":
                        require_sum(sha, piece)
                        self._note(first, block)
                        return metadata
                    if piece["kind"] == "record" and first < 0:
                        first = piece["number"]
                    add_piece(sha, piece)
                self._note(first, block)
        raise SnapshotError(CUT_SHORT)

    def _note(self, first: int, block: Any) -> None:
        if first >= 0:
            self._blocks.append((first, block.offset, block.size))

    def machine(self) -> Machine:
        """Return the state as the base holds it.

        Raises BaseError if its digest is not the one in the base; BaseGone; NewerHistory."""
        pieces = self._pieces()
        try:
            head = next(pieces)
            machine = Machine.load(self.partition, head["content"], queues_in(pieces))
        except (BaseError, NewerHistory):
            raise
        except Exception as error:  # the checksum is right, so a program wrote it this way
            raise BaseError(f"{self.path}: its state cannot be read: {error}") from error
        if (machine.digest(), machine.next_offset) != (self.digest, self.offset):
            what = f"offset {machine.next_offset} and digest {machine.digest()}"
            raise BaseError(f"{self.path}: its state has {what}, and says {self.offset} and {self.digest}")
        return machine

    def _pieces(self) -> Iterator[dict[str, Any]]:
        """Yield the pieces of the state: those before the first record."""
        import fastavro

        try:
            with self._opened() as file:
                for piece in fastavro.reader(file):
                    assert isinstance(piece, dict), "the schema is that of a record"
                    if piece["kind"] in ("record", "end"):
                        return
                    yield piece
        except OSError as error:
            raise self._unreadable(error) from error

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and record of each queued message's publish, ascending.

        Raises BaseGone, BaseError."""
        for number in range(len(self._blocks)):
            yield from self._block(number).items()

    def record(self, offset: int) -> bytes | None:
        """Return the record of a queued message's publish; None if the base holds no record with this offset.

        Raises BaseGone, BaseError."""
        number = bisect_right(self._blocks, offset, key=lambda block: block[0]) - 1
        if number < 0:
            return None
        if self._recent[0] != number:
            self._recent = number, self._block(number)
        return self._recent[1].get(offset)

    def _block(self, number: int) -> dict[int, bytes]:
        """Return the records of one Avro block, by offset."""
        import fastavro

        _, position, size = self._blocks[number]
        try:
            with self._opened() as file:
                header = file.read(self._header_bytes)
                file.seek(position)
                pieces: Iterable[Any] = fastavro.reader(io.BytesIO(header + file.read(size)))
                return {piece["number"]: piece["content"] for piece in pieces if piece["kind"] == "record"}
        except OSError as error:
            raise self._unreadable(error) from error
        except Exception as error:  # it was sound when it was opened
            raise BaseError(f"{self.path}: not a readable base ({type(error).__name__}: {error})") from error


class Bases:
    """The bases of a data directory. `directory` is DIR/bases; it need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, machine: Machine, chain: bytes, records: Iterable[tuple[int, bytes]]) -> Path:
        """Write a base of the machine's state as it is now, durably. Returns the file.

        `chain`: the log's hash chain before `machine.next_offset`. `records`: offset and record of the publishes of
        `queued_offsets(machine)`, in this order. Raises BaseError if the records differ, OSError if the disk refuses to
        write."""
        path = self.path(machine.partition, machine.next_offset)
        metadata = metadata_of(machine) | {"rewindmq.chain": chain.hex()}
        into = _known_by(versions.schema_of(machine.machine_version))
        write_pieces(path, metadata, _pieces(machine, records, into), _SCHEMA, BLOCK_BYTES)
        for folder in (self.directory, self.directory.parent):  # they may be new
            system_calls.sync_directory(folder)
        return path

    def offsets(self, partition: str) -> list[int]:
        """Return the offsets of the partition's bases, ascending."""
        found = (self.directory / partition).glob(f"{'[0-9]' * 20}{SUFFIX}")
        return sorted(int(path.stem) for path in found)

    def open(self, partition: str, offset: int) -> Base:
        """Return the base at exactly this offset, checked whole.

        Raises BaseError if it is damaged or missing."""
        return Base(self.path(partition, offset))

    def discard_below(self, partition: str, start: int) -> None:
        """Remove the bases below offset `start`, where the partition begins."""
        for offset in self.offsets(partition):
            if offset < start:
                self.path(partition, offset).unlink(missing_ok=True)

    def remove_leftovers(self, partition: str, seconds: float = 0) -> None:
        """Remove the files of bases that a killed program was writing, if nothing was written for `seconds`.

        No other program may take that long to write one."""
        for path in (self.directory / partition).glob(f"{'[0-9]' * 20}.*{PART}"):
            with suppress(FileNotFoundError):  # it was completed, or is already removed
                if time.time() - path.stat().st_mtime >= seconds:
                    path.unlink()

    def path(self, partition: str, offset: int) -> Path:
        """Return the path of a base at `offset`, whether the file exists or not."""
        return self.directory / partition / f"{offset:020d}{SUFFIX}"


def queued_offsets(machine: Machine) -> list[int]:
    """Return the offsets of the publishes of all messages that the machine holds, ascending, each once."""
    found: set[int] = set()
    for queue in machine.by_id.values():
        found.update(live_ids(queue))
    return sorted(found)


def _known_by(schema: str) -> Callable[[bytes], bytes]:
    """Return a function that converts records of later schemas to this one, and leaves others unchanged."""
    encoder, decode, released = encoder_under(schema), Decoder().decode, released_in_order()
    known = tuple(header_of(each) for each in released[: released.index(schema) + 1])

    def into(record: bytes) -> bytes:
        if record.startswith(known):
            return record
        timestamp_ms, actor, event = decode(record)
        return encoder.encode(encoder.prefix(timestamp_ms, actor), event)

    return into


def _pieces(
    machine: Machine, records: Iterable[tuple[int, bytes]], into: Callable[[bytes], bytes]
) -> Iterator[dict[str, Any]]:
    yield from state_of(machine)
    wanted = iter(queued_offsets(machine))
    for offset, record in records:
        expected = next(wanted, None)
        if offset != expected:
            raise BaseError(f"{machine.partition}: the record {offset} was given for a base, and {expected} is due")
        yield {"kind": "record", "queue_id": -1, "number": offset, "content": into(record)}
    missing = next(wanted, None)
    if missing is not None:
        raise BaseError(f"{machine.partition}: a base needs the record of the queued message {missing}")
