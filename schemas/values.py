"""The values that events carry: actors, arguments, policies, routes, origins of messages, encryption.

Field for field the Avro records of the same names in `schemas/avsc/`. Rules as in `events.py`.

A broker's life is an epoch: the offset in the metadata log of the event with which it began, `BrokerStarted` (a log of
one broker) or `NodeJoined` (a log that nodes share). Its session and consumer ids are (epoch << 24) | count, so that an
id names its epoch: `id >> EPOCH_SHIFT`.
"""

from dataclasses import dataclass
from typing import Final

EPOCH_SHIFT: Final = 24  # of session and consumer ids

# An AMQP field-table value in history. Nested tables and arrays are JSON text in a `str`.
ArgumentValue = None | bool | int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Actor:
    """The user and session behind an event.

    `session` identifies the connection (0: the broker itself); `user` is its authenticated name. `reason`: why, in the
    user's words. It is stored beside the event (`Explained.avsc`), and only where the user gave one."""

    user: str
    session: int
    reason: str = ""


BROKER: Final = Actor("", 0)


@dataclass(frozen=True, slots=True)
class Argument:
    """One `x-` argument. `type` is RabbitMQ's name of the AMQP type: longstr, bool, byte, short, signedint, long,
    unsignedbyte, unsignedshort, unsignedint, float, double, timestamp, binary, void, table, array."""

    name: str
    type: str
    value: ArgumentValue


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it applied.

    `definition` is canonical JSON (sorted keys, no spaces). `version` is the offset of the `PolicySet` (or
    `OperatorPolicySet`) event in the metadata log, so that every decision can name it."""

    name: str
    definition: str
    version: int


@dataclass(frozen=True, slots=True)
class Deduplication:
    """The deduplication that an exchange of type x-message-deduplication requires of the queues behind it.

    A queue drops a message whose header x-deduplication-header equals that of a message which it accepted earlier
    through the same `exchange`. It remembers the last `size` of these headers, each for `ttl_ms` (None: for ever)."""

    exchange: str
    size: int
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class Unrouted:
    """The broker's answer to a message that no queue took.

    `alternate`: it asked an alternate exchange, in vain. `returned`: the message was mandatory, and was returned."""

    alternate: bool
    returned: bool


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The exchange and key of a publish, and its target queues in this partition.

    `deduplication`: the message reached all of these queues through a deduplicating exchange; or there are no queues,
    and what the broker did about that (one field, so that the bytes of all other publishes are those of schema 1).
    Routes are compared by identity: the broker and the decoder intern them, and the machine keeps the resolved queues
    per route object."""

    vhost: str
    exchange: str
    routing_key: str
    queues: tuple[str, ...]
    deduplication: Deduplication | Unrouted | None = None

    @property
    def duplicates(self) -> Deduplication | None:
        """Return which messages the queues drop as duplicates; None: none by the route."""
        return self.deduplication if isinstance(self.deduplication, Deduplication) else None

    @property
    def unrouted(self) -> Unrouted | None:
        """Return what the broker did about a message that no queue took; None: queues took it."""
        return self.deduplication if isinstance(self.deduplication, Unrouted) else None


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a message that no client published anew: a dead letter, a delayed or a restored message.

    It names the source queue, its incarnation (`queue_id`), and the message's id there. `reason`: why the message died
    there (expired, rejected, maxlen, delivery_limit), delayed, moved, restored, or relocated (with its queue, from
    another partition). `sequence` is a number by which the target drops a repeated forward: a dead letter's in the
    source queue's sequence, or a restored message's in the restoration named `restore`. `delivery_count`, `redelivered`
    and `acquired_count` are those of a restored or relocated message when it was last in its queue. `partition`: the
    source's; -1 for the first partition of the queues of this name, so that letters accepted before a change of the
    number of partitions are still recognized."""

    vhost: str
    queue: str
    queue_id: int
    message_id: int
    reason: str
    sequence: int
    restore: str = ""
    delivery_count: int = 0
    redelivered: bool = False
    acquired_count: int = 0
    partition: int = -1


@dataclass(frozen=True, slots=True)
class Encryption:
    """The encryption of a body under a subject's key, whose destruction erases the body.

    Limits count `plain_size`."""

    subject: str
    key_id: str
    nonce: bytes
    plain_size: int


@dataclass(frozen=True, slots=True)
class SeenLetters:
    """The last dead letter, number `sequence`, that a queue has accepted from another one, incarnation `queue_id`.

    `partition`: as in Origin. `relocated`: the letters are messages that moved with their queue."""

    vhost: str
    queue: str
    queue_id: int
    sequence: int
    partition: int
    relocated: bool


@dataclass(frozen=True, slots=True)
class SeenRestored:
    """The messages of a queue that another one has accepted by the restoration `restore`: ranges of ids, ascending."""

    restore: str
    vhost: str
    queue: str
    queue_id: int
    messages: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MovedFrom:
    """The state that a queue brings from the partition with this number, where it was incarnation `queue_id`.

    `version`: the machine version under which the queue was first declared, whose rules still apply to it. `letters`
    and `restored`: the messages that it has accepted, so that none enters twice."""

    partition: int
    queue_id: int
    version: int
    paused: bool
    letters: tuple[SeenLetters, ...]
    restored: tuple[SeenRestored, ...]


# All of the above, the parts of records besides events.
@dataclass(frozen=True, slots=True)
class UnroutedLetter:
    """A dead letter or a delayed message that no queue took, and the `size` of its body in bytes."""

    message_id: int
    size: int


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """`events`: how many publishes a session has in a partition. All of them, and nothing else of the session, are
    below the offset `below`."""

    partition: int
    below: int
    events: int


PARTS: Final = (
    Actor,
    Argument,
    CountedPartition,
    Deduplication,
    Encryption,
    MovedFrom,
    Origin,
    Policy,
    Route,
    SeenLetters,
    SeenRestored,
    Unrouted,
    UnroutedLetter,
)
