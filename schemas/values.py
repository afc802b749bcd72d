"""The values that events carry: who asked, arguments, policies, routes, where a message came from, how it is encrypted.

Field for field the Avro records of the same names in `schemas/avsc/`. Rules as in `events.py`.

A broker's life is an epoch: the offset in the metadata log of the event with which it began, `BrokerStarted` (a log of
one broker) or `NodeJoined` (a log that nodes share). Its session and consumer ids are (epoch << 24) | count, so that an
id names its epoch: `id >> EPOCH_SHIFT`.
"""

from dataclasses import dataclass

EPOCH_SHIFT = 24  # of session and consumer ids

# An AMQP field-table value as history keeps it. Nested tables and arrays are kept as JSON text in a `str`.
ArgumentValue = None | bool | int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asked. `session` identifies the connection (0: the broker itself); `user` is its authenticated name."""

    user: str
    session: int


BROKER = Actor("", 0)


@dataclass(frozen=True, slots=True)
class Argument:
    """One `x-` argument. `type` is RabbitMQ's name of the AMQP type: longstr, bool, byte, short, signedint, long,
    unsignedbyte, unsignedshort, unsignedint, float, double, timestamp, binary, void, table, array."""

    name: str
    type: str
    value: ArgumentValue


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it was in force. `definition` is canonical JSON (sorted keys, no spaces). `version` is the offset of
    the `PolicySet` (or `OperatorPolicySet`) event in the metadata log, so that every decision can name it."""

    name: str
    definition: str
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Where a publish came in and which queues of this partition it goes to. Compared by identity: the broker and the
    decoder intern routes, and the machine keeps the resolved queues per route object."""

    vhost: str
    exchange: str
    routing_key: str
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message came from that nobody published anew: the source queue, its incarnation (`queue_id`), and the
    message's id there. `reason`: why it died there (expired, rejected, maxlen, delivery_limit), delayed, or restored.
    `sequence`: of a dead letter its number in the source queue's sequence, by which the target drops a forward that it
    has already seen; of a restored message its number in the restoration that is named `restore`, for the same purpose.
    `delivery_count` and `redelivered` are what a restored message was when it was last in its queue."""

    vhost: str
    queue: str
    queue_id: int
    message_id: int
    reason: str
    sequence: int
    restore: str = ""
    delivery_count: int = 0
    redelivered: bool = False


@dataclass(frozen=True, slots=True)
class Encryption:
    """Body encrypted under a subject's key (erasure by destroying the key). `plain_size` is what limits count."""

    subject: str
    key_id: str
    nonce: bytes
    plain_size: int
