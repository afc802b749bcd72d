"""The register of a history: all seals in one order, with signed notes, for readers who trust neither log nor owner.

    DIR/seals.jsonl                   a seal a line; the signed bytes of seal number n are leaf n of a tree (RFC 6962)
    DIR/verifier_key                  the name of the register and its public key, as a witness wants them
    DIR/note                          the newest note with all its signatures
    DIR/notes/SIZE20.note             a note: a checkpoint of C2SP over the first SIZE seals, signed by the sealer
    DIR/notes/SIZE20.cosignatures     signature lines of witnesses
    DIR/notes/SIZE20.tsr              the answer of a time-stamp authority about the bytes of SIZE20.note (RFC 3161)

Seals are appended as they are found in the log, so the seals of all partitions are in one order. A line is never
changed, and a note never replaced, so one cosigned note covers every seal before it. The sealing person keeps the
register away from the log; it is also a file of copies (`--copies DIR/seals.jsonl`). One process writes it at a time. A
crash may leave an unfinished line, which the next process cuts before it adds the seal again.
"""

import base64
import fcntl
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.seals.merkle import Tree, proof, root
from rewindmq.engine.keeping.seals.proof_verifier import (
    MOST_NOTE_BYTES,
    SIGNATURE,
    Note,
    Unsound,
    VerifierKey,
    is_name,
    leaf_hash,
    parsed_note,
    signed_by,
)
from rewindmq.engine.keeping.seals.seal import BadFile, BadSeal, Keys, StoredSeal, parsed_line
from rewindmq.engine.log.whole_file import write_whole
from rewindmq.projections import system_calls

SEALS, NOTES, NEWEST, VERIFIER_KEY = "seals.jsonl", "notes", "note", "verifier_key"


class Register:
    """A register in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._notes = directory / NOTES

    @cached_property
    def seals(self) -> list[StoredSeal]:
        """Return the seals, in the order of the register. Raises BadFile."""
        path = self.directory / SEALS
        lines = self._content(path).split(b"\n")[:-1]
        try:
            return [parsed_line(line, f"{path}:{n}") for n, line in enumerate(lines, 1)]
        except BadSeal as bad:
            raise BadFile(str(bad)) from None

    @cached_property
    def leaves(self) -> list[bytes]:
        """Return the hashes of the leaves of the tree."""
        return [leaf_hash(each.seal.statement) for each in self.seals]

    @property
    def sizes(self) -> list[int]:
        """Return the number of seals that each note covers, ascending."""
        return sorted(int(path.stem) for path in self._notes.glob("*.note") if path.stem.isdecimal())

    def note(self, size: int) -> Note:
        """Return the note over the first `size` seals, with all its signatures.

        Raises BadFile, BadSeal: the note is not over these seals."""
        return self._note(size, root(self.leaves[:size]) if size <= len(self.leaves) else None)

    def _note(self, size: int, wanted: bytes | None) -> Note:
        """Return the note. `wanted`: the root over the first `size` seals."""
        path = self._path(size, "note")
        try:
            note = parsed_note((self._content(path) + self._content(self._path(size, "cosignatures"))).decode())
        except ValueError as error:
            raise BadFile(f"{path}: {error}") from None
        if (note.size, note.root) != (size, wanted):
            raise BadSeal(f"{path}: the seals in {self.directory / SEALS} are not those that the note is over")
        return note

    def signed_note(self, size: int) -> bytes:
        """Return the note as the sealer signed it, without witnesses, the bytes for a time stamp. Raises BadFile."""
        return self._content(self._path(size, "note"))

    def time_stamp(self, size: int) -> bytes:
        """Return the answer of an authority about the note; empty if there is none. Raises BadFile."""
        return self._content(self._path(size, "tsr"))

    def check(self, keys: Keys) -> Iterator[str]:
        """Yield the faults of the notes. Raises BadFile."""
        tree, roots, sizes = Tree(), {}, dict.fromkeys(self.sizes)
        for leaf in self.leaves:
            tree.add(leaf)
            if tree.size in sizes:
                roots[tree.size] = tree.root()
        for size in sizes:
            try:
                self._check_signature(self._note(size, roots.get(size)), keys)
            except BadSeal as bad:
                yield str(bad)

    def way_to(self, digest: str) -> dict[str, Any]:
        """Return the part of a proof that leads from a seal to a note.

        The first note with a time stamp and a witness is used, or the first with one of them, or the first.
        Raises BadFile, BadSeal."""
        entry = self._entries.get(digest)
        sizes = [] if entry is None else [size for size in self.sizes if size > entry]
        if entry is None or not sizes:
            raise BadSeal(f"{self.directory}: no note is over the seal: run 'rewindmq seal --register' with it")
        with_both = (self._path(size, "tsr").exists() + self._path(size, "cosignatures").exists() for size in sizes)
        size = max(zip(with_both, sizes, strict=True), key=lambda each: (each[0], -each[1]))[1]
        note = self.note(size)
        found = {
            "entry": entry,
            "path": [each.hex() for each in proof(self.leaves[:size], entry)],
            "note": note.with_signatures(note.signatures),
        }
        stamp = self.time_stamp(size)
        return found | {"time_stamp": base64.b64encode(stamp).decode()} if stamp else found

    @property
    def digests(self) -> Collection[str]:
        """Return the digests of all seals."""
        return self._entries.keys()

    @cached_property
    def _entries(self) -> dict[str, int]:
        """Return the number of each seal, by its digest."""
        return {each.seal.digest: number for number, each in enumerate(self.seals)}

    def _check_signature(self, note: Note, keys: Keys) -> None:
        try:
            if signed_by(note, [VerifierKey(note.origin, SIGNATURE, key.public_bytes_raw()) for key in keys.values()]):
                return
            raise Unsound("no signature is one of the key")
        except Unsound as error:
            raise BadSeal(f"{self._path(note.size, 'note')}: {error}") from None

    def _path(self, size: int, suffix: str) -> Path:
        return self._notes / f"{size:020d}.{suffix}"

    def _content(self, path: Path) -> bytes:
        """Return the content of a file; empty if it does not exist. Raises BadFile."""
        try:
            if path.parent == self._notes and path.stat().st_size > MOST_NOTE_BYTES:
                raise BadFile(f"{path}: longer than {MOST_NOTE_BYTES} bytes")
            return path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise BadFile(f"{path}: {error.strerror}") from None


class Registrar(Register):
    """A register that this process alone writes."""

    def __init__(self, directory: Path, origin: str | None, key: Ed25519PrivateKey, keys: Keys) -> None:
        """Check the register. `key` signs new notes; `keys`: it, and earlier ones.

        Raises BadFile; BadSeal if seals or notes were changed."""
        super().__init__(directory)
        self._key, self._keys = key, keys
        newest = self.note(self.sizes[-1]) if self.sizes else None
        if newest is not None:
            self._check_signature(newest, keys)
            if origin not in (None, newest.origin):
                raise BadFile(f"{directory}: it is the register {newest.origin}, not {origin}")
            origin = newest.origin
        if origin is None:
            raise BadFile(f"{directory}: a new register needs a name: give --origin, such as example.org/orders")
        if not is_name(origin):
            raise BadFile(f"--origin: {origin!r} is not a valid register name: no space and no + may be in it")
        self.verifier_key = VerifierKey(origin, SIGNATURE, key.public_key().public_bytes_raw())
        write_whole(directory / VERIFIER_KEY, f"{self.verifier_key}\n".encode(), os.rename)

    def add(self, found: Iterable[StoredSeal]) -> None:
        """Append the seals that are not yet in the register, durably."""
        unknown = {each.seal.digest: each for each in found if each.seal.digest not in self._entries}
        new = [each.public for each in unknown.values()]
        if not new:
            return
        with (self.directory / SEALS).open("ab") as file:
            file.write("".join(f"{each.line}\n" for each in new).encode())
            file.flush()
            system_calls.sync(file.fileno())
        for each in new:
            self._entries[each.seal.digest] = len(self.seals)
            self.leaves.append(leaf_hash(each.seal.statement))
            self.seals.append(each)

    def sign(self) -> int:
        """Sign a note over all seals, if there is none, and return the number of seals in the newest note; 0: none."""
        size = len(self.seals)
        if size and size not in self.sizes:
            text = f"{self.verifier_key.name}\n{size}\n{base64.b64encode(root(self.leaves)).decode()}\n"
            note = Note(self.verifier_key.name, size, root(self.leaves), text, [])
            own = (self.verifier_key.name, self.verifier_key.id + self._key.sign(text.encode()))
            self._store(size, "note", note.with_signatures([own]).encode())
        return size

    def add_cosignature(self, size: int, cosignature: tuple[str, bytes]) -> None:
        """Add the cosignature of a witness to a note."""
        line = f"— {cosignature[0]} {base64.b64encode(cosignature[1]).decode()}\n".encode()
        self._store(size, "cosignatures", self._content(self._path(size, "cosignatures")) + line)

    def add_time_stamp(self, size: int, answer: bytes) -> None:
        """Store the answer of a time-stamp authority about a note."""
        self._store(size, "tsr", answer)

    def _store(self, size: int, suffix: str, content: bytes) -> None:
        path = self._path(size, suffix)
        write_whole(path, content, os.rename if suffix == "cosignatures" else os.link)
        system_calls.sync_directory(self._notes)
        if size == self.sizes[-1]:
            note = self.note(size)
            write_whole(self.directory / NEWEST, note.with_signatures(note.signatures).encode(), os.rename)


@contextmanager
def opened(directory: Path, origin: str | None, key: Ed25519PrivateKey, keys: Keys) -> Iterator[Registrar]:
    """Open a register for writing; create it if it does not exist.

    Raises BadFile, also while another process writes it; BadSeal."""
    try:
        (directory / NOTES).mkdir(parents=True, exist_ok=True)
        with (directory / SEALS).open("ab+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadFile(f"{directory}: another process writes this register: try again later") from None
            _cut_torn_line(file.fileno())
            yield Registrar(directory, origin, key, keys)
    except OSError as error:
        raise BadFile(f"{error.filename or directory}: {error.strerror}") from None


def _cut_torn_line(descriptor: int) -> None:
    """Cut off everything after the last line end of a file."""
    end = at = os.fstat(descriptor).st_size
    while at:
        begin = max(0, at - 65_536)
        found = os.pread(descriptor, at - begin, begin).rfind(b"\n")
        if found >= 0:
            at = begin + found + 1
            break
        at = begin
    if at < end:
        os.ftruncate(descriptor, at)
