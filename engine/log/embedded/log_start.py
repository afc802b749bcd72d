"""The beginning of a partition: offset 0, or the offset up to which older segments were cut off on purpose (cut.py).

    DIR/log/queues-0/00000000000001000000.avro      the first segment that is there; its header states the hash chain
    DIR/bases/queues-0/00000000000001000000.base    the base there (projections/store/bases.py) states the same chain

A first segment above 0 is accepted if something besides it says that the log begins there. Otherwise somebody removed
segments by hand, and the log is refused: CorruptLog, what was before is gone. It is said by the first of these that is
there:

1. the base at its offset
2. a HistoryTrimmed of its offset in the metadata log: the base was lost. Stored state can still go on
3. a cut to a later segment that was begun: OFFSET.cut beside its base (cut.py). `EmbeddedLog.open` ends it
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
    """The bases of the data directory to which a partition's directory belongs."""
    return Bases(data_dir_of(directory) / "bases")


def data_dir_of(directory: Path) -> Path:
    """The data directory to which a partition's directory belongs."""
    return directory.parent.parent


def beginning_of(first: Path, stated: bytes, metadata: Callable[[Path], Iterable[bytes]]) -> tuple[int, bytes]:
    """Offset and hash chain with which the partition of this first segment begins.

    `stated`: the chain that the segment's header states. `metadata`: gives the records of the metadata log in a
    directory. The result is (0, the chain of an empty partition) if nothing says that the log begins with this segment:
    then the segment does not follow on it. Raises CorruptLog."""
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
    """The offset of a cut that was ended half way; None if there is none.

    The log begins above 0, without a base there, and a cut to a later segment was begun. A base at a later segment is
    not enough: a trim that was killed before its event leaves one, too."""
    files = [base_offset_of(path) for path in segment_files(directory)]
    offsets = bases_of(directory).offsets(directory.name)
    if not files or files[0] == 0 or files[0] in offsets:
        return None
    begun = {int(note.stem) for note in cut_notes(directory)}
    return next((each for each in offsets if each in files and each in begun), None)


def cut_notes(directory: Path) -> list[Path]:
    """The notes of cuts of a partition that were begun: OFFSET.cut, beside OFFSET.base."""
    return list((bases_of(directory).directory / directory.name).glob(f"{'[0-9]' * 20}.cut"))


def base_at_start(directory: Path) -> Base | None:
    """The base with which a partition begins, checked whole; None if it begins at offset 0.

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
    """The hash chain that a base states; None if the base is missing, or its first bytes are no metadata."""
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
    """The chain that a HistoryTrimmed of this partition and offset states; None if there is none.

    It reads the whole metadata log: the base is lost, which is rare. Raises CorruptLog."""
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
