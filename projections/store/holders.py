"""Counts the queues that hold a body, for bodies that several queues of a partition share.

    a message goes to one queue       its body is stored under the queue's id, without a count
    a message goes to several         one body is stored under keys.SHARED, and `hold` counts each queue that keeps it
    a queue releases it               `release` subtracts one; at zero the body is removed

Rules
- Counts are stored with the state, in the same batch, so that a start reads them instead of scanning the queues.
- They are in pages of packed numbers: 16 bytes for a body, and no object for a message.
- A page is stored under its original first id. That id and those of its messages stay below the next page's.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rewindmq.projections.machine.serialization.load import load_numbers
from rewindmq.projections.machine.serialization.pack import number_bytes

PAGE: Final = 256  # bodies
FEW: Final = 8  # messages, which are looked up one by one in a page


class HoldersPage:
    """The ids of some bodies, ascending, and the number of holders of each. `first`: the id of the stored page."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.ids: array[int] = array("q")
        self.holders: array[int] = array("q")
        self.dirty = False

    def hold(self, message_id: int, queues: int) -> None:
        """Add `queues` to the number of queues that hold the message."""
        at = bisect_left(self.ids, message_id)
        if at < len(self.ids) and self.ids[at] == message_id:
            self.holders[at] += queues
        else:
            self.ids.insert(at, message_id)
            self.holders.insert(at, queues)

    def release(self, message_ids: Sequence[int], gone: list[int], others: list[int]) -> bool:
        """Subtract one holder from each of these messages. Return True if any of them is here.

        `gone`, `others`: as `SharedBodies.release` returns them."""
        if len(message_ids) > FEW:
            mine = set(self.ids).intersection(message_ids)
            others.extend([message_id for message_id in message_ids if message_id not in mine])
            message_ids = sorted(mine)
        changed = False
        for message_id in message_ids:
            at = bisect_left(self.ids, message_id)
            if at == len(self.ids) or self.ids[at] != message_id:
                others.append(message_id)
                continue
            changed = True
            self.holders[at] -= 1
            if self.holders[at] == 0:
                del self.ids[at], self.holders[at]
                gone.append(message_id)
        return changed


class SharedBodies:
    """The counts of a partition: see the head of this file. `stored`: the pages that `packed` gave, by first id."""

    def __init__(self, stored: Iterable[tuple[int, bytes]] = ()) -> None:
        self._pages: list[HoldersPage] = []
        self._firsts: list[int] = []
        self._dirty: list[HoldersPage] = []
        self._stored: set[int] = set()
        for first, packed in stored:
            page = HoldersPage(first)
            numbers = load_numbers(packed)
            half = len(numbers) // 2
            page.ids, page.holders = numbers[:half], numbers[half:]
            self._pages.append(page)
            self._firsts.append(first)
            self._stored.add(first)

    @property
    def empty(self) -> bool:
        """Return True if no body is shared."""
        return not self._pages

    def __contains__(self, message_id: int) -> bool:
        number = bisect_right(self._firsts, message_id) - 1
        if number < 0:
            return False
        ids = self._pages[number].ids
        at = bisect_left(ids, message_id)
        return at < len(ids) and ids[at] == message_id

    def following(self, message_id: int) -> int:
        """Return the id of the next shared message; -1 if there is none."""
        number = bisect_right(self._firsts, message_id) - 1
        if number >= 0:
            ids = self._pages[number].ids
            at = bisect_right(ids, message_id)
            if at < len(ids):
                return ids[at]
        return self._pages[number + 1].ids[0] if number + 1 < len(self._pages) else -1

    def hold(self, message_id: int, queues: int) -> None:
        """Add `queues` to the number of queues that hold the message."""
        if not queues:
            return
        number = bisect_right(self._firsts, message_id) - 1
        last = number == len(self._pages) - 1
        if number < 0 or (last and len(self._pages[number].ids) >= PAGE and message_id > self._pages[number].ids[-1]):
            number += 1
            self._pages.insert(number, HoldersPage(message_id))
            self._firsts.insert(number, message_id)
        page = self._pages[number]
        self._changed(page)
        page.hold(message_id, queues)

    def release(self, message_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """Subtract one holder from each shared message.

        Returns the messages that no queue holds any longer, and those that are not shared."""
        ids = sorted(message_ids)
        gone: list[int] = []
        others: list[int] = []
        start = 0
        while start < len(ids):
            number = bisect_right(self._firsts, ids[start]) - 1
            end = len(ids)
            if number + 1 < len(self._firsts):
                end = bisect_left(ids, self._firsts[number + 1], start)
            some = ids[start:end]
            if number < 0 or some[0] > (page := self._pages[number]).ids[-1]:
                others.extend(some)
            elif page.release(some, gone, others):
                self._changed(page)
                if not page.ids:
                    del self._pages[number], self._firsts[number]
            start = end
        return gone, others

    def _changed(self, page: HoldersPage) -> None:
        if not page.dirty:
            page.dirty = True
            self._dirty.append(page)

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Yield the pages that changed since the last call, by their first ids; b"" for one to delete."""
        for page in self._dirty:
            page.dirty = False
            if page.ids:
                self._stored.add(page.first)
                yield page.first, number_bytes(page.ids + page.holders)
            elif page.first in self._stored:
                self._stored.discard(page.first)
                yield page.first, b""
        self._dirty = []

    def counts(self) -> Iterator[tuple[int, int]]:
        """Yield each shared body, by the message's id, with the number of queues that hold it."""
        for page in self._pages:
            yield from zip(page.ids, page.holders, strict=True)
