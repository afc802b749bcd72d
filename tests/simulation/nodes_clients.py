"""The clients of several nodes, operators and events of the world, step by step, and their observations.

As in clients.py, a step is (kind, number), and all its choices follow from its own number and from the current state.
A client's request to its node is a task, as on a connection: a client has one at a time, which may outlive the
connection.
"""

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from rewindmq.engine.amqp.basic_publish import reaches_none
from rewindmq.engine.amqp.settlement import ranges
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import (
    Acked,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Nacked,
    Published,
    Tick,
)
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.simulation.clients import ARGUMENTS, DEAD, PERSISTENT, POLICIES, QUEUES, TRANSIENT, arguments
from tests.simulation.nodes_connections import Answer, Client, Following, Publish, RunAnswer, Taker
from tests.simulation.nodes_world import Life, World

Step = tuple[str, int]
EXCHANGES = ["x0", "x1"]
VHOST = "other"


class Clients:
    """`do(step)`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = random.Random()
        self.clients: list[Client] = []
        self.takers: list[Taker] = []
        self.publishes: list[Publish] = []
        # source, key, queue that a client was told are bound -> the queue's partition and id
        self.bound: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.unbinding: Counter[tuple[str, str, str]] = Counter()  # asked for, and not answered, which some never are
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
            "bind": self.bind,
            "policy": self.policy,
            "connect": self.connect,
            "close": self.close,
            "wait": self.wait,
            "kill": self.kill,
            "stop": self.stop,
            "start": self.start,
            "cut": self.cut,
            "mend": self.mend,
            "owners": self.move_duties,
            "foreign": self.put_nonsense,
            "clock": self.turn_clock,
            "exchange": self.exchange,
            "vhost": self.vhost,
            "hold": self.hold,
            "run": self.publish_run,
        }

    def do(self, step: Step) -> None:
        kind, number = step
        self.dice = random.Random(number)
        trace = self.world.record.trace
        at = len(trace)
        trace.append(kind)

        def act() -> None:
            try:
                trace[at] = f"{self.world.loop.time():9.3f} {kind:8} {self.kinds[kind]()}"
                self.world.record.counts[kind] += 1
            except AmqpError as error:  # refused, as a client might be: nothing has changed
                trace[at] += f": {error}"
            for life in list(self.world.lives.values()):
                if life.broker is not None and self.dice.random() < 0.9:
                    life.broker.turns.end()

        self.world.loop.inside(act)
        self.world.loop.run(self.dice.choice((0.0, 0.0, 0.001, 0.05, 0.4)))
        if kind == "wait":
            self.world.loop.run(self.dice.choice((0.01, 0.4, 2.0, 2.0, 15.0)))
        self.clients = [client for client in self.clients if not client.closed and not client.life.ended]

    # -- who there is -------------------------------------------------------------------------------------------------

    def serving(self) -> list[Life]:
        return [life for life in self.world.lives.values() if life.serves]

    def open(self, life: Life, vhost: str = "/") -> Client:
        session = broker_of(life).sessions.open("guest", vhost, "simulated", {})
        session.in_history = True  # its publishes are counted
        client = Client(life, session)
        session.close = lambda reason: client.ends()
        self.clients.append(client)
        return client

    def idle(self) -> Client | None:
        """A client that may ask for something."""
        found = [client for client in self.clients if not client.asking and client.session.vhost == "/"]
        if not found or self.dice.random() < 0.05:
            lives = self.serving()
            return self.open(self.dice.choice(lives)) if lives else None
        return self.dice.choice(found)

    def ask(self, client: Client, work: Coroutine[Any, Any, object]) -> None:
        """Begin to ask, and go on without the answer."""
        client.asking = True
        client.life.begin(self._asked(client, work))

    async def _asked(self, client: Client, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except AmqpError as error:
            self.world.record.counts["refused"] += 1
            self.world.record.trace.append(f"    {client.life.name} refuses: {error}")
        client.asking = False
        broker_of(client.life).turns.end()

    # -- messages -----------------------------------------------------------------------------------------------------

    def publish(self) -> str:
        client = self.idle()
        if client is None:
            return "nobody"
        told = [client.life.name]
        for _ in range(self.dice.randrange(1, 5)):
            exchange = self.dice.choice(["", "", "", "amq.fanout", "dlx", "amq.topic"])
            other = self.dice.choice(EXCHANGES)
            if self.dice.random() < 0.15 and ("/", other) in broker_of(client.life).topology.exchanges:
                exchange = other
            key = self.dice.choice(QUEUES)
            expiration = self.dice.choice([None, None, None, None, None, 0, 80, 3_000])
            publish = self.publish_one(client, exchange, key, expiration)
            told.append(f"{publish.body[:8].decode()} to {exchange}/{key} ({expiration})")
            if client.asking:  # it waits until its node folds the partition
                told.append("postponed")
                break
        return ", ".join(told)

    def publish_one(self, client: Client, exchange: str, key: str, expiration: int | None) -> Publish:
        body = b"%d." % len(self.publishes) + b"x" * self.dice.randrange(0, 12)
        persistent = self.dice.random() < 0.8
        publish = Publish(body, client, self.world.log_clock())
        self.publishes.append(publish)
        if self.held(client, exchange, key) is None and not self.paused(client, exchange, key):
            self.publish_now(publish, exchange, key, expiration, persistent)
            return publish

        async def later() -> None:
            counts = self.world.record.counts
            while not client.closed:
                if (held := self.held(client, exchange, key)) is not None:
                    counts["publishes that waited for a queue"] += 1
                    await broker_of(client.life).homes.wait_until_free("/", held, lambda: client.closed)
                elif paused := self.paused(client, exchange, key):
                    counts["publishes that waited for a fold"] += 1
                    await paused[0].enter()
                else:
                    break
            if not client.closed:
                self.publish_now(publish, exchange, key, expiration, persistent)

        self.ask(client, later())
        return publish

    def held(self, client: Client, exchange: str, key: str) -> str | None:
        """The first queue of a publish that waits on its way to another partition: as engine/amqp/basic_publish.py."""
        broker = broker_of(client.life)
        if not broker.homes.names_wait:
            return None
        destinations = broker.exchanges.route(client.session, exchange, key, None)
        names = [name for to in destinations for name in to.route.queues]
        return broker.homes.first_held("/", [*names, key] if exchange == "" else names)

    def paused(self, client: Client, exchange: str, key: str) -> list[Partition]:
        """The partitions that the client's node has to fold before it may publish: as engine/amqp/channel.py."""
        broker = broker_of(client.life)
        destinations = broker.exchanges.route(client.session, exchange, key, None)
        found = [to.partition for to in destinations if to.partition.needs_fold(to.route)]
        home = broker.queues.partition_for("/", key)
        if exchange == "" and reaches_none(destinations) and not home.current:
            found.append(home)
        return found

    def publish_now(self, publish: Publish, exchange: str, key: str, expiration: int | None, persistent: bool) -> None:
        client, body = publish.client, publish.body
        broker = broker_of(client.life)
        destinations = broker.exchanges.route(client.session, exchange, key, None)
        if exchange == "" and broker.queues.partition_for("/", key).current:
            assert reaches_none(destinations) == (broker.queues.get("/", key) is None), f"{key}: routed {destinations}"
        self.world.record.counts["publishes to paused partitions"] += sum(
            not to.partition.current for to in destinations
        )
        counts = client.session.publishes
        counts.received += 1
        counts.grouped += not destinations
        counts.copies -= bool(destinations)
        for destination in destinations:
            mark = destination.partition.publish(
                client.session.actor,
                Published(
                    destination.route,
                    PERSISTENT if persistent else TRANSIENT,
                    expiration_ms=expiration,
                    persistent=persistent,
                    body=body,
                    body_size=len(body),
                ),
            )
            counts.logged_copy(destination.partition)
            publish.places.append(destination.partition.index)
            destination.partition.await_durable(mark, Answer(publish, len(publish.places) - 1), 0)

    def publish_run(self) -> str:
        """Publish messages that differ in their bodies alone, as one socket read may bring them."""
        client = self.idle()
        if client is None:
            return "nobody"
        exchange, key = self.dice.choice(["", "", "", "amq.fanout"]), self.dice.choice(QUEUES)
        expiration = self.dice.choice([None, None, None, 0, 80, 3_000])
        if self.held(client, exchange, key) is not None or self.paused(client, exchange, key):
            return "postponed"
        publishes: list[Publish] = []
        for _ in range(self.dice.randrange(2, 9)):
            body = b"%d." % len(self.publishes) + b"x" * self.dice.randrange(0, 12)
            publishes.append(Publish(body, client, self.world.log_clock()))
            self.publishes.append(publishes[-1])
        destinations = broker_of(client.life).exchanges.route(client.session, exchange, key, None)
        counts = client.session.publishes
        counts.received += len(publishes)
        counts.grouped += 0 if destinations else len(publishes)
        counts.copies += len(publishes) * (len(destinations) - 1) if destinations else 0
        for place, destination in enumerate(destinations):
            partition = destination.partition
            assert partition.takes_runs
            messages = [
                Published(
                    destination.route,
                    PERSISTENT,
                    expiration_ms=expiration,
                    persistent=True,
                    body=each.body,
                    body_size=len(each.body),
                )
                for each in publishes
            ]
            last = partition.publish_run(client.session.actor, messages)
            counts.logged(partition, len(messages))
            for publish in publishes:
                publish.places.append(partition.index)
            partition.await_run_durable(last, RunAnswer(publishes, place), 0, len(publishes))
        self.world.record.counts["messages in runs"] += len(publishes) * len(destinations)
        return f"{len(publishes)} to {exchange}/{key} ({expiration})"

    def settle(self) -> str:
        found = [taker for taker in self.takers if taker.outstanding and taker.may_settle]
        if not found:
            return "nothing"
        taker = self.dice.choice(found)
        count = self.dice.choice((1, 1, 2, len(taker.outstanding)))
        where = self.dice.choice((0, 0, max(0, len(taker.outstanding) - count)))
        ids = taker.outstanding[where : where + count]
        del taker.outstanding[where : where + count]
        verdict = self.dice.choice(("ack", "ack", "nack", "reject", "requeue", "recover"))
        return f"{taker.client.life.name} {self.settle_these(taker, ids, verdict)}"

    def settle_these(self, taker: Taker, ids: list[int], verdict: str) -> str:
        queue, partition = taker.queue, taker.partition
        assert queue is not None
        assert partition is not None
        if not taker.queue_is_there:
            return "the queue is gone"
        messages = ranges(list(ids))
        if verdict == "ack":
            partition.append(taker.client.session.actor, Acked(queue.vhost, queue.name, taker.consumer_id, messages))
        else:
            requeue = verdict in ("requeue", "recover")
            method = verdict if verdict in ("reject", "recover") else "nack"
            event = Nacked(queue.vhost, queue.name, taker.consumer_id, messages, requeue, method)
            partition.append(taker.client.session.actor, event)
        return f"{queue.name} {verdict} {messages}"

    def consume(self) -> str:
        dice, client = self.dice, self.idle()
        if client is None:
            return "nobody"
        name, prefetch = dice.choice([*QUEUES, DEAD]), dice.choice((0, 1, 2, 5))
        no_ack, shared, exclusive = dice.random() < 0.25, dice.choice((0, 0, 0, 3)), dice.random() < 0.05
        given = arguments({"x-priority": dice.choice((-1, 5))}) if dice.random() < 0.2 else ()
        self.consume_as(client, name, prefetch, no_ack, shared, exclusive, given)
        how = f"prefetch {prefetch}{' no_ack' if no_ack else ''}{' global' if shared else ''}"
        return f"{client.life.name} {name} {how}"

    def consume_as(
        self, client: Client, name: str, prefetch: int, no_ack: bool, shared: int, exclusive: bool, given: Any
    ) -> None:
        channel = self.dice.choice((1, 2))
        taker = Taker(client, channel, no_ack or prefetch == 0)
        taker.consumes, taker.prefetch = True, prefetch
        self.takers.append(taker)
        tag = taker.tag = f"tag {len(self.takers)}"
        settings = Subscription(
            client.session,
            channel=channel,
            tag=tag,
            no_ack=no_ack,
            exclusive=exclusive,
            prefetch=prefetch,
            global_prefetch=shared,
            arguments=given,
        )
        subscription = Following(self.takers, taker, settings).subscription
        self.ask(
            client,
            broker_of(client.life).consumers.consume(name, subscription, taker, taker.belongs),
        )

    def fetch(self) -> str:
        client, name, no_ack = self.idle(), self.dice.choice(QUEUES), self.dice.random() < 0.4
        if client is None:
            return "nobody"
        taker = Taker(client, self.dice.choice((1, 2)), False)
        self.takers.append(taker)

        async def get() -> None:
            found = await broker_of(client.life).consumers.fetch(client.session, taker.channel, taker, name, no_ack)
            taker.belongs(*found)
            taker.attached = False

        self.ask(client, get())
        return f"{client.life.name} {name}{' no_ack' if no_ack else ''}"

    def credit(self) -> str:
        found = [
            taker
            for taker in self.takers
            if taker.consumes and taker.attached and taker.may_settle and not taker.leaves
        ]
        if not found:
            return "nobody"
        taker, credit = self.dice.choice(found), self.dice.randrange(1, 6)
        told = [self.change_lookahead(each, credit) for each in found if not each.windowed and each.queue_is_there]
        if taker.windowed and taker.queue_is_there:
            self.append_credit(taker, credit)
            told.append(f"{credit} for {taker.consumer_id}")
        return ", ".join(told)

    def append_credit(self, taker: Taker, credit: int) -> None:
        assert taker.queue is not None
        assert taker.partition is not None
        event = Credited(taker.queue.vhost, taker.queue.name, taker.consumer_id, credit)
        taker.credited_at = taker.partition.append(taker.client.session.actor, event)

    def change_lookahead(self, taker: Taker, lookahead: int) -> str:
        """As engine/amqp/lookahead.py does it. What the taker has beyond its prefetch is taken as not sent."""
        assert taker.partition is not None
        assert taker.queue is not None
        holder = taker.queue.holders.get(taker.consumer_id)
        if holder is None or taker.partition.effects or taker.partition.durable_position <= taker.credited_at:
            return "later"
        if holder.lookahead:
            self.append_credit(taker, 0)
            return "no lookahead"
        unsent = taker.outstanding[holder.prefetch :]
        if not unsent:
            self.append_credit(taker, lookahead)
            return f"{taker.queue.name} lookahead {lookahead}"
        del taker.outstanding[holder.prefetch :]
        self.append_credit(taker, -1 - unsent[0])
        return f"{taker.queue.name} not sent {unsent}"

    def cancel(self) -> str:
        found = [taker for taker in self.takers if taker.attached and taker.may_settle and not taker.client.asking]
        if not found:
            return "nobody"
        taker = self.dice.choice(found)
        assert taker.queue is not None
        self.ask(taker.client, self._cancel(taker))
        return taker.queue.name

    async def _cancel(self, taker: Taker) -> None:
        """As basic.cancel: it waits while the consumer is being moved."""
        client = taker.client
        consumers = broker_of(client.life).consumers
        await consumers.at_rest(client.session, taker.channel, taker.tag)
        while taker.successor is not None:
            taker = taker.successor
        queue, partition = taker.queue, taker.partition
        if not taker.attached or queue is None or partition is None:  # the broker was faster
            return
        taker.attached = False
        await consumers.cancel(client.session, partition, queue, taker.consumer_id)

    # -- queues -------------------------------------------------------------------------------------------------------

    def declare(self) -> str:
        given, name, client = self.dice.choice(ARGUMENTS), self.dice.choice(QUEUES), self.idle()
        if client is None:
            return "nobody"
        classic = "x-queue-type" not in given
        durable, exclusive = not (classic and self.dice.random() < 0.2), classic and self.dice.random() < 0.15
        auto_delete = classic and self.dice.random() < 0.15
        self.ask(
            client,
            broker_of(client.life).queues.declare(
                client.session, name, False, durable, exclusive, auto_delete, arguments(given)
            ),
        )
        return f"{client.life.name} {name} {given}{' exclusive' if exclusive else ''}"

    def delete(self) -> str:
        name, if_unused, client = self.dice.choice(QUEUES), self.dice.random() < 0.3, self.idle()
        if client is None:
            return "nobody"
        self.ask(client, broker_of(client.life).queues.delete(client.session, name, if_unused, False))
        return f"{client.life.name} {name}"

    def purge(self) -> str:
        name, client = self.dice.choice(QUEUES), self.idle()
        if client is None:
            return "nobody"
        self.ask(client, broker_of(client.life).queues.purge(client.session, name))
        return f"{client.life.name} {name}"

    def bind(self) -> str:
        source, name = self.dice.choice(["amq.fanout", "dlx", "amq.topic", *EXCHANGES]), self.dice.choice(QUEUES)
        key, client = self.dice.choice(["#", "q1", "*"]), self.idle()
        if client is None:
            return "nobody"
        unbinds = self.dice.random() < 0.3
        binding = (source, key, name)
        work = self._unbind(client, binding) if unbinds else self._bind(client, binding)
        self.ask(client, work)
        return f"{client.life.name} {'unbind' if unbinds else 'bind'} {source} {key} {name}"

    async def _bind(self, client: Client, binding: tuple[str, str, str]) -> None:
        broker, (source, key, name) = broker_of(client.life), binding
        before = broker.queues.get("/", name)
        undisputed = not self.unbinding[binding] and source not in EXCHANGES  # these go, with their bindings
        await broker.exchanges.bind(client.session, source, "queue", name, key, ())
        same = before is not None and broker.queues.get("/", name) is before
        if before is not None and same and undisputed and not self.unbinding[binding]:
            self.bound[binding] = (broker.homes.of("/", name).index, before.queue_id)

    async def _unbind(self, client: Client, binding: tuple[str, str, str]) -> None:
        source, key, name = binding
        self.bound.pop(binding, None)
        self.unbinding[binding] += 1
        await broker_of(client.life).exchanges.unbind(client.session, source, "queue", name, key, ())
        self.unbinding[binding] -= 1

    def policy(self) -> str:
        client, name = self.idle(), self.dice.choice(["a", "b"])
        if client is None:
            return "nobody"
        broker = broker_of(client.life)
        operator = self.dice.random() < 0.2
        if self.dice.random() < 0.3:
            self.ask(
                client,
                (broker.operator_policies.clear if operator else broker.policies.clear)(Actor("guest", 0), "/", name),
            )
            return f"{client.life.name} {name} cleared"
        pattern = self.dice.choice(["^q", "^q[0-3]", "^q[4-6]"])
        definition: dict[str, object] = {"max-length": 4} if operator else self.dice.choice(POLICIES)
        setting = broker.operator_policies.set if operator else broker.policies.set
        self.ask(client, setting(Actor("guest", 0), "/", name, pattern, definition, self.dice.randrange(3), "queues"))
        return f"{client.life.name} {name} {pattern} {definition}"

    def exchange(self) -> str:
        client, name = self.idle(), self.dice.choice(EXCHANGES)
        if client is None:
            return "nobody"
        broker, session = broker_of(client.life), client.session
        if self.dice.random() < 0.3:
            self.ask(client, broker.exchanges.delete(session, name, self.dice.random() < 0.5))
            return f"{client.life.name} delete {name}"
        kind, durable, auto_delete = self.dice.choice(("fanout", "topic")), self.dice.random() < 0.7, name == "x0"
        self.ask(client, broker.exchanges.declare(session, name, kind, False, durable, auto_delete, False, ()))
        return f"{client.life.name} {name} {kind}"

    def vhost(self) -> str:
        """It comes, has queues, and goes: three who do not know of each other."""
        lives = self.serving()
        if not lives:
            return "nobody"
        life = self.dice.choice(lives)
        broker = broker_of(life)
        client = next((client for client in self.clients if client.life is life and not client.asking), None)
        if client is None:
            client = self.open(life)
        if VHOST not in broker.topology.vhosts:

            async def create() -> None:
                await broker.vhosts.create(Actor("guest", 0), VHOST, "")
                await broker.access.users.set_permissions(Actor("guest", 0), VHOST, "guest", ".*", ".*", ".*")

            self.ask(client, create())
            return f"{life.name} create"
        if self.dice.random() < 0.4:
            self.ask(client, broker.vhosts.delete(Actor("guest", 0), VHOST))
            return f"{life.name} delete"
        guest = self.open(life, VHOST)
        name = self.dice.choice(QUEUES)
        self.ask(guest, broker.queues.declare(guest.session, name, False, True, False, False, ()))
        return f"{life.name} {name}"

    # -- connections, nodes, the log ----------------------------------------------------------------------------------

    def connect(self) -> str:
        lives = self.serving()
        return self.open(self.dice.choice(lives)).life.name if lives else "nobody"

    def close(self) -> str:
        if not self.clients:
            return "nobody"
        client, channel = self.dice.choice(self.clients), self.dice.choice((0, 0, 1, 2))
        for taker in self.takers:
            if taker.client is client and channel in (0, taker.channel):
                taker.cut = True
        if channel:
            broker_of(client.life).sessions.close_channel(client.session, channel)
        else:
            client.ends()
        return f"{client.life.name} channel {channel}"

    def wait(self) -> str:
        return ""

    def kill(self) -> str:
        lives = list(self.world.lives.values())
        if not lives or (len(lives) < 2 and self.dice.random() < 0.8):
            return "the last one stays"
        life, lose = self.dice.choice(lives), self.dice.random() < 0.2
        self.world.kill(life, lose)
        return f"{life.name}{', and its state is lost' if lose else ''}"

    def stop(self) -> str:
        lives = self.serving()
        if not lives:
            return "nobody"
        life = self.dice.choice(lives)
        self.world.stop(life)
        return life.name

    def start(self) -> str:
        down = [node for node in self.world.nodes if node not in self.world.lives]
        return self.world.start(self.dice.choice(down)).name if down else "all are up"

    def cut(self) -> str:
        lives = list(self.world.lives.values())
        life = self.dice.choice(lives) if lives else None
        if life is None or life.broker is None:
            return "nobody"
        life.log.cut(True)
        return life.name

    def mend(self) -> str:
        cut = [life for life in self.world.lives.values() if life.broker is not None and life.log.is_cut]
        if not cut:
            return "nobody"
        life = self.dice.choice(cut)
        life.log.cut(False)
        return life.name

    def hold(self) -> str:
        """A node falls behind in some partitions, or is no longer."""
        lives = list(self.world.lives.values())
        life = self.dice.choice(lives) if lives else None
        if life is None or life.broker is None:
            return "nobody"
        names = [partition.name for partition in life.log.partitions if self.dice.random() < 0.2]
        life.log.hold(names)
        return f"{life.name} {names}"

    def move_duties(self) -> str:
        history = self.world.history
        members = sorted(history.logs)
        if self.dice.random() < 0.3:
            history.rebalance()
            return "as they should be"
        partition = self.dice.choice(history.queues).name
        owners = self.dice.sample(members, self.dice.randint(0, min(2, len(members))))
        history.assign({partition: owners})
        return f"{partition} to {owners}"

    def put_nonsense(self) -> str:
        number = self.dice.randrange(len(self.world.history.partitions))
        partition = self.world.history.partitions[number]
        actor = self.dice.choice((BROKER, Actor("guest", 0), Actor("guest", self.dice.randrange(1, 1 << 30))))
        kinds: list[Event | bytes] = [
            b"",
            b"\xc3\x01 nonsense",
            self.dice.randbytes(30),
            Tick(),
            Acked("/", "q1", 77, ((1, 9),)),
            ConsumerCancelled("/", "q2", 5),
            DeadLettersForwarded("/", "q1", 99_999, 1),
            Bound("/", "nowhere", "queue", "q1", "", ()),
            Published(Route("/", "", "nobody", ("nobody",)), b"\0\0", persistent=True, body=b"x", body_size=1),
        ]
        event = self.dice.choice(kinds)
        if isinstance(event, bytes):
            value, shown = event, repr(event)
        else:
            encoder = Encoder()
            value, shown = encoder.encode(encoder.prefix(1, actor), event), type(event).__name__
        partition.put(b"", value)
        return f"{partition.name} {shown}"

    def turn_clock(self) -> str:
        node = self.dice.choice(self.world.nodes)
        self.world.skew_ms[node] += self.dice.choice((-3_000, -20, 30, 3_000))
        return f"{node} {self.world.skew_ms[node]} ms"


def broker_of(life: Life) -> Broker:
    assert life.broker is not None
    return life.broker
