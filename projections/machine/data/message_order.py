"""The compact order of ready messages: 16 bytes a message, 24 with an expiry; no message is a Python object.

A message here is its id, its packed word (message_word.py), and its expiry (absolute ms; NONE if it never expires).
Many messages leave or return at once as a `Stretch`, by slices of arrays.

An `Order` is a run of chunks; the head chunk has a `start`, so that taking from the head changes no chunk:

    chunks:  [ . . . a b c ]  [ d e f g h i ]  [ j k ]          . taken already
               start ^                             tail

Chunk numbers ascend by one along the run. An unchanged chunk is not written again (the projector stores chunks by
number), and `start` is kept with the queue's small state. An order of returned messages counts down from -1, so that
the chunks of a queue's two orders (see queue.py) share one number space. An order of another `space`
(priority_order.py) counts up from space << SPACE_SHIFT, or down from one less than its negative.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from rewindmq.projections.machine.data.message_word import SIZE_MASK, UPPER

NONE: Final = -1  # no expiry
CHUNK = 1024  # messages in a chunk that grows at the tail; insertions let a chunk grow to twice as many
SPACE_SHIFT: Final = 40  # an order may use up to 2**40 chunk numbers in its lifetime

BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\0\1"  # this machine
ODD: Final = bytes(range(1, 256, 2))
_FEW: Final = 4  # ids that are searched for one by one
_LAST_ID: Final = (1 << 63) - 1
_LOWER: Final = 1 if BIG_ENDIAN else 0  # where the lower half of a word is
_SPARSE: Final = 4  # more messages than this around each new one: it is inserted singly, not by a merge


def sizes_of(words: "array[int]") -> "array[int]":
    """Return the sizes of the bodies: the lower half of each word. They are read as machine words."""
    return array("I", words.tobytes())[_LOWER::2]


class Stretch:
    """Successive messages, outside of an order. `expiries` exists only when one of them may have an expiry."""

    def __init__(self, ids: "array[int]", words: "array[int]", expiries: "array[int] | None") -> None:
        self.ids = ids
        self.words = words
        self.expiries = expiries

    def extend(self, more: "Stretch") -> None:
        """Add the messages that follow."""
        if more.expiries is not None and self.expiries is None:
            self.expiries = self.dated()
        if self.expiries is not None:
            self.expiries.extend(more.dated())
        self.ids.extend(more.ids)
        self.words.extend(more.words)

    def part(self, first: int, end: int) -> "Stretch":
        """Return the messages from index `first` to before index `end`."""
        expiries = None if self.expiries is None else self.expiries[first:end]
        return Stretch(self.ids[first:end], self.words[first:end], expiries)

    def dated(self) -> "array[int]":
        """Return the expiry of each message; NONE for never."""
        return array("q", [NONE]) * len(self.ids) if self.expiries is None else self.expiries

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Return (id, word, expiry) of each message, in order."""
        return zip(self.ids, self.words, self.dated(), strict=True)

    @property
    def expiring(self) -> int:
        """The number of messages that have an expiry."""
        return 0 if self.expiries is None else len(self.ids) - self.expiries.count(NONE)

    @property
    def message_bytes(self) -> int:
        """The sum of the sizes of the bodies."""
        return self.words[0] & SIZE_MASK if len(self.words) == 1 else sum(sizes_of(self.words))

    def uppers(self) -> "array[int]":
        """Return the upper half of each word: the flags and counts, without the size."""
        return array("I", self.words.tobytes())[1 - _LOWER :: 2]

    def change_uppers(self, changes: Mapping[int, int]) -> None:
        """Replace the upper half of each word by its value in `changes`."""
        if len(self.words) == 1:
            word = self.words[0]
            self.words[0] = changes[word >> UPPER] << UPPER | word & SIZE_MASK
            return
        halves = array("I", self.words.tobytes())
        halves[1 - _LOWER :: 2] = array("I", [changes[upper] for upper in halves[1 - _LOWER :: 2]])
        self.words = array("q", halves.tobytes())

    def by_id(self) -> "Stretch":
        """Return the messages sorted by id."""
        if len(self.ids) == 1 or self.ids == array("q", sorted(self.ids)):
            return self
        return stretch_of(sorted(self.rows()))


def stretch_of(rows: list[tuple[int, int, int]]) -> Stretch:
    """Return the messages of these rows: (id, word, expiry) of each."""
    ids, words = array("q", [row[0] for row in rows]), array("q", [row[1] for row in rows])
    return Stretch(ids, words, array("q", [row[2] for row in rows]))


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
        """Return the expiry of the message at `index`; NONE for never."""
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
        """Replace the message at `index`."""
        if expiry != NONE and self.expiries is None:
            self.expiries = array("q", [NONE]) * len(self.ids)
        self.ids[index] = message_id
        self.words[index] = word
        if self.expiries is not None:
            self.expiries[index] = expiry


def first_number(returned: bool, space: int) -> int:
    """Return the number of the first chunk of an order."""
    return -1 - (space << SPACE_SHIFT) if returned else space << SPACE_SHIFT


def space_of(number: int) -> int:
    """Return the space of a chunk's number."""
    return (-1 - number if number < 0 else number) >> SPACE_SHIFT


class Order:
    """Messages in an order. `count`: their number; `expiring`: the number that have an expiry."""

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
            tail = self._grow()
            ids = tail.ids
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

    def _grow(self) -> Chunk:
        """Begin another chunk at the end."""
        self.tail = Chunk(self.tail.number - 1 if self.returned else self.tail.number + 1)
        self.chunks.append(self.tail)
        return self.tail

    def append_all(self, messages: Stretch) -> None:
        """Put messages at the end, in their order."""
        if len(messages.ids) == 1:
            self.append(messages.ids[0], messages.words[0], messages.dated()[0])
            return
        done = 0
        while done < len(messages.ids):
            tail = self.tail if len(self.tail.ids) < CHUNK else self._grow()
            part = messages.part(done, done + CHUNK - len(tail.ids))
            if part.expiring and tail.expiries is None:
                tail.expiries = array("q", [NONE]) * len(tail.ids)
            if tail.expiries is not None:
                tail.expiries.extend(part.dated())
            tail.ids.extend(part.ids)
            tail.words.extend(part.words)
            self._note(tail)
            done += len(part.ids)
        self.count += len(messages.ids)
        self.expiring += messages.expiring

    def _note(self, chunk: Chunk) -> None:
        """Note that a chunk has changed."""
        if not chunk.dirty:
            chunk.dirty = True
            self.changed.append(chunk)

    def first_expiry(self) -> int:
        """Return the expiry of the first message; NONE for never. The order must not be empty."""
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

    def take_first(self, count: int) -> Stretch:
        """Remove the first `count` messages, or all if there are fewer."""
        taken = self._take_of_head(count)
        while len(taken.ids) < count and self.count > 0:
            taken.extend(self._take_of_head(count - len(taken.ids)))
        return taken

    def _take_of_head(self, count: int) -> Stretch:
        """Remove the first `count` messages, or all of the first chunk if that has fewer."""
        head, start = self.head, self.start
        end = min(start + count, len(head.ids))
        expiries = None if head.expiries is None else head.expiries[start:end]
        taken = Stretch(head.ids[start:end], head.words[start:end], expiries)
        self.count -= end - start
        self.start = end
        if expiries is not None:
            self.expiring -= taken.expiring
        if start < end == len(head.ids):
            self._head_is_used_up()
        return taken

    def expired(self, now_ms: int) -> int:
        """Return the number of messages at the head that have expired."""
        count, start = 0, self.start
        for chunk in self.chunks:
            if chunk.expiries is None:
                break
            for expiry in chunk.expiries[start:]:
                if expiry == NONE or expiry > now_ms:
                    return count
                count += 1
            start = 0
        return count

    def reaching(self, message_bytes: int) -> tuple[int, int]:
        """Return how many messages at the head have at least `message_bytes` together, and 0.

        If all messages together have fewer bytes: their number, and the number of missing bytes."""
        count, start = 0, self.start
        for chunk in self.chunks:
            for at in range(start, len(chunk.words)):
                count += 1
                message_bytes -= chunk.words[at] & SIZE_MASK
                if message_bytes <= 0:
                    return count, 0
            start = 0
        return count, message_bytes

    def _head_is_used_up(self) -> None:
        head = self.head
        self.start = 0
        if head is not self.tail:
            self._drop_first_chunk()
            return
        # This is the only chunk: empty and reuse it. If it is `stored` and still empty, the store deletes it.
        del head.ids[:]
        del head.words[:]
        head.expiries = None
        self._note(head)

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
        low = self._chunk_of(message_id)
        chunk = self.chunks[low]
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
        self._note(chunk)
        if len(ids) > 2 * CHUNK:
            self._split(low)

    def insert_all(self, messages: Stretch) -> None:
        """Put messages, sorted by id, at the places of their ids, in an order that is sorted by id."""
        ids = messages.ids
        if self.count == 0 or ids[0] > self.tail.ids[-1]:
            self.append_all(messages)
            return
        low, end = self._chunk_of(ids[0]), self._chunk_of(ids[-1]) + 1
        around = self.chunks[low:end]
        if len(ids) == 1 or sum([len(chunk.ids) for chunk in around]) > _SPARSE * len(ids):
            for message_id, word, expiry in messages.rows():
                self.insert(message_id, word, expiry)
            return
        rows = list(messages.rows())
        for chunk in around:
            rows.extend(self._rows_of(chunk))
            if chunk.stored:
                self.vanished.append(chunk.number)
        rows.sort()
        merged = [Chunk(0) for _ in range(0, len(rows), CHUNK)]
        for at, chunk in enumerate(merged):
            part = stretch_of(rows[at * CHUNK : (at + 1) * CHUNK])
            chunk.ids, chunk.words = part.ids, part.words
            chunk.expiries = part.expiries if part.expiring else None
        self.chunks[low:end] = merged
        self.count += len(ids)
        self.expiring += messages.expiring
        if low == 0:
            self.start = 0
        self.head, self.tail = self.chunks[0], self.chunks[-1]
        self._number_afresh()

    def _rows_of(self, chunk: Chunk) -> Iterator[tuple[int, int, int]]:
        """Return (id, word, expiry) of each message of a chunk."""
        start = self.start if chunk is self.head else 0
        return Stretch(chunk.ids, chunk.words, chunk.expiries).part(start, len(chunk.ids)).rows()

    def _chunk_of(self, message_id: int) -> int:
        """Return the index of the first chunk whose last id is not smaller, or of the last chunk."""
        chunks = self.chunks
        low, high = 0, len(chunks) - 1
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].ids[-1] < message_id:
                low = middle + 1
            else:
                high = middle
        return low

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
        self._note(head)
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
        self.chunks.insert(index + 1, rest)
        if index == 0 and self.start >= CHUNK:
            self.start -= CHUNK
            self._drop_first_chunk()
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

        `scan`: the order may not be sorted by id, so each message is checked if necessary (8 ms an id for a million
        messages, and 38 ms at most)."""
        places = self._places(ids, scan)
        places.sort(reverse=True)  # from the end, because a cut moves only the entries after it
        removed = [self._cut_out(at, index) for at, index in places]
        removed.reverse()
        return removed

    def among(self, ids: list[int], scan: bool) -> list[int]:
        """Return the ids of the given messages that are in this order. `scan`: as for `remove`."""
        return [self.chunks[at].ids[index] for at, index in self._places(ids, scan)]

    def _places(self, ids: list[int], scan: bool) -> list[tuple[int, int]]:
        """Return the chunk and index of each of the messages that are here."""
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
        """Return chunk and index of a message; (-1, -1) if it is not where it would be in an order sorted by id."""
        low = self._chunk_of(message_id)
        ids = self.chunks[low].ids
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
        if len(chunk.ids) == 0:  # not the head, where another message precedes this one
            if chunk.stored:
                self.vanished.append(chunk.number)
            chunk.dirty = False  # still in `changed`, where it is now ignored
            del self.chunks[at]
            self.tail = self.chunks[-1]
        else:
            self._note(chunk)
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

        A million messages take milliseconds, because the numbers are read as machine words."""
        self.count = self.expiring = total = 0
        start = self.start
        for chunk in self.chunks:
            total += sum(sizes_of(chunk.words[start:]))
            self.count += len(chunk.ids) - start
            if chunk.expiries is not None:
                expiries = chunk.expiries[start:]
                self.expiring += len(expiries) - expiries.count(NONE)
            start = 0
        return total

    def has_transient(self) -> bool:
        """Return True if any message is not PERSISTENT (bit 32: the lowest of the word's fifth byte)."""
        start = self.start
        for chunk in self.chunks:
            flags = chunk.words[start:].tobytes()[(3 if BIG_ENDIAN else 4) :: 8]
            if flags.translate(None, ODD):
                return True
            start = 0
        return False

    def orders(self) -> "Iterator[Order]":
        """Yield the orders whose chunks hold the messages: this one."""
        yield self

    def ids(self) -> Iterator[int]:
        """Yield the messages' ids, in order."""
        for message_id, _, _ in self.items():
            yield message_id

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, word, expiry) of each message, in order."""
        for chunk in self.chunks:
            yield from self._rows_of(chunk)


def _has_some(ids: "array[int]", wanted: set[int]) -> bool:
    """Return True if some of the wanted ids may be among `ids`, and False if none of them is."""
    if len(wanted) > _FEW:
        return not wanted.isdisjoint(ids)
    data = ids.tobytes()  # a search for bytes creates no number for each id
    return any(
        data.find(each.to_bytes(8, "big" if BIG_ENDIAN else "little")) >= 0 for each in wanted if 0 <= each <= _LAST_ID
    )
