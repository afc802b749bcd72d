"""A copy of a running node's folded state, sent piece by piece as a tar that becomes another node's data directory.

    kafka                       names the history (rewindmq.engine.cluster.start.state_belongs_to)
    snapshots/queues-0/...      snapshots, unchanged (projections/store/snapshots.py)
    state/...                   RocksDB at one moment
    manifest.json               {"format": 1, "node": ..., "files": {"kafka": {"bytes": ..., "sha256": ...}, ...}}

Rules
- Consistent: each partition's state is written with its offset in one batch, and RocksDB copies whole batches. A node
  that starts from the copy folds the events after that offset. Nothing in the copy names a node.
- Whole: the manifest comes last and lists all files, so the receiver refuses a copy that was cut short or changed.
- No secrets except those in queues. Users and their password hashes are in the metadata log, and subjects' keys have a
  separate directory. Bodies of subjects are encrypted in the state as in the log.
- While a copy is sent, DIR/copying links RocksDB's files, so they take room until its end even if RocksDB no longer
  needs them. The directory proves that a copy is in progress. The next start removes the remains of a crash.
"""

import hashlib
import io
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rewindmq.projections import system_calls
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.formats import formatted, values_in

MANIFEST = "manifest.json"
EXPECTED = re.compile(
    r"kafka|snapshots/queues-[0-9]+/[0-9]{20}\.snapshot"
    r"|state/(CURRENT|MANIFEST-[0-9]+|OPTIONS-[0-9]+|[0-9]+\.(sst|log|blob)|rocksdict-config\.json)"
)
PIECE_BYTES = 262_144
_COPYING = "copying"

Files = dict[str, dict[str, int | str]]  # by name: "bytes" and "sha256"


class CopyUnderWay(Exception):
    """Another copy is in progress; a node makes one at a time."""


class BadCopy(Exception):
    """The received bytes are not a whole copy; the text says why."""


class StateCopy:
    """A copy of the state in `data`.

    Its methods may block, so threads call them. Call `close` even if `make` failed."""

    def __init__(self, data: Path, node: str) -> None:
        self._data = data
        self._node = node
        self._directory = data / _COPYING
        self._made = False
        self._busy = threading.Lock()  # `close` waits for a `make` whose caller is gone

    def make(self, store: StateStore) -> None:
        """Copy the current state. Raises CopyUnderWay, StoreError, OSError."""
        with self._busy:
            try:
                self._directory.mkdir()
            except FileExistsError:
                raise CopyUnderWay(f"another copy is under way in {self._directory}") from None
            self._made = True
            store.checkpoint(self._directory / "state")

    def pieces(self) -> Iterator[bytes]:
        """Yield the tar in pieces. Raises OSError if a file cannot be read."""
        files: Files = {}
        for name, path in self._files():
            try:
                file = path.open("rb")
            except FileNotFoundError:
                if name.startswith("snapshots/"):
                    continue  # it may be deleted at any time
                raise
            with file:
                size = os.fstat(file.fileno()).st_size
                yield _header(name, size)
                sha = hashlib.sha256()
                left = size
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise OSError(f"{path} has become shorter")
                    sha.update(piece)
                    left -= len(piece)
                    yield piece
                yield _padding(size)
            files[name] = {"bytes": size, "sha256": sha.hexdigest()}
        manifest = formatted({"node": self._node, "files": files}).encode()
        yield _header(MANIFEST, len(manifest)) + manifest + _padding(len(manifest)) + bytes(2 * tarfile.BLOCKSIZE)

    def _files(self) -> Iterator[tuple[str, Path]]:
        yield "kafka", self._data / "kafka"
        for root, folder in ((self._data, "snapshots"), (self._directory, "state")):
            for path in sorted((root / folder).rglob("*")):
                name = path.relative_to(root).as_posix()
                if EXPECTED.fullmatch(name):  # skips a snapshot that is being written
                    yield name, path

    def close(self) -> None:
        """Remove the copy's directory."""
        with self._busy:
            if self._made:
                shutil.rmtree(self._directory)


def remove_leftovers(data: Path) -> None:
    """Remove the copy of a crashed node. Only the process that has the state open may call it."""
    if (data / _COPYING).exists():
        shutil.rmtree(data / _COPYING)


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# -- the other side ----------------------------------------------------------------------------------------------------


class _Stream(io.RawIOBase):
    """Pieces that look like a file, for tarfile."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def receive(pieces: Iterator[bytes], directory: Path) -> tuple[str, Files]:
    """Write the copy to `directory` durably; return the name of its node, and its files. Raises BadCopy, OSError."""
    files: Files = {}
    manifest = b""
    try:
        with tarfile.open(fileobj=_Stream(pieces), mode="r|", bufsize=PIECE_BYTES) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if manifest or content is None or not (member.name == MANIFEST or EXPECTED.fullmatch(member.name)):
                    raise BadCopy(f"{member.name!r} does not belong in a copy")
                if member.name in files:
                    raise BadCopy(f"{member.name} is in the copy twice")
                if member.name == MANIFEST:
                    manifest = content.read()
                else:
                    files[member.name] = _write(content, directory / member.name)
    except tarfile.TarError as error:
        raise BadCopy(f"the copy is cut short, or not a tar: {error}") from None
    node = _check(manifest, files)
    for folder in {directory, *(path.parent for path in directory.rglob("*"))}:
        system_calls.sync_directory(folder)
    return node, files


def _write(content: IO[bytes], path: Path) -> dict[str, int | str]:
    """Write one file, instead of tarfile, so that the tar decides only expected names and bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sha, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        while piece := content.read(PIECE_BYTES):
            sha.update(piece)
            size += file.write(piece)
        file.flush()
        system_calls.sync(file.fileno())
    return {"bytes": size, "sha256": sha.hexdigest()}


def _check(manifest: bytes, files: Files) -> str:
    """Check the copy against its manifest; return the node's name."""
    if not manifest:
        raise BadCopy("the copy is cut short: its manifest is missing")
    try:
        said = values_in(manifest, f"{MANIFEST} of the copy", BadCopy)
        node, listed = str(said["node"]), dict(said["files"])
    except (ValueError, KeyError, TypeError):
        raise BadCopy("the copy's manifest is not readable") from None
    if wrong := sorted(name for name in listed.keys() | files.keys() if listed.get(name) != files.get(name)):
        raise BadCopy(f"{wrong[0]} is missing, or differs from the manifest")
    if not {"kafka", "state/CURRENT"} <= files.keys():
        raise BadCopy("the copy has no state")
    return node
