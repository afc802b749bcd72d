"""Effects: the outcomes that the queue machine derives from an event, as data.

Effects are never logged. The live broker carries them out (sockets, dead-letter forwards), the projector updates
RocksDB from them, and Spark turns them into the rows of `history`. They are in the order in which things happened after
the event (partition, offset) that caused them, so (partition, offset, ordinal) identifies an effect, and it is safe to
carry out twice. `queue` is always the live `Queue` of the machine (its `.vhost`, `.name`, `.queue_id` do not change).

A run of messages that are treated alike has one effect, and a message is a run of one. Where a run of publishes is
applied (`Machine.apply`), an effect on several arriving messages has happened to each at its own offset.

Effects are made on the hot path, so they are not frozen, and have their own `__init__`, which mypyc compiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import DELIVERED, GoneReason, LeaveReason, LetterReason


@dataclass(init=False, slots=True)
class Keep:
    """Keep the bodies of messages that are arriving.

    A message stays in the queue (ready or unacked) after its publish, or was refused but goes to the outbox
    (reject-publish-dlx). The effect comes before any `Deliver` or `DeadLetter` of the message. A message that goes
    straight to a no_ack consumer is kept only if its route has several queues: their holds on its body are counted."""

    queue: Queue
    message_ids: Sequence[int]

    def __init__(self, queue: Queue, message_ids: Sequence[int]) -> None:
        self.queue = queue
        self.message_ids = message_ids


@dataclass(init=False, slots=True)
class Forget:
    """Forget messages, which left the queue for `reason`.

    Their bodies are no longer needed, except for a `DeadLetter` that follows or is still in the outbox. `consumer`: the
    consumer that settled them (acked, rejected, delivered, delivery_limit), or 0. `rule`: the rule that decided, for
    people: "" or e.g. "policy lim.max-length", "argument x-message-ttl", "property expiration"."""

    queue: Queue
    message_ids: Sequence[int]
    reason: LeaveReason
    consumer: int
    rule: str

    def __init__(self, queue: Queue, message_ids: Sequence[int], reason: LeaveReason, consumer: int, rule: str) -> None:
        self.queue = queue
        self.message_ids = message_ids
        self.reason = reason
        self.consumer = consumer
        self.rule = rule


@dataclass(init=False, slots=True)
class Refuse:
    """One queue refused a publish (overflow reject-publish, reason maxlen): the publisher gets basic.nack.

    The message never entered that queue. Its body is in the event itself."""

    queue: Queue
    message_id: int
    rule: str

    def __init__(self, queue: Queue, message_id: int, rule: str) -> None:
        self.queue = queue
        self.message_id = message_id
        self.rule = rule


@dataclass(init=False, slots=True)
class Deliver:
    """Send the messages to the consumer, in this order.

    `final`: no_ack, so the messages have already left the queue, and no `Forget` with reason delivered follows.
    `delivery_count`: unsuccessful deliveries before this one (quorum queues; otherwise 0). `acquired_count`: deliveries
    before this one that were not acked, which only profile rabbitmq-4.3 counts (otherwise 0). `passed`: final, and the
    messages went straight to the consumer, so they were never in the queue and there was no `Keep`."""

    queue: Queue
    message_ids: Sequence[int]
    consumer: int
    redelivered: bool
    delivery_count: int
    final: bool
    acquired_count: int
    passed: bool

    def __init__(
        self,
        queue: Queue,
        message_ids: Sequence[int],
        consumer: int,
        redelivered: bool,
        delivery_count: int,
        final: bool,
        acquired_count: int = 0,
        passed: bool = False,
    ) -> None:
        self.queue = queue
        self.message_ids = message_ids
        self.consumer = consumer
        self.redelivered = redelivered
        self.delivery_count = delivery_count
        self.final = final
        self.acquired_count = acquired_count
        self.passed = passed


@dataclass(init=False, slots=True)
class FetchReply:
    """The answer to `Fetched`: the message (`message_id` -1: the queue is empty), and the number still ready after it.

    `final` as in `Deliver`."""

    queue: Queue
    message_id: int
    consumer: int
    redelivered: bool
    delivery_count: int
    final: bool
    messages_ready: int
    acquired_count: int

    def __init__(
        self,
        queue: Queue,
        message_id: int,
        consumer: int,
        redelivered: bool,
        delivery_count: int,
        final: bool,
        messages_ready: int,
        acquired_count: int = 0,
    ) -> None:
        self.queue = queue
        self.message_id = message_id
        self.consumer = consumer
        self.redelivered = redelivered
        self.delivery_count = delivery_count
        self.final = final
        self.messages_ready = messages_ready
        self.acquired_count = acquired_count


@dataclass(init=False, slots=True)
class Requeue:
    """The messages are ready again (nack / reject / recover with requeue, or their holder is gone).

    `reason`: the method, or session_closed, channel_closed, node_lost, broker_started; or unsent: no client has seen
    them (events/lookahead.py); or delayed, with consumer 0: the messages returned earlier (see `Delay`)."""

    queue: Queue
    message_ids: Sequence[int]
    consumer: int
    reason: str

    def __init__(self, queue: Queue, message_ids: Sequence[int], consumer: int, reason: str) -> None:
        self.queue = queue
        self.message_ids = message_ids
        self.consumer = consumer
        self.reason = reason


@dataclass(init=False, slots=True)
class Delay:
    """The message returned from `consumer` for `reason`, as in `Requeue`; it is ready again at `due_ms`.

    (Delayed retry.)"""

    queue: Queue
    message_id: int
    consumer: int
    reason: str
    due_ms: int

    def __init__(self, queue: Queue, message_id: int, consumer: int, reason: str, due_ms: int) -> None:
        self.queue = queue
        self.message_id = message_id
        self.consumer = consumer
        self.reason = reason
        self.due_ms = due_ms


@dataclass(init=False, slots=True)
class DeadLetter:
    """Publish the messages to the dead-letter exchange.

    Reason delayed: publish them to the delayed exchange where they were first published, see delayed_order.py.
    Reason moved: an operator moved them to this exchange and key, see machine/events/removal.py. Reason relocated: they
    follow their queue to another partition, each with its `carried` state, see machine/events/relocation.py.
    `routing_key` None: keep their own. The first has the number `sequence`, and each next one the next number. They
    stay in the queue's outbox until `DeadLettersForwarded` names their number (or one above). `at_least_once`: limits
    still count them. `refused`: a reject-publish-dlx message that was never in the queue."""

    queue: Queue
    message_ids: Sequence[int]
    reason: LetterReason
    sequence: int
    exchange: str
    routing_key: str | None
    at_least_once: bool
    refused: bool
    carried: Sequence[Carried]

    def __init__(
        self,
        queue: Queue,
        message_ids: Sequence[int],
        reason: LetterReason,
        sequence: int,
        exchange: str,
        routing_key: str | None,
        at_least_once: bool,
        refused: bool,
        carried: Sequence[Carried] = (),
    ) -> None:
        self.queue = queue
        self.message_ids = message_ids
        self.reason = reason
        self.sequence = sequence
        self.exchange = exchange
        self.routing_key = routing_key
        self.at_least_once = at_least_once
        self.refused = refused
        self.carried = carried


@dataclass(init=False, slots=True)
class Release:
    """The queue's outbox released these dead letters: they were forwarded, or given up (S-153).

    Their bodies are no longer needed. After a `QueueGone` the queue object lives on, unlisted, until its outbox is
    empty, and the `Release` still names it."""

    queue: Queue
    message_ids: Sequence[int]

    def __init__(self, queue: Queue, message_ids: Sequence[int]) -> None:
        self.queue = queue
        self.message_ids = message_ids


@dataclass(init=False, slots=True)
class CancelConsumer:
    """The broker ends the consumer (basic.cancel to its client): its queue is gone."""

    queue: Queue
    consumer: int

    def __init__(self, queue: Queue, consumer: int) -> None:
        self.queue = queue
        self.consumer = consumer


@dataclass(init=False, slots=True)
class QueueGone:
    """The queue was deleted.

    `reason`: deleted, expired, auto_delete, exclusive_owner_gone, transient. `messages`: the number of ready messages
    deleted with it. The broker drops its bindings. Bodies of the queue are no longer needed, except those of
    `queue.outbox` (see `Release`)."""

    queue: Queue
    reason: GoneReason
    messages: int

    def __init__(self, queue: Queue, reason: GoneReason, messages: int) -> None:
        self.queue = queue
        self.reason = reason
        self.messages = messages


@dataclass(init=False, slots=True)
class Duplicate:
    """The queue dropped a message that it had already accepted.

    A repeated dead letter or restored message (`original` -1), or a message with the id of `original`, by `rule`
    (rules/deduplication.py, which also decides the answer to its publisher)."""

    queue: Queue
    message_id: int
    original: int
    rule: str

    def __init__(self, queue: Queue, message_id: int, original: int = -1, rule: str = "") -> None:
        self.queue = queue
        self.message_id = message_id
        self.original = original
        self.rule = rule


@dataclass(init=False, slots=True)
class Quarantine:
    """The event makes no sense here (unknown queue, ack of a message that is not held ...) and was skipped.

    Every fold skips it in the same way. `offset` is the event's; `reason` is one line for people."""

    offset: int
    event_type: str
    reason: str

    def __init__(self, offset: int, event_type: str, reason: str) -> None:
        self.offset = offset
        self.event_type = event_type
        self.reason = reason


Effect = (
    Keep
    | Forget
    | Refuse
    | Deliver
    | FetchReply
    | Requeue
    | Delay
    | DeadLetter
    | Release
    | CancelConsumer
    | QueueGone
    | Duplicate
    | Quarantine
)


def endings(effects: Sequence[Effect]) -> Iterator[tuple[Queue, int, str, str]]:
    """Yield the messages that left their queue: (queue, message id, reason, the rule that decided)."""
    for effect in effects:
        if isinstance(effect, Forget):
            for message_id in effect.message_ids:
                yield effect.queue, message_id, effect.reason, effect.rule
        elif isinstance(effect, Deliver) and effect.final:
            for message_id in effect.message_ids:
                yield effect.queue, message_id, DELIVERED, ""
        elif isinstance(effect, FetchReply) and effect.final and effect.message_id >= 0:
            yield effect.queue, effect.message_id, DELIVERED, ""
