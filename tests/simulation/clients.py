"""The clients, operators and events of the world that act on the broker, step by step, and their observations.

A step is (kind, number). All its choices follow from its own number and from the current state, so that steps can be
cut out of a history and the rest still makes sense.
"""

import random
from collections.abc import Callable, Mapping

from rewindmq.engine.amqp.basic_publish import EARLY_ALWAYS, EARLY_IF_TRANSIENT, early_confirm
from rewindmq.engine.amqp.settlement import ranges
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session, Subscription
from rewindmq.engine.routing.content import Content
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.schemas.events import Acked, Credited, Nacked, Published
from rewindmq.schemas.values import Actor, Argument
from tests.simulation.witness import Publish, Receipt, received_row
from tests.simulation.world import POINTS, SimulatedCrash, World

Step = tuple[str, int]
QUEUES = [f"q{number}" for number in range(7)]
DEAD = "dead"  # where every letter of the exchange `dlx` must arrive: never limited, purged or deleted
LATER = "later"  # an exchange that delays; all of that arrives in `dead`, too
PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\x10\x00\x01"

PATIENCE = 20  # quiet minutes after which letters that still wait will wait for ever

AT_LEAST_ONCE = {
    "dead-letter-exchange": "dlx",
    "overflow": "reject-publish",
    "dead-letter-strategy": "at-least-once",
}
POLICIES: list[dict[str, object]] = [
    {"max-length": 2},
    {"max-length": 3, "overflow": "reject-publish"},
    {"message-ttl": 40},
    {"max-length-bytes": 30},
    {"dead-letter-exchange": "dlx", "max-length": 2},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "q0"},
    {"delivery-limit": 1, "dead-letter-exchange": "dlx"},
    {"expires": 300},
    {"dead-letter-exchange": "dlx"},
    {"dead-letter-exchange": "dlx", "max-length": 1, "overflow": "reject-publish-dlx"},
    {"max-length": 0},
    AT_LEAST_ONCE | {"message-ttl": 20},
    AT_LEAST_ONCE | {"max-length": 2},
    AT_LEAST_ONCE | {"delivery-limit": 0},
    {"dead-letter-exchange": "nowhere"},
]
LATER_4_3: dict[str, bool | int | str] = {"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3"}
ARGUMENTS: list[dict[str, bool | int | str]] = [
    {},
    {},
    {"x-queue-type": "quorum"},
    {"x-queue-type": "quorum", "x-delivery-limit": 1},
    {"x-max-length": 3},
    {"x-message-ttl": 30, "x-dead-letter-exchange": "dlx"},
    {"x-expires": 200},
    {"x-message-ttl": 0},
    {"x-overflow": "reject-publish-dlx", "x-max-length": 1, "x-dead-letter-exchange": "dlx"},
    {"x-overflow": "reject-publish", "x-max-length": 2},
    {"x-queue-type": "quorum", "x-max-length": 3, **{f"x-{key}": value for key, value in AT_LEAST_ONCE.items()}},
    {"x-queue-type": "quorum", "x-dead-letter-exchange": "dlx", "x-message-ttl": 25},
    {"x-max-priority": 4},
    {"x-max-priority": 2, "x-max-length": 3, "x-dead-letter-exchange": "dlx"},
    LATER_4_3,
    {**LATER_4_3, "x-delayed-retry-type": "all", "x-delayed-retry-min": 15, "x-delivery-limit": 2},
]


Settings = Mapping[str, bool | int | str]


def arguments(values: Settings) -> tuple[Argument, ...]:
    types = {bool: "bool", int: "signedint", str: "longstr"}
    return tuple(Argument(name, types[type(value)], value) for name, value in values.items())


class Answer:
    """One who waits for the confirm of a publish in one place."""

    def __init__(self, world: World, publish: Publish, place: int) -> None:
        self.world = world
        self.publish = publish
        self.place = place

    def confirm(self, sequence: int, refused: bool) -> None:
        self.world.passed("confirm")
        assert self.place not in self.publish.answers, "confirmed twice"
        if self.place not in self.publish.prompt:
            self.world.confirmed(*self.publish.places[self.place])
        self.publish.answers[self.place] = refused


class Taker:
    """A consumer, or one basic.get: what it was given, and what of that it has not settled yet."""

    def __init__(self, world: World, session: Session, channel: int, windowed: bool) -> None:
        self.world = world
        self.session = session
        self.channel = channel
        self.windowed = windowed
        self.attached = True
        self.outstanding: list[int] = []
        self.partition: Partition
        self.queue: Queue
        self.consumer_id = 0
        self.receipt: Receipt

    def belongs(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        self.partition, self.queue, self.consumer_id = partition, queue, consumer_id
        life = self.world.witness.life.number
        key = (partition.index, consumer_id, life)
        self.receipt = self.world.witness.receipts.setdefault(key, Receipt(life, partition.machine.next_offset - 1))

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        self.world.passed("deliver")
        self.world.witness.counts["deliveries"] += 1
        self.receipt.rows.append(received_row(effect, message_id))
        self.receipt.bodies.append((message_id, message.body))
        if not effect.final:
            self.outstanding.append(message_id)

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        self.world.passed("deliver")
        self.receipt.rows.append(received_row(effect, effect.message_id))
        assert (message is None) == (effect.message_id < 0)
        if message is not None:
            self.receipt.bodies.append((effect.message_id, message.body))
            if not effect.final:
                self.outstanding.append(effect.message_id)

    def cancelled(self) -> None:
        self.attached = False


class Clients:
    """`do(step)`. A crash ends everybody's connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = random.Random()
        self.sessions: list[Session] = []
        self.takers: list[Taker] = []
        self.kinds: dict[str, Callable[[], str]] = {
            "publish": self.publish,
            "settle": self.settle,
            "consume": self.consume,
            "fetch": self.fetch,
            "credit": self.credit,
            "cancel": self.cancel,
            "declare": self.declare,
            "delete": self.delete,
            "purge": self.purge,
            "remove": self.remove,
            "move": self.move,
            "pause": self.pause,
            "bind": self.bind,
            "policy": self.policy,
            "close": self.close,
            "wait": self.wait,
            "arm": self.arm,
            "crash": self.crash,
            "restart": self.restart,
            "clock": self.turn_clock,
            "disk": self.fill_disk,
            "delay": self.delay,
        }

    def prepare(self) -> None:
        """Declare the exchanges and queues with which every history begins."""
        session = self.open()
        broker = self.world.broker
        self.dice = self.world.dice
        broker.exchanges.declare(session, "dlx", "fanout", False, True, False, False, ())
        kind: dict[str, bool | int | str] = {"x-queue-type": "quorum"} if self.dice.random() < 0.5 else {}
        broker.queues.declare(session, DEAD, False, True, False, False, arguments(kind))
        broker.exchanges.bind(session, "dlx", "queue", DEAD, "", ())
        kind = {"x-delayed-type": "fanout"}
        broker.exchanges.declare(session, LATER, "x-delayed-message", False, True, False, False, arguments(kind))
        broker.exchanges.bind(session, LATER, "queue", DEAD, "", ())
        for name in QUEUES[:5]:
            self.declare_as(session, name, self.dice.choice(ARGUMENTS))
        broker.sessions.close(session)
        broker.turns.end()
        self.world.loop.run(10)
        self.meet()

    def meet(self) -> None:
        """A new broker: everybody connects anew."""
        self.sessions = [self.open() for _ in range(2)]
        self.takers = []

    def open(self) -> Session:
        session: Session = self.world.broker.sessions.open("guest", "/", "simulated", {})
        session.in_history = True  # its publishes are counted
        return session

    def do(self, step: Step) -> None:
        kind, number = step
        self.dice = random.Random(number)
        trace = self.world.witness.trace
        at = len(trace)
        trace.append(f"{kind}")
        try:
            try:
                trace[at] = f"{kind:8} {self.kinds[kind]()}"
                self.world.witness.counts[kind] += 1
            except AmqpError as error:  # refused, as a client might be: nothing has changed
                trace[at] += f": {error}"
            if self.dice.random() < 0.8:  # else the turn goes on in the next step; no time passes within one
                self.world.broker.turns.end()
                self.world.loop.run(self.dice.choice((0.0, 0.0, 0.001, 0.05)))
        except SimulatedCrash:
            self.world.crash()
            self.meet()

    # -- messages -----------------------------------------------------------------------------------------------------

    def publish(self) -> str:
        session = self.dice.choice(self.sessions)
        told = []
        for _ in range(self.dice.randrange(1, 5)):
            exchange = self.dice.choice(["", "", "", "amq.fanout", "dlx", "amq.topic"])
            key = self.dice.choice(QUEUES)
            expiration = self.dice.choice([None, None, None, 0, 15, 80])
            self.publish_one(session, exchange, key, expiration)
            told.append(f"{self.world.witness.publishes[-1].body[:8].decode()} to {exchange}/{key} ({expiration})")
        return ", ".join(told)

    def delay(self) -> str:
        session, delay = self.dice.choice(self.sessions), self.dice.choice((1, 15, 80, 3_000))
        count = self.dice.randrange(1, 4)
        for _ in range(count):
            self.publish_one(session, LATER, self.dice.choice(QUEUES), None, delay)
        return f"{count} by {delay} ms"

    def publish_one(
        self, session: Session, exchange: str, key: str, expiration: int | None, delay: int | None = None
    ) -> None:
        witness = self.world.witness
        body = b"%d." % len(witness.publishes) + b"x" * self.dice.randrange(0, 12)
        persistent = self.dice.random() < 0.8
        publish = Publish(body, witness.life.number)
        witness.publishes.append(publish)
        properties = PERSISTENT if persistent else TRANSIENT
        if delay is not None:
            properties = b"\x30\x00\0\0\0\x11\x07x-delayl" + delay.to_bytes(8, "big") + properties[2:]
        destinations = self.world.broker.exchanges.route(session, exchange, key, Content(properties))
        session.publishes.received += 1
        session.publishes.grouped += not destinations
        session.publishes.copies -= bool(destinations)
        for to in destinations:
            lasts = expiration if to.delay_ms is None else to.delay_ms
            priority = self.dice.choice((None, None, 0, 1, 3, 9))
            offset = to.partition.publish(
                session.actor,
                Published(
                    to.route,
                    properties,
                    expiration_ms=lasts,
                    priority=priority,
                    persistent=persistent,
                    body=body,
                    body_size=len(body),
                ),
            )
            session.publishes.logged_copy(to.partition)
            answer = Answer(self.world, publish, len(publish.places))
            publish.places.append((to.partition.index, offset))
            found = early_confirm(to)
            if found == EARLY_ALWAYS or (found == EARLY_IF_TRANSIENT and not persistent):
                publish.prompt.add(answer.place)
                to.partition.await_folded(offset, answer, 0)
            else:
                to.partition.await_durable(offset, answer, 0)

    def settle(self) -> str:
        found = [taker for taker in self.takers if taker.outstanding]
        if not found:
            return "nothing"
        taker = self.dice.choice(found)
        count = self.dice.choice((1, 1, 2, len(taker.outstanding)))
        where = self.dice.choice((0, 0, max(0, len(taker.outstanding) - count)))
        ids = taker.outstanding[where : where + count]
        del taker.outstanding[where : where + count]
        verdict = self.dice.choice(("ack", "ack", "nack", "reject", "requeue", "recover"))
        return self.settle_these(taker, ids, verdict)

    def settle_these(self, taker: Taker, ids: list[int], verdict: str) -> str:
        queue, partition = taker.queue, taker.partition
        if partition.machine.queue(queue.vhost, queue.name) is not queue:
            return "the queue is gone"
        messages = ranges(list(ids))
        if verdict == "ack":
            partition.append(taker.session.actor, Acked(queue.vhost, queue.name, taker.consumer_id, messages))
        else:
            requeue = verdict in ("requeue", "recover")
            method = verdict if verdict in ("reject", "recover") else "nack"
            event = Nacked(queue.vhost, queue.name, taker.consumer_id, messages, requeue, method)
            partition.append(taker.session.actor, event)
        return f"{queue.name} {verdict} {messages}"

    def consume(self) -> str:
        dice = self.dice
        session, name = dice.choice(self.sessions), dice.choice([*QUEUES, DEAD])
        prefetch, no_ack, shared = dice.choice((0, 1, 2, 5)), dice.random() < 0.25, dice.choice((0, 0, 0, 3))
        given = arguments({"x-priority": dice.choice((-1, 5))}) if dice.random() < 0.2 else ()
        taker = Taker(self.world, session, dice.choice((1, 2)), no_ack or prefetch == 0)
        exclusive = dice.random() < 0.05
        subscription = Subscription(
            session,
            channel=taker.channel,
            tag="tag",
            no_ack=no_ack,
            exclusive=exclusive,
            prefetch=prefetch,
            global_prefetch=shared,
            arguments=given,
        )
        taker.belongs(*self.world.broker.consumers.consume(name, subscription, taker))
        self.takers.append(taker)
        return f"{name} prefetch {prefetch}{' no_ack' if no_ack else ''}{' global' if shared else ''}"

    def fetch(self) -> str:
        session, name, no_ack = self.dice.choice(self.sessions), self.dice.choice(QUEUES), self.dice.random() < 0.4
        taker = Taker(self.world, session, self.dice.choice((1, 2)), False)
        taker.attached = False
        taker.belongs(*self.world.broker.consumers.fetch(session, taker.channel, taker, name, no_ack))
        self.takers.append(taker)
        self.world.broker.turns.end()
        return f"{name}{' no_ack' if no_ack else ''}"

    def credit(self) -> str:
        found = [taker for taker in self.takers if taker.windowed and taker.attached]
        if not found:
            return "nobody"
        taker = self.dice.choice(found)
        queue, credit = taker.queue, self.dice.randrange(1, 6)
        if taker.partition.machine.queue(queue.vhost, queue.name) is queue:
            taker.partition.append(taker.session.actor, Credited(queue.vhost, queue.name, taker.consumer_id, credit))
        return f"{queue.name} {credit}"

    def cancel(self) -> str:
        found = [taker for taker in self.takers if taker.attached]
        if not found:
            return "nobody"
        taker = self.dice.choice(found)
        if taker.partition.machine.queue(taker.queue.vhost, taker.queue.name) is not taker.queue:
            return "the queue is gone"
        taker.attached = False
        self.world.broker.consumers.cancel(taker.session, taker.partition, taker.queue, taker.consumer_id)
        return taker.queue.name

    # -- queues -------------------------------------------------------------------------------------------------------

    def declare(self) -> str:
        given = self.dice.choice(ARGUMENTS)
        name = self.dice.choice(QUEUES)
        classic = "x-queue-type" not in given
        self.declare_as(
            self.dice.choice(self.sessions),
            name,
            given,
            not (classic and self.dice.random() < 0.2),
            classic and self.dice.random() < 0.15,
            classic and self.dice.random() < 0.15,
        )
        return f"{name} {given}"

    def declare_as(
        self,
        session: Session,
        name: str,
        given: dict[str, bool | int | str],
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> None:
        self.world.broker.queues.declare(session, name, False, durable, exclusive, auto_delete, arguments(given))

    def delete(self) -> str:
        name, if_unused = self.dice.choice(QUEUES), self.dice.random() < 0.3
        self.world.broker.queues.delete(self.dice.choice(self.sessions), name, if_unused, False)
        return name

    def purge(self) -> str:
        name = self.dice.choice(QUEUES)
        self.world.broker.queues.purge(self.dice.choice(self.sessions), name)
        return name

    def _some_ids(self, name: str) -> list[int]:
        """Ids of messages of a queue, wherever they are, and one that may be of none."""
        queue = self.world.broker.queues.get("/", name)
        there = [] if queue is None else [view.message_id for view in queue.messages()]
        return [*self.dice.sample(there, min(len(there), self.dice.randrange(1, 4))), self.dice.randrange(200)]

    def remove(self) -> str:
        name = self.dice.choice(QUEUES)
        session = self.dice.choice(self.sessions)
        removal = self.world.broker.removals.remove(session, name, self._some_ids(name), None, "why")
        return f"{name} {removal.left}"

    def move(self) -> str:
        name, (exchange, key) = self.dice.choice(QUEUES), self.dice.choice((("dlx", "k"), ("", "q1"), ("", "q5")))
        session = self.dice.choice(self.sessions)
        removal = self.world.broker.removals.move(session, name, self._some_ids(name), None, exchange, key, "")
        return f"{name} to {exchange}/{key} {removal.left}"

    def pause(self) -> str:
        name, queues = self.dice.choice([*QUEUES, DEAD]), self.world.broker.queues
        if self.dice.random() < 0.5:
            queues.pause(self.dice.choice(self.sessions), name, "")
            return name
        queues.resume(self.dice.choice(self.sessions), name)
        return f"{name} resumed"

    def bind(self) -> str:
        source, name = self.dice.choice(["amq.fanout", "dlx", "amq.topic"]), self.dice.choice(QUEUES)
        key = self.dice.choice(["#", "q1", "*"])
        act = self.world.broker.exchanges.unbind if self.dice.random() < 0.3 else self.world.broker.exchanges.bind
        act(self.dice.choice(self.sessions), source, "queue", name, key, ())
        return f"{act.__name__} {source} {key} {name}"

    def policy(self) -> str:
        broker, name = self.world.broker, self.dice.choice(["a", "b"])
        operator = self.dice.random() < 0.2
        if self.dice.random() < 0.3:
            (broker.operator_policies.clear if operator else broker.policies.clear)(Actor("guest", 0), "/", name)
            return f"{name} cleared"
        pattern = self.dice.choice(["^q", "^q[0-3]", "^q[4-6]"])
        definition: dict[str, object] = {"max-length": 4} if operator else self.dice.choice(POLICIES)
        setting = broker.operator_policies.set if operator else broker.policies.set
        setting(Actor("guest", 0), "/", name, pattern, definition, self.dice.randrange(3), "queues")
        return f"{name} {pattern} {definition}"

    # -- connections, time, faults ------------------------------------------------------------------------------------

    def close(self) -> str:
        index = self.dice.randrange(len(self.sessions))
        session, channel = self.sessions[index], self.dice.choice((0, 0, 1, 2))
        for taker in self.takers:
            if taker.session is session and channel in (0, taker.channel):
                taker.receipt.cut = True
        self.takers = [t for t in self.takers if t.session is not session or channel not in (0, t.channel)]
        if channel:
            self.world.broker.sessions.close_channel(session, channel)
        else:
            self.sessions[index] = self.open()
            self.world.broker.sessions.close(session)
        return f"session {index} channel {channel}"

    def wait(self) -> str:
        seconds = self.dice.choice((0.001, 0.01, 0.05, 0.4, 2.0, 70.0))
        self.world.broker.turns.end()
        self.world.loop.run(seconds)
        return f"{seconds} s"

    def turn_clock(self) -> str:
        self.world.skew_ms += self.dice.choice((-5_000, -20, 30, 5_000))
        return f"{self.world.skew_ms} ms"

    def fill_disk(self) -> str:
        full = self.dice.random() < 0.5
        self.world.fill_disk(full)
        return "full" if full else "has room"

    def arm(self) -> str:
        point, passes = self.dice.choice(POINTS), self.dice.choice((1, 2, 4, 9))
        self.world.arm(point, passes)
        return f"{point} {passes}"

    def crash(self) -> str:
        self.world.crash()
        self.meet()
        return ""

    def restart(self) -> str:
        self.world.restart()
        self.meet()
        return ""

    # -- healing ------------------------------------------------------------------------------------------------------

    def heal_and_drain(self) -> None:
        """No more faults, no policies: everything that is left must come out, be acked, and leave nothing behind."""
        world = self.world
        world.disarm()
        world.restart(healed=True)
        self.takers = []
        session = self.open()
        broker = world.broker
        for name in ("a", "b"):
            for clear, known in (
                (broker.policies.clear, broker.topology.policies),
                (broker.operator_policies.clear, broker.topology.operator_policies),
            ):
                if ("/", name) in known:
                    clear(Actor("guest", 0), "/", name)
        for queue in list(broker.queues.all()):
            if is_delay_queue(queue.name):
                continue
            broker.queues.resume(session, queue.name)
            taker = Taker(world, session, 1, False)
            taker.belongs(*broker.consumers.consume(queue.name, Subscription(session, 1, "tag", prefetch=3), taker))
            self.takers.append(taker)
        quiet = 0
        for _ in range(400):
            broker.turns.end()
            world.loop.run(0)
            busy = [taker for taker in self.takers if taker.outstanding]
            for taker in busy:
                self.settle_these(taker, taker.outstanding, "ack")
                taker.outstanding = []
            if not busy:
                world.loop.run(61.0)
                if self.drained():
                    return
                assert broker.turns.blocked is None, broker.turns.blocked
                quiet += 1
                if quiet == PATIENCE:
                    self.delete_what_waits_for_itself(session)
        left = [
            f"{q.name} (gone: {q.gone}): {q.messages_ready} ready, {q.messages_unacked} unacked,"
            f" outbox {list(q.outbox)}"
            for partition in broker.partitions
            for q in partition.machine.by_id.values()
        ]
        raise AssertionError("not drained: " + "; ".join(left))

    def delete_what_waits_for_itself(self, session: Session) -> None:
        """At-least-once queues that take their own letters, or each other's, may be so full of letters that they
        refuse them, and keep them for ever. That is how they are asked to be; an operator deletes one."""
        broker = self.world.broker
        for queue in list(broker.queues.all()):
            bound = [bound.source for bound in broker.topology.bindings_to("/", "queue", queue.name)]
            if queue.outbox and queue.settings.at_least_once and "dlx" in bound:
                broker.queues.delete(session, queue.name, False, False)

    def drained(self) -> bool:
        if any(taker.outstanding for taker in self.takers) or not self.world.broker.turns.at_rest:
            return False
        return not any(
            queue.messages_ready or queue.messages_unacked or queue.messages_delayed or queue.outbox
            for partition in self.world.broker.partitions
            for queue in partition.machine.by_id.values()
        )
