"""The keys that encrypt bodies of messages: a directory with two files a key, for all nodes of a log.

    0fc1...9a-1-77e0...c4              "rwmqkey1", then 32 random bytes: a key, named by its id. Or one that a Vault has
                                       sealed
    0fc1...9a-1                        "rwmqkey1", then that id: the subject's current key in its first generation
    0fc1...9a-1-77e0...c4.destroyed    a tombstone, empty: that key was destroyed, and is used no more
    .new-...                           a file under construction; the next start removes what a crash has left
    vault.json                         where the Vault is that seals new keys (vault.py); without it they are plain

An id is a name (40 hex digits), the generation, from 1, and 16 random hex digits. A name is

    SHA-256 of the subject, 40 digits                         a key of the subject
    24 of these digits, eight zeros, the day as 20261123      a key of the subject and this day
    the same with the empty subject                           the day's key, for messages without a subject

Rules of this file
- No id is used twice, even if the directory is lost: a subject whose key was lost gets a new key under another id.
  So an old directory may be put back into the new one, and messages under either key can be read.
- A key is on the disk before anybody can find it: the file and its name are synced before it becomes the current key.
  If two nodes make a key at the same time, the second one finds the first one's and takes that.
- An erasure ends a generation of a subject: the next message has a key of the next generation. A key of an ended
  generation, or of one before it, is destroyed wherever it comes from, because the history says so. This holds for all
  days of the subject. The end of a day ends the keys that the history names, and no generation.
- A key is destroyed in this order: tombstone, Vault, overwrite, unlink. A reader looks for the tombstone after it has
  read the key, and after a Vault has opened it: if there was none yet, nothing was destroyed when it read.
- No key is kept in memory here (vault.py keeps opened ones for a time). Failures raise OSError. Every function may be
  called in any thread. In the loop only with `at_hand`, which never asks a Vault: it raises NotAtHand instead.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import date
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.config import VaultPlace
from rewindmq.engine.erasure.key_content import KEY_BYTES, is_key, is_sealed
from rewindmq.projections import system_calls
from rewindmq.projections.topology.about_history import Erasure, ExpiredDay
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.formats import formatted, other_magic, values_in

if TYPE_CHECKING:
    from rewindmq.engine.erasure.vault import Vault

NOTE = "vault.json"
MAGIC = b"rwmqkey1"
# The history may name ids of another form, which this broker has not made.
KEY_ID = re.compile(r"([0-9a-f]{40})-([1-9][0-9]{0,8})-[0-9a-f]{16}")
DIGITS = 24  # of a subject's hash, in every name of it
DATED = re.compile(r"[0-9a-f]{24}0{8}([0-9]{4})([0-9]{2})([0-9]{2})-")
NOBODY = ""  # the subject of a day's key
LAST_GENERATION = 999_999_999
TOMBSTONE = ".destroyed"
UNFINISHED = ".new-"
ASKED_FOR = 20  # keys that another Vault is asked for: some may have been destroyed there
NO_KEYS = Path(os.devnull)  # as the directory: there are no keys


class KeyStore:
    """The directory of keys. `erased`: ids of keys that were destroyed according to the history. They count as
    destroyed even if the directory has them. `erasures`: those of subjects, which end generations; None: each id in
    `erased` does. `expired`: the days that are over. These collections only grow."""

    def __init__(
        self,
        directory: Path,
        erased: Collection[str] = (),
        erasures: Collection[Erasure] | None = None,
        expired: Mapping[str, ExpiredDay] | None = None,
    ) -> None:
        self.directory = directory
        self._erased = erased
        self._erasures = erasures
        self._expired = {} if expired is None else expired
        self._ended: tuple[int, dict[str, int]] = (0, {})  # of so many: the last erased generation, by subject

    @classmethod
    def of(cls, directory: Path, topology: Topology) -> "KeyStore":
        """The directory of a history with this topology, which may go on."""
        return cls(directory, topology.erased_keys, topology.erasures, topology.history.expired_days)

    def frozen(self) -> "KeyStore":
        """The same with the history as it is now, for another process."""
        erasures = None if self._erasures is None else tuple(self._erasures)
        return KeyStore(self.directory, frozenset(self._erased), erasures, dict(self._expired))

    def prepare(self) -> None:
        """Make the directory, and remove unfinished files."""
        self._make_directory()
        for name in os.listdir(self.directory):
            if name.startswith(UNFINISHED):
                _remove(self.directory / name)

    # -- the Vault ----------------------------------------------------------------------------------------------------

    def use_vault(self, place: VaultPlace) -> None:
        """Let a Vault seal new keys from now on, and note its place in the directory.

        OSError: another Vault has sealed the keys that are here, and this one has none of them, or does not answer."""
        before = self._place()
        if before == place:
            return
        if before is not None and before.engine != place.engine:
            self._require_held(place, before)
        self._make_directory()
        unfinished = self.directory / f"{UNFINISHED}{secrets.token_hex(8)}"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(formatted(asdict(place)))
            file.flush()
            system_calls.sync(file.fileno())
        os.replace(unfinished, self.directory / NOTE)
        system_calls.sync_directory(self.directory)

    def _require_held(self, place: VaultPlace, before: VaultPlace) -> None:
        """Check that a Vault has at least one of the keys that were sealed so far.

        Else an erasure would be told as done, because that Vault does not have the key, and the former one would go on
        opening it."""
        from rewindmq.engine.erasure.vault import vault_at

        contents = ((each, self.content(each)) for each in sorted(self._names()))
        sealed = list(islice((each for each, content in contents if content and is_sealed(content)), ASKED_FOR))
        vault = vault_at(place)
        if sealed and not any(vault.has(each) for each in sealed):
            raise OSError(
                f"the Vault at {place.url}, {place.mount} has none of the keys that {before.url}, {before.mount}"
                " sealed: name that one, or bring its transit keys here"
            )

    def vault(self) -> "Vault | None":
        """The Vault that the directory names; None: keys are plain files."""
        place = self._place()
        if place is None:
            return None
        from rewindmq.engine.erasure.vault import vault_at  # a broker without a Vault has no use for it

        return vault_at(place)

    def _place(self) -> VaultPlace | None:
        try:
            return VaultPlace(**values_in((self.directory / NOTE).read_bytes(), self.directory / NOTE, OSError))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError) as error:
            raise OSError(f"{self.directory / NOTE}: does not say where a Vault is: {error}") from None

    def _opener(self, key_id: str) -> "Vault":
        vault = self.vault()
        if vault is None:
            why = f"a Vault has sealed it, and {NOTE}, which says where that is, is missing: start with --vault"
            raise OSError(f"{self.directory / key_id}: {why}")
        return vault

    def is_held(self, key_id: str) -> bool:
        """Return True if a Vault still has the means to open the key. OSError: the Vault does not answer."""
        vault = self.vault()
        return vault is not None and vault.has(key_id)

    # -- the current key ----------------------------------------------------------------------------------------------

    def find(self, subject: str, day: str = "", at_hand: bool = False) -> tuple[str, bytes] | None:
        """The id and the current key of a subject, or None. The key is on the disk. `day`: of this day only."""
        return self._look(subject, day, at_hand)[1]

    def current(self, subject: str, day: str = "") -> tuple[str, bytes]:
        """As `find`; a key is made if there is none."""
        while True:
            place, found = self._look(subject, day)
            if found is not None:
                return found
            self._make(place)

    def _look(self, subject: str, day: str, at_hand: bool = False) -> tuple[str, tuple[str, bytes] | None]:
        """The name of the first generation that was not ended, and its key if that is here."""
        name = name_of(subject, day)
        for generation in range(self._last_erased(name) + 1, LAST_GENERATION + 1):
            place = f"{name}-{generation}"
            key_id = self._named_in(place)
            if key_id is None:
                return place, None
            key = self.read(key_id, at_hand)
            if key is not None:
                return place, (key_id, key)
            if not self.is_destroyed(key_id):
                return place, None
        raise OSError(f"{self.directory}: there were too many keys for {name}")

    def _named_in(self, place: str) -> str | None:
        """The id of the current key; None if no file names one."""
        try:
            named = self._bare(place, (self.directory / place).read_bytes()).decode("ascii", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not (named.startswith(f"{place}-") and KEY_ID.fullmatch(named)):
            raise OSError(f"{self.directory / place}: does not name a key")
        return named

    def _make(self, place: str) -> None:
        """Make a new current key, unless somebody was faster. The caller looks again."""
        self._make_directory()
        key_id = f"{place}-{secrets.token_hex(8)}"
        vault = self.vault()
        self._put(key_id, secrets.token_bytes(KEY_BYTES) if vault is None else vault.make(key_id)[1])
        # This name has to last. The other need not: a reader that finds that one finds the key.
        system_calls.sync_directory(self.directory)
        named = self._named_in(place)
        if named is not None and self.read(named) is None and not self.is_destroyed(named):
            _remove(self.directory / place)  # it names a key that is not here
        if not self._put(place, key_id.encode()):
            _remove(self.directory / key_id)
            if vault is not None:
                vault.destroy(key_id)

    def _bare(self, name: str, stored: bytes) -> bytes:
        """The content of a file without the bytes that say its format. OSError: it is of another one."""
        if not stored.startswith(MAGIC):
            why = other_magic(stored, MAGIC) or "not a file of keys that this program writes"
            raise OSError(f"{self.directory / name}: {why}")
        return stored[len(MAGIC) :]

    def _put(self, name: str, content: bytes) -> bool:
        """Make a file that is whole as soon as it has its name; an empty one is a tombstone. False: there is a file of
        that name, or a node that starts has removed the unfinished one."""
        unfinished = self.directory / f"{UNFINISHED}{secrets.token_hex(8)}"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(MAGIC + content if content else b"")
            file.flush()
            system_calls.sync(file.fileno())
        try:
            os.link(unfinished, self.directory / name)
        except (FileExistsError, FileNotFoundError):
            return False
        finally:
            _remove(unfinished)
        return True

    # -- keys by their ids --------------------------------------------------------------------------------------------

    def read(self, key_id: str, at_hand: bool = False) -> bytes | None:
        """The key of this id; None: it is not here, or was destroyed. `at_hand`: NotAtHand if a Vault has to open."""
        content = self.content(key_id)
        if content is None or not is_sealed(content):
            return content
        vault = self._opener(key_id)
        key = vault.at_hand(key_id) if at_hand else vault.open(key_id, content)
        if self.is_destroyed(key_id):  # meanwhile
            vault.forget(key_id)
            return None
        return key

    def content(self, key_id: str) -> bytes | None:
        """The content of the key's file: the key, or the key as a Vault has sealed it. None as of `read`."""
        if not KEY_ID.fullmatch(key_id):
            return None
        try:
            stored = (self.directory / key_id).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.is_destroyed(key_id):  # then other bytes may be there already
            return None
        content = self._bare(key_id, stored)
        if not is_key(content):
            raise OSError(f"{self.directory / key_id}: is no key, it has {len(content)} bytes instead of {KEY_BYTES}")
        return content

    def is_destroyed(self, key_id: str) -> bool:
        """Return True if the key was destroyed, according to the history or the directory."""
        return self.is_erased(key_id) or self.has_tombstone(key_id)

    def is_erased(self, key_id: str) -> bool:
        """Return True if the history says that the key was destroyed."""
        return key_id in self._erased or self._is_ended(key_id)

    def _is_ended(self, key_id: str) -> bool:
        """Return True if the generation of the key was ended because its subject was erased."""
        match = KEY_ID.fullmatch(key_id)
        return match is not None and int(match[2]) <= self._last_erased(match[1])

    def end_of_day(self, key_id: str) -> ExpiredDay | None:
        """Return the history's entry for the end of the key's day, if the key was destroyed for that reason."""
        day = day_of(key_id)
        return None if day is None or key_id not in self._erased or self._is_ended(key_id) else self._expired.get(day)

    def _last_erased(self, name: str) -> int:
        """The last generation of a name's subject that was ended; 0: none was."""
        counted, ended = self._ended
        source: Collection[object] = self._erased if self._erasures is None else self._erasures
        if counted != len(source):
            known, ended = tuple(source), {}
            for key_id in chain.from_iterable(each.key_ids if isinstance(each, Erasure) else (each,) for each in known):
                match = KEY_ID.fullmatch(str(key_id))
                if match is not None:
                    subject = match[1][:DIGITS]
                    ended[subject] = max(int(match[2]), ended.get(subject, 0))
            self._ended = len(known), ended
        return ended.get(name[:DIGITS], 0)

    def has_tombstone(self, key_id: str) -> bool:
        """Return True if the directory has the key's tombstone."""
        return KEY_ID.fullmatch(key_id) is not None and os.path.exists(f"{self.directory}/{key_id}{TOMBSTONE}")

    def is_there(self, key_id: str) -> bool:
        """Return True if the directory has the key, even if it was erased."""
        return KEY_ID.fullmatch(key_id) is not None and (self.directory / key_id).exists()

    def known(self, subject: str) -> list[str]:
        """The ids of all keys of the subject that the directory or the history names, those of days among them."""
        if subject == NOBODY:
            return []
        name = name_of(subject)
        found = {each for each in tuple(self._erased) if _is_of(name, each)}
        for each in self._names():
            key_id = each.removesuffix(TOMBSTONE)
            if _is_of(name, key_id):
                found.add(key_id)
        return sorted(found, key=by_generation)

    def came_back(self) -> list[str]:
        """The ids of the keys that were erased and are in the directory."""
        return [each for each in sorted(self._names()) if self.is_erased(each) and self.is_there(each)]

    def of_days(self) -> dict[str, list[str]]:
        """The ids of the keys of each day that the directory names, in order, also of those that were destroyed."""
        days: dict[str, set[str]] = {}
        for each in self._names():
            key_id = each.removesuffix(TOMBSTONE)
            day = day_of(key_id)
            if day is not None and KEY_ID.fullmatch(key_id):
                days.setdefault(day, set()).add(key_id)
        return {day: sorted(days[day]) for day in sorted(days)}

    @property
    def is_empty(self) -> bool:
        """Return True if the directory has no keys, or does not exist."""
        return not self._names()

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def destroy(self, key_id: str) -> None:
        """Destroy a key. It may have been destroyed before, or halfway. It is done when this returns."""
        assert KEY_ID.fullmatch(key_id), key_id
        tombstone, path = self.directory / (key_id + TOMBSTONE), self.directory / key_id
        os.close(os.open(tombstone, os.O_WRONLY | os.O_CREAT, 0o600))
        system_calls.sync_directory(self.directory)
        vault = self.vault()
        if vault is not None:
            vault.destroy(key_id)
        if not self.is_there(key_id):
            return
        try:
            with open(path, "r+b") as file:
                file.write(secrets.token_bytes(max(len(MAGIC) + KEY_BYTES, os.fstat(file.fileno()).st_size)))
                file.flush()
                system_calls.sync(file.fileno())
        except FileNotFoundError:  # somebody else did it
            return
        _remove(path)
        system_calls.sync_directory(self.directory)

    def take(self, key_id: str, source: "KeyStore") -> bool:
        """Copy a key from another directory, or its tombstone if it was destroyed. False: that one has neither.

        Raises OSError."""
        key = source.content(key_id)
        if key is None and not source.has_tombstone(key_id):
            return False
        self._make_directory()
        place = source._place()
        if place is not None and self._place() is None:
            self.use_vault(place)
        self._put(f"{key_id}{TOMBSTONE}" if key is None else key_id, key or b"")
        system_calls.sync_directory(self.directory)
        return True

    def put(self, key_id: str, key: bytes) -> None:
        """Keep a key as another directory has it (`content`), unless it was destroyed here. It is on the disk then.

        Raises OSError."""
        if KEY_ID.fullmatch(key_id) and is_key(key) and not self.has_tombstone(key_id):
            if is_sealed(key):
                self._opener(key_id)
            self._make_directory()
            self._put(key_id, key)
            system_calls.sync_directory(self.directory)

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            system_calls.sync_directory(self.directory.parent)


def by_generation(key_id: str) -> tuple[int, str]:
    """A key to sort ids by."""
    match = KEY_ID.fullmatch(key_id)
    return int(match[2]) if match is not None else 0, key_id


def ends(erased: str, key_id: str) -> bool:
    """Return True if the erasure of a subject that names the key `erased` also ends the key `key_id`."""
    one, other = KEY_ID.fullmatch(erased), KEY_ID.fullmatch(key_id)
    return erased == key_id or (
        one is not None and other is not None and one[1][:DIGITS] == other[1][:DIGITS] and int(one[2]) >= int(other[2])
    )


def day_of(key_id: str) -> str | None:
    """The day of a key, as 2026-11-23; None: it is for all days."""
    match = DATED.match(key_id)
    if match is None:
        return None
    day = "-".join(match.groups())
    try:
        date.fromisoformat(day)
    except ValueError:
        return None
    return day


def is_of_nobody(key_id: str) -> bool:
    """Return True if this is a day's key for messages without a subject."""
    return day_of(key_id) is not None and key_id.startswith(name_of(NOBODY)[:DIGITS])


def name_of(subject: str, day: str = "") -> str:
    """The part of an id that stands for the subject, or for the subject and this day."""
    digits = hashlib.sha256(subject.encode()).hexdigest()[:40]
    return digits if not day else f"{digits[:DIGITS]}00000000{day.replace('-', '')}"


def _is_of(name: str, key_id: str) -> bool:
    match = KEY_ID.fullmatch(key_id)
    if match is None:
        return False
    return match[1] == name or (match[1].startswith(name[:DIGITS]) and day_of(key_id) is not None)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
