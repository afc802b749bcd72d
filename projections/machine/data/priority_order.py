"""The order of ready messages by priority (S-101 to S-108): one or two `Order`s for each level ever used.

    level 9    returned | arrived       <- the next message is the first one here,
    level 4    returned | arrived       <- or here, if the levels above are empty
    level 0                                (never used: no order exists)

- A classic queue with x-max-priority N has the levels 0 to N; N is at least 1 and at most 255. A message without a
  priority has level 0, a message with a priority above N has level N. A level is like a whole queue without priorities:
  it has `arrived`, and `returned` sorted by id. A drop from the head and the check whether the head has expired
  concern the next message, at any level (S-030, S-050; rabbit_priority_queue.erl find2).
- A quorum queue of profile rabbitmq-4.3 has the levels 0 to 31; a message without a priority has level 4 (S-105). Its
  levels have only `arrived`: returned messages go to the queue's own `returned`, which is served first, in the order of
  return (S-108). The first message of each level expires in time, even behind messages of higher levels
  (rabbit_fifo_pq.erl).

A message's level is part of its word (message_word.py), so that it is known while a consumer holds the message. The
chunks of each level have their own numbers (`space` in message_order.py).
"""

from array import array
from collections.abc import Iterator
from typing import Final

from rewindmq.projections.machine.data.message_order import NONE, Order, Stretch, stretch_of
from rewindmq.projections.machine.data.message_word import LEVEL_SHIFT

MAX_PRIORITY: Final = 255  # of a classic queue


class Prioritized(Order):
    """An order that consists of orders; its own chunk holds no message."""

    def __init__(self, highest: int, default: int) -> None:
        super().__init__(False)
        self.highest = highest
        self.default = default
        self.mask = (1 << highest.bit_length()) - 1  # the bits of a word that hold the level
        self.levels: dict[int, tuple[Order, Order]] = {}  # level -> returned, arrived
        self.used = 0  # bit n: level n has messages

    def level_of(self, priority: int | None) -> int:
        """Return the level of a message with this priority."""
        return self.default if priority is None else max(0, min(priority, self.highest))

    def append(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message at the end of its level."""
        level = word >> LEVEL_SHIFT & self.mask
        self._level(level)[1].append(message_id, word, expiry)
        self._added(level, expiry)

    def insert(self, message_id: int, word: int, expiry: int) -> None:
        """Put a message back at its original place."""
        level = word >> LEVEL_SHIFT & self.mask
        self._level(level)[0].insert(message_id, word, expiry)
        self._added(level, expiry)

    def append_all(self, messages: Stretch) -> None:
        """Put messages at the ends of their levels, in their order."""
        for level, part in self._by_level(messages):
            self._level(level)[1].append_all(part)

    def insert_all(self, messages: Stretch) -> None:
        """Put messages, sorted by id, back at their original places."""
        for level, part in self._by_level(messages):
            self._level(level)[0].insert_all(part)

    def _by_level(self, messages: Stretch) -> Iterator[tuple[int, Stretch]]:
        """Yield the messages for each level, and count them."""
        parts: dict[int, list[tuple[int, int, int]]] = {}
        for row in messages.rows():
            parts.setdefault(row[1] >> LEVEL_SHIFT & self.mask, []).append(row)
        for level, rows in parts.items():
            yield level, stretch_of(rows)
            self.used |= 1 << level
        self.count += len(messages.ids)
        self.expiring += messages.expiring

    def _level(self, level: int) -> tuple[Order, Order]:
        orders = self.levels.get(level)
        if orders is None:
            orders = self.levels[level] = (Order(True, level), Order(False, level))
        return orders

    def _added(self, level: int, expiry: int) -> None:
        self.used |= 1 << level
        self.count += 1
        if expiry != NONE:
            self.expiring += 1

    def first_expiry(self) -> int:
        """Return the expiry of the next message. The order must not be empty."""
        returned, arrived = self.levels[self.used.bit_length() - 1]
        return returned.first_expiry() if returned.count > 0 else arrived.first_expiry()

    def take(self) -> tuple[int, int, int]:
        """Remove the next message. Returns (id, word, expiry). The order must not be empty."""
        level = self.used.bit_length() - 1
        returned, arrived = self.levels[level]
        taken = returned.take() if returned.count > 0 else arrived.take()
        self.count -= 1
        if taken[2] != NONE:
            self.expiring -= 1
        if returned.count == 0 and arrived.count == 0:
            self.used ^= 1 << level
        return taken

    def take_first(self, count: int) -> Stretch:
        """Remove the next `count` messages, or all if there are fewer."""
        return self._take_each(count, NONE)

    def take_expired(self, now_ms: int) -> Stretch:
        """Remove the expired messages at the head of each level, from the highest level on."""
        return self._take_each(self.count, now_ms)

    def _take_each(self, count: int, expired_by: int) -> Stretch:
        taken = Stretch(array("q"), array("q"), None)
        for level in sorted(self.levels, reverse=True):
            returned, arrived = self.levels[level]
            for order in (returned, arrived):
                most = count if expired_by == NONE else order.expired(expired_by)
                taken.extend(order.take_first(min(most, count - len(taken.ids))))
            if returned.count == 0 and arrived.count == 0:
                self.used &= ~(1 << level)
        self.count -= len(taken.ids)
        self.expiring -= taken.expiring
        return taken

    def remove(self, ids: list[int], scan: bool) -> list[tuple[int, int, int]]:
        """Remove those of these messages that are here. Returns (id, word, expiry) of each, in order."""
        removed: list[tuple[int, int, int]] = []
        for level in sorted(self.levels, reverse=True):
            returned, arrived = self.levels[level]
            taken = returned.remove(ids, scan) + arrived.remove(ids, scan)
            for _, _, expiry in taken:
                self.count -= 1
                if expiry != NONE:
                    self.expiring -= 1
            if taken and returned.count == 0 and arrived.count == 0:
                self.used ^= 1 << level
            removed += taken
        return removed

    def among(self, ids: list[int], scan: bool) -> list[int]:
        """Return the ids of the given messages that are in this order. `scan`: as for `Order.remove`."""
        return [message_id for order in self.orders() for message_id in order.among(ids, scan)]

    def counts(self) -> dict[int, int]:
        """Return the number of messages of each level that has any, from the highest level on."""
        levels = sorted(self.levels.items(), reverse=True)
        return {level: sum(order.count for order in orders) for level, orders in levels if self.used >> level & 1}

    def clear(self) -> list["array[int]"]:
        """Remove all messages of all levels. Returns their ids, in order, in arrays."""
        removed = [ids for order in self.orders() for ids in order.clear()]
        self.used = self.count = self.expiring = 0
        return removed

    def recount(self) -> int:
        """Set the counts from the chunks, after loading. Returns the sum of the sizes."""
        total = 0
        self.used = self.count = self.expiring = 0
        for level, orders in self.levels.items():
            for order in orders:
                total += order.recount()
                self.count += order.count
                self.expiring += order.expiring
                if order.count > 0:
                    self.used |= 1 << level
        return total

    def has_transient(self) -> bool:
        """Return True if any message is not PERSISTENT."""
        return any(order.has_transient() for order in self.orders())

    def orders(self) -> Iterator[Order]:
        """Yield the orders of all levels that were ever used, in the order of delivery."""
        for level in sorted(self.levels, reverse=True):
            yield from self.levels[level]

    def ids(self) -> Iterator[int]:
        """Yield the messages' ids, in the order of delivery."""
        for order in self.orders():
            yield from order.ids()

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, word, expiry) of each message, in order."""
        for order in self.orders():
            yield from order.items()

    def at(self, space: int, returned: bool) -> Order:
        """Return the order whose chunks are numbered in this space."""
        return self._level(space)[0 if returned else 1]
