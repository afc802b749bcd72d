"""Deduplication: a queue drops a message with the id of one that it accepted earlier (B-61, B-62).

A message's id is its header x-deduplication-header. Names and rules are those of RabbitMQ's plugin
rabbitmq-message-deduplication, and the differences are in docs/differences.md.

    exchange x-message-deduplication    each queue behind it remembers the last x-cache-size messages that it accepted
                                        through this exchange, each for x-cache-ttl or the message's own x-cache-ttl.
                                        The publish itself carries this (`Route.deduplication`), as its broker routed it
    queue x-message-deduplication       the queue remembers the messages in it, ready, delayed or unacked,
                                        until they leave, or could have expired

So every decision is the queue's own, in the order of its partition: nodes need not agree beforehand, and a restart, a
copy and a later fold remember the same. A queue does not remember a message that it refused, so that it may be
published again. An operator's restoration bypasses exchanges' rules, but not the queue's own.

The id's type counts as it does in the plugin: 42 is not "42"; all integers are of one type, and all texts. A table, an
array or a decimal is not an id.
"""

from hashlib import blake2b
from typing import Final

from rewindmq.projections.machine.data.effects import Duplicate, Effect, endings
from rewindmq.projections.machine.data.id_windows import KEY_SIZE, MOST_EXCHANGES, MOST_REMEMBERED, OWN, SPACE, IdWindow
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.queue import NEVER, Queue
from rewindmq.projections.machine.state import State
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import split as split_properties
from rewindmq.schemas.amqp.properties import split_headers
from rewindmq.schemas.values import Deduplication

ID_HEADER: Final = "x-deduplication-header"
TTL_HEADER: Final = "x-cache-ttl"
FORGOTTEN_AT_ONCE: Final = 100  # messages, by one publish, after a window became smaller
EXCHANGE_RULE: Final = "exchange "  # followed by its name: the rule that decided, for people
QUEUE_RULE: Final = "x-message-deduplication of the queue"

_MARK: Final = bytes([len(ID_HEADER)]) + ID_HEADER.encode()
_INTEGERS: Final = b"bBsuIilLT"
_SIGNED: Final = b"bsIlL"
_TEXTS: Final = b"Sx"
_OTHERS: Final = b"tfdV"


class MessageIdentity:
    """The identity of a message for deduplication, from its headers.

    `ttl_ms`: how long to remember it; None: not in the headers."""

    def __init__(self, key: bytes, ttl_ms: int | None) -> None:
        self.key = key
        self.ttl_ms = ttl_ms


def identity_of(properties: bytes) -> MessageIdentity | None:
    """Return the message's id and its own time; None if it has no id, or its properties cannot be read."""
    if properties.find(_MARK) < 0:
        return None
    try:
        headers = split_headers(split_properties(properties))
    except PropertyError:
        return None
    field = headers.get(ID_HEADER)
    identity = None if field is None else _comparable(field)
    if identity is None:
        return None
    return MessageIdentity(blake2b(identity, digest_size=KEY_SIZE).digest(), _milliseconds(headers.get(TTL_HEADER)))


def _comparable(field: bytes) -> bytes | None:
    """Return a header's value in a form in which equal ids have equal bytes. `field`: the type, then the value."""
    kind = field[:1]
    if kind in _OTHERS:
        return field
    if kind in _TEXTS:
        return b"S" + field[5:]
    if kind in _INTEGERS:
        return b"I%d" % _integer(field)
    return None


def _integer(field: bytes) -> int:
    return int.from_bytes(field[1:], "big", signed=field[:1] in _SIGNED)


def _milliseconds(field: bytes | None) -> int | None:
    return max(0, _integer(field)) if field is not None and field[:1] in _INTEGERS else None


def is_nacked(effect: Duplicate) -> bool:
    """Return True if the publisher of a duplicate gets basic.nack, because the queue itself dropped it.

    A duplicate that an exchange's rule drops is confirmed. Both are as in RabbitMQ's plugin."""
    return effect.rule == QUEUE_RULE


# -- of one publish ----------------------------------------------------------------------------------------------------


def original_of(state: State, queue: Queue, key: bytes, asked: Deduplication | None) -> tuple[int, str]:
    """Return the message that one with this key would duplicate, and the deciding rule; (-1, "") if there is none."""
    if asked is not None:
        original = _remembered(state, queue, asked.exchange, key)
        if original >= 0:
            return original, EXCHANGE_RULE + asked.exchange
    if queue.deduplicates:
        original = _remembered(state, queue, OWN, key)
        if original >= 0:
            return original, QUEUE_RULE
    return -1, ""


def _remembered(state: State, queue: Queue, exchange: str, key: bytes) -> int:
    ids = queue.remembered.get(exchange)
    message_id = -1 if ids is None else ids.by_key.get(key, -1)
    return message_id if ids is not None and message_id >= 0 and ids.messages[message_id][1] > state.clock_ms else -1


def remember_message(
    state: State,
    queue: Queue,
    message_id: int,
    identity: MessageIdentity,
    asked: Deduplication | None,
    expiry: int,
) -> None:
    """Remember a message that the queue accepts. `expiry`: the time at which it dies; NONE for never."""
    if queue.deduplicates:
        _ids_of(queue, OWN).add(message_id, identity.key, NEVER if expiry == NONE else expiry)
        state.remembers_messages = True
    if asked is None or asked.exchange == OWN:
        return
    ids = _ids_of(queue, asked.exchange)
    room = max(1, min(asked.size, MOST_REMEMBERED))
    for _ in range(FORGOTTEN_AT_ONCE):
        if not ids.messages:
            break
        oldest = ids.oldest()
        if len(ids.messages) < room and ids.messages[oldest][1] > state.clock_ms:
            break
        ids.remove(oldest)
    ttl_ms = asked.ttl_ms if identity.ttl_ms is None else identity.ttl_ms
    ids.add(message_id, identity.key, NEVER if ttl_ms is None else min(state.clock_ms + max(0, ttl_ms), NEVER))


def _ids_of(queue: Queue, exchange: str) -> IdWindow:
    """Return the remembered messages of an exchange. With too many exchanges, the least recently used is forgotten."""
    ids = queue.remembered.get(exchange)
    if ids is not None:
        return ids
    if exchange == OWN:
        ids = IdWindow(SPACE)
    elif len(queue.remembered) - (OWN in queue.remembered) < MOST_EXCHANGES:
        taken = {ids.space: None for ids in queue.remembered.values()}
        ids = IdWindow(next(space for space in range(SPACE + 1, SPACE + 1 + MOST_EXCHANGES) if space not in taken))
    else:
        unused = min((ids.newest(), name) for name, ids in queue.remembered.items() if name != OWN)[1]
        ids = queue.remembered.pop(unused)
        ids.clear()
    queue.remembered[exchange] = ids
    return ids


def forget_messages(queue: Queue) -> None:
    """Forget the messages in the queue, which then accepts duplicates of them."""
    ids = queue.remembered.get(OWN)
    if ids is not None:
        ids.clear()


def forget_all(queue: Queue) -> None:
    """Forget everything, because the queue is gone."""
    for ids in queue.remembered.values():
        ids.clear()


def messages_left(effects: list[Effect], first: int) -> None:
    """Forget the messages that left a queue which remembers its content. `first`: the first effect to check."""
    for queue, message_id, _, _ in endings(effects[first:]):
        ids = queue.remembered.get(OWN)
        if ids is not None:
            ids.remove(message_id)
