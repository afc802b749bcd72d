"""The ids of messages that a queue remembers, so that it drops duplicates (rules/deduplication.py).

    queue.remembered    by exchange: the messages that came through a deduplicating exchange;
                        by "": those that are in a queue with x-message-deduplication

An id is the value of a header, kept as 16 bytes of its hash, whatever its size. Messages arrive in the order of their
offsets, so the oldest is first. Like messages, they are stored in chunks: chunk N has the messages whose offsets are
N * CHUNK to (N + 1) * CHUNK - 1. A queue remembers for at most MOST_EXCHANGES exchanges, and the chunks of each have
their own number space.
"""

from collections.abc import Iterator
from typing import Final

from rewindmq.projections.machine.data.message_order import SPACE_SHIFT, space_of

SPACE: Final = 512  # the first space, above that of delayed messages; "" has it
MOST_EXCHANGES: Final = 16
MOST_REMEMBERED: Final = 1_000_000  # messages of an exchange, in each queue behind it
LONGEST_TTL_MS: Final = (1 << 48) - 1  # an exchange's limit for remembering a message
CHUNK_SHIFT: Final = 9
KEY_SIZE: Final = 16
ID_SIZE: Final = 16 + KEY_SIZE  # of a remembered message in a chunk: offset, expiry, key
OWN: Final = ""  # of the queue itself


class IdWindow:
    """Messages with their ids and the times until which they are remembered (NEVER: no end), oldest first.

    `by_key`: the last message of each id. It may lack an older, expired message of the same id."""

    def __init__(self, space: int) -> None:
        self.space = space
        self.messages: dict[int, tuple[bytes, int]] = {}
        self.by_key: dict[bytes, int] = {}
        self.dirty: dict[int, None] = {}  # numbers of chunks that changed since the last take_dirty
        self.stored: dict[int, None] = {}  # numbers of chunks that a store may have

    def add(self, message_id: int, key: bytes, expiry: int) -> None:
        """Remember a message, the newest of all."""
        self.messages[message_id] = (key, expiry)
        self.by_key[key] = message_id
        self.dirty[message_id >> CHUNK_SHIFT] = None

    def remove(self, message_id: int) -> None:
        """Forget a message, if it is remembered."""
        found = self.messages.pop(message_id, None)
        if found is None:
            return
        if self.by_key.get(found[0], -1) == message_id:
            del self.by_key[found[0]]
        self.dirty[message_id >> CHUNK_SHIFT] = None

    def clear(self) -> None:
        """Forget all messages. Their chunks vanish from the store."""
        self.messages.clear()
        self.by_key.clear()
        self.dirty.update(self.stored)

    def oldest(self) -> int:
        """Return the oldest message. There must be one."""
        return next(iter(self.messages))

    def newest(self) -> int:
        """Return the newest message; -1 if there is none."""
        return next(reversed(self.messages), -1)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all chunks, ascending."""
        last = -1
        for message_id in self.messages:
            if message_id >> CHUNK_SHIFT != last:
                last = message_id >> CHUNK_SHIFT
                yield last

    def of_chunk(self, number: int) -> list[tuple[int, bytes, int]]:
        """Return (message, key, expiry) of the messages of a chunk, ascending."""
        first = number << CHUNK_SHIFT
        found: list[tuple[int, bytes, int]] = []
        for message_id in range(first, first + (1 << CHUNK_SHIFT)):
            entry = self.messages.get(message_id)
            if entry is not None:
                found.append((message_id, entry[0], entry[1]))
        return found

    def stored_number(self, number: int) -> int:
        """Return the number under which a queue's pieces have the chunk."""
        return (self.space << SPACE_SHIFT) + number


def is_chunk_of_ids(number: int) -> bool:
    """Return True if a piece of a queue is a chunk of remembered ids, not one of messages."""
    return number >= 0 and space_of(number) >= SPACE
