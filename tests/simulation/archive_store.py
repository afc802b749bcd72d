"""The store of an archive with faults: the real store in a directory, which a seed lets fail at any call.

away         it does not answer, and has done nothing
unheard      it has done it, and its answer is lost
killed       the process of the archiver ends before the call, or behind it
slow         while the call waits, another archiver does its whole work
cut          an upload breaks off; part of it is kept under the object's name, and the archiver is told of a failure
changed      an upload is kept with a changed byte, and the store says that all is well
misread      a range of an object comes with a changed byte; the object is whole
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import BinaryIO, TypeVar

from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.log.contract import NoAnswer
from tests.support.failing_objects import Killed

T = TypeVar("T")

OF_ANY = ("away", "unheard", "killed before", "killed behind", "slow")
OF_UPLOADS = (*OF_ANY, "cut", "changed")
OF_RANGES = (*OF_ANY, "misread")


class FaultyStore(Objects):
    """The objects of a directory, with faults. `damaged`: keys of objects that it has kept in another way than sent."""

    def __init__(
        self,
        objects: Objects,
        chance: Random,
        rates: dict[str, float],
        damaged: set[str],
        meanwhile: Callable[[], None],
    ) -> None:
        """`rates`: how often a call meets a fault, by a part of its key. `meanwhile`: the work of another archiver."""
        super().__init__(objects.url, objects._store, objects._directory)
        self.met: list[str] = []
        self._chance = chance
        self._rates = rates
        self._damaged = damaged
        self._meanwhile = meanwhile

    def create(self, key: str, data: bytes | BinaryIO) -> bool:
        fault = self._fault(key, OF_UPLOADS)
        if fault in ("cut", "changed"):
            return self._create_wrong(key, data, fault)
        return self._call(key, fault, lambda: super(FaultyStore, self).create(key, data))

    def get(self, key: str) -> bytes:
        return self._call(key, self._fault(key, OF_ANY), lambda: super(FaultyStore, self).get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        fault = self._fault(key, OF_RANGES)
        found = self._call(key, fault, lambda: super(FaultyStore, self).get_range(key, start, end))
        return self._with_changed_byte(found) if fault == "misread" else found

    def delete(self, key: str) -> None:
        self._call(key, self._fault(key, OF_ANY), lambda: super(FaultyStore, self).delete(key))

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        keys = self._call(prefix, self._fault(prefix, OF_ANY), lambda: [*super(FaultyStore, self).list(prefix, after)])
        return iter(keys)

    def _fault(self, key: str, of: tuple[str, ...]) -> str:
        if self._chance.random() >= max((rate for part, rate in self._rates.items() if part in key), default=0):
            return ""
        self.met.append(self._chance.choice(of))
        return self.met[-1]

    def _call(self, key: str, fault: str, what: Callable[[], T]) -> T:
        if fault == "away":
            raise NoAnswer(f"{self.place(key)}: the store is away")
        if fault == "killed before":
            raise Killed
        if fault == "slow":
            self._meanwhile()
        done = what()
        if fault == "unheard":
            raise NoAnswer(f"{self.place(key)}: the answer is lost")
        if fault == "killed behind":
            raise Killed
        return done

    def _create_wrong(self, key: str, data: bytes | BinaryIO, fault: str) -> bool:
        if not isinstance(data, bytes):
            data.seek(0)
            data = data.read()
        kept = data[: self._below(len(data))] if fault == "cut" else self._with_changed_byte(data)
        created = super().create(key, kept)
        if created:
            self._damaged.add(key)
        if fault == "cut":
            raise NoAnswer(f"{self.place(key)}: the connection broke")
        return created

    def _below(self, end: int) -> int:
        """A number from 0 on: what is drawn next does not depend on `end`, a length that differs from run to run."""
        return int(self._chance.random() * end)

    def _with_changed_byte(self, data: bytes) -> bytes:
        changed = bytearray(data)
        if changed:
            changed[self._below(len(changed))] ^= 1 << self._below(8)
        return bytes(changed)


def object_file(objects: Objects, key: str) -> Path:
    """The file of an object, in a store that is a directory."""
    return Path(objects.url.removeprefix("file://")) / key
