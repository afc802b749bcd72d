"""The beginning of a partition: offset 0, or the offset up to which older segments were deliberately cut (cut.py).

    DIR/log/queues-0/00000000000001000000.avro      the first existing segment; its header states the hash chain
    DIR/bases/queues-0/00000000000001000000.base    the base there (projections/store/bases.py) states the same chain

A first segment above 0 is accepted if something else confirms that the log begins there. Otherwise somebody removed
segments by hand, and the log is refused: CorruptLog, the records before it are gone. The first of these that exists
confirms it:

1. the base at its offset
2. a HistoryTrimmed of its offset in the metadata log: the base was lost. Stored state can still continue
3. a begun cut to a later segment: OFFSET.cut beside its base (cut.py). `EmbeddedLog.open` completes it
4. DIR/log/archive.json: the older segments are in an archive
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.embedded.segments import base_offset_of, container_metadata, segment_files
from rewindmq.projections.store.bases import Base, BaseError, Bases
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.metadata_events import HistoryTrimmed

ARCHIVE = "archive.json"
_HEADER_BYTES = 1 << 20


def bases_of(directory: Path) -> Bases:
    """Return the bases of the data directory to which a partition's directory belongs."""
    return Bases(data_dir_of(directory) / "bases")


def data_dir_of(directory: Path) -> Path:
    """Return the data directory to which a partition's directory belongs."""
    return directory.parent.parent


def beginning_of(first: Path, stated: bytes, metadata: Callable[[Path], Iterable[bytes]]) -> tuple[int, bytes]:
    """Offset and hash chain with which the partition of this first segment begins.

    `stated`: the chain in the segment's header. `metadata`: returns the records of the metadata log in a directory. The
    result is (0, the chain of an empty partition), which the segment does not continue, if nothing confirms that the
    log begins with it. Raises CorruptLog."""
    directory, offset = first.parent, base_offset_of(first)
    nothing = 0, first_chain(directory.name)
    if offset == 0 or directory.name == METADATA:
        return nothing
    bases = bases_of(directory)
    chain = chain_of(bases.path(directory.name, offset))
    if chain is None:
        chain = _trimmed_chain(directory, offset, metadata)
    if chain is not None:
        return offset, chain
    half_cut = unfinished_cut(directory) is not None
    if half_cut or (directory.parent / ARCHIVE).exists():
        return offset, stated
    return nothing


def unfinished_cut(directory: Path) -> int | None:
    """Return the offset of an interrupted cut; None if there is none.

    The log begins above 0, without a base there, and a cut to a later segment was begun. A base at a later segment is
    not enough, because a trim that was killed before its event also leaves one."""
    files = [base_offset_of(path) for path in segment_files(directory)]
    offsets = bases_of(directory).offsets(directory.name)
    if not files or files[0] == 0 or files[0] in offsets:
        return None
    begun = {int(note.stem) for note in cut_notes(directory)}
    return next((each for each in offsets if each in files and each in begun), None)


def cut_notes(directory: Path) -> list[Path]:
    """Return the notes of a partition's begun cuts: OFFSET.cut, beside OFFSET.base."""
    return list((bases_of(directory).directory / directory.name).glob(f"{'[0-9]' * 20}.cut"))


def base_at_start(directory: Path) -> Base | None:
    """Return the base with which a partition begins, checked whole; None if it begins at offset 0.

    Raises LogError if the base is missing or damaged."""
    files = segment_files(directory)
    offset = base_offset_of(files[0]) if files else 0
    if offset == 0 or directory.name == METADATA:
        return None
    try:
        return bases_of(directory).open(directory.name, offset)
    except BaseError as error:
        raise LogError(f"{directory.name} begins at offset {offset}, and its base cannot be used: {error}") from None


def chain_of(path: Path) -> bytes | None:
    """Return the hash chain in a base; None if the base is missing, or its first bytes are not metadata."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        metadata, _ = container_metadata(os.pread(descriptor, _HEADER_BYTES, 0))
        chain = bytes.fromhex(metadata[b"rewindmq.chain"].decode())
    except (OSError, ValueError, IndexError, KeyError):
        return None
    finally:
        os.close(descriptor)
    return chain if len(chain) == 32 else None


def _trimmed_chain(directory: Path, offset: int, metadata: Callable[[Path], Iterable[bytes]]) -> bytes | None:
    """Return the chain in a HistoryTrimmed of this partition and offset; None if there is none.

    It reads the whole metadata log, because a lost base is rare. Raises CorruptLog."""
    if not (directory.parent / METADATA).is_dir():
        return None
    decode, needle = Decoder().decode, directory.name.encode()
    for record in metadata(directory.parent / METADATA):
        if needle not in record:
            continue
        try:
            event = decode(record)[2]
        except UndecodableRecord:
            continue
        if isinstance(event, HistoryTrimmed) and (event.partition, event.offset) == (directory.name, offset):
            return event.chain
    return None
