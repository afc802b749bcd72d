"""The reading of a queue partition: its fold, its messages and its time, as this node knows them.

Listings, metrics and readers of the past take a `PartitionReading`. Requests that change something take a `Partition`
(partition.py).
"""

import asyncio
import logging
from abc import ABC
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol

from rewindmq.engine.log.contract import BelowStart, LogError
from rewindmq.engine.partition.counters import Served
from rewindmq.engine.partition.queue_counters import CounterTable
from rewindmq.engine.partition.waits import LogTimes, time_of
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.store.store import Projector, StoreError
from rewindmq.schemas.events import Published
from rewindmq.schemas.inheritance import mypyc_attr

logger = logging.getLogger(__name__)


class Decryption(Protocol):
    """Decrypts bodies (engine/erasure/encryption.py)."""

    def decrypt(self, message: Published) -> Published:
        """Return the message with its body decrypted. NotAtHand: `fetch` the key first."""

    def fetch(self, key_id: str) -> "asyncio.Future[None]":
        """Have a Vault open a key."""


class BodyKeys(Protocol):
    """A part of the broker that decrypts bodies."""

    @property
    def subjects(self) -> Decryption:
        """Decrypts bodies."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a double
class PartitionReading(ABC):
    """One queue partition of the log. The defaults are those of a partition that this node always folds."""

    index: int
    name: str
    machine: Machine
    projector: Projector
    _keys: BodyKeys  # from the start on

    def __init__(
        self, index: int, log: ReadableLog, machine: Machine, projector: Projector, clock: Callable[[], int]
    ) -> None:
        self.index = index
        self.name = log.name
        self.history = log
        self.machine = machine
        self.projector = projector
        self.owned = True  # its duties (ticks, dead letters, expiry) are this node's
        # The machine has all that this broker knows of; otherwise `enter` first (cluster/partition_pausing.py).
        self.current = True
        self.served: dict[Queue, Served] = {}  # deliveries of each queue
        self.times = LogTimes(machine.next_offset, machine.clock_ms)
        self._time_in_log = lru_cache(10_000)(partial(time_of, log))
        self.log_difference_ms = 0  # time of records minus this node's time; 0 if this node gives the times
        self._clock = clock

    @property
    def next_offset(self) -> int:
        """The end of the log as this broker knows it."""
        return self.machine.next_offset

    @property
    def durable_offset(self) -> int:
        """Every record below this offset is durable. Of this broker's fold, nothing above it is."""
        return self.machine.next_offset

    def now_ms(self) -> int:
        """Return the current time of the partition's queues. It is never behind the machine's time."""
        return self._clock() + self.machine.ahead_ms

    def log_ms(self) -> int:
        """Return the current time as the log's timestamps and people give it."""
        return self.now_ms() - self.machine.ahead_ms

    def oldest_age_ms(self, queue: Queue) -> int | None:
        """Return the age of the oldest ready message; None without one, in a stream, and if the log does not say.

        The loop waits for a read of the log, once for each message that is older than this node's fold."""
        oldest = NONE if queue.stream else queue.oldest_ready()
        if oldest == NONE:
            return None
        published_ms = self.times.at(oldest)
        if published_ms is None:
            try:
                logged_ms = self._time_in_log(oldest)
            except LogError:
                return None
            published_ms = None if logged_ms is None else logged_ms + self.machine.ahead_ms
        return None if published_ms is None else max(0, self.now_ms() - published_ms)

    async def end_in_log(self) -> int:
        """Return the offset that the next event gets. LogError: the log does not say."""
        return self.machine.next_offset

    async def enter(self) -> None:  # noqa: B027
        """Make sure that this node folds the partition, and has caught up with it."""

    @property
    def counted(self) -> CounterTable | None:
        """The counters of the queues as the owner has published them; None: this node folds the partition, or it has
        none."""
        return None

    @property
    def must_enter(self) -> bool:
        """Return True if even a listing needs the fold: it is not current, and no owner publishes counters."""
        return False

    @property
    def counters_age_ms(self) -> int | None:
        """The age of `counted` in ms; None where `counted` is None."""
        return None

    def may_have(self, vhost: str, queue: str) -> bool:
        """Say whether a message can be routed to this queue. A partition that is not current may say so of a queue
        that is gone."""
        return self.machine.queue(vhost, queue) is not None

    def message(self, queue_id: int, message_id: int) -> Published:
        """Return a message that is in a queue or an outbox, from the store or else the log.

        KeyError: none has it. LogError: the log did not answer in time."""
        try:
            return self.projector.message(queue_id, message_id)
        except KeyError:
            if self.projector.failed is None:
                logger.error("%s: message %d is missing in the state store, read from the log", self.name, message_id)
        except StoreError as error:
            logger.error("%s: message %d is read from the log: %s", self.name, message_id, error)
        record = self._record(message_id)
        event = None if record is None else decoder_for(self.history).decode(record)[2]
        if isinstance(event, Published):
            return event
        raise KeyError(message_id)

    def _record(self, offset: int) -> bytes | None:
        """Read one record of the log. The loop waits for it.

        BelowStart: the log was cut off above it."""
        for block in self.history.read(offset, offset + 1):
            if block.first_offset > offset:
                raise BelowStart(f"{self.name}: the log was cut off above offset {offset}")
            return block.records[offset - block.first_offset]
        return None

    def decrypted(self, message: Published) -> Published:
        """Return the message as a client gets it: decrypted, or without its body if its key is destroyed.

        NotAtHand: `fetch_key` first. See engine/erasure/encryption.py."""
        if message.encryption is None:
            return message
        return self._keys.subjects.decrypt(message)

    def fetch_key(self, key_id: str) -> "asyncio.Future[None]":
        """Have a Vault open a key. OSError: it was tried for a time."""
        return self._keys.subjects.fetch(key_id)
