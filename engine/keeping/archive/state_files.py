"""Archived snapshots and bases: unchanged files in the archive, under names derived from their bytes.

    entry = archive_file(manifest, Bases(data_dir / "bases").path("queues-0", 1_000), BaseEntry)
    prove_file(manifest, entry)                 is read, and compared with the manifest
    fetch_file(manifest, entry, path)           ... and written to a file
    base = archived_base(manifest, entry)       ... and opened
    base = floor_base(manifest)                 the base at the beginning of the archived history

None is returned before its SHA-256 has been compared with the one in the manifest.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from rewindmq.engine.keeping.archive.manifest import BaseEntry, FileEntry, Manifest, SnapshotEntry, StoredObject, now_ms
from rewindmq.engine.keeping.archive.objects import MissingObject
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.log.contract import LogError
from rewindmq.projections import system_calls
from rewindmq.projections.store.bases import SUFFIX, Base, BaseError

F = TypeVar("F", SnapshotEntry, BaseEntry)


class OtherBase(LogError):
    """A base other than the one with which a history was trimmed."""


def archive_file(manifest: Manifest, path: Path, kind: type[F]) -> F:
    """Archive a snapshot or a base, a file named after its offset, and return its entry.

    Raises FileNotFoundError, ArchiveError, NoAnswer."""
    with path.open("rb") as file:
        sha256, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        name = f"{path.stem}-{sha256[:16]}{path.suffix}"
        entry = kind(int(path.stem), StoredObject(name, size, sha256), now_ms())
        manifest.objects.create(manifest.key(entry, entry.object), file)
    prove_file(manifest, entry)
    return manifest.extend(entry)


def prove_file(manifest: Manifest, entry: FileEntry) -> None:
    """Read an archived snapshot or base, and check it against its entry.

    Raises CorruptObject, NoAnswer."""
    for _ in proven_pieces(manifest, entry):
        pass


def proven_pieces(manifest: Manifest, entry: FileEntry) -> Iterator[bytes]:
    """Yield the bytes of an archived snapshot or base, and finally check them against its entry.

    Raises CorruptObject, NoAnswer."""
    key = manifest.key(entry, entry.object)
    sha = hashlib.sha256()
    try:
        for piece in manifest.objects.pieces(key):
            sha.update(piece)
            yield piece
    except MissingObject:
        raise CorruptObject(manifest.objects.place(key), 0, entry.offset, "the object is gone") from None
    if sha.hexdigest() != entry.object.sha256:
        why = "its SHA-256 is not the one in the manifest"
        raise CorruptObject(manifest.objects.place(key), 0, entry.offset, why)


def fetch_file(manifest: Manifest, entry: FileEntry, path: Path) -> None:
    """Write an archived snapshot or base to a file: whole, proven and durable, or not at all.

    Raises CorruptObject, NoAnswer, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"_{path.name}.part")
    with new.open("wb") as file:
        for piece in proven_pieces(manifest, entry):
            file.write(piece)
        file.flush()
        os.fchmod(file.fileno(), 0o640)
        system_calls.sync(file.fileno())
    new.replace(path)
    system_calls.sync_directory(path.parent)


def archived_base(manifest: Manifest, entry: BaseEntry) -> Base:
    """Open an archived base. Its bytes are in a nameless file, which ends with the Base.

    Raises CorruptObject, NoAnswer, OSError."""
    place = manifest.objects.place(manifest.key(entry, entry.object))
    file = tempfile.TemporaryFile()  # noqa: SIM115  the Base reads it
    for piece in proven_pieces(manifest, entry):
        file.write(piece)
    file.flush()
    try:
        return Base(Path(place).parent.parent / manifest.partition / f"{entry.offset:020d}{SUFFIX}", file)
    except BaseError as error:  # its bytes are those archived
        raise CorruptObject(place, 0, entry.offset, str(error)) from None


def prove_base_of(base: Base, chain: bytes, digest: str) -> None:
    """Check that a base is the one with which a history was trimmed, and that its state has the stated digest.

    Raises OtherBase."""
    try:
        base.machine()
    except BaseError as error:
        raise OtherBase(str(error)) from None
    if (base.chain, base.digest) != (chain, digest):
        raise OtherBase(f"{base.path}: another base than the one with which {base.partition} was trimmed")


def sound_base(manifest: Manifest, offset: int, chain: bytes, digest: str) -> tuple[BaseEntry, Base]:
    """Return the archived base with this chain and digest, and its entry; of several at the offset the last sound one.

    Raises CorruptObject, OtherBase if none is sound, NoAnswer, OSError."""
    wrong: LogError = OtherBase(f"{manifest.objects.url}: no base of {manifest.partition} is archived at {offset}")
    for entry in reversed(manifest.bases):
        if entry.offset == offset:
            try:
                base = archived_base(manifest, entry)
                prove_base_of(base, chain, digest)
            except (CorruptObject, OtherBase) as error:  # another one may be archived
                wrong = error
            else:
                return entry, base
    raise wrong


def floor_base(manifest: Manifest) -> Base | None:
    """Return the base at the floor of an archived partition; None if it begins at offset 0.

    Raises as `sound_base`."""
    if not manifest.trims:
        return None
    trim = manifest.trims[-1]
    return sound_base(manifest, trim.offset, trim.chain, trim.digest)[1]
