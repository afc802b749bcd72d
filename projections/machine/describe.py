"""Events, effects and queues as text: one line each, the same line for the same thing in every process.

    event(e)            Acked queue=orders consumer=100 messages=3-7,9
    effect(e)           [orders] expired: 12-14 (policy lim.message-ttl)
    queue_line(q)       ready: 3-7 9   unacked: 8@100

Rules
- An event is its type and its fields. A field that is None, empty or false is left out, as is the vhost `/`; a true
  field is its name alone. Bodies and properties appear as their sizes, passwords not at all.
- An effect begins with its queue in brackets. Transcripts (tests/unit/machine/transcripts) and `rewindmq events`
  with --effects have the same words.
- `Names` names messages, consumers and times. Without it they are message ids, consumer ids and milliseconds.
- Client text is quoted if it is not printable or could be mistaken for something else.
- `event_fields` and `effect_fields` return the same as values for JSON.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Final

from rewindmq.projections.machine.data.effects import (
    CancelConsumer,
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Keep,
    Quarantine,
    QueueGone,
    Refuse,
    Release,
    Requeue,
)
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MOVED
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor, Argument

SHOWN: Final = 20  # ranges of messages in a line; the others are counted
_SECRET: Final = "password_hash"
_SIZES: Final = ("properties", "nonce")  # bytes that nobody reads: a line shows their size
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/#*@+$^%&!?<>~|;,")


class Names:
    """The names of messages, consumers and times in a line."""

    def messages(self, ids: Iterable[int]) -> str:
        """Return the ids in order, consecutive ones as first-last; of many only the first."""
        shown: list[str] = []
        beyond = 0
        for first, last in _ranges(ids):
            if len(shown) == SHOWN:
                beyond += last - first + 1
            else:
                shown.append(str(first) if first == last else f"{first}-{last}")
        return " ".join(shown) + (f" and {beyond} more" if beyond else "")

    def message(self, message_id: int) -> str:
        """Return a message, by its id."""
        return self.messages((message_id,))

    def consumer(self, consumer: int) -> str:
        """Return a consumer, by its id."""
        return str(consumer)

    def time(self, time_ms: int) -> str:
        """Return a time of the machine's clock."""
        return f"{time_ms} ms"


IDS: Final = Names()


def actor(who: Actor) -> str:
    """Return the user and its session, and the reason that it gave; `-` for the broker itself."""
    name = text(who.user) if who.user else "-"
    said = f"{text(who.user)}/{who.session}" if who.session else name
    return f"{said} why={text(who.reason)}" if who.reason else said


def text(value: str) -> str:
    """Return a plain word unchanged; quote any other text, and escape characters that cannot be printed."""
    return value if value and _PLAIN.issuperset(value) else repr(value)


def printable(line: str) -> str:
    """Return the line, with characters that cannot be printed escaped."""
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


# -- events ----------------------------------------------------------------------------------------------------------


def event(e: Event) -> str:
    """Return an event on one line: its type and its fields."""
    return " ".join([type(e).__name__, *_words(e)])


def event_fields(e: Event) -> dict[str, Any]:
    """Return the fields as JSON has them, with `body_size` for the body and without password hashes."""
    return {name: _jsonable(value) for name, value in _fields(e)}


def queues_of(e: Event) -> tuple[tuple[str, str], ...]:
    """Return (vhost, name) of the queues that the event names."""
    if isinstance(e, Published):
        return tuple((e.route.vhost, name) for name in e.route.queues)
    vhost = getattr(e, "vhost", None)
    name = getattr(e, "queue", None)
    if name is None and getattr(e, "destination_type", None) == "queue":
        name = getattr(e, "destination", None)
    return () if vhost is None or name is None else ((vhost, name),)


def field_names(kind: Any) -> list[str]:
    """Return the fields shown for an event, or for a value in it; its class also works."""
    return [field.name for field in fields(kind) if field.name not in ("body", _SECRET)]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for name in field_names(value):
        yield name, getattr(value, name)


def _words(value: Any) -> Iterator[str]:
    for name, part in _fields(value):
        if name == "route":
            yield from _words(part)
        elif name == "body_size":
            yield f"body={part} bytes"
        elif name in _SIZES and part:
            yield f"{name}={len(part)} bytes"
        elif part is True:
            yield name
        elif not (part is None or part is False or part in ("", (), b"") or (name == "vhost" and part == "/")):
            yield f"{name}={_value(name, part)}"


def _value(name: str, value: Any) -> str:
    if name == "messages":
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in value)
    if isinstance(value, Argument):
        return f"{text(value.name)}={_value('', value.value)}"
    if isinstance(value, tuple):
        return "[" + " ".join(_value("", each) for each in value) + "]"
    if is_dataclass(value):
        return "{" + " ".join(_words(value)) + "}"
    return text(value) if isinstance(value, str) else repr(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_jsonable(each) for each in value]
    if is_dataclass(value):
        return {name: _jsonable(part) for name, part in _fields(value)}
    return value


# -- effects ---------------------------------------------------------------------------------------------------------


def effect(e: Effect, names: Names = IDS) -> str:
    """Return an effect on one line: its queue and what happens there."""
    if isinstance(e, Quarantine):
        return printable(f"quarantined: {e.reason}")
    return printable(f"[{queue_name(e.queue)}] {_TOLD[type(e)](e, names)}")


def effect_fields(e: Effect) -> dict[str, Any]:
    """Return the fields as JSON has them, with the effect's type as `effect` and the queue by its vhost and name."""
    values: dict[str, Any] = {"effect": type(e).__name__}
    for field in fields(e):
        value = getattr(e, field.name)
        if isinstance(value, Queue):
            values |= {"vhost": value.vhost, "queue": value.name, "queue_id": value.queue_id}
        elif isinstance(value, str | int | None):
            values[field.name] = value
        else:
            values[field.name] = [asdict(each) if isinstance(each, Carried) else each for each in value]
    return values


def queue_name(queue: Queue) -> str:
    """Return the name, preceded by its vhost unless that is `/`."""
    return text(queue.name) if queue.vhost == "/" else f"{text(queue.vhost)} {text(queue.name)}"


def _keep(e: Keep, names: Names) -> str:
    return f"keep {names.messages(e.message_ids)}"


def _forget(e: Forget, names: Names) -> str:
    by = f" by {names.consumer(e.consumer)}" if e.consumer else ""
    return f"{e.reason}{by}: {names.messages(e.message_ids)}{_rule(e.rule)}"


def _refuse(e: Refuse, names: Names) -> str:
    return f"refuse {names.message(e.message_id)}{_rule(e.rule)}"


def _deliver(e: Deliver, names: Names) -> str:
    return f"deliver {names.messages(e.message_ids)} to {names.consumer(e.consumer)}{_delivery(e)}"


def _fetched(e: FetchReply, names: Names) -> str:
    if e.message_id < 0:
        return f"give nothing to {names.consumer(e.consumer)}"
    return f"give {names.message(e.message_id)} to {names.consumer(e.consumer)}{_delivery(e)}, {e.messages_ready} left"


def _requeue(e: Requeue, names: Names) -> str:
    return f"back{_holder(e.consumer, names)}, {e.reason}: {names.messages(e.message_ids)}"


def _delay(e: Delay, names: Names) -> str:
    back = f"back{_holder(e.consumer, names)}, {e.reason}: {names.message(e.message_id)}"
    return f"{back}, ready again at {names.time(e.due_ms)}"


def _dead_letter(e: DeadLetter, names: Names) -> str:
    key = f" key {text(e.routing_key)}" if e.routing_key is not None else ""
    number = str(e.sequence) if len(e.message_ids) == 1 else f"{e.sequence}-{e.sequence + len(e.message_ids) - 1}"
    letters = f"letter {number}: {names.messages(e.message_ids)}"
    if e.reason == MOVED:
        return f"{letters}, moved, to {e.exchange!r}{key}"
    if e.carried:
        return f"{letters}, relocated{'; '.join(dict.fromkeys([_carried(each, names) for each in e.carried]))}"
    kind = "at least once" if e.at_least_once else "at most once"
    refused = ", refused" if e.refused else ""
    where = f"to {e.exchange!r}{key}, {kind}{refused}"
    return f"dead {letters}, {e.reason}, {where}"


def _carried(carried: Carried, names: Names) -> str:
    again = f", redelivered, count {carried.delivery_count}" if carried.redelivered else ""
    acquired = f", acquired {carried.acquired_count}" if carried.acquired_count else ""
    expires = "" if carried.expiry == NONE else f", expires {names.time(carried.expiry)}"
    return again + acquired + expires


def _release(e: Release, names: Names) -> str:
    return f"release {names.messages(e.message_ids)}"


def _cancel(e: CancelConsumer, names: Names) -> str:
    return f"cancel {names.consumer(e.consumer)}"


def _gone(e: QueueGone, names: Names) -> str:
    return f"gone: {e.reason}, with {e.messages} ready"


def _duplicate(e: Duplicate, names: Names) -> str:
    of = f" of {names.message(e.original)} ({e.rule})" if e.original >= 0 else ""
    return f"duplicate {names.message(e.message_id)}{of}"


_TOLD: Final[dict[type[Effect], Callable[[Any, Names], str]]] = {
    Keep: _keep,
    Forget: _forget,
    Refuse: _refuse,
    Deliver: _deliver,
    FetchReply: _fetched,
    Requeue: _requeue,
    Delay: _delay,
    DeadLetter: _dead_letter,
    Release: _release,
    CancelConsumer: _cancel,
    QueueGone: _gone,
    Duplicate: _duplicate,
}


def _delivery(e: Deliver | FetchReply) -> str:
    again = f", redelivered, count {e.delivery_count}" if e.redelivered else ""
    acquired = f", acquired {e.acquired_count}" if e.acquired_count else ""
    return f"{again}{acquired}{', final' if e.final else ''}"


def _holder(consumer: int, names: Names) -> str:
    return f" from {names.consumer(consumer)}" if consumer else ""


def _rule(rule: str) -> str:
    return f" ({rule})" if rule else ""


# -- queues ----------------------------------------------------------------------------------------------------------


def queue_line(queue: Queue | None, names: Names = IDS) -> str:
    """Return the ready messages, in delivery order, the delayed ones, and the holders of the others, on one line."""
    if queue is None:
        return "no such queue"
    views = list(queue.messages())
    unacked = [f"{names.message(each.message_id)}@{names.consumer(each.consumer)}" for each in views if each.consumer]
    beyond = len(unacked) - SHOWN
    held = " ".join(unacked[:SHOWN]) + (f" and {beyond} more" if beyond > 0 else "")
    waiting = [each.message_id for each in views if each.state == "delayed"]
    delayed = f"   delayed: {names.messages(waiting)}" if waiting else ""
    return f"ready: {names.messages(queue.ready_ids()) or '-'}{delayed}   unacked: {held or '-'}"


def _ranges(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = -1
    for each in ids:
        if first >= 0 and each == last + 1:
            last = each
            continue
        if first >= 0:
            yield first, last
        first = last = each
    if first >= 0:
        yield first, last
