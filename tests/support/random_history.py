"""Seeded random histories, denser than hypothesis makes them.

Most events make sense, because the generator looks at a machine that folds along. The same seed gives the same history
under any PYTHONHASHSEED.

    python -m tests.support.random_history SEED EVENTS     prints the digest after folding (a test runs it so)
"""

import random
import sys
from collections.abc import Iterator

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Consumer
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    Checkpointed,
    ConsumerAttached,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Nacked,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    QueueDrained,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.schemas.values import BROKER, Actor, MovedFrom, Origin, Policy, SeenLetters, SeenRestored
from tests.support.events_for_tests import START_MS, VHOST, arguments, policy, route

DELAYS = "amq.delayed.x"
NAMES = ("a", "b", "c", "d", DELAYS)
Step = tuple[int, int, Actor, Event]  # offset, timestamp_ms, actor, event


class History:
    """An endless history. `machine` is the fold of the events so far."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.machine = Machine("queues-0")
        self.effects: list[Effect] = []  # of the last step
        self.now_ms = START_MS
        self.offset = 0
        self.number = 0  # of the last consumer
        self.sequence = 0
        self.epochs = {1: 1, 2: 1, 3: 2}  # of the nodes through which sessions 1 to 3 come
        self.last_epoch = 2

    def steps(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            event, session = self._event()
            self.now_ms += self.dice.choice((0, 0, 0, 1, 1, 2, 5, 30)) if self.dice.random() < 0.5 else 0
            self.now_ms += 700 if self.dice.random() < 0.005 else 0  # for the age of a stream's messages
            step = (self.offset, self.now_ms, Actor("guest", session) if session else BROKER, event)
            self.effects = []
            self.machine.apply(*step, self.effects)
            self.offset += self.dice.choice((1, 1, 1, 2))  # Kafka has gaps
            yield step

    def _session(self, number: int) -> int:
        return self.epochs[number] << 24 | number

    def _some_session(self) -> int:
        return self._session(self.dice.randint(1, 3))

    def _event(self) -> tuple[Event, int]:
        dice = self.dice
        lost = [number for number, epoch in self.epochs.items() if epoch in self.machine.lost_epochs]
        if lost and dice.random() < 0.1:  # the node is back; until then it does not know that it is lost
            self.last_epoch += 1
            self.epochs |= dict.fromkeys(lost, self.last_epoch)
        missing = [name for name in NAMES if self.machine.queue(VHOST, name) is None]
        if missing and dice.random() < 0.3:
            return self._declare(dice.choice(missing))
        holders = [h for q in self.machine.queues() for h in q.holders.values() if h.held]
        throw = dice.random()
        if throw < 0.38:
            return self._publish()
        if throw < 0.72 and holders:
            return self._settle(dice.choice(holders))
        if throw < 0.84:
            return self._consume()
        if throw < 0.88:
            number = dice.choice((901, 902, 903))
            return Fetched(VHOST, dice.choice(NAMES), number, 1, dice.random() < 0.4), self._session(number % 3 + 1)
        if throw < 0.92:
            return self._consumer_event()
        if throw < 0.95:
            return PolicyApplied(VHOST, dice.choice(NAMES), self._policy(), self._policy()), 0
        if throw < 0.96:
            event = self._operator(dice.choice(NAMES))
            return event, 0 if isinstance(event, QueueDrained) else self._some_session()
        return self._rare()

    def _settings(self) -> dict[str, object]:
        dice = self.dice
        keys: dict[str, object] = {}
        for key, chance, values in (
            ("max_length", 0.4, (0, 1, 3, 6, 10)),
            ("max_length_bytes", 0.2, (5, 20, 40)),
            ("overflow", 0.5, ("drop-head", "reject-publish", "reject-publish", "reject-publish-dlx")),
            ("message_ttl", 0.2, (0, 2, 20, 60)),
            ("expires", 0.1, (30, 80)),
            ("dead_letter_exchange", 0.5, ("dlx",)),
            ("dead_letter_routing_key", 0.2, ("dead",)),
            ("dead_letter_strategy", 0.5, ("at-least-once",)),
            ("delivery_limit", 0.4, (-1, 0, 1, 2, 5_000)),
            ("delayed_retry_type", 0.3, ("all", "failed", "returned", "disabled")),
            ("delayed_retry_min", 0.4, (0, 1, 4)),
            ("delayed_retry_max", 0.2, (2, 6)),
            ("max_age", 0.2, ("1s", "2s")),
        ):
            if dice.random() < chance:
                keys[key] = dice.choice(values)
        return keys

    def _asked(self, type: str) -> dict[str, object]:
        """The arguments of a new queue."""
        dice = self.dice
        asked = self._settings() if dice.random() < 0.5 else {}
        if type == "classic" and dice.random() < 0.4:
            asked["max_priority"] = dice.choice((0, 1, 3, 255))
        if dice.random() < 0.3:
            asked["single_active_consumer"] = dice.random() < 0.8
        return asked

    def _policy(self) -> Policy | None:
        return policy("p", self.offset, **self._settings()) if self.dice.random() < 0.6 else None

    def _declare(self, name: str) -> tuple[Event, int]:
        dice = self.dice
        types = ("classic", "classic", "quorum", "quorum", "quorum", "stream")
        type = "delayed" if name == DELAYS else dice.choice(types)
        durable, exclusive, auto_delete = dice.random() < 0.8, dice.random() < 0.1, dice.random() < 0.2
        session = self._some_session()
        owner = session if exclusive else 0
        given = arguments(self._asked(type))
        semantics = dice.choice(("rabbitmq-3.13", "rabbitmq-4.3"))
        moved = None
        if type in ("classic", "quorum") and dice.random() < 0.2:
            durable, exclusive, auto_delete, owner = True, False, False, 0
            letters = (SeenLetters(VHOST, name, 6, self.sequence, 3, True),)
            restored = (SeenRestored("undo purge", VHOST, "elsewhere", 5, ((3, 9), (20, 20))),)
            moved = MovedFrom(3, 6, 1, dice.random() < 0.2, letters, restored)
        event = QueueDeclared(
            VHOST,
            name,
            type=type,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            owner=owner,
            arguments=given,
            semantics=semantics,
            policy=self._policy(),
            operator_policy=self._policy(),
            moved_from=moved,
        )
        return event, session

    def _publish(self) -> tuple[Event, int]:
        dice = self.dice
        names = sorted(dice.sample(NAMES, dice.choice((1, 1, 1, 2, 3))))
        expiration = dice.choice((None, None, None, 0, 3, 40))
        origin = None
        if dice.random() < 0.1:
            self.sequence += dice.choice((0, 1))
            origin = Origin(VHOST, "elsewhere", 5, 55, "expired", self.sequence)
        elif dice.random() < 0.15:
            origin = self._restored()
        elif dice.random() < 0.08:
            names = names[:1]
            origin = self._relocated(names[0])
        size, persistent = dice.randint(0, 12), dice.random() < 0.7
        priority = dice.choice((None, 0, 1, 2, 5, 255))
        event = Published(
            route(*names),
            b"",
            expiration_ms=expiration,
            priority=priority,
            persistent=persistent,
            origin=origin,
            body=b"",
            body_size=size,
        )
        return event, self._session(1)

    def _restored(self) -> Origin:
        """The origin of a restored message.

        A crash may have flagged it without a delivery that counts. A message of a classic queue counts none."""
        dice = self.dice
        name, message_id = dice.choice(("undo purge", "undo delete")), dice.randint(1, 200)
        flagged = dice.random() < 0.6
        count = dice.choice((0, 0, 1, 3, 5_000, 1 << 40)) if flagged else 0
        return Origin(
            VHOST,
            "elsewhere",
            queue_id=5,
            message_id=message_id,
            reason="restored",
            sequence=message_id,
            restore=name,
            delivery_count=count,
            redelivered=flagged,
        )

    def _relocated(self, name: str) -> Origin:
        """The origin of a message that comes from the partition in which its queue was."""
        dice = self.dice
        self.sequence += dice.choice((0, 1, 1))
        queue = self.machine.queue(VHOST, name)
        flagged = dice.random() < 0.5
        counts = queue is not None and queue.quorum and flagged
        count = dice.choice((0, 1, 2, 5_000)) if counts else 0
        acquired = (
            dice.choice((count, count + 1)) if counts and queue is not None and queue.profile.failures_count else 0
        )
        return Origin(
            VHOST,
            name,
            queue_id=10**6,  # no queue of this history has it
            message_id=66,
            reason="relocated",
            sequence=self.sequence,
            restore="",
            delivery_count=count,
            redelivered=flagged,
            acquired_count=acquired,
            partition=dice.choice((-1, 3)),
        )

    def _settle(self, holder: Consumer) -> tuple[Event, int]:
        dice = self.dice
        ids = sorted(holder.held)
        count = dice.choice((1, 1, 2, len(ids)))
        chosen = sorted(dice.sample(ids, min(count, len(ids))))
        ranges: list[tuple[int, int]] = []
        for message_id in chosen:
            if ranges and ranges[-1][1] == message_id - 1:
                ranges[-1] = (ranges[-1][0], message_id)
            else:
                ranges.append((message_id, message_id))
        if dice.random() < 0.05:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + dice.choice((1, 5, 10**12)))
        name = holder.queue.name
        if dice.random() < 0.4:
            return Acked(VHOST, name, holder.consumer, tuple(ranges)), holder.session
        method = dice.choice(("nack", "reject", "recover"))
        return Nacked(VHOST, name, holder.consumer, tuple(ranges), dice.random() < 0.75, method), holder.session

    def _consume(self) -> tuple[Event, int]:
        dice = self.dice
        if dice.random() < 0.2:
            session = self._some_session()
            return GlobalPrefetchSet(session, dice.randint(1, 2), dice.choice((0, 1, 2, 5))), session
        self.number += 1
        event = ConsumerAttached(
            VHOST,
            dice.choice(NAMES),
            self.number,
            channel=dice.randint(1, 2),
            tag=f"t{self.number}",
            no_ack=dice.random() < 0.25,
            exclusive=dice.random() < 0.1,
            prefetch=dice.choice((0, 1, 2, 5)),
            credit=dice.choice((0, 1, 4)),
            global_prefetch=dice.choice((0, 0, 1, 3)),
            priority=dice.choice((0, 0, 0, 7, -1)),
            arguments=(),
        )
        return event, self._some_session()

    def _consumer_event(self) -> tuple[Event, int]:
        attached = [h for q in self.machine.queues() for h in q.holders.values() if h.attached]
        if not attached:
            return Tick(), 0
        consumer = self.dice.choice(attached)
        if self.dice.random() < 0.5:
            return ConsumerCancelled(VHOST, consumer.queue.name, consumer.consumer), consumer.session
        credit = self.dice.randint(0, 4)
        if consumer.held and self.dice.random() < 0.4:  # what was not sent goes back
            credit = -1 - self.dice.choice(list(consumer.held))
        return Credited(VHOST, consumer.queue.name, consumer.consumer, credit), consumer.session

    def _operator(self, name: str) -> Event:
        """An operator takes messages out of a queue, moves it, pauses it, or lets it deliver again."""
        dice = self.dice
        queue = self.machine.queue(VHOST, name)
        there = [] if queue is None else [view.message_id for view in queue.messages()]
        if queue is not None and dice.random() < 0.15:
            return QueueDrained(VHOST, name, queue.queue_id, dice.choice((1, 2, 1_000)))
        throw = dice.random()
        if throw < 0.75 and there:
            ids = sorted(dice.sample(there, min(len(there), dice.randint(1, 6))))
            moved = dice.random() < 0.4
            ranges = tuple((message_id, message_id) for message_id in ids)
            return MessageRemoved(
                VHOST,
                name,
                ranges,
                reason="why",
                moved=moved,
                exchange="x" if moved else "",
                routing_key="k" if moved else "",
            )
        return QueuePaused(VHOST, name, "") if throw < 0.82 else QueueResumed(VHOST, name)

    def _rare(self) -> tuple[Event, int]:
        dice = self.dice
        name = dice.choice(NAMES)
        waiting = list(self.machine.outboxes())
        throw = dice.random()
        if throw < 0.35 and waiting:
            queue = dice.choice(waiting)
            sequence = dice.choice(sorted(queue.outbox))
            relocated = sequence in queue.outbox.carried
            taken = dice.choice((0, 0, 0, sequence, sequence + 2))
            return DeadLettersForwarded(VHOST, queue.name, queue.queue_id, sequence, relocated, taken), 0
        if throw < 0.6:
            session = self._some_session()
            return SessionClosed(session, dice.choice((0, 1, 2))), session
        if throw < 0.7:
            return Purged(VHOST, name), self._some_session()
        if throw < 0.8:
            return QueueDeleted(VHOST, name, dice.random() < 0.3, dice.random() < 0.3), self._some_session()
        if throw < 0.85:
            return BrokerStarted("n", "1", 1, dice.random() < 0.6), 0
        if throw < 0.88:
            return NodeLost("n", dice.choice(sorted(self.epochs.values())), "lapsed"), 0
        if throw < 0.91:
            return Checkpointed(self.offset - 1, ""), 0
        return Tick(), 0


def main() -> None:
    history = History(int(sys.argv[1]))
    for _ in history.steps(int(sys.argv[2])):
        pass
    print(history.machine.digest())


if __name__ == "__main__":
    main()
