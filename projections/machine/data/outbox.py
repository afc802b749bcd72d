"""The outbox of a queue: dead letters that wait until they are forwarded, 32 bytes each; no letter is a Python object.

    sequences    1   2   3   7   8       ascending, so a number is found by bisection
    ids          .   .   .   .   .
    sizes        .   .   .   .   .       of the bodies
    kinds        0   0   1   0   0       what the letter has in common with others: an index into `known`

Letters leave from the front, except that messages that move with their queue (`carried`) and dead letters leave
independently of each other (rules/dead_letters.py).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rewindmq.projections.machine.data.reasons import LetterReason
from rewindmq.schemas.pickles import pickle_by_fields

# The fields that letters share: reason, exchange, routing key (None: the message's own), at_least_once, refused.
LetterKind = tuple[LetterReason, str, str | None, bool, bool]
_SWEPT: Final = 1024  # departed letters stay in the arrays until they number this many, and more than the waiting ones


@dataclass(frozen=True, slots=True)
class Carried:
    """The state that a message keeps when it moves with its queue to another partition.

    The counts are those of `Queue.counts`. `expiry`: absolute; NONE for never."""

    delivery_count: int
    acquired_count: int
    redelivered: bool
    expiry: int


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A dead letter that waits until it is forwarded; see `DeadLetter`. `size`: the size of its body."""

    sequence: int
    message_id: int
    size: int
    reason: LetterReason
    exchange: str
    routing_key: str | None
    at_least_once: bool
    refused: bool
    carried: Carried | None = None


pickle_by_fields(Carried, OutboxEntry)


class Outbox:
    """Letters by their number in the queue's sequence, ascending. Those before `start` have left."""

    def __init__(self) -> None:
        self.sequences: array[int] = array("q")
        self.ids: array[int] = array("q")
        self.sizes: array[int] = array("q")
        self.kinds: array[int] = array("q")
        self.start = 0
        self.known: list[LetterKind] = []
        self._numbers: dict[LetterKind, int] = {}  # the index of each kind in `known`
        self.carried: dict[int, Carried] = {}  # by sequence, of messages that move with the queue

    def __len__(self) -> int:
        return len(self.sequences) - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(self.sequences[self.start :])

    def __contains__(self, sequence: int) -> bool:
        at = bisect_left(self.sequences, sequence, self.start)
        return at < len(self.sequences) and self.sequences[at] == sequence

    def first(self, default: int) -> int:
        """Return the number of the first letter; `default` if there is none."""
        return self.sequences[self.start] if self.start < len(self.sequences) else default

    def message_ids(self) -> "array[int]":
        """Return the ids of the messages, in the order of the letters."""
        return self.ids[self.start :]

    def values(self) -> Iterator[OutboxEntry]:
        """Yield each letter."""
        for row in self.rows():
            yield OutboxEntry(*row, self.carried.get(row[0]))

    def rows(self) -> Iterator[tuple[int, int, int, LetterReason, str, str | None, bool, bool]]:
        """Yield the number, message id and size of each letter, and its kind."""
        for at in range(self.start, len(self.sequences)):
            yield self.sequences[at], self.ids[at], self.sizes[at], *self.known[self.kinds[at]]

    def add(self, sequence: int, ids: Sequence[int], sizes: Sequence[int], kind: LetterKind) -> None:
        """Add letters that are alike, and numbered from `sequence` on."""
        number = self._numbers.setdefault(kind, len(self.known))
        if number == len(self.known):
            self.known.append(kind)
        self.sequences.extend(array("q", range(sequence, sequence + len(ids))))
        self.ids.extend(array("q", ids))
        self.sizes.extend(array("q", sizes))
        self.kinds.extend(array("q", [number]) * len(ids))

    def stretches(self) -> Iterator[tuple[LetterKind, int, "array[int]"]]:
        """Yield runs of letters of one kind: the kind, the first letter's number, the messages' ids."""
        first, end = self.start, len(self.sequences)
        for at in range(first + 1, end + 1):
            if at == end or self.kinds[at] != self.kinds[first] or self.sequences[at] != self.sequences[at - 1] + 1:
                yield self.known[self.kinds[first]], self.sequences[first], self.ids[first:at]
                first = at

    def up_to(self, sequence: int, relocated: bool) -> "array[int]":
        """Return the places of the letters up to this number that moved with the queue, or of all others."""
        end = bisect_right(self.sequences, sequence, self.start)
        if not self.carried:
            return array("q", () if relocated else range(self.start, end))
        moved = self.carried
        return array("q", [at for at in range(self.start, end) if (self.sequences[at] in moved) is relocated])

    def held(self) -> "array[int]":
        """Return the places of the letters that are held for at-least-once."""
        return array("q", [at for at in range(self.start, len(self.kinds)) if self.known[self.kinds[at]][3]])

    def remove(self, places: "array[int]") -> tuple["array[int]", int, int]:
        """Remove the letters at these places, ascending.

        Returns the ids of their messages, how many of them were held for at-least-once, and the bytes of these."""
        first, end = places[0], places[-1] + 1
        held = [kind[3] for kind in self.known]
        counted = [at for at in places if held[self.kinds[at]]] if any(held) else []
        held_bytes = sum([self.sizes[at] for at in counted])
        ids = array("q", [self.ids[at] for at in places])
        if self.carried:
            for at in places:
                self.carried.pop(self.sequences[at], None)
        if first > self.start or len(places) < end - first:
            leaving = dict.fromkeys(places)
            kept = [at for at in range(self.start, len(self.kinds)) if at not in leaving]
            for column in (self.sequences, self.ids, self.sizes, self.kinds):
                column[:] = array("q", [column[at] for at in kept])
            self.start = 0
        elif end < max(_SWEPT, len(self.kinds) // 2):
            self.start = end
        else:
            for column in (self.sequences, self.ids, self.sizes, self.kinds):
                del column[:end]
            self.start = 0
        if not self.kinds:
            self.known, self._numbers = [], {}
        return ids, len(counted), held_bytes

    def packed(self) -> "tuple[list[object], array[int]]":
        """Return the outbox as small fields and as numbers; `load` is the inverse."""
        carried = [[n, c.delivery_count, c.acquired_count, c.redelivered, c.expiry] for n, c in self.carried.items()]
        numbers: array[int] = array("q")
        for column in (self.sequences, self.ids, self.sizes, self.kinds):
            numbers.extend(column[self.start :])
        return [len(self), self.known, carried], numbers

    def load(self, fields: Any, numbers: "array[int]") -> None:
        """Fill the outbox with the letters that were `packed`."""
        count, known, carried = fields
        columns = [numbers[at : at + count] for at in range(0, 4 * count, count)]
        self.sequences, self.ids, self.sizes, self.kinds = columns
        self.start = 0
        self.known = [(kind[0], kind[1], kind[2], kind[3], kind[4]) for kind in known]
        self._numbers = {kind: number for number, kind in enumerate(self.known)}
        self.carried = {sequence: Carried(*kept) for sequence, *kept in carried}
