"""One queue's state, and how listings see it.

Everything here is changed by `Machine.apply` alone. Sizes count bodies only (S-002).

A ready message is in one of two orders, and `returned` is served first:

    returned    messages that came back.  classic: sorted by id, so each is where it was (ids in `returned` are all
                smaller than those in `arrived`, because messages leave `arrived` from its head only).
                quorum: in the order of their return (rabbit_fifo's `returns`)
    arrived     messages in the order of their publishing; of a quorum queue without a delivery limit also those that
                a consumer gave back, behind the others (S-095)
"""

from collections.abc import Iterator
from dataclasses import dataclass

from projections.machine.consumer import Consumer, Level
from projections.machine.effects import ACKED, DELIVERED, DELIVERY_LIMIT, EXPIRED, MAXLEN, PURGED, REJECTED, TRANSIENT
from projections.machine.ready import (
    NONE,
    REDELIVERED,
    SIZE_MASK,
    Order,
    delivery_count_of,
    redelivered_of,
    size_of,
)
from projections.machine.settings import Settings, effective_definition
from schemas.events import Argument, Policy

NEVER = 1 << 62  # a time that does not come
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as a listing or Spark shows it. `expires_ms`: absolute, or None. `state`: ready or unacked.
    `consumer`: the holder of an unacked message, else 0."""

    message_id: int
    size: int
    state: str
    position: int  # in ready order from 0; -1 when unacked
    redelivered: bool
    delivery_count: int
    expires_ms: int | None
    consumer: int


@dataclass(frozen=True, slots=True)
class ConsumerView:
    consumer: int
    tag: str
    session: int
    channel: int
    user: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    priority: int
    unacked: int


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A dead letter that waits until it is forwarded; see `DeadLetter`. `size`: of the body."""

    sequence: int
    message_id: int
    size: int
    reason: str
    exchange: str
    routing_key: str | None
    at_least_once: bool
    refused: bool


class Queue:
    def __init__(self, vhost: str, name: str, queue_id: int, type: str) -> None:
        self.vhost = vhost
        self.name = name
        self.queue_id = queue_id  # offset of the QueueDeclared that made it
        self.type = type
        self.quorum = type == "quorum"
        self.durable = True
        self.exclusive = False
        self.auto_delete = False
        self.owner = 0
        self.epoch = NO_EPOCH  # of a transient queue that is not exclusive: the node with which it lives and goes
        self.arguments: tuple[Argument, ...] = ()
        self.semantics = ""
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.gone = False  # deleted; kept only for its outbox

        self.settings = Settings()
        self.limited = False  # there is a max-length or max-length-bytes
        self.max_length_or_never = NEVER
        self.max_bytes_or_never = NEVER

        self.arrived = Order(False)
        self.returned = Order(True)
        self.messages_ready = 0
        self.messages_unacked = 0
        self.message_bytes_ready = 0
        self.message_bytes_unacked = 0
        self.held_expiries: dict[int, int] = {}  # of unacked messages that have one

        self.holders: dict[int, Consumer] = {}  # in the order in which they came
        self.levels: list[Level] = []  # highest priority first
        self.attached = 0  # number of consumers

        self.blocked = False  # quorum reject-publish: refuses until the queue is at 80 % of its limit (S-027)
        self.crash_offset = 0  # messages below it may have been delivered before the broker crashed: nobody knows
        self.last_used_ms = 0  # the lease (x-expires) runs from here while there is no consumer
        self.armed_ms = NEVER  # earliest message deadline that stands in the machine's heap for this queue
        self.lease_armed_ms = NEVER

        self.next_sequence = 1
        self.outbox: dict[int, OutboxEntry] = {}  # by sequence, ascending
        self.messages_dlx = 0
        self.message_bytes_dlx = 0
        self.seen: dict[tuple[str, str, int], int] = {}  # source queue -> highest sequence of its dead letters taken in

        self.published = 0
        self.acked = 0
        self.delivered = 0
        self.expired = 0
        self.maxlen = 0
        self.rejected = 0
        self.delivery_limited = 0
        self.purged = 0
        self.lost = 0
        self.refused = 0
        self.dead_lettered = 0
        self.duplicates = 0

        self.dirty = False  # something changed since the last take_dirty

    # -- effective settings ----------------------------------------------------------------------------------------

    def apply_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.max_length_or_never = NEVER if settings.max_length is None else settings.max_length
        self.max_bytes_or_never = NEVER if settings.max_length_bytes is None else settings.max_length_bytes
        self.limited = settings.max_length is not None or settings.max_length_bytes is not None

    @property
    def max_length(self) -> int | None:
        return self.settings.max_length

    @property
    def max_length_bytes(self) -> int | None:
        return self.settings.max_length_bytes

    @property
    def overflow(self) -> str:
        return self.settings.overflow

    @property
    def message_ttl_ms(self) -> int | None:
        return self.settings.message_ttl_ms

    @property
    def expires_ms(self) -> int | None:
        return self.settings.expires_ms

    @property
    def dead_letter_exchange(self) -> str | None:
        return self.settings.dead_letter_exchange

    @property
    def dead_letter_routing_key(self) -> str | None:
        return self.settings.dead_letter_routing_key

    @property
    def at_least_once(self) -> bool:
        return self.settings.at_least_once

    @property
    def delivery_limit(self) -> int | None:
        return self.settings.delivery_limit

    def effective_definition(self) -> dict[str, object]:
        """The merged policy definition as rabbitmqctl's effective_policy_definition shows it."""
        return effective_definition(self.policy, self.operator_policy)

    # -- counters since the queue was made ---------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, int]:
        """At every offset (conservation, B-18):
        published = ready + unacked + acked + delivered + expired + maxlen + rejected + delivery_limit + purged
        + transient.  `refused` publishes and `duplicates` never were in the queue."""
        return {
            "published": self.published,
            ACKED: self.acked,
            DELIVERED: self.delivered,
            EXPIRED: self.expired,
            MAXLEN: self.maxlen,
            REJECTED: self.rejected,
            DELIVERY_LIMIT: self.delivery_limited,
            PURGED: self.purged,
            TRANSIENT: self.lost,
            "refused": self.refused,
            "duplicates": self.duplicates,
            "dead_lettered": self.dead_lettered,
        }

    # -- the front of the queue ----------------------------------------------------------------------------------------

    def take(self) -> tuple[int, int, int]:
        """Remove the next message: (id, info, expiry). There must be one."""
        taken = self.returned.take() if self.returned.count > 0 else self.arrived.take()
        self.messages_ready -= 1
        self.message_bytes_ready -= taken[1] & SIZE_MASK
        return taken

    def first_expiry(self) -> int:
        """Expiry of the next message; NONE when it has none or there is no message."""
        if self.returned.count > 0:
            return self.returned.first_expiry()
        if self.arrived.count > 0:
            return self.arrived.first_expiry()
        return NONE

    # -- views ---------------------------------------------------------------------------------------------------------

    def ready_ids(self) -> Iterator[int]:
        """Message ids in delivery order; cheap to take a few from the front."""
        yield from self.returned.ids()
        yield from self.arrived.ids()

    def messages(self) -> Iterator[MessageView]:
        """Ready in delivery order, then unacked by id."""
        position = 0
        for order in (self.returned, self.arrived):
            for message_id, info, expiry in order.items():
                if message_id < self.crash_offset:
                    info |= REDELIVERED
                yield _view(message_id, info, expiry, position, 0)
                position += 1
        held = [(message_id, info, h.consumer) for h in self.holders.values() for message_id, info in h.held.items()]
        held.sort()
        for message_id, info, consumer in held:
            yield _view(message_id, info, self.held_expiries.get(message_id, NONE), -1, consumer)

    def consumers(self) -> list[ConsumerView]:
        """The attached consumers, in the order in which they came."""
        return [
            ConsumerView(
                c.consumer, c.tag, c.session, c.channel, c.user, c.no_ack, c.exclusive, c.prefetch, c.priority,
                len(c.held),
            )
            for c in self.holders.values()
            if c.attached
        ]  # fmt: skip

    def consumer_count(self) -> int:
        return self.attached

    def digest(self) -> str:
        """SHA-256 (hex) of this queue's canonical state."""
        from projections.machine.storing import queue_digest

        return queue_digest(self)

    def meta(self) -> bytes:
        """The queue's small state, packed: everything but its ready messages."""
        from projections.machine.storing import pack_meta

        return pack_meta(self)

    def chunks(self) -> dict[int, bytes]:
        """The ready messages, packed, by chunk number."""
        from projections.machine.storing import pack_chunks

        return pack_chunks(self)


def _view(message_id: int, info: int, expiry: int, position: int, consumer: int) -> MessageView:
    return MessageView(
        message_id,
        size_of(info),
        "unacked" if position < 0 else "ready",
        position,
        redelivered_of(info),
        delivery_count_of(info),
        None if expiry == NONE else expiry,
        consumer,
    )
