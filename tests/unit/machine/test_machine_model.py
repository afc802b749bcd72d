"""The machine against the naive model: any history that hypothesis finds gives the same outcomes, event by event.

At random points the machine is put away and loaded again, from a snapshot or from what a projector would have stored;
it must go on as if nothing had been, with the same digest.
"""

import json
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import MACHINE_VERSION, Machine
from rewindmq.schemas.amqp.tables import longstr
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
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
from rewindmq.schemas.values import Actor, Deduplication, MovedFrom, Origin, Policy, SeenLetters, SeenRestored
from tests.support.events_for_tests import (
    START_MS,
    VHOST,
    arguments,
    declared,
    explain,
    policy,
    route,
    route_once,
    text_id,
    with_id,
)
from tests.support.examples import rounds
from tests.support.key_values import DRAWN
from tests.support.letters import message_by_message
from tests.support.naive_model import NaiveMachine

NAMES = ("a", "b", "c")
# Outcomes that each run comes to, often.
COMMON = ("keep", "deliver", "get", "requeue", "forget", "gone", "duplicate", "acked", "deleted")
NOWHERE = "nowhere"  # a queue that is never declared
CONSUMERS = range(1, 13)  # consumer number -> session and channel, see `session_of`
GETTERS = range(21, 25)

queues = st.sampled_from((*NAMES, *NAMES, NOWHERE))
settings_of_queues = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, _, values in DRAWN})
# Half of the queues have no setting or one: with many at once hardly any message would reach a consumer.
keys: st.SearchStrategy[dict[str, object]] = st.one_of(
    st.just({}),
    settings_of_queues.map(lambda given: dict(sorted(given.items())[:1])),
    settings_of_queues.map(lambda given: dict(sorted(given.items())[-2:])),
    settings_of_queues,
)
# An id, and the exchange that it comes through: a queue that drops duplicates takes each once while it is there.
identities = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from(
            [longstr("a"), longstr("b"), b"x\0\0\0\x01a", b"I\0\0\0\x07", b"l" + bytes(7) + b"\7", b"t\1", b"V"]
        ),
        st.sampled_from([None, None, 0, 10, 300]),
        st.sampled_from(
            [None, Deduplication("once", 2, None), Deduplication("once", 3, 50), Deduplication("x", 1, 20)]
        ),
    ),
)
policies = st.one_of(
    st.none(),
    st.tuples(keys, st.sampled_from([None, None, None, True, False])).map(
        lambda given: (
            policy("p", **given[0])
            if given[1] is None
            else Policy("p", json.dumps({"x-message-deduplication": given[1]}), 1)
        )
    ),
)


class MachineAgainstModel(RuleBasedStateMachine):
    """Rules name queues and consumers that are there, with some exceptions: else most events would be quarantined."""

    told: ClassVar[Counter[str]] = Counter()  # outcomes and reasons of all examples, and "event"

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine("queues-0")
        self.model = NaiveMachine()
        self.offset = 0
        self.now_ms = START_MS
        self.stored: dict[int, tuple[bytes, dict[int, bytes]]] = {}
        self.sequences: dict[str, int] = {}
        self.epochs = {1: 1, 2: 1, 3: 2}  # of the nodes through which sessions 1 to 3 come
        self.last_epoch = 2

    def session(self, number: int) -> int:
        return self.epochs[number] << 24 | number

    def session_of(self, consumer: int) -> tuple[int, int]:
        """Sessions 1 to 3 with channels 1 and 2."""
        return self.session(1 + consumer % 3), 1 + consumer % 2

    def both(self, event: Event, session: int = 1) -> None:
        effects: list[Effect] = []
        actor = Actor("guest", session)
        self.machine.apply(self.offset, self.now_ms, actor, event, effects)
        told = self.model.apply(self.offset, self.now_ms, actor, event)
        assert message_by_message(explain(effects)) == message_by_message(told), describe.event(event)
        self.told["event"] += 1
        for outcome in told:
            self.told[str(outcome[0])] += 1
            self.told.update(str(part) for part in outcome[2:] if isinstance(part, str))
        self.offset += 1
        self.machine.validate()
        assert self.machine.clock_ms == self.model.clock

    def there(self, name: str) -> str:
        """Return a queue that is there in place of one that is not. NOWHERE stays."""
        names = [queue.name for queue in self.machine.queues()]
        return name if name in names or name == NOWHERE or not names else names[NAMES.index(name) % len(names)]

    def attached(self, name: str, number: int) -> int:
        """Return a consumer of the queue in place of one that is not. The last of CONSUMERS stays."""
        queue = self.machine.queue(VHOST, name)
        numbers = [] if queue is None else [view.consumer for view in queue.consumers()]
        return number if number in (*numbers, CONSUMERS[-1]) or not numbers else numbers[number % len(numbers)]

    def free(self, number: int) -> int:
        """Return a number that no consumer has, in place of one that has it. The last of CONSUMERS stays."""
        taken = {view.consumer for queue in self.machine.queues() for view in queue.consumers()}
        some = [each for each in CONSUMERS if each not in taken]
        return some[number % len(some)] if some and number in taken and number != CONSUMERS[-1] else number

    @initialize(
        types=st.lists(st.sampled_from(["classic", "quorum", "stream"]), min_size=2, max_size=2),
        keys=keys,
    )
    def begin(self, types: list[str], keys: dict[str, object]) -> None:
        """Begin with two queues, a consumer at each."""
        for name, type, given in zip(NAMES, types, (keys, {}), strict=False):
            self.both(declared(VHOST, name, type=type, durable=True, arguments=arguments(given)))
            self.attach_plainly(name, 1 + NAMES.index(name))

    @rule(
        name=st.sampled_from(NAMES),
        type=st.sampled_from(["classic", "quorum", "stream"]),
        durable=st.booleans(),
        exclusive=st.booleans(),
        auto_delete=st.booleans(),
        owner=st.integers(1, 3),
        keys=keys,
        policy=policies,
        operator=policies,
        plain=st.booleans(),
        single=st.sampled_from([None, None, False, True, True]),
        highest=st.sampled_from([None, None, 1, 4]),
        later=st.booleans(),
        once=st.sampled_from([None, False, True]),
    )
    def declare(
        self,
        name: str,
        type: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        owner: int,
        keys: dict[str, object],
        policy: Policy | None,
        operator: Policy | None,
        plain: bool,
        single: bool | None,
        highest: int | None,
        later: bool,
        once: bool | None,
    ) -> None:
        if once is not None:
            keys = keys | {"message_deduplication": once}
        if plain:
            durable, exclusive, auto_delete = True, False, False
        if single is not None:
            keys = keys | {"single_active_consumer": single}
        if highest is not None:
            keys = keys | {"max_priority": highest}
        owner = self.session(owner)
        semantics = "rabbitmq-4.3" if later else ""
        event = QueueDeclared(
            VHOST,
            name,
            type=type,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            owner=owner if exclusive else 0,
            arguments=arguments(keys),
            semantics=semantics,
            policy=policy,
            operator_policy=operator,
        )
        self.both(event, owner)

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        size=st.integers(0, 12),
        expiration=st.one_of(st.none(), st.sampled_from([0, 1, 5, 30])),
        persistent=st.booleans(),
        count=st.integers(1, 6),
        priority=st.sampled_from([None, None, 1, 3, 4, 200]),
        identity=identities,
    )
    def publish(
        self,
        names: list[str],
        size: int,
        expiration: int | None,
        persistent: bool,
        count: int,
        priority: int | None,
        identity: tuple[bytes, int | None, Deduplication | None] | None,
    ) -> None:
        names = sorted({self.there(name) for name in names})
        way, properties = route(*names), b""
        if identity is not None:
            value, ttl_ms, asked = identity
            properties = with_id(value, ttl_ms)
            way = way if asked is None else route_once(asked, *names)
        for _ in range(count):
            self.both(
                Published(
                    way,
                    properties,
                    expiration_ms=expiration,
                    priority=priority,
                    persistent=persistent,
                    body=b"",
                    body_size=size,
                )
            )

    @rule(name=st.sampled_from(NAMES), number=st.sampled_from(CONSUMERS), count=st.integers(1, 6))
    def serve(self, name: str, number: int, count: int) -> None:
        """Publish plain messages to a queue with a consumer, and ack what this one held before."""
        name = self.there(name)
        queue = self.machine.queue(VHOST, name)
        if queue is None or not any(view.active for view in queue.consumers()):
            self.attach_plainly(name, number)
        for _ in range(count):
            self.both(Published(route(name), b"", persistent=True, body=b"", body_size=3))
        for holder in [] if queue is None else list(queue.holders.values()):
            held = sorted(holder.held)[: count // 2]
            if held:
                ranges = tuple((message_id, message_id) for message_id in held)
                self.both(Acked(VHOST, name, holder.consumer, ranges), holder.session)

    def attach_plainly(self, name: str, number: int) -> None:
        number = self.free(number)
        session, channel = self.session_of(number)
        self.both(
            ConsumerAttached(
                VHOST,
                name,
                number,
                channel=channel,
                tag="t",
                no_ack=False,
                exclusive=False,
                prefetch=0,
                credit=50,
                global_prefetch=0,
                priority=0,
                arguments=(),
            ),
            session,
        )

    @rule(
        name=queues,
        source=st.sampled_from(["x", "y"]),
        again=st.booleans(),
        text=st.sampled_from(["", "a"]),
    )
    def forward(self, name: str, source: str, again: bool, text: str) -> None:
        name = self.there(name)
        properties = text_id(text) if text else b""
        sequence = self.sequences.get(source, 0) + (0 if again else 1)
        self.sequences[source] = sequence
        origin = Origin(VHOST, source, 7, 70, "expired", sequence)
        self.both(Published(route(name), properties, persistent=True, origin=origin, body=b"", body_size=3))

    @rule(
        name=queues,
        again=st.booleans(),
        size=st.integers(0, 12),
        left=st.sampled_from([None, None, 0, 5, 30]),
        priority=st.sampled_from([None, None, 1, 200]),
        count=st.sampled_from([0, 0, 1, 2, 5_000]),
        acquired=st.sampled_from([0, 0, 1, 3, 5_000]),
        text=st.sampled_from(["", "a"]),
    )
    def take_in(
        self,
        name: str,
        again: bool,
        size: int,
        left: int | None,
        priority: int | None,
        count: int,
        acquired: int,
        text: str,
    ) -> None:
        """A message comes from the partition in which its queue was."""
        name = self.there(name)
        sequence = self.sequences.get(name, 0) + (0 if again else 1)
        self.sequences[name] = sequence
        redelivered = bool(count or acquired)
        origin = Origin(
            VHOST,
            name,
            queue_id=7,
            message_id=70,
            reason="relocated",
            sequence=sequence,
            restore="",
            delivery_count=count,
            redelivered=redelivered,
            acquired_count=acquired,
            partition=3,
        )
        properties = text_id(text) if text else b"\0\0"
        self.both(
            Published(
                route(name),
                properties,
                expiration_ms=left,
                priority=priority,
                persistent=True,
                origin=origin,
                body=b"",
                body_size=size,
            ),
            0,
        )

    @rule(
        name=st.sampled_from(NAMES),
        type=st.sampled_from(["classic", "quorum"]),
        keys=keys,
        semantics=st.sampled_from(["", "rabbitmq-4.3"]),
        version=st.sampled_from([0, 1, 1, 1, MACHINE_VERSION + 1]),
        paused=st.sampled_from([False, False, True]),
        seen=st.integers(0, 3),
    )
    def make_anew(
        self, name: str, type: str, keys: dict[str, object], semantics: str, version: int, paused: bool, seen: int
    ) -> None:
        """A queue comes from another partition."""
        letters = (SeenLetters(VHOST, name, 7, seen, 3, True), SeenLetters(VHOST, "x", 7, seen, -1, False))
        restored = (SeenRestored("undo", VHOST, name, 7, ((1, 3), (5, 5))),)
        moved = MovedFrom(0, 7, version, paused, letters, restored)
        given = arguments(keys)
        self.both(
            declared(VHOST, name, type=type, durable=True, arguments=given, semantics=semantics, moved_from=moved), 0
        )

    @rule(
        name=queues,
        count=st.sampled_from([0, 1, 2, 5, 1_000, 1_001]),
        another=st.sampled_from([0, 0, 0, 1]),
        session=st.sampled_from([0, 0, 0, 1]),
    )
    def drain(self, name: str, count: int, another: int, session: int) -> None:
        name = self.there(name)
        queue = self.machine.queue(VHOST, name)
        queue_id = 7 if queue is None else queue.queue_id
        self.both(QueueDrained(VHOST, name, queue_id + another, count), self.session(session) if session else 0)

    @rule(
        name=queues,
        number=st.sampled_from(CONSUMERS),
        no_ack=st.booleans(),
        prefetch=st.integers(0, 4),
        credit=st.integers(0, 3),
        shared=st.sampled_from([0, 0, 1, 3]),
        priority=st.sampled_from([0, 0, 0, 5, -5]),
        exclusive=st.sampled_from([False, False, False, True]),
    )
    def attach(
        self,
        name: str,
        number: int,
        no_ack: bool,
        prefetch: int,
        credit: int,
        shared: int,
        priority: int,
        exclusive: bool,
    ) -> None:
        name, number = self.there(name), self.free(number)
        session, channel = self.session_of(number)
        event = ConsumerAttached(
            VHOST,
            name,
            number,
            channel=channel,
            tag="t",
            no_ack=no_ack,
            exclusive=exclusive,
            prefetch=prefetch,
            credit=credit,
            global_prefetch=shared,
            priority=priority,
            arguments=(),
        )
        self.both(event, session)

    @rule(session=st.integers(1, 3), channel=st.integers(1, 2), prefetch=st.integers(0, 4))
    def set_global_prefetch(self, session: int, channel: int, prefetch: int) -> None:
        session = self.session(session)
        self.both(GlobalPrefetchSet(session, channel, prefetch), session)

    @rule(name=queues, number=st.sampled_from(CONSUMERS))
    def cancel(self, name: str, number: int) -> None:
        name = self.there(name)
        number = self.attached(name, number)
        self.both(ConsumerCancelled(VHOST, name, number), self.session_of(number)[0])

    @rule(name=queues, number=st.sampled_from(CONSUMERS), credit=st.integers(0, 4))
    def credit(self, name: str, number: int, credit: int) -> None:
        name = self.there(name)
        number = self.attached(name, number)
        self.both(Credited(VHOST, name, number, credit), self.session_of(number)[0])

    @precondition(lambda self: any(q.messages_unacked for q in self.machine.queues()))
    @rule(name=queues, number=st.sampled_from(CONSUMERS), position=st.integers(0, 5))
    def give_back_unsent(self, name: str, number: int, position: int) -> None:
        name = self.there(name)
        number = self.attached(name, number)
        queue = self.machine.queue(VHOST, name)
        holder = None if queue is None else queue.holders.get(number)
        held = [] if holder is None else list(holder.held)
        message_id = held[position] if position < len(held) else position
        self.both(Credited(VHOST, name, number, -1 - message_id), self.session_of(number)[0])

    @rule(name=queues, number=st.sampled_from(GETTERS), no_ack=st.booleans())
    def get(self, name: str, number: int, no_ack: bool) -> None:
        name = self.there(name)
        session, channel = self.session_of(number)
        self.both(Fetched(VHOST, name, number, channel, no_ack), session)

    @precondition(lambda self: any(q.messages_unacked for q in self.machine.queues()))
    @rule(
        pick=st.data(),
        how=st.sampled_from(["ack", "ack", "requeue", "requeue", "reject"]),
        wide=st.booleans(),
        several=st.booleans(),
    )
    def settle(self, pick: st.DataObject, how: str, wide: bool, several: bool) -> None:
        holders = [h for q in self.machine.queues() for h in q.holders.values() if h.held]
        holder = pick.draw(st.sampled_from(holders))
        ids = sorted(holder.held)
        first = pick.draw(st.sampled_from(ids))
        if wide:  # may name messages that the holder does not have
            ranges = [(first, first + pick.draw(st.integers(0, 5)))]
        elif several:
            chosen = pick.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
            ranges = [(i, i) for i in sorted(chosen)]
        else:
            ranges = [(first, first)]
        queue = holder.queue.name
        if how == "ack":
            self.both(Acked(VHOST, queue, holder.consumer, tuple(ranges)), holder.session)
        else:
            self.both(Nacked(VHOST, queue, holder.consumer, tuple(ranges), how == "requeue", "nack"), holder.session)

    @precondition(lambda self: self.offset % 3 == 0)
    @rule(name=queues, number=st.sampled_from(CONSUMERS), message_id=st.integers(0, 50))
    def settle_nonsense(self, name: str, number: int, message_id: int) -> None:
        self.both(Acked(VHOST, name, number, ((message_id, message_id + 1_000_000_000_000),)))

    @rule(name=queues, session=st.integers(1, 3))
    def purge(self, name: str, session: int) -> None:
        name = self.there(name)
        self.both(Purged(VHOST, name), self.session(session))

    @rule(
        pick=st.data(),
        name=queues,
        moved=st.booleans(),
        session=st.integers(0, 3),
        positions=st.lists(st.integers(0, 7), max_size=4, unique=True),
        width=st.sampled_from([0, 0, 0, 3, 2_000]),
    )
    def remove(
        self, pick: st.DataObject, name: str, moved: bool, session: int, positions: list[int], width: int
    ) -> None:
        name = self.there(name)
        queue = self.machine.queue(VHOST, name)
        there = [] if queue is None else [view.message_id for view in queue.messages()]
        ids = sorted(there[position] if position < len(there) else position for position in positions)
        ranges = tuple((message_id, message_id + width) for message_id in ids)
        exchange, key = ("x", "k") if moved else ("", "")
        event = MessageRemoved(VHOST, name, ranges, reason="why", moved=moved, exchange=exchange, routing_key=key)
        self.both(event, self.session(session) if session else 0)

    @rule(name=queues, session=st.integers(0, 3))
    def pause(self, name: str, session: int) -> None:
        name = self.there(name)
        self.both(QueuePaused(VHOST, name, ""), self.session(session) if session else 0)

    @rule(name=queues, session=st.integers(0, 3))
    def resume(self, name: str, session: int) -> None:
        name = self.there(name)
        self.both(QueueResumed(VHOST, name), self.session(session) if session else 0)

    @rule(name=queues, if_unused=st.booleans(), if_empty=st.booleans(), session=st.integers(0, 3))
    def delete(self, name: str, if_unused: bool, if_empty: bool, session: int) -> None:
        name = self.there(name)
        self.both(QueueDeleted(VHOST, name, if_unused, if_empty), self.session(session) if session else 0)

    @rule(name=queues, policy=policies, operator=policies)
    def apply_policy(self, name: str, policy: Policy | None, operator: Policy | None) -> None:
        name = self.there(name)
        self.both(PolicyApplied(VHOST, name, policy, operator))

    @rule(session=st.integers(1, 3), channel=st.integers(0, 2))
    def close(self, session: int, channel: int) -> None:
        session = self.session(session)
        self.both(SessionClosed(session, channel), session)

    @rule(session=st.integers(1, 3), knows=st.booleans())
    def lose_node(self, session: int, knows: bool) -> None:
        """Perhaps its sessions go on writing for a while, because the node does not know it yet."""
        epoch = self.epochs[session]
        self.both(NodeLost("n", epoch, "lapsed"), 0)
        if knows:
            self.last_epoch += 1
            self.epochs = {n: self.last_epoch if e == epoch else e for n, e in self.epochs.items()}

    @rule(milliseconds=st.sampled_from([1, 3, 10, 40, 200, 700]), tick=st.booleans())
    def pass_time(self, milliseconds: int, tick: bool) -> None:
        self.now_ms += milliseconds
        if tick:
            self.both(Tick())

    @rule(back=st.integers(1, 100))
    def clock_runs_back(self, back: int) -> None:
        now_ms = self.now_ms
        self.now_ms -= back
        self.both(Tick())
        self.now_ms = now_ms

    @rule(after_crash=st.booleans())
    def broker_starts(self, after_crash: bool) -> None:
        self.both(BrokerStarted("n", "1", 1, after_crash), 0)

    @precondition(lambda self: any(True for _ in self.machine.outboxes()))
    @rule(pick=st.data())
    def forwarded(self, pick: st.DataObject) -> None:
        queue = pick.draw(st.sampled_from(list(self.machine.outboxes())))
        sequence = pick.draw(st.sampled_from(sorted(queue.outbox)))
        relocated = pick.draw(st.booleans())
        taken = pick.draw(st.sampled_from((0, 0, sequence, sequence + 3)))
        self.both(DeadLettersForwarded(VHOST, queue.name, queue.queue_id, sequence, relocated, taken), 0)

    @rule()
    def project(self) -> None:
        """Store the pieces that changed, as a projector does, and load the machine from them."""
        dirty = self.machine.take_dirty()
        for queue in dirty.queues:
            chunks = self.stored.get(queue.queue_id, (b"", {}))[1]
            for number in queue.vanished:
                del chunks[number]
            chunks.update(queue.chunks)
            self.stored[queue.queue_id] = (queue.meta, chunks)
        for queue_id in dirty.gone:
            self.stored.pop(queue_id, None)
        loaded = Machine.load("queues-0", dirty.head, list(self.stored.values()))
        assert loaded.digest() == self.machine.digest()
        loaded.validate()

    @rule(from_store=st.booleans())
    def restart(self, from_store: bool) -> None:
        """Go on with a machine that was loaded: from a snapshot, or from the projector's store."""
        if from_store:
            self.project()
            loaded = Machine.load("queues-0", self.machine.head(), list(self.stored.values()))
        else:
            everything = list(self.machine.pieces())
            loaded = Machine.load("queues-0", self.machine.head(), [(meta, chunks) for _, meta, chunks in everything])
            self.stored = {queue_id: (meta, dict(chunks)) for queue_id, meta, chunks in everything}
        loaded.validate()
        assert loaded.digest() == self.machine.digest()
        assert (loaded.clock_ms, loaded.next_offset) == (self.machine.clock_ms, self.machine.next_offset)
        self.machine = loaded

    @invariant()
    def same_messages(self) -> None:
        for queue in self.model.queues:
            real = self.machine.queue(VHOST, queue.event.queue)
            assert real is not None
            assert list(real.ready_ids()) == [m.id for m in queue.ready()]
            views = {v.message_id: v for v in real.messages()}
            assert len(views) == len(queue.messages)
            for message in queue.messages:
                view = views[message.id]
                assert view.expires_ms == message.dies_at
                assert (view.size, view.redelivered, view.delivery_count) == (
                    message.size,
                    message.redelivered,
                    message.count,
                )
                assert view.consumer == (message.holder.number if message.holder else 0)
            assert real.blocked == queue.blocked
            assert real.consumer_count() == len(queue.consumers()) == len(real.consumers())
            active = [view.consumer for view in real.consumers() if view.activity_status == "single_active"]
            assert active == ([queue.active.number] if queue.active and queue.single else [])
        assert len(list(self.machine.queues())) == len(self.model.queues)


def test_any_history_that_hypothesis_finds() -> None:
    how = settings(
        max_examples=rounds(200, 60), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )
    told = MachineAgainstModel.told
    told.clear()
    run_state_machine_as_test(MachineAgainstModel, settings=how)
    assert told["deliver"] > max(100, told["event"] / 40), "too few deliveries to prove much"
    assert told["quarantine"] < told["event"] / 2, "too many events that make no sense"
    assert [what for what in COMMON if told[what] < 5] == []


@pytest.mark.parametrize("again", [b"S\0\0\0\x01a", b"x\0\0\0\x01a"])
@pytest.mark.parametrize("first", [b"S\0\0\0\x01a", b"x\0\0\0\x01a"])
def test_a_text_and_the_same_bytes_are_one_id(first: bytes, again: bytes) -> None:
    """As RabbitMQ's plugin has it: both are binaries in Erlang."""
    story = MachineAgainstModel()
    given = arguments({"message_deduplication": True})
    story.both(declared(VHOST, "a", durable=True, arguments=given))
    story.told.clear()
    for identity in (first, again):
        story.both(Published(route("a"), with_id(identity), persistent=True, body=b"", body_size=3))
    assert (story.told["keep"], story.told["duplicate"]) == (1, 1)
