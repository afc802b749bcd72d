"""The keys under which bodies of messages are encrypted: a directory with two files a key, for all nodes of a log.

    0fc1...9a-1-77e0...c4              32 random bytes: a key, named by its id
    0fc1...9a-1                        that id: the subject's current key in its first generation
    0fc1...9a-1-77e0...c4.destroyed    empty: that key was destroyed. Nobody uses it any more
    .new-...                           what is being made; what a crash leaves of it is removed at the next start

An id is SHA-256 of the subject (40 hex digits), the generation, from 1, and 16 hex digits by chance. Ids of older
versions end with the generation, and the file so named holds the key itself; they go on working.

Rules of this file
- No id comes twice, whatever became of the directory: a subject whose key was lost gets one under another id. So an old
  directory may be put back into the new one, and what was encrypted under either can be read.
- A key is on the disk before anybody can find it: synced, with its name, before it is made the current one. Of two who
  make one at the same time the second finds the first one's, and takes that.
- An erasure ends a generation: the next message has a key of the next one. Whatever key of an ended generation, or of
  one before it, turns up, from wherever, is destroyed by the history's word.
- Destroying marks first, then overwrites, and unlinks. Who reads a key looks for the mark afterwards: if there was none
  yet, nothing was overwritten when he read.
- Nothing of a key is kept in memory here. What fails raises OSError. All may be called in any thread.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Collection
from pathlib import Path

KEY_BYTES = 32  # AES-256
# The history may name others, which are none of ours.
KEY_ID = re.compile(r"([0-9a-f]{40})-([1-9][0-9]{0,8})(-[0-9a-f]{16})?")
LAST_GENERATION = 999_999_999
DESTROYED = ".destroyed"
UNFINISHED = ".new-"
NO_KEYS = Path(os.devnull)  # instead of a directory: there are none


class KeyStore:
    """`erased`: ids of keys that are destroyed by the history's word, whatever is in the directory. None is ever taken
    out of it."""

    def __init__(self, directory: Path, erased: Collection[str] = ()) -> None:
        self.directory = directory
        self._erased = erased
        self._ended: tuple[int, dict[str, int]] = (0, {})  # of so many ids: the last generation that was erased

    def prepare(self) -> None:
        """Make the directory; remove what was left unfinished."""
        self._make_directory()
        for name in os.listdir(self.directory):
            if name.startswith(UNFINISHED):
                _remove(self.directory / name)

    # -- the current key ----------------------------------------------------------------------------------------------

    def find(self, subject: str) -> tuple[str, bytes] | None:
        """The current key of a subject, with its id, if it has one. It is on the disk."""
        return self._look(subject)[1]

    def current(self, subject: str) -> tuple[str, bytes]:
        """The same; made if there is none."""
        while True:
            place, found = self._look(subject)
            if found is not None:
                return found
            self._make(place)

    def _look(self, subject: str) -> tuple[str, tuple[str, bytes] | None]:
        """The first generation that was not ended, and its key if that is here."""
        name = _name(subject)
        for generation in range(self._last_erased(name) + 1, LAST_GENERATION + 1):
            place = f"{name}-{generation}"
            key_id = self._named_in(place)
            key = self.read(key_id)
            if key is not None:
                return place, (key_id, key)
            if not self.is_destroyed(key_id):
                return place, None
        raise OSError(f"{self.directory}: there were too many keys for {name}")

    def _named_in(self, place: str) -> str:
        """The id of the current key; where nothing names one, that of older versions, who may have destroyed theirs."""
        try:
            content = (self.directory / place).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return place
        return _named(place, content) or place

    def _make(self, place: str) -> None:
        """A new key, current from now on unless somebody was faster. Look again."""
        self._make_directory()
        key_id = f"{place}-{secrets.token_hex(8)}"
        self._put(key_id, secrets.token_bytes(KEY_BYTES))
        _sync(self.directory)  # this name has to last. The other need not: who finds that finds the key
        named = self._named_in(place)
        if named != place and self.read(named) is None and not self.is_destroyed(named):
            _remove(self.directory / place)  # it names a key that is not here
        if not self._put(place, key_id.encode()):
            _remove(self.directory / key_id)

    def _put(self, name: str, content: bytes) -> bool:
        """A file that is whole as soon as it is there. False: there is one of that name, or the unfinished one was
        cleared away by a node that starts."""
        unfinished = self.directory / f"{UNFINISHED}{secrets.token_hex(8)}"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, self.directory / name)
        except (FileExistsError, FileNotFoundError):
            return False
        finally:
            _remove(unfinished)
        return True

    # -- keys by their ids --------------------------------------------------------------------------------------------

    def read(self, key_id: str) -> bytes | None:
        """None: it is not here, or was destroyed."""
        if not KEY_ID.fullmatch(key_id):
            return None
        try:
            key = (self.directory / key_id).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.is_destroyed(key_id) or _named(key_id, key) is not None:
            return None
        if len(key) != KEY_BYTES:
            raise OSError(f"{self.directory / key_id}: is no key, it has {len(key)} bytes instead of {KEY_BYTES}")
        return key

    def is_destroyed(self, key_id: str) -> bool:
        return self.is_erased(key_id) or self.is_marked(key_id)

    def is_erased(self, key_id: str) -> bool:
        """By the history's word."""
        if key_id in self._erased:
            return True
        match = KEY_ID.fullmatch(key_id)
        return match is not None and int(match[2]) <= self._last_erased(match[1])

    def _last_erased(self, name: str) -> int:
        counted, ended = self._ended
        if counted != len(self._erased):
            erased, ended = tuple(self._erased), {}
            for match in filter(None, map(KEY_ID.fullmatch, erased)):
                ended[match[1]] = max(int(match[2]), ended.get(match[1], 0))
            self._ended = len(erased), ended
        return ended.get(name, 0)

    def is_marked(self, key_id: str) -> bool:
        """By what the directory says."""
        return KEY_ID.fullmatch(key_id) is not None and os.path.exists(f"{self.directory}/{key_id}{DESTROYED}")

    def is_there(self, key_id: str) -> bool:
        """There is such a key, whatever else is said of it."""
        match = KEY_ID.fullmatch(key_id)
        path = self.directory / key_id
        return match is not None and path.exists() and (bool(match[3]) or _named(key_id, path.read_bytes()) is None)

    def known(self, subject: str) -> list[str]:
        """The ids of all keys that the subject ever had, as far as the directory or the history tells."""
        name = _name(subject)
        found = {each for each in tuple(self._erased) if _is_of(name, each)}
        for each in self._names():
            key_id = each.removesuffix(DESTROYED)
            if _is_of(name, key_id) and (key_id != each or self.is_there(key_id)):
                found.add(key_id)
        return sorted(found, key=by_generation)

    def came_back(self) -> list[str]:
        """The ids of the keys that are there and were erased."""
        return [each for each in sorted(self._names()) if self.is_erased(each) and self.is_there(each)]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def destroy(self, key_id: str) -> None:
        """Done when this returns. It may have been destroyed before, or halfway."""
        assert KEY_ID.fullmatch(key_id), key_id
        mark, path = self.directory / (key_id + DESTROYED), self.directory / key_id
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))
        _sync(self.directory)
        if not self.is_there(key_id):
            return
        try:
            with open(path, "r+b") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:  # somebody else did it
            return
        _remove(path)
        _sync(self.directory)

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync(self.directory.parent)


def by_generation(key_id: str) -> tuple[int, str]:
    match = KEY_ID.fullmatch(key_id)
    return int(match[2]) if match is not None else 0, key_id


def ends(erased: str, key_id: str) -> bool:
    """The erasure of the one key is that of the other, too."""
    one, other = KEY_ID.fullmatch(erased), KEY_ID.fullmatch(key_id)
    return erased == key_id or (
        one is not None and other is not None and one[1] == other[1] and int(one[2]) >= int(other[2])
    )


def _name(subject: str) -> str:
    return hashlib.sha256(subject.encode()).hexdigest()[:40]


def _is_of(name: str, key_id: str) -> bool:
    match = KEY_ID.fullmatch(key_id)
    return match is not None and match[1] == name


def _named(place: str, content: bytes) -> str | None:
    """The id of the current key, where that is what a file says."""
    if len(content) == KEY_BYTES:
        return None
    text = content.decode("ascii", "replace")
    return text if text.startswith(f"{place}-") and KEY_ID.fullmatch(text) else None


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
