"""The listeners of a live partition: the parts of the broker that it calls."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rewindmq.projections.machine.data.effects import DeadLetter, Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.runtime.partition import Partition


class Decryption(Protocol):
    """Decrypts bodies (engine/erasure/encryption.py)."""

    def decrypt(self, message: Published) -> Published:
        """Return the message with its body decrypted. NotAtHand: `fetch` the key first."""

    def fetch(self, key_id: str) -> "asyncio.Future[None]":
        """Have a Vault open a key."""


class EventTap(Protocol):
    """A watcher of the events of partitions (engine/routing/event_exchange.py)."""

    def folded(
        self,
        partition: "Partition",
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Event,
        effects: Sequence[Effect],
        before: int,
    ) -> None:
        """Take note of an event that was folded, and of its effects: those from `before` on."""


class PartitionListener(Protocol):
    """The part of the broker that its partitions call."""

    counters: dict[str, int]

    def queue_declared(self) -> None:
        """Take note that any node may have declared a queue."""

    @property
    def subjects(self) -> Decryption:
        """Decrypts bodies."""

    def queue_gone(self, partition: "Partition", queue: Queue, reason: str) -> None:
        """Take note that a queue is gone, and why."""

    def undelivered(self, partition: "Partition", consumer_id: int) -> None:
        """Close the connection of a consumer whose message could not be delivered."""

    def dead_letter(self, partition: "Partition", effect: DeadLetter) -> None:
        """Forward dead letters; the projector has their messages."""
