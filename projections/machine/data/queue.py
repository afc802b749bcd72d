"""The state of one queue and of the holders of its messages, and their view in listings.

Only `Machine.apply` changes it. Sizes count bodies only (S-002).

A ready message is in one of two orders, and `returned` is served first:

    returned    messages that came back.  classic: sorted by id, so each is where it was (ids in `returned` are all
                smaller than those in `arrived`, because messages leave `arrived` from its head only).
                quorum: in the order of their return (rabbit_fifo's `returns`)
    arrived     messages in the order of their publishing; in a quorum queue without a delivery limit also messages
                that a consumer gave back, behind the others (S-095)

With priorities, `arrived` consists of such orders for each level (priority_order.py). Delayed messages wait beside them
until they are due (`delayed`, delayed_order.py).

A holder (a consumer, or what basic.get leaves behind) is known by its consumer id, and lives as long as it is attached
or holds a message. `held` are its unacknowledged messages in the order of their delivery: {message id: word}
(message_word.py).
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.delayed_order import SPACE as DELAYED_SPACE
from rewindmq.projections.machine.data.delayed_order import TYPE as DELAYED_TYPE
from rewindmq.projections.machine.data.delayed_order import Timed
from rewindmq.projections.machine.data.id_windows import IdWindow
from rewindmq.projections.machine.data.message_order import NONE, Order, Stretch, space_of
from rewindmq.projections.machine.data.message_word import (
    REDELIVERED,
    SIZE_MASK,
    count_of,
    counts_of,
    is_redelivered,
    seconds_of,
    size_of,
)
from rewindmq.projections.machine.data.outbox import Outbox
from rewindmq.projections.machine.data.priority_order import MAX_PRIORITY, Prioritized
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
)
from rewindmq.projections.machine.rules.policy_keys import QueueType
from rewindmq.projections.machine.rules.profile import profile_of
from rewindmq.projections.machine.rules.settings import DROP_HEAD, QueueSettings, shown_definition
from rewindmq.schemas.pickles import pickle_by_fields
from rewindmq.schemas.values import Argument, ArgumentValue, Policy

MessageState = Literal["ready", "unacked", "delayed"]
ActivityStatus = Literal["up", "single_active", "waiting"]

SINGLE_ACTIVE_ARGUMENT: Final = "x-single-active-consumer"
NEVER: Final = 1 << 62  # a time that never comes


class Limiter:
    """The limit that the consumers of a channel share (basic.qos global), beside each consumer's own limit.

    It holds within one partition of the log."""

    def __init__(self, session: int, channel: int, limit: int) -> None:
        self.session = session
        self.channel = channel
        self.limit = limit
        self.outstanding = 0
        self.members = 0  # holders that refer to it
        # Those that were turned away because the limit was reached, in that order.
        self.blocked: OrderedDict[tuple[int, int], Consumer] = OrderedDict()  # by `Consumer.key`


class Level:
    """The round robin of the consumers of one priority: the first is served next."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members = 0  # attached consumers of this priority, with room or without
        self.service: OrderedDict[int, Consumer] = OrderedDict()  # by consumer id: any of thousands may leave


class Consumer:
    """A consumer of a queue, or a holder that basic.get left behind.

    `attached`: gets deliveries (not cancelled, not a mere holder of basic.get). `serviced`: stands in its queue's round
    robin; `blocked`: waits for its limiter instead; `waiting`: gets nothing, as another consumer is the single active
    one, or will be (machine/rules/single_active.py). A `windowed` consumer is limited by `credit`, any other by
    `limit`: its prefetch and its `lookahead` (machine/events/lookahead.py)."""

    def __init__(self, queue: "Queue", consumer: int, session: int, channel: int, user: str) -> None:
        self.queue = queue
        self.consumer = consumer
        self.session = session
        self.channel = channel
        self.user = user
        self.attached = False
        self.arrival = 0  # its number among the consumers that its queue had
        self.tag = ""
        self.no_ack = False
        self.exclusive = False
        self.prefetch = 0
        self.priority = 0
        self.arguments: tuple[Argument, ...] = ()
        self.credit = 0
        self.windowed = True
        self.limit = 0
        self.lookahead = 0
        self.limiter: Limiter | None = None
        self.level: Level | None = None
        self.serviced = False
        self.blocked = False
        self.waiting = False
        self.held: dict[int, int] = {}

    @property
    def key(self) -> tuple[int, int]:
        """The holder's key among those of all queues."""
        return self.queue.queue_id, self.consumer

    def has_room(self) -> bool:
        """Return True if the consumer's own limits let it take one more delivery."""
        if self.windowed:
            return self.credit > 0
        return len(self.held) < self.limit


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as a listing or Spark shows it.

    `expires_ms`: absolute, or None. `state`: ready, unacked or delayed. `consumer`: the holder of an unacked message,
    else 0."""

    message_id: int
    size: int
    state: MessageState
    position: int  # in ready order from 0; else -1
    redelivered: bool
    delivery_count: int
    expires_ms: int | None
    consumer: int


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer as a listing shows it. `unacked`: how many messages its client has."""

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
    arguments: tuple[Argument, ...] = ()
    active: bool = True
    activity_status: ActivityStatus = "up"


pickle_by_fields(MessageView, ConsumerView)

# Where letters come from: vhost, queue and queue_id; the partition, where Origin names it, else -1; and whether they
# are messages that moved with the queue, which are numbered in the same sequence and do not wait for the others.
LetterSource = tuple[str, str, int, int, bool]


class OutcomeCounters:
    """Counters: how many messages came and went since the queue was made."""

    def __init__(self) -> None:
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
        self.forwarded = 0  # messages of a queue of type delayed that were forwarded when their delay was over
        self.removed = 0  # messages that an operator deleted one by one
        self.moved = 0  # messages that an operator moved to another queue
        self.relocated = 0  # messages that left for the partition to which the queue moves

    @property
    def counters(self) -> dict[str, int]:
        """The counters by name. At every offset (conservation, B-18):

        published = ready + unacked + acked + delivered + expired + maxlen + rejected + delivery_limit + purged +
        transient. Where messages are delayed: + waiting messages + forwarded ones (delayed). Where an operator took
        some out: + removed + moved. Where the queue moves to another partition: + relocated. `refused` publishes and
        `duplicates` never were in the queue."""
        counters = {
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
        if self.forwarded:
            counters[DELAYED] = self.forwarded
        if self.removed:
            counters[REMOVED] = self.removed
        if self.moved:
            counters[MOVED] = self.moved
        if self.relocated:
            counters[RELOCATED] = self.relocated
        return counters


class Queue(OutcomeCounters):
    """A queue: what was declared, its settings, its messages, its consumers, its outbox."""

    def __init__(self, declaration: Declaration) -> None:
        super().__init__()
        self.vhost = declaration.vhost
        self.name = declaration.name
        self.queue_id = declaration.queue_id
        self.type: QueueType = declaration.type
        self.quorum = self.type == "quorum"
        self.stream = self.type == "stream"
        self.has_own_publish = self.type in ("stream", "delayed")  # events/publish.py has a way of its own for each
        self.created_ms = declaration.created_ms
        self.least_ready = 1 if self.stream else 0  # a length limit keeps at least so many messages
        self.durable = declaration.durable
        self.exclusive = declaration.exclusive
        self.auto_delete = declaration.auto_delete
        self.owner = declaration.owner
        self.epoch = declaration.epoch
        self.version = declaration.version
        self.arguments = declaration.arguments
        self.semantics = declaration.semantics
        self.profile = profile_of(self.semantics)
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.gone = False  # deleted; kept only for its outbox

        self.settings = QueueSettings()
        self.limited = False  # there is a max-length or max-length-bytes
        self.max_length_or_never = self.max_bytes_or_never = NEVER

        self.arrived = Order(False)
        self.returned = Order(True)
        self.prioritized: Prioritized | None = None  # the same as `arrived`, in a queue with priorities
        self.levels_expire = False  # the first message of each level expires in time, not only that of the highest
        self.delayed: Timed | None = None  # None: no message ever waits in this queue
        self.messages_delayed = self.message_bytes_delayed = 0
        self.messages_ready = self.message_bytes_ready = 0
        self.messages_unacked = self.message_bytes_unacked = 0
        self.held_expiries: dict[int, int] = {}  # message id -> expiry, of unacked and delayed messages that have one

        self.holders: dict[int, Consumer] = {}  # in the order in which they came
        self.all_levels: list[Level] = []  # highest priority first
        self.levels = self.all_levels  # those that are served: none while the queue delivers nothing
        self.serves, self.paused = True, False  # it delivers (update_serving), paused by an operator (events/pause.py)
        self.consuming: dict[int, Consumer] = {}  # of the holders, the attached consumers
        self.arrivals = 0  # of consumers so far
        self.ahead: Consumer | None = None  # the last consumer with a lookahead: only one that was alone has had one
        # Only one of them gets messages (machine/rules/single_active.py).
        self.single_active = not self.stream and self.argument(SINGLE_ACTIVE_ARGUMENT) is True
        self.active: Consumer | None = None  # the single active consumer
        self.waiting: list[tuple[int, int, int, int]] = []  # a heap of those that wait, and of some that did

        self.blocked = False  # quorum reject-publish: refuses until the queue is at 80 % of its limit (S-027)
        self.crash_offset = 0  # after a crash nobody knows whether messages below it had been delivered
        self.last_used_ms = 0  # the lease (x-expires) runs from here while there is no consumer
        self.messages_armed_ms = NEVER  # the earliest message deadline in the machine's heap for this queue
        self.lease_armed_ms = NEVER

        self.next_sequence = 1
        self.outbox = Outbox()
        self.messages_dlx = self.message_bytes_dlx = 0
        # Ids of messages that were restored into the queue, as ranges, by restoration and source queue.
        self.restored: dict[tuple[str, str, str, int], list[list[int]]] = {}
        # The highest sequence of the dead letters that were taken in, by source queue.
        self.letters_seen: dict[LetterSource, int] = {}
        self.deduplicates = False  # it takes no message with the id of one that is in it
        self.remembered: dict[str, IdWindow] = {}  # id_windows.py

        self.dirty = False  # something changed since the last take_dirty
        self._give_priorities()
        if self.type == DELAYED_TYPE or (self.quorum and self.profile.delayed_retry):
            self.delayed = Timed()

    def _give_priorities(self) -> None:
        """Give the queue its priorities: it has them, or has none, for ever (S-106)."""
        highest = self.argument("x-max-priority")
        if self.type == "classic" and isinstance(highest, int) and not isinstance(highest, bool):
            self.prioritized = self.arrived = Prioritized(max(1, min(highest, MAX_PRIORITY)), 0)
        elif self.quorum and self.profile.quorum_levels:
            self.prioritized = self.arrived = Prioritized(self.profile.quorum_levels - 1, self.profile.default_level)
            self.levels_expire = True

    def argument(self, name: str) -> ArgumentValue:
        """Return the value of an argument, or None if it is not given."""
        return next((argument.value for argument in self.arguments if argument.name == name), None)

    # -- effective settings ----------------------------------------------------------------------------------------

    def apply_settings(self, settings: QueueSettings) -> None:
        """Let these settings hold, and derive from them what publishes look at."""
        self.settings = settings
        self.max_length_or_never = NEVER if settings.max_length is None else settings.max_length
        self.max_bytes_or_never = NEVER if settings.max_length_bytes is None else settings.max_length_bytes
        self.limited = settings.max_length is not None or settings.max_length_bytes is not None
        self.deduplicates = settings.deduplicates
        self.update_serving()

    def update_serving(self) -> None:
        """Decide whether the queue delivers at all: no rule says this anywhere else.

        All that deliver, answer basic.get, give lookahead or read a stream ask `serves`, or find no consumer in
        `levels`. Call it after each change of what it asks, other than of the settings."""
        self.serves = not self.paused
        self.levels = self.all_levels if self.serves else []

    @property
    def may_nack(self) -> bool:
        """Return True if the fold decides a publisher's answer: the queue refuses when full, or drops duplicates."""
        return self.settings.overflow != DROP_HEAD or self.deduplicates

    def shown_definition(self) -> dict[str, object]:
        """Return the merged policy definition, as rabbitmqctl's effective_policy_definition shows it."""
        return shown_definition(self.policy, self.operator_policy)

    def cut_at_ms(self, word: int) -> int:
        """Return the time at which max-age cuts a message of a stream; NONE without max-age.

        (The second in which it was published has to be over.)"""
        age = self.settings.max_age_ms
        return NONE if age is None else self.created_ms + (seconds_of(word) + 1) * 1000 + age

    # -- the front of the queue ----------------------------------------------------------------------------------------

    def take(self) -> tuple[int, int, int]:
        """Remove the next message. Returns (id, word, expiry). The queue must have a ready message."""
        taken = self.returned.take() if self.returned.count > 0 else self.arrived.take()
        self.messages_ready -= 1
        self.message_bytes_ready -= taken[1] & SIZE_MASK
        return taken

    def first_expiry(self) -> int:
        """Return the time at which the next message that can expire does; NONE for never."""
        if self.levels_expire:
            heads = [order.first_expiry() for order in self._heads()]
            return min((expiry for expiry in heads if expiry != NONE), default=NONE)
        if self.returned.count > 0:
            return self.returned.first_expiry()
        if self.arrived.count > 0:
            if self.stream:
                return self.cut_at_ms(self.arrived.head.words[self.arrived.start])
            return self.arrived.first_expiry()
        return NONE

    def _heads(self) -> Iterator[Order]:
        """Yield the orders that have messages: `returned`, and those of all levels from the highest on."""
        for order in (self.returned, *self.arrived.orders()):
            if order.count > 0:
                yield order

    def take_first(self, count: int) -> Stretch:
        """Remove the next `count` messages, or all if there are fewer."""
        taken = (self.returned if self.returned.count > 0 else self.arrived).take_first(count)
        if len(taken.ids) < count and self.arrived.count > 0:
            taken.extend(self.arrived.take_first(count - len(taken.ids)))
        self.messages_ready -= len(taken.ids)
        self.message_bytes_ready -= taken.message_bytes
        return taken

    def take_expired(self, now_ms: int) -> Stretch:
        """Remove the expired messages at the head of the queue; where `levels_expire`, of each level."""
        if self.levels_expire and self.prioritized is not None:
            taken = self.returned.take_first(self.returned.expired(now_ms))
            taken.extend(self.prioritized.take_expired(now_ms))
            self.messages_ready -= len(taken.ids)
            self.message_bytes_ready -= taken.message_bytes
            return taken
        count = 0
        for order in self._heads():
            expired = order.expired(now_ms)
            count += expired
            if expired < order.count:
                break
        return self.take_first(count)

    def reaching(self, message_bytes: int) -> int:
        """Return how many of the next messages have together at least so many bytes; all if they have fewer."""
        count = 0
        for order in self._heads():
            found, message_bytes = order.reaching(message_bytes)
            count += found
            if message_bytes <= 0:
                break
        return count

    def take_expiries(self, ids: Sequence[int]) -> "array[int] | None":
        """Forget the expiries of held messages, and return them; None if no held message has one."""
        if not self.held_expiries:
            return None
        take = self.held_expiries.pop
        return array("q", [take(message_id, NONE) for message_id in ids])

    def next_deadline_ms(self) -> int:
        """Return the next time at which a message expires or a delayed message is due; NONE for never."""
        expiry = self.first_expiry()
        if self.delayed is None or self.delayed.count == 0:
            return expiry
        due_ms = self.delayed.first_expiry()
        return due_ms if expiry == NONE else min(expiry, due_ms)

    def orders(self) -> Iterator[Order]:
        """Yield all orders: those of ready messages in the order of delivery, then that of delayed messages."""
        yield self.returned
        yield from self.arrived.orders()
        if self.delayed is not None:
            yield self.delayed

    def order_at(self, number: int) -> Order:
        """Return the order to which a chunk of this number belongs."""
        returned, space = number < 0, space_of(number)
        if space == DELAYED_SPACE and self.delayed is not None:
            return self.delayed
        if self.prioritized is not None and not (self.quorum and returned):
            return self.prioritized.at(space, returned)
        return self.returned if returned else self.arrived

    def counts(self, word: int) -> tuple[int, int]:
        """Return a message's delivery count, and its acquired count where the profile counts it besides (else 0)."""
        if self.quorum:
            return counts_of(word) if self.profile.failures_count else (count_of(word), 0)
        return 0, 0

    # -- views ---------------------------------------------------------------------------------------------------------

    def ready_ids(self) -> Iterator[int]:
        """Yield message ids in delivery order; a few from the front are cheap."""
        yield from self.returned.ids()
        yield from self.arrived.ids()

    def oldest_ready(self) -> int:
        """Return the oldest of the messages that are the first of their order; NONE if no message is ready."""
        return min((order.head.ids[order.start] for order in self._heads()), default=NONE)

    def messages(self) -> Iterator[MessageView]:
        """Yield ready messages in delivery order, then delayed ones in the order of their time, then unacked by id."""
        position = 0
        for order in (self.returned, self.arrived):
            for message_id, word, expiry in order.items():
                if self.stream:
                    expiry, word = self.cut_at_ms(word), word & SIZE_MASK
                elif message_id < self.crash_offset:
                    word |= REDELIVERED
                yield self._view(message_id, word, expiry, position, 0)
                position += 1
        if self.delayed is not None:
            for message_id, word, _ in self.delayed.items():
                expiry = self.held_expiries.get(message_id, NONE)
                yield self._view(message_id, word, expiry, -1, 0, DELAYED)
        held = [(message_id, word, h.consumer) for h in self.holders.values() for message_id, word in h.held.items()]
        held.sort()
        for message_id, word, consumer in held:
            yield self._view(message_id, word, self.held_expiries.get(message_id, NONE), -1, consumer, "unacked")

    def _view(
        self, message_id: int, word: int, expiry: int, position: int, consumer: int, state: MessageState = "ready"
    ) -> MessageView:
        return MessageView(
            message_id,
            size_of(word),
            state,
            position,
            is_redelivered(word),
            self.counts(word)[0],
            None if expiry == NONE else expiry,
            consumer,
        )

    def consumers(self) -> list[ConsumerView]:
        """Return the attached consumers, in the order in which they came."""
        return [
            ConsumerView(
                c.consumer,
                c.tag,
                c.session,
                c.channel,
                c.user,
                c.no_ack,
                c.exclusive,
                c.prefetch,
                c.priority,
                len(c.held) if c.windowed else min(len(c.held), c.prefetch),
                c.arguments,
                not self.single_active or c is self.active,
                self._activity_status(c),
            )
            for c in self.consuming.values()
        ]

    def exclusive_consumer(self) -> Consumer | None:
        """Return the consumer that has the queue for itself. It is alone, or it would not have been attached."""
        if len(self.consuming) == 1:
            for consumer in self.consuming.values():
                return consumer if consumer.exclusive else None
        return None

    def _activity_status(self, consumer: Consumer) -> ActivityStatus:
        """Return the consumer's activity status in the words of RabbitMQ's listings."""
        if not self.single_active:
            return "up"
        return "single_active" if consumer is self.active else "waiting"

    def in_lookahead(self) -> tuple[int, int]:
        """Return the number and the bytes of the unacked messages in a lookahead, which no client has seen."""
        holder = self.ahead
        if holder is None or not holder.attached:
            return 0, 0
        beyond = len(holder.held) - holder.prefetch
        if beyond <= 0:
            return 0, 0
        return beyond, sum(word & SIZE_MASK for word in list(holder.held.values())[-beyond:])

    def consumer_count(self) -> int:
        """Return the number of attached consumers."""
        return len(self.consuming)
