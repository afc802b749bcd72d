"""Counts the consumers of each queue: a message is delivered only to a consumer of its queue.

In a queue with a single active consumer (S-109, S-110) it is delivered only to the active one. This is the consumer
that got the last message, as long as it is attached. A quorum queue of profile rabbitmq-4.3 goes over to a consumer of
higher priority; every other queue waits until the active one has left. The consumer of higher priority may leave before
it got a message: then any other may follow. What a consumer settles is as many messages as its ack or nack names.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rewindmq.projections.machine.data.effects import Delay, Deliver, Forget, Quarantine, Requeue
from rewindmq.schemas.events import Acked, ConsumerAttached, Nacked
from rewindmq.schemas.values import EPOCH_SHIFT
from rewindmq.spark_replay.audit.checks import SETTLEMENT

Key = tuple[str, str]  # vhost, queue
Fail = Callable[[str, str | None, int | None, str], None]  # check, queue, message id, detail
_Consumer = tuple[Key, int, int, bool, int]  # queue, session, channel, no_ack, priority


class Attached:
    """The consumers of one partition's queues, by the events that name them."""

    def __init__(self) -> None:
        self.consumers: dict[int, _Consumer] = {}
        self.active: dict[Key, int] = {}  # of queues with a single active consumer: the one that got the last message
        self.challenged: dict[Key, None] = {}  # of these, where a consumer of higher priority has come since
        self.used: dict[int, dict[Key, None]] = {}  # by session: queues from which it consumes, or fetched

    def attached(self, session: int, event: ConsumerAttached) -> None:
        """Add a consumer."""
        key = (event.vhost, event.queue)
        self.add(event.consumer, (key, session, event.channel, event.no_ack, event.priority))
        active = self.consumers.get(self.active.get(key, 0))
        if active is not None and event.priority > active[4]:
            self.challenged[key] = None

    def add(self, consumer: int, known: _Consumer) -> None:
        """Add a consumer, with what is known of it."""
        self.consumers[consumer] = known
        self.uses(known[1], known[0])

    def believe_active(self, key: Key, consumer: int) -> None:
        """Take a consumer for the active one of a queue. It may have been challenged."""
        self.active[key] = consumer
        self.challenged[key] = None

    def uses(self, session: int, key: Key) -> None:
        """Note that a session consumes or fetches from a queue."""
        self.used.setdefault(session, {})[key] = None

    def count(self, key: Key) -> int:
        """Return the number of consumers of a queue."""
        return sum(1 for each in self.consumers.values() if each[0] == key)

    def cancelled(self, consumer: int) -> None:
        """Remove a consumer."""
        self.consumers.pop(consumer, None)

    def closed(self, session: int, channel: int) -> list[Key]:
        """Close a connection (`channel` 0), or one channel. Returns the queues that this may concern."""
        used = self.used.get(session, {})
        if used:
            self._gone([n for n, each in self.consumers.items() if each[1] == session and channel in (0, each[2])])
        if channel == 0:
            self.used.pop(session, None)
        return list(used)

    def lost(self, epoch: int) -> list[Key]:
        """Lose a node, with all its connections. Returns the queues that this may concern."""
        sessions = [session for session in self.used if session and session >> EPOCH_SHIFT == epoch]
        return [key for session in sessions for key in self.closed(session, 0)]

    def queue_gone(self, key: Key) -> None:
        """Remove the consumers of a queue that was deleted."""
        self._gone([n for n, each in self.consumers.items() if each[0] == key])
        self.active.pop(key, None)
        self.challenged.pop(key, None)

    def _gone(self, consumers: list[int]) -> None:
        for consumer in consumers:
            del self.consumers[consumer]

    def given(self, key: Key, consumer: int, final: bool, single: bool, gives_way: bool) -> str | None:
        """Note that a consumer got a message of the queue. Returns what is wrong with that, or None.

        `single`: one consumer of the queue is active; `gives_way`: it gives way to a higher priority."""
        known = self.consumers.get(consumer)
        if known is None or known[0] != key:
            return f"delivered to consumer {consumer}, which does not consume from the queue"
        if final != known[3]:
            return f"delivered to consumer {consumer} with final={final}, which has no_ack={known[3]}"
        if not single:
            return None
        before = self.consumers.get(self.active.get(key, consumer))
        last, self.active[key] = self.active.get(key, consumer), consumer
        challenged = self.challenged.pop(key, key) is None
        if last == consumer or before is None or (gives_way and challenged):
            return None
        return f"delivered to consumer {consumer}, while consumer {last} is the active one"


def check_settlement(fail: Fail, event: Acked | Nacked, effects: Sequence[Any]) -> None:
    """Report a finding if the effects settle more or fewer messages. A quarantined event settles none."""
    requested = settled = 0
    for first, last in event.messages:
        requested += last - first + 1
    consumer = event.consumer
    for effect in effects:  # `Any`: a union of types would be made anew for each event
        kind = type(effect)
        if kind is Deliver:
            continue
        if kind is Quarantine:
            return
        if (kind is Forget or kind is Requeue) and effect.consumer == consumer:
            settled += len(effect.message_ids)
        elif kind is Delay and effect.consumer == consumer:
            settled += 1
    if settled != requested:
        name = f"{event.vhost}/{event.queue}"
        fail(SETTLEMENT, name, None, f"{type(event).__name__} of {requested} messages settled {settled}")
