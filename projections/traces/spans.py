"""Makes spans from the outcomes of messages: one for each stay in a queue, and within it one for each delivery.

    spans = Spans()
    for row in rows:                                  # of HISTORY, in the order of a partition, from the publish on
        exported += spans.add(row, time_ms, trace)    # `trace`: of a row `published`
    spans.waiting                                     # the number of unfinished stays, which have no span

    published                delivered   requeued       delivered   acked
    |------------------------|-----------|--------------|-----------|      stay orders
                             |-----------|              |-----------|      deliver orders, twice

The ids of spans are hashes of the stay's identity in its trace, so that making spans twice gives the same spans.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rewindmq.projections.history.outcome_rows import PUBLISHED
from rewindmq.projections.history.outcomes import DELIVERED, POSTPONED, REQUEUED
from rewindmq.projections.traces.trace_context import Trace

STAY, DELIVER = "stay", "deliver"
ERRORS = frozenset({"expired", "maxlen", "rejected", "delivery_limit", "transient"})  # of a stay
Value = str | int | bool
Key = tuple[str, str, str, int]  # partition, vhost, queue, message id


@dataclass(frozen=True, slots=True)
class Span:
    """An ended span. Times are milliseconds since the epoch. `error`: why it failed; None: it did not."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ms: int
    end_ms: int
    flags: int
    state: str
    error: str | None
    attributes: dict[str, Value]


@dataclass(slots=True)
class _Delivery:
    number: int
    start_ms: int
    attributes: dict[str, Value]


@dataclass(slots=True)
class _Stay:
    trace: Trace
    span_id: str
    start_ms: int
    attributes: dict[str, Value]
    deliveries: int = 0
    open: dict[int | None, _Delivery] = field(default_factory=dict)  # by consumer


class Spans:
    """The unfinished stays of one history."""

    def __init__(self) -> None:
        self._stays: dict[Key, _Stay] = {}

    @property
    def waiting(self) -> int:
        """Return the number of unfinished stays."""
        return len(self._stays)

    def add(self, row: Mapping[str, Any], time_ms: int, trace: Trace | None = None) -> list[Span]:
        """Return the spans that end with this row of HISTORY. `trace`: of the message, if this row published it."""
        key = row["partition"], row["vhost"], row["queue"], row["message_id"]
        outcome = row["outcome"]
        if outcome == PUBLISHED:
            if trace is not None:
                self._stays[key] = _begun(key, row, time_ms, trace)
            return []
        stay = self._stays.get(key)
        if stay is None:
            return []
        ended: list[Span] = []
        if outcome == DELIVERED:
            ended += _settled(key, stay, row["consumer"], time_ms, REQUEUED, None)
            stay.deliveries += 1
            said = {"consumer": row["consumer"], "delivery_count": row["delivery_count"]}
            stay.open[row["consumer"]] = _Delivery(
                stay.deliveries, time_ms, _ours(said | {"redelivered": row["redelivered"]})
            )
        elif outcome in (REQUEUED, POSTPONED):
            ended += _settled(key, stay, row["consumer"], time_ms, outcome, row["reason"])
        if row["final"]:
            for consumer in list(stay.open):
                ended += _settled(key, stay, consumer, time_ms, outcome, row["rule"])
            ended.append(_left(key, stay, row, time_ms))
            del self._stays[key]
        return ended


def _begun(key: Key, row: Mapping[str, Any], time_ms: int, trace: Trace) -> _Stay:
    origin = row["origin"]
    ours = {
        "vhost": row["vhost"],
        "exchange": row["exchange"],
        "partition": row["partition"],
        "offset": row["message_id"],
        "origin": None if origin is None else f"{origin['reason']} {origin['queue']}:{origin['message_id']}",
    }
    conventional = {
        "messaging.message.id": trace.message_id,
        "messaging.message.conversation_id": trace.correlation_id,
        "messaging.message.body.size": row["size"],
        "messaging.rabbitmq.destination.routing_key": row["routing_key"] or None,
    }
    said = {name: value for name, value in conventional.items() if value is not None}
    return _Stay(trace, _span_id(trace, key, time_ms, 0), time_ms, said | _ours(ours))


def _left(key: Key, stay: _Stay, row: Mapping[str, Any], time_ms: int) -> Span:
    """Return the span of a stay that ends."""
    said = {"outcome": row["outcome"], "rule": row["rule"], "deliveries": stay.deliveries}
    attributes = _operation(STAY, key) | stay.attributes | _ours(said)
    return _span(
        stay, stay.span_id, stay.trace.parent_id, (stay.start_ms, time_ms), attributes, row["outcome"], row["rule"]
    )


def _settled(key: Key, stay: _Stay, consumer: int | None, time_ms: int, outcome: str, reason: str | None) -> list[Span]:
    """Return the span of the unfinished delivery to this consumer, if there is one."""
    delivery = stay.open.pop(consumer, None)
    if delivery is None:
        return []
    attributes = _operation(DELIVER, key) | delivery.attributes | _ours({"outcome": outcome, "reason": reason})
    if stay.trace.message_id is not None:
        attributes["messaging.message.id"] = stay.trace.message_id
    span_id = _span_id(stay.trace, key, stay.start_ms, delivery.number)
    times = delivery.start_ms, time_ms
    return [_span(stay, span_id, stay.span_id, times, attributes, outcome, reason)]


def _span(
    stay: _Stay,
    span_id: str,
    parent_id: str,
    times: tuple[int, int],
    attributes: dict[str, Value],
    outcome: str,
    why: str | None,
) -> Span:
    trace = stay.trace
    name = f"{attributes['messaging.operation.name']} {attributes['messaging.destination.name']}"
    error = None
    if outcome in ERRORS:
        error = outcome if why is None else f"{outcome}: {why}"
        attributes["error.type"] = outcome
    start_ms, end_ms = times
    end_ms = max(start_ms, end_ms)  # a clock may have been set back
    return Span(trace.trace_id, span_id, parent_id, name, start_ms, end_ms, trace.flags, trace.state, error, attributes)


def _operation(name: str, key: Key) -> dict[str, Value]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": name,
        "messaging.destination.name": key[2],
    }


def _ours(values: Mapping[str, Any]) -> dict[str, Value]:
    return {f"rewindmq.{name}": value for name, value in values.items() if value is not None}


def _span_id(trace: Trace, key: Key, published_ms: int, delivery: int) -> str:
    """Return the id of a stay (`delivery` 0) or of one of its deliveries, in its trace. It is never all zeros."""
    partition, vhost, queue, message_id = key
    named = (trace.trace_id, trace.parent_id, partition, message_id, published_ms, vhost, queue, delivery)
    found = hashlib.blake2b(repr(named).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return found if found.strip("0") else "0" * 15 + "1"
