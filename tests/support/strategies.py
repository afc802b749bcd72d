"""Hypothesis strategies for every event of history, built from the fields' types: a new event class has one at once.

    from tests.support.strategies import EVENTS, actors, events, timestamps

Values are anything that the schema has room for, sensible or not (`body_size` always agrees with the rest, as it is no
field of the schema). `plain` makes events comparable, as routes are compared by identity.
"""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from rewindmq.schemas.amqp.properties import MAX_EXPIRY_MS
from rewindmq.schemas.events import EVENT_TYPES, Event, Published
from rewindmq.schemas.placement_events import QueueName
from rewindmq.schemas.values import (
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
from tests.support.annotations import annotations_of

longs = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.sampled_from(["", "/", "orders", "naïve ✈"]), st.text(max_size=80))
blobs = st.one_of(st.binary(max_size=100), st.binary(min_size=1, max_size=4).map(lambda some: some * 8000))
timestamps = st.one_of(st.integers(1_600_000_000_000, 2_000_000_000_000), longs)
_ranges = st.lists(st.tuples(longs, longs), max_size=4).map(tuple)
_names = st.lists(texts, max_size=4).map(tuple)

_BY_NAME = {
    "method": st.sampled_from(["nack", "reject", "recover"]),
    "reason": st.sampled_from(["expired", "rejected", "maxlen", "delivery_limit", "relocated"]) | texts,
    "destination_type": st.sampled_from(["queue", "exchange"]),
}


def _of(cls: type) -> st.SearchStrategy[Any]:
    hints = annotations_of(cls)
    return st.builds(
        cls, **{name: _BY_NAME[name] if name in _BY_NAME else _BY_TYPE[hint] for name, hint in hints.items()}
    )


_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: longs,
    str: texts,
    bytes: blobs,
    bool: st.booleans(),
    int | None: st.none() | longs,
    tuple[str, ...]: _names,
    tuple[tuple[int, int], ...]: _ranges,
    tuple[tuple[str, int], ...]: st.lists(st.tuples(texts, longs), max_size=4).map(tuple),
    None | bool | int | float | str | bytes: st.one_of(
        st.none(), st.booleans(), longs, st.floats(allow_nan=False), texts, st.binary(max_size=20)
    ),
}
actors = st.builds(Actor, texts, longs, st.just("") | texts)
deduplications = _of(Deduplication)
_BY_TYPE[Deduplication | Unrouted | None] = st.none() | deduplications | _of(Unrouted)
routes = _of(Route)
arguments = _of(Argument)
policies = _of(Policy)
origins = _of(Origin)
encryptions = _of(Encryption)
_BY_TYPE |= {
    Route: routes,
    Policy | None: st.none() | policies,
    Origin | None: st.none() | origins,
    Encryption | None: st.none() | encryptions,
    tuple[Argument, ...]: st.lists(arguments, max_size=4).map(tuple),
    tuple[QueueName, ...]: st.lists(_of(QueueName), max_size=4).map(tuple),
    tuple[SeenLetters, ...]: st.lists(_of(SeenLetters), max_size=4).map(tuple),
    tuple[SeenRestored, ...]: st.lists(_of(SeenRestored), max_size=4).map(tuple),
    tuple[UnroutedLetter, ...]: st.lists(_of(UnroutedLetter), max_size=4).map(tuple),
    tuple[CountedPartition, ...]: st.lists(_of(CountedPartition), max_size=4).map(tuple),
}
_BY_TYPE[MovedFrom | None] = st.none() | _of(MovedFrom)


def _with_true_size(message: Published) -> Published:
    size = len(message.body) if message.encryption is None else message.encryption.plain_size
    return dataclasses.replace(message, body_size=size)


EVENTS: dict[type[Event], st.SearchStrategy[Any]] = {cls: _of(cls) for cls in EVENT_TYPES}
EVENTS[Published] = EVENTS[Published].map(_with_true_size)
events = st.one_of(list(EVENTS.values()))


def plain(event: Any) -> tuple[Any, ...]:
    """The event as nested tuples, type and all, with 1 and True and 1.0 told apart."""
    return (type(event).__name__, repr(event))


short_texts = st.text(st.characters(codec="utf-8"), max_size=63)  # 4 bytes a character at most
header_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | short_texts
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_texts, inner, max_size=3),
    max_leaves=10,
)


producer_properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short_texts,
        "content_encoding": short_texts,
        "headers": st.dictionaries(
            short_texts.filter(lambda name: name not in ("CC", "BCC")), header_values, max_size=4
        ),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": short_texts,
        "reply_to": short_texts,
        "expiration": st.integers(0, MAX_EXPIRY_MS),
        "message_id": short_texts,
        "timestamp": st.integers(0, 2**63 - 1),
        "type": short_texts,
        "app_id": short_texts,
    },
)
