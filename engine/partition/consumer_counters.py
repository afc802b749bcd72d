"""The consumers of a queue as the owner of its partition publishes them, in the record of the queue's counters.

    owner:   Queue.consumers() -> published_of -> items_of -> the list `attached_consumers` of the record
    others:  consumers_in -> PublishedConsumer, for a listing of consumers

Rules of this file
- A record has consumers up to about LIST_BYTES of JSON. Those that do not fit are missing. A reader sees that by the
  number of attached consumers, and folds the partition before it lists them.
- A field that has its usual value is not in the record.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any, Final

from rewindmq.projections.machine.data.queue import ConsumerView
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.schemas.json_values import json_text

LIST_BYTES: Final = 65_536  # of the consumers of a queue: some 350 of them
OTHER_BYTES: Final = 150  # of a consumer, besides its words and arguments
MOST_CONSUMERS: Final = 10_000  # of a record that a node reads
MOST_WORD: Final = 1_024  # letters
MOST: Final = (1 << 63) - 1
NO_TABLE: Final[Mapping[str, Any]] = {}


class BadConsumers(ValueError):
    """The value is no list of consumers."""


@dataclass(slots=True)
class PublishedConsumer:
    """A consumer as a listing shows it. Names are those of `ConsumerView`."""

    consumer: int = 0
    tag: str = ""
    session: int = 0
    channel: int = 0
    user: str = ""
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    priority: int = 0
    unacked: int = 0
    argument_table: Mapping[str, Any] = field(default_factory=lambda: NO_TABLE)
    active: bool = True
    activity_status: str = "up"

    @classmethod
    def of(cls, view: ConsumerView) -> "PublishedConsumer":
        """A consumer of a queue that is folded here."""
        return cls(
            view.consumer,
            view.tag,
            view.session,
            view.channel,
            view.user,
            view.no_ack,
            view.exclusive,
            view.prefetch,
            view.priority,
            view.unacked,
            table_of(view.arguments) if view.arguments else NO_TABLE,
            view.active,
            view.activity_status,
        )


ListedConsumer = ConsumerView | PublishedConsumer

USUAL: Final = PublishedConsumer()
KINDS: Final[Mapping[str, type]] = {
    each.name: dict if each.name == "argument_table" else type(getattr(USUAL, each.name))
    for each in fields(PublishedConsumer)
}
USUAL_VALUES: Final = tuple((name, getattr(USUAL, name)) for name in KINDS)
INTERNED: Final = ("user", "activity_status")  # words that many consumers have in common


def published_of(views: Iterable[ConsumerView]) -> tuple[PublishedConsumer, ...]:
    """The consumers that fit into a record."""
    found = []
    room = LIST_BYTES
    for view in views:
        consumer = PublishedConsumer.of(view)
        room -= OTHER_BYTES + len(consumer.tag) + len(consumer.user)
        if consumer.argument_table:
            room -= len(json_text(consumer.argument_table))
        if room < 0:
            break
        found.append(consumer)
    return tuple(found)


def item_of(consumer: PublishedConsumer) -> dict[str, object]:
    """A consumer as it is in a record."""
    return {name: value for name, usual in USUAL_VALUES if (value := getattr(consumer, name)) != usual}


def consumers_in(value: object) -> tuple[PublishedConsumer, ...]:
    """The consumers in a record. Raises BadConsumers."""
    if not isinstance(value, list) or len(value) > MOST_CONSUMERS:
        raise BadConsumers(f"it is no list of up to {MOST_CONSUMERS} consumers")
    return tuple(map(_consumer_in, value))


def _consumer_in(item: object) -> PublishedConsumer:
    if not isinstance(item, dict):
        raise BadConsumers("a consumer is no object")
    consumer = PublishedConsumer()
    for name, value in item.items():
        kind = KINDS.get(name)
        if kind is not None:
            setattr(consumer, name, _checked(name, kind, value))
    return consumer


def _checked(name: str, kind: type, value: Any) -> Any:
    fits = type(value) is kind
    if not fits:
        raise BadConsumers(f"{name} of a consumer is no {kind.__name__}")
    if kind is int and not -MOST <= value <= MOST:
        raise BadConsumers(f"{name} of a consumer is too large")
    if kind is str:
        if len(value) > MOST_WORD:
            raise BadConsumers(f"{name} of a consumer is too long")
        return intern(value) if name in INTERNED else value
    return value
