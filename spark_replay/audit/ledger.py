"""The audit's account of one queue: plain counting over events and outcomes, compared with the machine.

    event + outcomes  ->  Account  <->  the machine's own gauges, after every event that touches the queue

An account asks the machine for nothing. It derives from publishes and outcomes which messages are in the queue, which
consumer holds them, how many bytes they have, when they expire, and how often they came back. So a message that
vanishes, is counted twice, leaves for a reason that does not hold, or comes back from nowhere is found at the offset
where it happens. An account costs about 150 bytes for each message in the queue.

`report(check, queue, message_id, detail)` takes a finding; the account then continues as the outcome says, so that one
defect is one finding. An account can be stored and resumed (file_format.py).
"""

from collections.abc import Callable, Sequence

from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import LetterSource, Queue
from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELAYED,
    DELIVERED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    MOVED,
    PURGED,
    REJECTED,
    RELOCATED,
    REMOVED,
    TRANSIENT,
    UNSENT,
)
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    Event,
    Nacked,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDrained,
)
from rewindmq.schemas.operator_events import MessageRemoved
from rewindmq.schemas.values import MovedFrom, Origin
from rewindmq.spark_replay.audit.checks import (
    CONSERVATION,
    DEAD_LETTERS,
    DELIVERIES,
    LIMITS,
    ORDER,
    SETTLEMENT,
    TTL,
)
from rewindmq.spark_replay.audit.identities import Identities, drops_duplicates
from rewindmq.spark_replay.audit.limits import LengthLimits, read_limits
from rewindmq.spark_replay.audit.priority_levels import Levels

# The events that may cause a reason of leaving (None: any event, because time passes with every event)
_CAUSES: dict[str, tuple[type, ...] | None] = {
    ACKED: (Acked,),
    REJECTED: (Nacked,),
    PURGED: (Purged,),
    TRANSIENT: (BrokerStarted,),
    REMOVED: (MessageRemoved,),
    MOVED: (MessageRemoved,),
    RELOCATED: (QueueDrained,),
    EXPIRED: None,
    MAXLEN: None,
    DELIVERY_LIMIT: None,
    DELAYED: None,
}
_FROM_CONSUMER = (ACKED, REJECTED, DELIVERY_LIMIT)
_FROM_READY = (EXPIRED, MAXLEN, PURGED, DELAYED, REMOVED, MOVED, RELOCATED)
_FROM_WAITING = (PURGED, DELAYED, REMOVED, MOVED, RELOCATED)
_FAILURES = ("reject", "session_closed", "channel_closed", "broker_started")  # S-100, profile rabbitmq-4.3

# Counts stop at these numbers: a message that came back more often is not counted further
_COUNT_MAX = (1 << 28) - 1
_LATER_COUNT_MAX = (1 << 12) - 1  # failures, profile rabbitmq-4.3: this count is over every limit
_ACQUIRED_MAX = (1 << 11) - 1

Report = Callable[[str, str, int | None, str], None]


class Account:
    """One incarnation of a queue. `now_ms` arguments: the largest timestamp of the partition so far."""

    def __init__(self, queue: Queue, declared: QueueDeclared, report: Report, now_ms: int = 0) -> None:
        self.queue = queue
        self.report = report
        self.key = (declared.vhost, declared.queue)
        self.declared_ms = now_ms
        self.since = -1  # messages before it are known from a base alone
        self.paused = False
        self.sizes: dict[int, int] = {}  # every message that is in the queue
        self.out: dict[int, int] = {}  # of these, the consumer that holds it
        self.expires: dict[int, int] = {}  # of these, the time at which it expires
        self.returned: dict[int, int] = {}  # of these, how often it came back since it came into this queue
        self.counted: dict[int, int] = {}  # of these, the delivery count, in a quorum queue
        self.flagged: dict[int, None] = {}  # of these, those that came as messages that had been delivered before
        # Of these, those that had come back to this queue in another partition, and how often they had been acquired.
        self.acquired: dict[int, int] = {}
        self.waiting: dict[int, int] = {}  # of these, those that are delayed, and until when
        self.published: dict[int, int] = {}  # of these, in a stream, the time of the publish
        self.bytes_ready = 0
        self.bytes_out = 0
        self.bytes_waiting = 0
        self.last_first: dict[int, int] = {}  # by priority, the highest id delivered for the first time
        self.last_cut = -1  # the last message that a stream cut
        self.crashed = 0  # messages below it may have been delivered before a crash, without a trace
        self.counters: dict[str, int] = {}
        self.letters: dict[LetterSource, int] = {}  # by source: the highest number that was taken in
        self.restored: dict[tuple[str, str, str, int], set[int]] = {}  # by name and source: messages taken in
        self.quorum = declared.type == "quorum"
        self.stream = declared.type == "stream"
        self.later = self.quorum and declared.semantics == "rabbitmq-4.3"
        self.delays = declared.type == "delayed"
        self.arguments = declared.arguments
        asked = next((each.value for each in declared.arguments if each.name == "x-single-active-consumer"), None)
        self.single_active = asked is True and not self.stream
        self.policies = declared.policy, declared.operator_policy
        self.limits = self.read_limits()
        # Whether it drops messages with the id of one that is in it
        self.once = drops_duplicates(queue.type, self.arguments, declared.policy)
        self.identities: Identities | None = None
        self.relocated_at = -1  # the last message that came from another partition, where it was in this queue
        self.levels = Levels.of(declared, self.later)
        if declared.moved_from is not None:
            self._brings_along(declared.moved_from)

    @property
    def serves(self) -> bool:
        """Return True unless the history says that the queue delivers nothing."""
        return not self.paused

    def _brings_along(self, moved: MovedFrom) -> None:
        """Book what a queue that comes from another partition had taken in there."""
        self.paused = moved.paused
        for seen in moved.letters:
            self.letters[seen.vhost, seen.queue, seen.queue_id, seen.partition, seen.relocated] = seen.sequence
        for each in moved.restored:
            ids = {message_id for first, last in each.messages for message_id in range(first, last + 1)}
            self.restored[each.restore, each.vhost, each.queue, each.queue_id] = ids

    def read_limits(self) -> LengthLimits:
        """Return the limits that arguments and policies give the queue now."""
        return read_limits(self.queue.type, self.arguments, *self.policies, self.later)

    def fail(self, check: str, message_id: int | None, detail: str) -> None:
        """Report a finding about this queue."""
        self.report(check, "/".join(self.key), message_id, detail)

    def policy(self, event: PolicyApplied) -> None:
        """Read the limits anew: a policy was applied to the queue."""
        self.policies = event.policy, event.operator_policy
        self.limits = self.read_limits()
        self.once = drops_duplicates(self.queue.type, self.arguments, event.policy)
        if self.identities is not None and not self.once:
            self.identities.inside.clear()

    def count(self, what: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counters[what] = self.counters.get(what, 0) + number

    @property
    def ready(self) -> int:
        """Return the number of ready messages, by plain counting."""
        return len(self.sizes) - len(self.out) - len(self.waiting)

    # -- what happens -----------------------------------------------------------------------------------------------

    def enters(self, message_id: int, event: Published, now_ms: int) -> None:
        """Book a message that the queue took in."""
        if message_id in self.sizes:
            self.fail(CONSERVATION, message_id, "published twice into the same queue")
        self.take_in(message_id, event.body_size)
        self.count("published")
        if event.origin is not None:
            self._came_from(message_id, event.origin)
        if self.stream:
            self.published[message_id] = now_ms
            return
        if self.delays:
            self.set_aside(message_id, now_ms + (event.expiration_ms or 0))
            return
        if self.levels.highest is not None:
            self.levels.enters(message_id, event.priority, message_id in self.acquired)
        if self._is_relocated(event.origin):  # it keeps its expiry, and was in the queue: no limit refuses it
            self.relocated_at = message_id
            if event.expiration_ms is not None:
                self.expires[message_id] = now_ms + event.expiration_ms
            return
        if self.limits.message_ttl_ms is None and event.expiration_ms is None:
            return
        lives = [ttl for ttl in (self.limits.message_ttl_ms, event.expiration_ms) if ttl is not None]
        if lives:
            self.expires[message_id] = now_ms + max(min(lives), 1 if self.quorum else 0)  # S-039

    def _came_from(self, message_id: int, origin: Origin) -> None:
        """Book the origin of a message that is a dead letter or was restored."""
        if self._is_known(origin):
            self.fail(DEAD_LETTERS, message_id, f"taken in once more: {_in_words(origin)}")
        if origin.restore:
            self.restored.setdefault(_restoration(origin), set()).add(origin.message_id)
            self._was_before(message_id, origin)
            return
        self.letters[self._source(origin)] = origin.sequence
        if self._is_relocated(origin):
            self._was_before(message_id, origin)
            if self.quorum and (origin.delivery_count > 0 or origin.acquired_count > 0):
                self.acquired[message_id] = origin.acquired_count

    def _is_relocated(self, origin: Origin | None) -> bool:
        """Return True if a message comes from another partition, where it was in the same queue."""
        return origin is not None and origin.reason == RELOCATED

    def _source(self, origin: Origin) -> LetterSource:
        return origin.vhost, origin.queue, origin.queue_id, origin.partition, self._is_relocated(origin)

    def _was_before(self, message_id: int, origin: Origin) -> None:
        """Book the past of a restored message, or of one that was in this queue in another partition.

        Flag and count are apart: after a crash the flag is set without a count, and a classic queue counts nothing."""
        if origin.redelivered:
            self.flagged[message_id] = None
        if self.quorum and origin.delivery_count > 0:
            self.counted[message_id] = min(origin.delivery_count, self._count_max)

    @property
    def _count_max(self) -> int:
        """The largest delivery count of a quorum queue; the count stays there."""
        return _LATER_COUNT_MAX if self.later else _COUNT_MAX

    def takes_id(self, message_id: int, event: Published, now_ms: int) -> None:
        """Check that a message that the queue took is not a duplicate, and book its id."""
        if self.identities is None:
            self.identities = Identities(self.since)
        expires_ms = self.expires.get(message_id)
        wrong = self.identities.taken(message_id, event, self.once, now_ms, expires_ms, self.sizes)
        if wrong and not self._is_relocated(event.origin):
            self.fail(CONSERVATION, message_id, wrong)
        self.identities.tidy(self.sizes, len(self.sizes))

    def repeated(self, message_id: int, event: Published, original: int, now_ms: int) -> None:
        """Check a message that was dropped as one that had come before, or as a duplicate of `original`."""
        origin = event.origin
        if original >= 0:
            identities = self.identities or Identities(self.since)
            wrong = identities.dropped(event, original, self.once, now_ms, self.sizes)
            if wrong:
                self.fail(CONSERVATION, message_id, wrong)
            if origin is not None and not origin.restore:
                self.letters[self._source(origin)] = origin.sequence
            return
        if origin is None or not self._is_known(origin):
            what = "a publish" if origin is None else _in_words(origin)
            self.fail(DEAD_LETTERS, message_id, f"dropped as seen before, but is new: {what}")

    def _is_known(self, origin: Origin) -> bool:
        """Return True if the queue has taken in this letter or restored message.

        Letters of a source come in the order of their numbers; each message comes once under a restoration's name."""
        if origin.restore:
            return origin.message_id in self.restored.get(_restoration(origin), ())
        return origin.sequence <= self.letters.get(self._source(origin), 0)

    def refused(self, message_id: int, event: Published) -> None:
        """Check a message that the queue refused."""
        limits = self.limits
        if limits.drops_head:
            self.fail(LIMITS, message_id, "refused, but the queue's overflow is drop-head")
        elif limits.max_length is None and limits.max_length_bytes is None:
            self.fail(LIMITS, message_id, "refused, but the queue has no length limit")
        elif not self.quorum and not self.is_over(1, event.body_size):
            self.fail(LIMITS, message_id, f"refused with {self.ready} ready, {self.bytes_ready} bytes: {limits}")

    def delivered(
        self,
        message_id: int,
        consumer: int,
        redelivered: bool,
        delivery_count: int,
        acquired_count: int,
        final: bool,
        cause: int,
        now_ms: int,
    ) -> None:
        """Book a delivery, and check it.

        `cause`: the offset of the event that caused it. `final`: the consumer needs no ack."""
        size = self.sizes.get(message_id)
        if size is None or message_id in self.out or message_id in self.waiting:
            where = "not in the queue" if size is None else f"with consumer {self.out.get(message_id)} or waiting"
            self.fail(CONSERVATION, message_id, f"delivered to consumer {consumer}, but it is {where}")
            return
        due = self.expires.get(message_id) if self.expires else None
        if due is not None and due <= now_ms and cause != message_id:  # TTL 0 may pass straight through (S-039)
            self.fail(TTL, message_id, f"delivered at {now_ms}, expired at {due}")
        returned = self.returned.get(message_id, 0)
        if redelivered != (returned > 0 or message_id in self.flagged or message_id < self.crashed):
            self.fail(DELIVERIES, message_id, f"delivered with redelivered={redelivered} after {returned} returns")
        level = 0
        if self.levels.highest is not None:
            level = self.levels.level(message_id)
            wrong = self.levels.delivered(message_id)
            if wrong is not None:
                self.fail(ORDER, message_id, wrong)
        if not returned and message_id not in self.acquired:
            last = self.last_first.get(level, -1)
            if message_id < last:
                self.fail(ORDER, message_id, f"delivered after message {last}, which came later")
            else:
                self.last_first[level] = message_id
        acquired = min(returned + self.acquired.get(message_id, 0), _ACQUIRED_MAX) if self.later else 0
        if delivery_count != self.counted.get(message_id, 0) or acquired_count != acquired:
            detail = f"delivery_count {delivery_count}, acquired {acquired_count} after {returned} returns"
            self.fail(DELIVERIES, message_id, detail)
        if final:
            self._leaves(message_id)
            self.count(DELIVERED)
        else:
            self.hand_out(message_id, consumer)

    def came_back(self, message_id: int, reason: str, now_ms: int) -> None:
        """Book a message that is ready again."""
        if reason == DELAYED:
            self._waited(message_id, now_ms)
        elif self._given_back(message_id, reason):
            self.levels.ready_again(message_id)
            if self._retry(reason) is not None:
                self.fail(DELIVERIES, message_id, f"{reason}, but it did not wait: {self.limits}")

    def waits(self, message_id: int, reason: str, due_ms: int, now_ms: int) -> None:
        """Book a message that came back and is ready again only later."""
        if not self._given_back(message_id, reason):
            return
        retry = self._retry(reason)
        if retry is None:
            self.fail(DELIVERIES, message_id, f"waits after {reason}: {self.limits}")
        else:
            least, most = retry
            wanted = now_ms + min(least * max(1, self.counted.get(message_id, 0)), most)
            if due_ms != wanted:
                self.fail(TTL, message_id, f"waits until {due_ms}, which should be {wanted}")
        self.set_aside(message_id, due_ms)

    def _retry(self, reason: str) -> tuple[int, int] | None:
        """Return the least and the longest wait of a message that came back for this reason; None: it does not wait."""
        if self.limits.retry is None:
            return None
        kind, least, most = self.limits.retry
        return (least, most) if kind in ("all", "failed" if reason in _FAILURES else "returned") else None

    def _given_back(self, message_id: int, reason: str) -> bool:
        if self.out.pop(message_id, None) is None:
            self.fail(CONSERVATION, message_id, "came back, but nobody had it")
            return False
        size = self.sizes[message_id]
        self.bytes_out -= size
        self.bytes_ready += size
        if reason == UNSENT:
            self._was_not_delivered(message_id)
            return True
        self.returned[message_id] = self.returned.get(message_id, 0) + 1
        if not self.quorum:
            return True
        count = self.counted.get(message_id, 0)
        if not self.later or reason in _FAILURES:
            count = self.counted[message_id] = min(count + 1, self._count_max)
        limit = self.limits.delivery_limit
        if limit is not None and 0 <= limit < count:
            self.fail(DELIVERIES, message_id, f"came back {count} times, the limit is {limit}")
        return True

    def _was_not_delivered(self, message_id: int) -> None:
        """Let a message that came back unsent be delivered for the first time once more."""
        level = self.levels.level(message_id)
        self.last_first[level] = min(self.last_first.get(level, -1), message_id - 1)

    def take_in(self, message_id: int, size: int) -> None:
        """Count a message that is ready."""
        self.sizes[message_id] = size
        self.bytes_ready += size

    def hand_out(self, message_id: int, consumer: int) -> None:
        """Count a ready message as one that a consumer holds."""
        self.out[message_id] = consumer
        self.bytes_ready -= self.sizes[message_id]
        self.bytes_out += self.sizes[message_id]

    def set_aside(self, message_id: int, due_ms: int) -> None:
        """Count a ready message as one that waits."""
        self.waiting[message_id] = due_ms
        self.bytes_ready -= self.sizes[message_id]
        self.bytes_waiting += self.sizes[message_id]

    def _waited(self, message_id: int, now_ms: int) -> None:
        due_ms = self.waiting.pop(message_id, None)
        if due_ms is None:
            self.fail(CONSERVATION, message_id, "ready again, but it did not wait")
            return
        if due_ms > now_ms:
            self.fail(TTL, message_id, f"ready again at {now_ms}, due {due_ms}")
        self.bytes_ready += self.sizes[message_id]
        self.bytes_waiting -= self.sizes[message_id]
        self.levels.ready_again(message_id)

    def acked(self, message_ids: Sequence[int], consumer: int) -> int:
        """Book messages that left because `consumer`, which held them, acked them. Returns how many it booked.

        It stops at the first one that `consumer` does not hold: `left` says what is wrong with that."""
        if self.stream:
            return 0
        sizes, out, waiting, counters = self.sizes, self.out, self.waiting, self.counters
        count = together = 0
        for message_id in message_ids:
            if out.get(message_id) != consumer or (waiting and message_id in waiting):
                break
            size = sizes.pop(message_id, None)
            if size is None:
                break
            del out[message_id]
            together += size
            count += 1
        if count:
            self.bytes_out -= together
            counters[ACKED] = counters.get(ACKED, 0) + count
            if self.knows_more:
                self._forget(message_ids[:count])
        return count

    @property
    def knows_more(self) -> bool:
        """Return True if more is known of any message than its size and holder."""
        return bool(
            self.counted
            or self.flagged
            or self.acquired
            or self.expires
            or self.returned
            or self.published
            or self.levels.highest is not None
        )

    def has_past(self, message_id: int) -> bool:
        """Return True if the message came back, waits, expires, or had been delivered before it came here."""
        return (
            message_id in self.returned
            or message_id in self.waiting
            or message_id in self.expires
            or message_id in self.flagged
            or message_id in self.acquired
            or message_id in self.counted
        )

    def left(self, message_id: int, reason: str, consumer: int, event: Event, now_ms: int) -> None:
        """Book a message that left the queue, and check that it may leave for this reason."""
        if message_id not in self.sizes:
            self.fail(CONSERVATION, message_id, f"{reason}, but it is not in the queue")
            return
        holder = self.out.get(message_id)
        if reason in _FROM_CONSUMER and holder != consumer:
            self.fail(SETTLEMENT, message_id, f"{reason} by consumer {consumer}, but consumer {holder} has it")
        if reason in _FROM_READY and holder is not None:
            self.fail(SETTLEMENT, message_id, f"{reason}, but consumer {holder} has it")
        due_ms = self.waiting.get(message_id)
        if due_ms is not None and (reason not in _FROM_WAITING or (reason == DELAYED and due_ms > now_ms)):
            self.fail(TTL, message_id, f"{reason} at {now_ms}, but it waits until {due_ms}")
        causes = _CAUSES.get(reason)
        if causes is not None and not isinstance(event, causes):
            self.fail(SETTLEMENT, message_id, f"{reason} because of {type(event).__name__}")
        if self.stream:
            self._retained(message_id, reason, now_ms)
        elif reason == EXPIRED and self.expires.get(message_id, now_ms + 1) > now_ms:
            self.fail(TTL, message_id, f"expired at {now_ms}, due {self.expires.get(message_id)}")
        if reason == RELOCATED and (self.stream or self.delays):
            self.fail(SETTLEMENT, message_id, "relocated, but its queue does not move")
        if reason in (REMOVED, MOVED):
            self._taken_out(message_id, reason, event)
        if reason == MAXLEN and not self.is_over(0, 0):
            self.fail(LIMITS, message_id, f"dropped with {self.ready} ready, {self.bytes_ready} bytes: {self.limits}")
        if reason == DELIVERY_LIMIT:
            count = min(self.counted.get(message_id, 0) + 1, self._count_max)
            over_all = self.later and count == self._count_max
            if count <= (self.limits.delivery_limit or 0) and not over_all:
                self.fail(DELIVERIES, message_id, f"delivery_limit with a delivery count of {count}")
        self._leaves(message_id)
        self.count(reason)

    def _taken_out(self, message_id: int, reason: str, event: Event) -> None:
        """Check that an operator asked for this message, and for this end."""
        if isinstance(event, MessageRemoved):
            wanted = MOVED if event.moved else REMOVED
            named = any(first <= message_id <= last for first, last in event.messages)
            if not named or reason != wanted or self.stream:
                self.fail(SETTLEMENT, message_id, f"{reason}, which was not asked for")

    def carries(self, message_id: int) -> Carried:
        """Return the counts and times that a message takes along to another partition."""
        returned = self.returned.get(message_id, 0)
        acquired = min(returned + self.acquired.get(message_id, 0), _ACQUIRED_MAX) if self.later else 0
        again = returned > 0 or message_id in self.flagged or message_id < self.crashed
        return Carried(self.counted.get(message_id, 0), acquired, again, self.expires.get(message_id, NONE))

    def still_there(self, event: MessageRemoved) -> list[int]:
        """Return the messages that a removal names, and that are ready or delayed all the same."""
        return [
            message_id
            for first, last in event.messages
            for message_id in range(first, last + 1)
            if message_id in self.sizes and message_id not in self.out
        ]

    def _retained(self, message_id: int, reason: str, now_ms: int) -> None:
        """Check a stream's cut: in the order of publishing, and by age only messages that are too old."""
        if message_id < self.last_cut:
            self.fail(ORDER, message_id, f"{reason} after message {self.last_cut}, which came later")
        self.last_cut = message_id
        age = self.limits.max_age_ms
        if reason == EXPIRED and (age is None or self.published[message_id] + age > now_ms):
            detail = f"cut at {now_ms}, published at {self.published[message_id]}, max-age {age} ms"
            self.fail(TTL, message_id, detail)

    def due_of(self, message_id: int, shown: int | None) -> int | None:
        """The time at which a message expires. A stream's max-age is exact to a second: `shown` has to lie in it."""
        if not self.stream:
            return self.expires.get(message_id)
        age = self.limits.max_age_ms
        if age is None:
            return None
        least = self.published[message_id] + age
        return shown if shown is not None and least <= shown <= least + 1000 else least

    def _leaves(self, message_id: int) -> None:
        size = self.sizes.pop(message_id)
        if self.out.pop(message_id, None) is not None:
            self.bytes_out -= size
        elif self.waiting.pop(message_id, None) is not None:
            self.bytes_waiting -= size
        else:
            self.bytes_ready -= size
        self._forget((message_id,))

    def _forget(self, message_ids: Sequence[int]) -> None:
        """Drop what is known of messages that left, beyond their sizes and holders."""
        if self.levels.highest is not None:
            for message_id in message_ids:
                self.levels.leaves(message_id)
        for known in (self.counted, self.flagged, self.acquired, self.expires, self.returned, self.published):
            if known:
                for message_id in message_ids:
                    known.pop(message_id, None)

    def is_over(self, more: int, more_bytes: int) -> bool:
        """Return True if the counted messages are above a limit.

        Delayed messages count too, and dead letters that a quorum queue still holds (S-150)."""
        limits, queue = self.limits, self.queue
        held = queue.messages_dlx if self.quorum else 0
        held_bytes = queue.message_bytes_dlx if self.quorum else 0
        messages = self.ready + len(self.waiting) + held + more
        size = self.bytes_ready + self.bytes_waiting + held_bytes + more_bytes
        too_many = limits.max_length is not None and messages > limits.max_length
        return too_many or (limits.max_length_bytes is not None and size > limits.max_length_bytes)


def _restoration(origin: Origin) -> tuple[str, str, str, int]:
    return origin.restore, origin.vhost, origin.queue, origin.queue_id


def _in_words(origin: Origin) -> str:
    number = f"restored as {origin.restore!r}" if origin.restore else f"number {origin.sequence}"
    return f"message {origin.message_id} of {origin.vhost}/{origin.queue}, {number}"
