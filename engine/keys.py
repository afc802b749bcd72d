"""The keys under which bodies of messages are encrypted: a directory with a file a key, shared by all nodes of a log.

    0fc1...9a-1              32 random bytes. SHA-256 of the subject (40 hex digits), and the number of its key, from 1
    0fc1...9a-1.destroyed    empty: that key was destroyed. Nobody uses it, or makes it once more
    .new-...                 a key that is being made; what a crash leaves of it is removed at the next start

Rules of this file
- A key is whole and on the disk before anybody knows of it: it is synced under another name, then linked. Of two who
  make the same key the second finds the first one's, and takes that.
- Destroying marks first, then overwrites, and unlinks. Who reads a key looks for the mark afterwards: if there was none
  yet, nothing was overwritten when he read.
- A key that was destroyed stays destroyed: the subject's next message has a new one, with the next number.
- Nothing is kept in memory here. What fails raises OSError.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Container, Iterator
from pathlib import Path

KEY_BYTES = 32  # AES-256
KEY_ID = re.compile(r"[0-9a-f]{40}-[1-9][0-9]{0,8}")  # the history may name others, which are none of ours
DESTROYED = ".destroyed"
UNFINISHED = ".new-"
NO_KEYS = Path(os.devnull)  # instead of a directory: there are none


class KeyStore:
    """`erased`: ids of keys that are destroyed by the history's word, whatever is in the directory."""

    def __init__(self, directory: Path, erased: Container[str] = ()) -> None:
        self.directory = directory
        self._erased = erased

    def prepare(self) -> None:
        """Make the directory; remove what was left unfinished."""
        self._make_directory()
        for name in os.listdir(self.directory):
            if name.startswith(UNFINISHED):
                _remove(self.directory / name)

    def current(self, subject: str) -> tuple[str, bytes]:
        """The key of a subject, by its id; made if there is none. It is on the disk."""
        for key_id in _ids(subject):
            if self.is_destroyed(key_id):
                continue
            key = self.read(key_id)
            while key is None and not self.is_destroyed(key_id):
                key = self._make(key_id)
            if key is not None:
                return key_id, key
        raise AssertionError("numbers do not end")

    def read(self, key_id: str) -> bytes | None:
        """None: it is not here, or was destroyed."""
        if not KEY_ID.fullmatch(key_id):
            return None
        try:
            key = (self.directory / key_id).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.is_destroyed(key_id):
            return None
        if len(key) != KEY_BYTES:
            raise OSError(f"{self.directory / key_id}: is no key, it has {len(key)} bytes instead of {KEY_BYTES}")
        return key

    def is_destroyed(self, key_id: str) -> bool:
        return key_id in self._erased or self.is_marked(key_id)

    def is_marked(self, key_id: str) -> bool:
        """By what the directory says."""
        return KEY_ID.fullmatch(key_id) is not None and (self.directory / (key_id + DESTROYED)).exists()

    def is_there(self, key_id: str) -> bool:
        """There is such a file, whatever else is said of the key."""
        return KEY_ID.fullmatch(key_id) is not None and (self.directory / key_id).exists()

    def known(self, subject: str) -> list[str]:
        """The ids of all keys that the subject ever had, as far as the directory or the history tells."""
        found: list[str] = []
        for key_id in _ids(subject):
            if not self.is_there(key_id) and not self.is_destroyed(key_id):
                return found
            found.append(key_id)
        raise AssertionError("numbers do not end")

    def files(self) -> list[str]:
        """The ids of all keys that are there."""
        try:
            return sorted(name for name in os.listdir(self.directory) if KEY_ID.fullmatch(name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def destroy(self, key_id: str) -> None:
        """Done when this returns. It may have been destroyed before, or halfway."""
        assert KEY_ID.fullmatch(key_id), key_id
        mark, path = self.directory / (key_id + DESTROYED), self.directory / key_id
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))
        self._sync_directory()
        try:
            with open(path, "r+b") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            return
        _remove(path)
        self._sync_directory()

    def _make(self, key_id: str) -> bytes | None:
        """A new key; or that of somebody who was faster. None: look again."""
        self._make_directory()
        key = secrets.token_bytes(KEY_BYTES)
        unfinished = self.directory / f"{UNFINISHED}{secrets.token_hex(8)}"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, self.directory / key_id)
        except FileExistsError:
            key = b""
        except FileNotFoundError:  # a node that starts has cleared it away
            return None
        finally:
            _remove(unfinished)
        self._sync_directory()
        return key or self.read(key_id)

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync(self.directory.parent)

    def _sync_directory(self) -> None:
        _sync(self.directory)


def _ids(subject: str) -> Iterator[str]:
    name = hashlib.sha256(subject.encode()).hexdigest()[:40]
    number = 0
    while True:
        number += 1
        yield f"{name}-{number}"


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
