"""The order of ready messages, compact: 16 bytes a message, 24 with an expiry; no message is a Python object.

A message here is its id, its packed word (message_word.py), and its expiry (absolute ms; NONE when it never expires).

An `Order` is a run of chunks; the head chunk has a `start`, so that taking from the head changes no chunk:

    chunks:  [ . . . a b c ]  [ d e f g h i ]  [ j k ]          . taken already
               start ^                             tail

Chunks have numbers that ascend by one along the run. A chunk that did not change is not written again (the projector
stores chunks by number), and `start` is kept with the queue's small state. An order of returned messages counts from -1
downwards, so that the chunks of a queue's two orders (see queue.py) share one number space. An order of another `space`
(priority_order.py) counts from space << SPACE_SHIFT upwards, or from -1 less than that downwards.
"""

from array import array
from collections.abc import Iterator
from typing import Final

NONE: Final = -1  # no expiry
CHUNK = 1024  # messages in a chunk that grows at the tail; insertions let a chunk grow to twice as many
SPACE_SHIFT: Final = 40  # an order may use up to 2**40 chunk numbers in all its life

BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\0\1"  # this machine
ODD: Final = bytes(range(1, 256, 2))
_FEW: Final = 4  # ids that are searched for one by one
_LAST_ID: Final = (1 << 63) - 1


class Chunk:
    """Up to CHUNK messages in order. `expiries` exists only when one of them has an expiry."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids: array[int] = array("q")
        self.words: array[int] = array("q")
        self.expiries: array[int] | None = None
        self.dirty = False  # changed since the last take_dirty
        self.stored = False  # a store has (an older state of) this chunk

    def expiry(self, index: int) -> int:
        """The expiry of the message at `index`; NONE for never."""
        return NONE if self.expiries is None else self.expiries[index]

    def insert(self, index: int, message_id: int, word: int, expiry: int) -> None:
        """Put a message before the one at `index`."""
        if expiry != NONE and self.expiries is None:
            self.expiries = array("q", [NONE]) * len(self.ids)
        self.ids.insert(index, message_id)
        self.words.insert(index, word)
        if self.expiries is not None:
            self.expiries.insert(index, expiry)

    def set(self, index: int, message_id: int, word: int, expiry: int) -> None:
        """Put a message in the place of the one at `index`."""
        if expiry != NONE and self.expiries is None:
            self.expiries = array("q", [NONE]) * len(self.ids)
        self.ids[index] = message_id
        self.words[index] = word
        if self.expiries is not None:
            self.expiries[index] = expiry


def first_number(returned: bool, space: int) -> int:
    """The number of the first chunk of an order."""
    return -1 - (space << SPACE_SHIFT) if returned else space << SPACE_SHIFT


def space_of(number: int) -> int:
    """The space in which a chunk's number lies."""
    return (-1 - number if number < 0 else number) >> SPACE_SHIFT


class Order:
    """Messages in an order. `count`: how many; `expiring`: how many of them have an expiry."""

    def __init__(self, returned: bool, space: int = 0) -> None:
        self.returned = returned
        self.space = space
        self.chunks: list[Chunk] = [Chunk(first_number(returned, space))]
        self.head = self.chunks[0]
        self.tail = self.chunks[0]
        self.start = 0
        self.count = 0
        self.expiring = 0
        self.changed: list[Chunk] = []  # every chunk with `dirty` set
        self.vanished: list[int] = []  # numbers of stored chunks that are gone

    def append(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message at the end."""
        tail = self.tail
        ids = tail.ids
        if len(ids) >= CHUNK:
            tail = Chunk(tail.number - 1 if self.returned else tail.number + 1)
            ids = tail.ids
            self.chunks.append(tail)
            self.tail = tail
        ids.append(message_id)
        tail.words.append(word)
        if expiry != NONE:
            self.expiring += 1
            if tail.expiries is None:
                tail.expiries = array("q", [NONE]) * (len(ids) - 1)
            tail.expiries.append(expiry)
        elif tail.expiries is not None:
            tail.expiries.append(NONE)
        self.count += 1
        if not tail.dirty:
            tail.dirty = True
            self.changed.append(tail)

    def first_expiry(self) -> int:
        """The expiry of the first message; NONE for never. The order must not be empty."""
        expiries = self.head.expiries
        return NONE if expiries is None else expiries[self.start]

    def take(self) -> tuple[int, int, int]:
        """Remove the first message. Returns (id, word, expiry). The order must not be empty."""
        head = self.head
        start = self.start
        message_id = head.ids[start]
        word = head.words[start]
        expiry = NONE
        if head.expiries is not None:
            expiry = head.expiries[start]
            if expiry != NONE:
                self.expiring -= 1
        start += 1
        self.start = start
        self.count -= 1
        if start == len(head.ids):
            self._head_is_used_up()
        return message_id, word, expiry

    def _head_is_used_up(self) -> None:
        head = self.head
        self.start = 0
        if head is not self.tail:
            self._drop_first_chunk()
            return
        # This is the only chunk: empty it and go on with it. If it is `stored` and still empty, the store deletes it.
        del head.ids[:]
        del head.words[:]
        head.expiries = None
        if not head.dirty:
            head.dirty = True
            self.changed.append(head)

    def _drop_first_chunk(self) -> None:
        head = self.chunks[0]
        if head.stored:
            self.vanished.append(head.number)
        head.dirty = False  # still in `changed`, where it is now ignored
        del self.chunks[0]
        self.head = self.chunks[0]

    def insert(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message at the place of its id, in an order that is sorted by id (a classic queue's `returned`)."""
        if self.count == 0 or message_id > self.tail.ids[-1]:
            self.append(message_id, word, expiry)
            return
        self.count += 1
        if expiry != NONE:
            self.expiring += 1
        chunks = self.chunks
        low, high = 0, len(chunks) - 1
        while low < high:  # finds the first chunk whose last id is larger
            middle = (low + high) // 2
            if chunks[middle].ids[-1] < message_id:
                low = middle + 1
            else:
                high = middle
        chunk = chunks[low]
        ids = chunk.ids
        first, last = (self.start if low == 0 else 0), len(ids)
        if low == 0 and first > 0 and message_id < ids[first]:  # into the place of a taken message
            self.start = first - 1
            chunk.set(first - 1, message_id, word, expiry)
        else:
            while first < last:
                middle = (first + last) // 2
                if ids[middle] < message_id:
                    first = middle + 1
                else:
                    last = middle
            chunk.insert(first, message_id, word, expiry)
        if not chunk.dirty:
            chunk.dirty = True
            self.changed.append(chunk)
        if len(ids) > 2 * CHUNK:
            self._split(low)

    def put_first(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message before all others."""
        if self.count == 0:
            self.append(message_id, word, expiry)
            return
        self.count += 1
        if expiry != NONE:
            self.expiring += 1
        head, start = self.head, self.start
        if start == 0:
            head.insert(0, message_id, word, expiry)
        else:  # into the place of a taken message
            self.start = start - 1
            head.set(start - 1, message_id, word, expiry)
        if not head.dirty:
            head.dirty = True
            self.changed.append(head)
        if len(head.ids) > 2 * CHUNK:
            self._split(0)

    def _split(self, index: int) -> None:
        """Cut a chunk that grew too long in two. Numbers must ascend along the run, so all are numbered anew."""
        chunk = self.chunks[index]
        rest = Chunk(0)
        rest.ids, rest.words = chunk.ids[CHUNK:], chunk.words[CHUNK:]
        del chunk.ids[CHUNK:]
        del chunk.words[CHUNK:]
        if chunk.expiries is not None:
            rest.expiries = chunk.expiries[CHUNK:]
            del chunk.expiries[CHUNK:]
        if index == 0 and self.start >= CHUNK:
            self.start -= CHUNK
            self.chunks[0] = rest
        else:
            self.chunks.insert(index + 1, rest)
        self.tail = self.chunks[-1]
        self.head = self.chunks[0]
        self._number_afresh()

    def _number_afresh(self) -> None:
        self.changed = []
        first, step = first_number(self.returned, self.space), -1 if self.returned else 1
        for position, chunk in enumerate(self.chunks):
            if chunk.stored:
                self.vanished.append(chunk.number)
                chunk.stored = False
            chunk.number = first + position * step
            chunk.dirty = True
            self.changed.append(chunk)

    def remove(self, ids: list[int], scan: bool) -> list[tuple[int, int, int]]:
        """Remove those of these messages that are here. Returns (id, word, expiry) of each, in order.

        `scan`: the order may not be sorted by id, so each message is looked at if need be (for a million messages 8 ms
        an id, and 38 ms at most)."""
        places = self._places(ids, scan)
        places.sort(reverse=True)  # from the end: what is cut out moves only what stands behind it
        removed = [self._cut_out(at, index) for at, index in places]
        removed.reverse()
        return removed

    def among(self, ids: list[int], scan: bool) -> list[int]:
        """Those of these messages that are here. `scan`: as of `remove`."""
        return [self.chunks[at].ids[index] for at, index in self._places(ids, scan)]

    def _places(self, ids: list[int], scan: bool) -> list[tuple[int, int]]:
        """Chunk and index of each of the messages that are here."""
        places: list[tuple[int, int]] = []
        if self.count == 0:
            return places
        missing: set[int] = set()
        for message_id in ids:
            place = self._place(message_id)
            if place[0] >= 0:
                places.append(place)
            else:
                missing.add(message_id)
        if not scan or not missing:
            return places
        start = self.start
        for at, chunk in enumerate(self.chunks):
            if _has_some(chunk.ids, missing):
                for index in range(start, len(chunk.ids)):
                    if chunk.ids[index] in missing:
                        places.append((at, index))
                        missing.remove(chunk.ids[index])
                if not missing:
                    break
            start = 0
        return places

    def _place(self, message_id: int) -> tuple[int, int]:
        """Chunk and index of a message; (-1, -1) if it is not where it would be in an order that is sorted by id."""
        chunks = self.chunks
        low, high = 0, len(chunks) - 1
        while low < high:  # finds the first chunk whose last id is not smaller
            middle = (low + high) // 2
            if chunks[middle].ids[-1] < message_id:
                low = middle + 1
            else:
                high = middle
        ids = chunks[low].ids
        first, last = (self.start if low == 0 else 0), len(ids)
        while first < last:
            middle = (first + last) // 2
            if ids[middle] < message_id:
                first = middle + 1
            else:
                last = middle
        return (low, first) if first < len(ids) and ids[first] == message_id else (-1, -1)

    def _cut_out(self, at: int, index: int) -> tuple[int, int, int]:
        """Remove the message at this place."""
        if at == 0 and index == self.start:
            return self.take()
        chunk = self.chunks[at]
        message_id, word, expiry = chunk.ids[index], chunk.words[index], chunk.expiry(index)
        self.count -= 1
        if expiry != NONE:
            self.expiring -= 1
        del chunk.ids[index]
        del chunk.words[index]
        if chunk.expiries is not None:
            del chunk.expiries[index]
        if len(chunk.ids) == 0:  # not the head, where another message stands before this one
            if chunk.stored:
                self.vanished.append(chunk.number)
            chunk.dirty = False  # still in `changed`, where it is now ignored
            del self.chunks[at]
            self.tail = self.chunks[-1]
        elif not chunk.dirty:
            chunk.dirty = True
            self.changed.append(chunk)
        return message_id, word, expiry

    def clear(self) -> list["array[int]"]:
        """Remove all messages. Returns their ids, in order, in arrays."""
        removed = [self.chunks[0].ids[self.start :]] if self.start else [self.chunks[0].ids]
        removed.extend(chunk.ids for chunk in self.chunks[1:])
        for chunk in self.chunks:
            if chunk.stored:
                self.vanished.append(chunk.number)
        last = Chunk(self.tail.number - 1 if self.returned else self.tail.number + 1)
        self.chunks = [last]
        self.head = self.tail = last
        self.start = self.count = self.expiring = 0
        self.changed = []
        return [ids for ids in removed if len(ids) > 0]

    def recount(self) -> int:
        """Set `count` and `expiring` from the chunks, after loading. Returns the sum of the sizes.

        A million messages take milliseconds: the numbers are read as machine words."""
        self.count = self.expiring = total = 0
        start = self.start
        for chunk in self.chunks:
            halves = array("I", chunk.words[start:].tobytes())  # of each word the lower one is the size
            total += sum(halves[1::2] if BIG_ENDIAN else halves[0::2])
            self.count += len(chunk.ids) - start
            if chunk.expiries is not None:
                expiries = chunk.expiries[start:]
                self.expiring += len(expiries) - expiries.count(NONE)
            start = 0
        return total

    def has_transient(self) -> bool:
        """Whether any message is not PERSISTENT (bit 32: the lowest of the word's fifth byte)."""
        start = self.start
        for chunk in self.chunks:
            flags = chunk.words[start:].tobytes()[(3 if BIG_ENDIAN else 4) :: 8]
            if flags.translate(None, ODD):
                return True
            start = 0
        return False

    def orders(self) -> "Iterator[Order]":
        """Yields the orders whose chunks hold the messages: this one."""
        yield self

    def ids(self) -> Iterator[int]:
        """Yields the messages' ids, in order."""
        for message_id, _, _ in self.items():
            yield message_id

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Yields (id, word, expiry) of each message, in order."""
        start = self.start
        for chunk in self.chunks:
            for index in range(start, len(chunk.ids)):
                yield chunk.ids[index], chunk.words[index], chunk.expiry(index)
            start = 0


def _has_some(ids: "array[int]", wanted: set[int]) -> bool:
    """Whether some of the wanted ids may be among these; False: none is."""
    if len(wanted) > _FEW:
        return not wanted.isdisjoint(ids)
    data = ids.tobytes()  # a search for bytes makes no number of each id
    return any(
        data.find(each.to_bytes(8, "big" if BIG_ENDIAN else "little")) >= 0 for each in wanted if 0 <= each <= _LAST_ID
    )
