"""Delayed messages: messages of a delayed exchange, and with delayed retry also returned messages.

    queue.delayed    a `Timed`: messages by (due time, id); None for queues in which no message can wait

A delayed message is neither ready nor unacked (`messages_delayed` counts it), but counts towards length limits, is
purged and deleted with the others, and does not expire before it is due. When it is due:

    delayed retry       the message is ready again, at the end of `returned` (a quorum queue of profile rabbitmq-4.3;
                        rabbit_fifo.erl should_delay, expire_shallow). Effects: `Delay` when it returns, and `Requeue`
                        with reason "delayed" when it is due.
    type "delayed"      the message leaves for the queue's outbox, reason "delayed", to be routed by the exchange

The engine builds a delayed exchange (type x-delayed-message, named X) on it:
- With the exchange it declares a durable queue of type "delayed", whose name is `queue_of(X)`; it is hidden: never
  listed, bound or consumed, and deleted with the exchange. The machine reads the exchange's name out of the queue's.
- A publish to X with header x-delay > 0 is a `Published` whose route names that queue; the exchange and routing key are
  the publish's. Its `expiration_ms` is the DELAY (its own expiration stays in the properties); None is no delay at all.
- When it is due, a `DeadLetter` effect follows: reason DELAYED, exchange X, routing_key None. It is an entry of the
  outbox like any other: it stays until `DeadLettersForwarded`, and the target drops repeated letters. The forwarding
  broker routes it by X's bindings and adds no x-death.
"""

from array import array
from typing import Final

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.message_order import Chunk, Order

TYPE: Final = "delayed"
PREFIX: Final = "amq.delayed."
SPACE: Final = 256  # the space of its chunks' numbers, above those of every priority


def queue_of(exchange: str) -> str:
    """Return the hidden queue of a delayed exchange."""
    return PREFIX + exchange


def exchange_of(queue: str) -> str:
    """Return the delayed exchange that has this hidden queue."""
    return queue.removeprefix(PREFIX)


class Timed(Order):
    """Messages by (due time, id); the due time is stored where other orders have the expiry.

    Full chunks are split, and chunks are numbered as they are made: the messages, not the numbers, give the order."""

    def __init__(self) -> None:
        super().__init__(False, SPACE)
        self.next_number = self.tail.number + 1

    def append(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message where its time and id belong."""
        key = (expiry, message_id)
        chunks = self.chunks
        low, high = 0, len(chunks) - 1
        while low < high:  # finds the first chunk whose last message is later, or the last chunk
            middle = (low + high) // 2
            if _key(chunks[middle], len(chunks[middle].ids) - 1) < key:
                low = middle + 1
            else:
                high = middle
        chunk = chunks[low]
        first, last = (self.start if low == 0 else 0), len(chunk.ids)
        while first < last:
            middle = (first + last) // 2
            if _key(chunk, middle) < key:
                first = middle + 1
            else:
                last = middle
        chunk.insert(first, message_id, word, expiry)
        self.count += 1
        self.expiring += 1
        self._note(chunk)
        if len(chunk.ids) > 2 * message_order.CHUNK:
            self._split(low)

    def _split(self, index: int) -> None:
        chunk = self.chunks[index]
        assert chunk.expiries is not None
        if index == 0 and self.start > 0:  # first remove the messages that were taken
            del chunk.ids[: self.start], chunk.words[: self.start], chunk.expiries[: self.start]
            self.start = 0
            return
        half = message_order.CHUNK
        rest = Chunk(self.next_number)
        self.next_number += 1
        rest.ids, rest.words, rest.expiries = chunk.ids[half:], chunk.words[half:], chunk.expiries[half:]
        del chunk.ids[half:], chunk.words[half:], chunk.expiries[half:]
        self.chunks.insert(index + 1, rest)
        self.tail = self.chunks[-1]
        self._note(rest)

    def last_expiry(self) -> int:
        """Return the due time of the last message. The order must not be empty."""
        return self.tail.expiry(len(self.tail.ids) - 1)

    def clear(self) -> "list[array[int]]":
        """Remove all messages. Returns their ids, in order, in arrays."""
        removed = super().clear()
        self.tail.number = self.next_number
        self.next_number += 1
        return removed

    def loaded(self) -> int:
        """Sort the chunks after they were loaded in any order. Returns the sum of the messages' sizes."""
        if len(self.chunks) > 1:
            self.chunks.sort(key=lambda chunk: _key(chunk, len(chunk.ids) - 1))
        self.head, self.tail = self.chunks[0], self.chunks[-1]
        self.next_number = max(chunk.number for chunk in self.chunks) + 1
        return self.recount()


def _key(chunk: Chunk, index: int) -> tuple[int, int]:
    return chunk.expiry(index), chunk.ids[index]
