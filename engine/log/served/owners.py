"""Spreads the duties of queue partitions over the workers that are there: each partition has one owner.

    a worker joins      it gets partitions of those that have the most, one by one, until none has two more than another
    a worker leaves     its partitions wait for it: it is started again at once, and has nearly all of their state.
                        When it has not come back in time (`gave_up`), the others get them

The order of names decides between equals, so the result follows from what happened.
"""

from collections.abc import Iterable, Sequence


class Owners:
    """`partitions`: numbers. `owner_of`: the worker's name by partition, of those that were given to one."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._partitions = list(partitions)
        self._here: set[str] = set()
        self._waited_for: set[str] = set()
        self.owner_of: dict[int, str] = {}

    def joined(self, name: str) -> None:
        """The worker is there."""
        self._waited_for.discard(name)
        self._here.add(name)
        self._spread()

    def left(self, name: str) -> None:
        """The worker is gone, and comes back soon."""
        if name in self._here:
            self._here.discard(name)
            self._waited_for.add(name)

    def gave_up(self, name: str) -> bool:
        """The worker did not come back in time. Returns whether that changes anything."""
        if name not in self._waited_for:
            return False
        self._waited_for.discard(name)
        for number in self.of(name):
            del self.owner_of[number]
        self._spread()
        return True

    def of(self, name: str) -> Sequence[int]:
        """The partitions of a worker."""
        return [number for number in self._partitions if self.owner_of.get(number) == name]

    def _spread(self) -> None:
        names = sorted(self._here)
        if not names:
            return
        count = {name: len(self.of(name)) for name in names}
        for number in self._partitions:
            if number not in self.owner_of:
                least = min(names, key=count.__getitem__)
                self.owner_of[number] = least
                count[least] += 1
        while True:
            most, least = max(names, key=count.__getitem__), min(names, key=count.__getitem__)
            if count[most] - count[least] < 2:
                return
            self.owner_of[self.of(most)[-1]] = least
            count[most] -= 1
            count[least] += 1
