"""The counters of a queue as the owner of its partition publishes them, for nodes that do not fold the partition.

    owner:   Queue -> QueueCounters.of -> encoded -> the topic of counters, under the key of the queue (key_of)
    others:  CounterTable.take(offset, time, value) -> `queues`: the newest QueueCounters of each queue

A record is a JSON object. Its first field is its `format`, and its `kind` is one of three:

    queue    the counters of one queue, with what was declared
    gone     the queue was deleted. A record without a value follows under the same key: Kafka's compaction removes both
    round    (key: empty) all that has changed up to the offset `at` was published before this record, by the `node`
             that owns the partition

Rules of this file
- `at` is the offset up to which the owner had folded the partition. Every node folds the same state at an offset. So
  the record with the greatest `at` is the newest one, whichever owner wrote it, and clocks play no part.
- A record is late if its `at` is below that of the queue's counters, or below the last round. It is ignored. Compaction
  may keep it all the same, so the owner publishes that queue again (`late`).
- A record of another history, and bytes that are no record, are counted and skipped (`skipped`).
- Fields that are not known are ignored, and missing numbers are 0: a newer node may write more, an older one less.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any, Final

from rewindmq.engine.log.shared_contract import REMOVED
from rewindmq.engine.partition.consumer_counters import (
    BadConsumers,
    PublishedConsumer,
    consumers_in,
    item_of,
    published_of,
)
from rewindmq.engine.partition.counters import Served
from rewindmq.projections.machine.data.queue import OutcomeCounters, Queue
from rewindmq.projections.machine.data.reasons import ACKED
from rewindmq.schemas.amqp.json_arguments import table_of, types_of
from rewindmq.schemas.formats import FORMAT, values_in
from rewindmq.schemas.json_values import json_text

Name = tuple[str, str]  # vhost and queue

MOST_BYTES: Final = 1_048_576  # of a record
MOST_LETTERS: Final = 255  # of a name
MOST_QUEUES: Final = 2_000_000  # of a partition: more are not kept
MOST_LATE: Final = 10_000
MOST: Final = (1 << 63) - 1
ALWAYS: Final = tuple(OutcomeCounters().counters)  # outcomes that a listing shows also where they are 0
NO_TABLE: Final[Mapping[str, Any]] = {}
ROUND_KEY: Final = b""
INTERNED: Final = ("vhost", "type")  # words that many queues have in common


class NoCounters(ValueError):
    """The bytes are no record of counters."""


@dataclass(slots=True)
class QueueCounters:
    """The facts that a listing shows of a queue, under the names that `Queue` has, so that listings use both alike.

    `at`: the offset up to which the owner had folded. `covers_ms`: the time between this record and the previous
    figures, if these are the last ones that the owner published; 0: it is not known."""

    vhost: str
    name: str
    queue_id: int
    type: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    owner: int = 0
    paused: bool = False
    exclusive_tag: str | None = None
    active_tag: str | None = None
    argument_table: Mapping[str, Any] = field(default_factory=lambda: NO_TABLE)
    argument_types: Mapping[str, Any] = field(default_factory=lambda: NO_TABLE)
    outcomes: Mapping[str, int] = field(default_factory=lambda: NO_TABLE)  # those that are not 0
    messages_ready: int = 0
    messages_unacked: int = 0
    messages_delayed: int = 0
    message_bytes_ready: int = 0
    message_bytes_unacked: int = 0
    message_bytes_delayed: int = 0
    messages_dlx: int = 0
    message_bytes_dlx: int = 0
    ahead: int = 0
    ahead_bytes: int = 0
    attached: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    redeliver: int = 0
    attached_consumers: tuple[PublishedConsumer, ...] = ()  # fewer than `attached` where not all fit into the record
    at: int = field(default=0, compare=False)
    covers_ms: int = field(default=0, compare=False)
    # Of the round before, while the queue changes. Only a reader keeps it.
    before: "QueueCounters | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, queue: Queue, served: Served | None, at: int, covers_ms: int = 0) -> "QueueCounters":
        """The counters of a queue that is folded here, up to the offset `at`."""
        ahead, ahead_bytes = queue.in_lookahead()
        exclusive = queue.exclusive_consumer()
        counters = cls(
            queue.vhost,
            queue.name,
            queue.queue_id,
            queue.type,
            queue.durable,
            queue.auto_delete,
            queue.exclusive,
            queue.owner,
            queue.paused,
            None if exclusive is None else exclusive.tag,
            None if queue.active is None else queue.active.tag,
            outcomes={name: count for name, count in queue.counters.items() if count},
            messages_ready=queue.messages_ready,
            messages_unacked=queue.messages_unacked,
            messages_delayed=queue.messages_delayed,
            message_bytes_ready=queue.message_bytes_ready,
            message_bytes_unacked=queue.message_bytes_unacked,
            message_bytes_delayed=queue.message_bytes_delayed,
            messages_dlx=queue.messages_dlx,
            message_bytes_dlx=queue.message_bytes_dlx,
            ahead=ahead,
            ahead_bytes=ahead_bytes,
            attached=queue.consumer_count(),
            attached_consumers=published_of(queue.consumers()),
            at=at,
            covers_ms=covers_ms,
        )
        if queue.arguments:
            counters.argument_table, counters.argument_types = (
                table_of(queue.arguments),
                dict(types_of(queue.arguments)),
            )
        if served is not None:
            counters.deliver, counters.deliver_no_ack = served.deliver, served.deliver_no_ack
            counters.get, counters.get_no_ack = served.get, served.get_no_ack
            counters.get_empty, counters.redeliver = served.get_empty, served.redeliver
        return counters

    # -- as a Queue has them ------------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, int]:
        return {name: self.outcomes.get(name, 0) for name in ALWAYS} | dict(self.outcomes)

    @property
    def published(self) -> int:
        return self.outcomes.get("published", 0)

    @property
    def refused(self) -> int:
        return self.outcomes.get("refused", 0)

    @property
    def acked(self) -> int:
        return self.outcomes.get(ACKED, 0)

    def in_lookahead(self) -> tuple[int, int]:
        return self.ahead, self.ahead_bytes

    def consumer_count(self) -> int:
        return self.attached

    def consumers(self) -> list[PublishedConsumer]:
        return list(self.attached_consumers)


Listed = Queue | QueueCounters  # a queue in a listing

WORDS: Final = ("vhost", "name", "type", "exclusive_tag", "active_tag")
FLAGS: Final = ("durable", "auto_delete", "exclusive", "paused")
TABLES: Final = ("argument_table", "argument_types", "outcomes")
CONSUMERS: Final = "attached_consumers"
NUMBERS: Final = tuple(
    each.name for each in fields(QueueCounters) if each.name not in (*WORDS, *FLAGS, *TABLES, CONSUMERS, "before")
)
KINDS: Final[Mapping[str, type]] = (
    dict.fromkeys(WORDS, str) | dict.fromkeys(FLAGS, bool) | dict.fromkeys(TABLES, dict) | dict.fromkeys(NUMBERS, int)
)
USUAL: Final = QueueCounters("", "", 0)  # what is as in it is not in a record


# -- the codec --------------------------------------------------------------------------------------------------------


def key_of(vhost: str, queue: str) -> bytes:
    """The key of a queue's counters. No other queue has it, whatever is in the names."""
    return json.dumps([vhost, queue], ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def name_in(key: bytes) -> Name:
    """The queue of a key. Raises NoCounters."""
    try:
        match json.loads(key):
            case [str(vhost), str(queue)]:
                return vhost, queue
    except (ValueError, RecursionError):
        pass
    raise NoCounters("the key names no queue")


def encoded(history: str, counters: QueueCounters) -> bytes:
    """The record of a queue's counters."""
    record: dict[str, object] = {"kind": "queue", "history": history, "vhost": counters.vhost, "name": counters.name}
    for name in KINDS:
        value = getattr(counters, name)
        if value != getattr(USUAL, name):
            record[name] = value
    if counters.attached_consumers:
        record[CONSUMERS] = [item_of(each) for each in counters.attached_consumers]
    return _json(record)


def gone_record(history: str, name: Name, at: int) -> bytes:
    """The record of a queue that was deleted."""
    return _json({"kind": "gone", "history": history, "vhost": name[0], "name": name[1], "at": at})


def round_record(history: str, at: int, node: str, policies: int) -> bytes:
    """Return the record that ends a round of `node`, which began at offset `at` of the partition.

    `policies`: every queue of the partition has the policies of the metadata log up to this offset."""
    return _json({"kind": "round", "history": history, "at": at, "node": node, "policies": policies})


def _json(record: Mapping[str, object]) -> bytes:
    return json_text({FORMAT: 1, **record}, ensure_ascii=False, separators=(",", ":")).encode()


def decoded(value: bytes) -> dict[str, Any]:
    """The fields of a record. Raises NoCounters: they are no record's."""
    if len(value) > MOST_BYTES:
        raise NoCounters(f"{len(value)} bytes are too many")
    try:
        record = values_in(value, "counters of a queue", NoCounters)
    except NoCounters:
        raise
    except (ValueError, RecursionError) as error:
        raise NoCounters(f"no JSON: {error}") from None
    if not isinstance(record.get("history"), str):
        raise NoCounters("no record of counters")
    _number(record, "at")
    return record


def counters_in(record: dict[str, Any]) -> QueueCounters:
    """The counters in a record of kind `queue`. Raises NoCounters: a field has a value that it cannot have."""
    counters = QueueCounters(*name_of(record), 0)
    for name, value in record.items():
        kind = KINDS.get(name)
        if kind is int:
            _number(record, name)
        elif kind is str:
            value = intern(_word(record, name)) if name in INTERNED else _word(record, name)
        elif kind is None or type(value) is not kind:
            if kind is None:
                continue
            raise NoCounters(f"{name} is no {kind.__name__}")
        setattr(counters, name, value)
    for name in counters.outcomes:
        _number(counters.outcomes, name)
    if CONSUMERS in record:
        try:
            counters.attached_consumers = consumers_in(record[CONSUMERS])
        except BadConsumers as error:
            raise NoCounters(str(error)) from None
    return counters


def name_of(record: Mapping[str, Any]) -> Name:
    """The queue that a record names. Raises NoCounters."""
    return _word(record, "vhost"), _word(record, "name")


def _word(record: Mapping[str, Any], name: str) -> str:
    word = record.get(name)
    if not isinstance(word, str) or len(word) > MOST_LETTERS:
        raise NoCounters(f"{name} is no name")
    return word


def _number(record: Mapping[str, Any], name: str) -> int:
    number = record.get(name, 0)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST:
        raise NoCounters(f"{name} is no number from 0 on")
    return number


# -- the reader -------------------------------------------------------------------------------------------------------


class CounterTable:
    """The newest counters of each queue of one partition.

    `is_placed(vhost, queue)`: whether the queue may be in this partition. `history`: the history's identity. `ends_at`:
    the end of the topic when this node began to read it."""

    def __init__(self, is_placed: Callable[[str, str], bool], history: str, ends_at: int) -> None:
        self.queues: dict[Name, QueueCounters] = {}
        self.rounds = 0  # rounds that were read
        self.round_ms: int | None = None  # the log's time of the last one
        self.owner = ""  # the node of the last one; empty: no node has said that it owns the partition
        self.policies = 0  # the partition's queues have the policies of the metadata log up to here, as owners said
        self.crowded: set[Name] = set()  # queues with more consumers than were published
        self.late: dict[Name, None] = {}  # queues with a late record: the owner publishes them again
        self.skipped = 0
        self.why_skipped = ""  # of the first one
        self._is_placed, self._history = is_placed, history
        self._ends_at = ends_at
        self._read_to = 0
        self._floor = 0  # the offset at which the last round began
        self._now: list[QueueCounters] = []  # what changed since the last round
        self._last: list[QueueCounters] = []  # and in it
        self._stay: dict[Name, None] = {}  # queues whose next record without a value belongs to a late `gone`

    @property
    def ready(self) -> bool:
        """Return True if the table has the counters of all queues, as far as an owner has published them."""
        return self.round_ms is not None and self._read_to >= self._ends_at

    def take(self, offsets: Sequence[int], times_ms: Sequence[int], values: Sequence[bytes]) -> None:
        """Take records in, in their order. `times_ms`: the log's time of each."""
        for time_ms, value in zip(times_ms, values, strict=True):
            try:
                self._take(time_ms, value)
            except NoCounters as error:
                self.why_skipped = self.why_skipped or str(error)
                self.skipped += 1
        self._read_to = offsets[-1] + 1

    def _take(self, time_ms: int, value: bytes) -> None:
        if value.startswith(REMOVED):
            self._remove(name_in(value[len(REMOVED) :]))
            return
        record = decoded(value)
        if record["history"] != self._history:
            raise NoCounters("it is of another history")
        at = _number(record, "at")
        match record.get("kind"):
            case "round":
                self.policies = max(self.policies, _number(record, "policies"))  # a later owner may not know it yet
                if at >= self._floor:
                    self.owner = _word(record, "node")
                    self._floor = at
                    self.round_ms = time_ms
                    self.rounds += 1
                    for counters in self._last:
                        counters.before = None
                    self._last, self._now = self._now, []
            case "gone":
                name = name_of(record)
                if self._is_late(name, at):
                    note(self._stay, name)
                else:
                    self._forget(name)
            case "queue":
                counters = counters_in(record)
                name = counters.vhost, counters.name
                if name not in self.queues and not self._is_placed(*name):
                    raise NoCounters("the queue is in another partition")
                if not self._is_late(name, at):
                    self._put(name, counters)
            case _:
                raise NoCounters("its kind is not known")

    def _is_late(self, name: Name, at: int) -> bool:
        known = self.queues.get(name)
        if at >= self._floor and (known is None or at >= known.at):
            return False
        note(self.late, name)
        return True

    def _put(self, name: Name, counters: QueueCounters) -> None:
        before = self.queues.get(name)
        if before is None and len(self.queues) >= MOST_QUEUES:
            raise NoCounters(f"there are counters of {MOST_QUEUES} queues already")
        if before is not None:
            before.before = None
            if before.queue_id == counters.queue_id and counters.covers_ms:
                counters.before = before
                self._now.append(counters)
        self.queues[name] = counters
        if len(counters.attached_consumers) >= counters.attached:
            self.crowded.discard(name)
        else:
            self.crowded.add(name)

    def _remove(self, name: Name) -> None:
        if name in self._stay:
            del self._stay[name]
        elif self._forget(name):
            note(self.late, name)  # an owner that still has the queue publishes it again

    def _forget(self, name: Name) -> bool:
        """Drop a queue. Returns whether it was there."""
        self.crowded.discard(name)
        return self.queues.pop(name, None) is not None


def note(names: dict[Name, None], name: Name) -> None:
    """Add a name to a set that is bounded."""
    if len(names) >= MOST_LATE:
        names.clear()
    names[name] = None
