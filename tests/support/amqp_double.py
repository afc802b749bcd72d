"""A broker double for tests of engine/amqp without sockets: the contract of engine/broker over plain lists.

Queues are FIFO, consumers take turns, nothing is limited or expires; everything is durable when `land` is called
(or at once with `prompt`). The requests of the AMQP side are in `broker.events` and `broker.calls`.

Both builds run with it: where the AMQP side expects an object of a compiled class, it gets a real one (a queue, the
router, the firehose), or a double that inherits from the class (a partition, the turns).
"""

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.broker.consumers import CREDIT_WINDOW
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.engine.errors import AccessRefused, NotAllowed, NotFound
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.host.memory import MemoryAccount
from rewindmq.engine.identity.grants import Identity
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.partition.flow_control import Flow
from rewindmq.engine.partition.lifecycle import LoneNode
from rewindmq.engine.partition.publish_counts import PublishCounts
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.engine.routing.content import Content
from rewindmq.engine.routing.firehose import Firehose
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import Acked, Credited, Nacked, Published
from rewindmq.schemas.metadata_events import ExchangeDeclared, UserSet
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.support.partition_double import PartitionDouble


class DoubleQueue:
    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = Queue(Declaration("/", name, 0, "classic"))
        self.ready: list[tuple[int, Published, bool, int]] = []  # id, message, redelivered, delivery count
        self.consumers: list[Any] = []

    def seen(self) -> Queue:
        """The queue as the AMQP side sees it."""
        self.queue.messages_ready = len(self.ready)
        self.queue.consuming = dict(enumerate(self.consumers))
        return self.queue

    def in_lookahead(self) -> tuple[int, int]:
        return 0, 0


class DoublePartition(PartitionDouble):
    def __init__(self, broker: "DoubleBroker", index: int) -> None:
        super().__init__(index)
        self.broker = broker
        listener: Any = broker
        self.start(listener)
        self.waiting: list[tuple[Any, int, bool]] = []
        self.prompt: list[tuple[Any, int]] = []  # confirms that do not wait for the disk

    def append(self, actor: Actor, event: Any) -> int:
        self.broker.events.append(event)
        self.appended += 1
        if isinstance(event, Acked | Nacked):
            self.settle_event(event)
        elif isinstance(event, Credited):
            self.broker.consumers.by_id[event.consumer].credit += event.credit
        return self.appended - 1

    def settle_event(self, event: Acked | Nacked) -> None:
        holder = self.broker.consumers.holders[event.consumer]
        for first, last in event.messages:
            for message_id in range(first, last + 1):
                message, count = holder.unacked.pop(message_id)
                if isinstance(event, Nacked) and event.requeue:
                    self.broker.queues[event.queue].ready.append((message_id, message, True, count))
        for queue in self.broker.queues.by_name.values():
            queue.ready.sort(key=lambda entry: entry[0])

    def publish(self, actor: Actor, message: Published) -> int:
        offset = self.append(actor, message)
        for name in message.route.queues:
            self.broker.queues[name].ready.append((offset, message, False, 0))
        return offset

    def message(self, queue_id: int, message_id: int) -> Published:
        """A message that is unacked."""
        return next(
            each.unacked[message_id][0] for each in self.broker.consumers.holders.values() if message_id in each.unacked
        )

    def await_durable(self, offset: int, confirms: Any, sequence: int) -> None:
        refused = self.broker.refuse_next > 0
        self.broker.refuse_next -= 1
        self.waiting.append((confirms, sequence, refused))

    def await_folded(self, offset: int, confirms: Any, sequence: int) -> None:
        self.prompt.append((confirms, sequence))

    def carry_out(self) -> None:
        prompt, self.prompt = self.prompt, []
        for confirms, sequence in prompt:
            refused = self.broker.refuse_next > 0
            self.broker.refuse_next -= 1
            confirms.confirm(sequence, refused)
        for queue in self.broker.queues.by_name.values():
            if self.broker.partition_of(queue.name) is self:
                self.deliver(queue)

    def deliver(self, queue: DoubleQueue) -> None:
        while queue.ready:
            free = [c for c in queue.consumers if c.credit > 0 and (c.no_ack or not c.prefetch or c.room())]
            if not free:
                return
            consumer = free[0]
            queue.consumers.remove(consumer)
            queue.consumers.append(consumer)
            message_id, message, redelivered, count = queue.ready.pop(0)
            if not consumer.no_ack:
                consumer.unacked[message_id] = (message, count)
            if consumer.no_ack or not consumer.prefetch:
                consumer.credit -= 1
            effect = Deliver(queue.seen(), (message_id,), 0, redelivered, count, consumer.no_ack)
            consumer.out.deliver(self, effect, message_id, message)


class DoubleConsumer:
    def __init__(self, out: Any, queue: DoubleQueue, no_ack: bool, prefetch: int, channel: tuple[int, int]) -> None:
        self.out, self.queue, self.no_ack, self.prefetch, self.channel = out, queue, no_ack, prefetch, channel
        self.credit = CREDIT_WINDOW
        self.unacked: dict[int, tuple[Published, int]] = {}

    def room(self) -> bool:
        return len(self.unacked) < self.prefetch


class Unhindered(Flow):
    full = False


class DoubleSessions:
    def __init__(self, broker: "DoubleBroker") -> None:
        self.broker = broker
        self.by_id: dict[int, Any] = {}

    def open(
        self, user: str, vhost: str, peer: str, properties: dict[str, object], link: Any, close: Any, grant: Any
    ) -> Any:
        if vhost != "/":
            raise NotAllowed(f"vhost {vhost} not found")
        session_id = self.broker.next_id()
        session = SimpleNamespace(session_id=session_id, user=user, vhost=vhost, actor=Actor(user, session_id))
        session.channels, session.link, session.close, session.grant = {}, link, close, grant
        session.attachments, session.publishes = {}, PublishCounts()
        return session

    def close_channel(self, session: Any, channel: int) -> None:
        self.broker.calls.append(("close_channel", channel))
        self.detach((session.session_id, channel))

    def close(self, session: Any) -> None:
        self.broker.calls.append(("close_session", session.session_id))
        for consumer in list(self.broker.consumers.holders.values()):
            if consumer.channel[0] == session.session_id:
                self.detach(consumer.channel)

    def detach(self, channel: tuple[int, int]) -> None:
        for queue in self.broker.queues.by_name.values():
            queue.consumers = [c for c in queue.consumers if c.channel != channel]


class DoubleQueues:
    def __init__(self, broker: "DoubleBroker") -> None:
        self.broker = broker
        self.by_name: dict[str, DoubleQueue] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> DoubleQueue:
        return self.by_name[name]

    def partition_for(self, vhost: str, name: str) -> DoublePartition:
        return self.broker.partition_of(name)

    async def entered(self, session: Any, name: str) -> DoublePartition:
        return self.broker.partition_of(name)

    def usable(self, name: str) -> DoubleQueue:
        if name not in self.by_name:
            raise NotFound(f"no queue '{name}' in vhost '/'")
        return self.by_name[name]

    async def declare(self, session: Any, name: str, passive: bool, *flags: Any) -> Queue:
        self.broker.calls.append(("declare_queue", name, passive, *flags))
        if passive:
            return self.usable(name).seen()
        self.broker.router.queues_changed()
        found = self.by_name.setdefault(name or "amq.gen-1", DoubleQueue(name or "amq.gen-1"))
        self.broker.partition_of(found.name).knows(found.queue)
        return found.seen()

    async def delete(self, session: Any, name: str, if_unused: bool, if_empty: bool) -> int:
        queue = self.by_name.pop(name, None)
        if queue is None:
            return 0
        self.broker.router.queues_changed()
        del self.broker.partition_of(name).machine.by_name["/", name]
        for consumer in queue.consumers:
            consumer.out.cancelled()
        return len(queue.ready)

    async def purge(self, session: Any, name: str) -> int:
        queue = self.usable(name)
        count = len(queue.ready)
        queue.ready.clear()
        return count


class DoubleExchanges:
    def __init__(self, broker: "DoubleBroker") -> None:
        self.broker = broker
        self.types: dict[str, str] = {"": "direct", "amq.topic": "topic", "amq.headers": "headers"}
        self.bindings: list[tuple[str, str, str]] = []  # exchange, key, queue
        self.unrouted: Counter[tuple[str, str]] = Counter()

    def count_unrouted(self, vhost: str, exchange: str, count: int) -> None:
        self.unrouted[vhost, exchange] += count

    def group_unrouted(self, *publish: object) -> None:
        """Forget it."""

    def needs_content(self, vhost: str, exchange: str) -> bool:
        return self.types.get(exchange) == "headers"

    def check_publish(self, session: Any, exchange: str, key: str) -> None:
        if exchange not in self.types:
            raise NotFound(f"no exchange '{exchange}' in vhost '/'")

    def route(self, session: Any, exchange: str, key: str, content: Content | None) -> tuple[Any, ...]:
        return self.route_by_keys(session, exchange, (key,), content)

    def route_by_keys(
        self, session: Any, exchange: str, keys: tuple[str, ...], content: Content | None
    ) -> tuple[Any, ...]:
        self.check_publish(session, exchange, keys[0])
        self.broker.calls.append(("route", exchange, keys[0], None if content is None else content.headers))
        if exchange == "":
            names = [key for key in keys if key in self.broker.queues]
        else:
            any_key = self.needs_content("/", exchange)
            names = [q for e, k, q in self.bindings if e == exchange and (k in keys or any_key)]
        by_partition: dict[int, list[str]] = {}
        for name in dict.fromkeys(names):
            by_partition.setdefault(self.broker.partition_of(name).index, []).append(name)
        return tuple(
            Destination(self.broker.partitions[i], Route("/", exchange, keys[0], tuple(found)))
            for i, found in sorted(by_partition.items())
        )

    async def declare(self, session: Any, name: str, kind: str, passive: bool, *flags: Any) -> None:
        self.broker.calls.append(("declare_exchange", name, kind, passive, *flags))
        if passive and name not in self.types:
            raise NotFound(f"no exchange '{name}' in vhost '/'")
        self.types.setdefault(name, kind)

    async def delete(self, session: Any, name: str, if_unused: bool) -> None:
        self.types.pop(name, None)
        self.broker.router.exchanges_changed()

    async def bind(self, session: Any, source: str, kind: str, destination: str, key: str, arguments: Any) -> None:
        self.broker.calls.append(("bind", source, kind, destination, key, arguments))
        self.bindings.append((source, key, destination))
        self.broker.router.invalidate()

    async def unbind(self, session: Any, source: str, kind: str, destination: str, key: str, arguments: Any) -> None:
        self.broker.calls.append(("unbind", source, kind, destination, key, arguments))
        self.bindings.remove((source, key, destination))
        self.broker.router.invalidate()


class DoubleConsumers:
    def __init__(self, broker: "DoubleBroker") -> None:
        self.broker = broker
        self.by_id: dict[int, DoubleConsumer] = {}
        self.holders: dict[int, DoubleConsumer] = {}
        self.fetching: list[DoubleConsumer] = []

    def is_next_large(self, session: Any, queue: str) -> bool:
        return False

    async def at_rest(self, session: Any, channel: int, tag: str) -> None:
        """No queue moves."""

    async def consume(self, queue: str, subscription: Subscription, consumer: Any, attached: Any) -> None:
        asked = subscription
        self.broker.calls.append(
            (
                "consume",
                queue,
                asked.tag,
                asked.no_ack,
                asked.exclusive,
                asked.prefetch,
                asked.global_prefetch,
                asked.arguments,
            )
        )
        found = self.broker.queues.usable(queue)
        consumer_id = self.broker.next_id()
        channel = (asked.session.session_id, asked.channel)
        double = DoubleConsumer(consumer, found, asked.no_ack, asked.prefetch, channel)
        self.by_id[consumer_id] = self.holders[consumer_id] = double
        found.consumers.append(double)
        attached(self.broker.partition_of(queue), found.seen(), consumer_id)

    def set_global_prefetch(self, session: Any, channel: int, prefetch: int) -> None:
        self.broker.calls.append(("set_global_prefetch", channel, prefetch))

    async def cancel(self, session: Any, partition: Any, queue: Queue, consumer_id: int) -> None:
        self.broker.calls.append(("cancel", queue.name, consumer_id))
        partition.carry_out()
        consumer = self.by_id.pop(consumer_id)
        consumer.queue.consumers.remove(consumer)

    async def fetch(self, session: Any, channel: int, consumer: Any, queue: str, no_ack: bool) -> Any:
        found = self.broker.queues.usable(queue)
        holder_id = self.broker.next_id()
        holder = DoubleConsumer(consumer, found, no_ack, 0, (session.session_id, channel))
        self.holders[holder_id] = holder
        self.fetching.append(holder)
        return self.broker.partition_of(queue), found.seen(), holder_id


class DoubleAccessLog:
    """Lists what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def opened(self, session: Any, *facts: Any) -> None:
        self.told.append(("opened", session.session_id, *facts))

    def login_refused(self, *facts: Any) -> None:
        self.told.append(("login_refused", *facts))

    def access_refused(self, *facts: Any) -> None:
        self.told.append(("access_refused", *facts))


class DoubleTurns(Turns):
    def __init__(self, broker: "DoubleBroker") -> None:
        self.broker = broker
        self.blocked: str | None = None
        self.on_blocked: list[Any] = []
        self.callbacks: list[Any] = []

    def end(self) -> None:
        fetching = self.broker.consumers.fetching
        for holder in fetching:
            queue = holder.queue
            if queue.ready:
                message_id, message, redelivered, count = queue.ready.pop(0)
                if not holder.no_ack:
                    holder.unacked[message_id] = (message, count)
            else:
                message_id, message, redelivered, count = -1, None, False, 0
            effect = FetchReply(queue.seen(), message_id, 0, redelivered, count, holder.no_ack, len(queue.ready))
            holder.out.fetched(self.broker.partition_of(queue.name), effect, message)
        fetching.clear()
        for partition in self.broker.partitions:
            partition.carry_out()
        if self.broker.prompt:
            self.broker.land()

    def when_durable(self, callback: Any) -> None:
        self.callbacks.append(callback)


class DoubleBroker:
    """The double. `prompt`: everything is durable at the end of the turn."""

    def __init__(self, prompt: bool = True, partitions: int = 1, **config: Any) -> None:
        self.config = Config(data=None, **config)  # type: ignore[arg-type]  # a double of the broker
        self.prompt = prompt
        self.events: list[Any] = []
        self.calls: list[tuple[Any, ...]] = []
        self.partitions = [DoublePartition(self, index) for index in range(partitions)]
        self.sessions = DoubleSessions(self)
        self.queues = DoubleQueues(self)
        self.exchanges = DoubleExchanges(self)
        self.consumers = DoubleConsumers(self)
        self.turns = DoubleTurns(self)
        topology = Topology()
        topology.apply(
            0,
            0,
            BROKER,
            ExchangeDeclared(
                "/", "amq.headers", type="headers", durable=True, auto_delete=False, internal=False, arguments=()
            ),
        )

        def located(vhost: str, queue: str) -> Any:
            return self.partition_of(queue)

        self.router = Router(topology, located, located)
        self.homes = Homes(topology.placement, self.partitions)
        self.keeper = SimpleNamespace(flow=Unhindered())
        self.nodes = LoneNode("double")
        self.counters: dict[str, int] = defaultdict(int)
        self.access = SimpleNamespace(
            control=SimpleNamespace(authenticate=self.authenticate, tags=self.tags),
            tokens=SimpleNamespace(settings=None),
            log=DoubleAccessLog(),
        )
        self.certainty = Certainty(None, lambda: self.router.version)
        self.topology = SimpleNamespace(
            users={"guest": UserSet("guest", "", ())}, user_limits={}, vhost_limits=lambda vhost: {}
        )
        self.parameters = SimpleNamespace(cluster_name=self.config.cluster_name)
        self.refuse_next = 0
        self.host = SimpleNamespace(
            memory=MemoryAccount(1 << 40),
            alarms=SimpleNamespace(),
            loop_share=LoopShare(lambda: 0.0),  # no time passes, so no slice ends
        )
        self.subjects = Subjects("", KeyStore(NO_KEYS), {})
        keeper: Any = self.keeper
        self.firehose = Firehose(self.config, self.router, self.sessions.by_id, keeper, self.counters)
        self.last_id = 0

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def partition_of(self, queue: str) -> DoublePartition:
        return self.partitions[sum(queue.encode()) % len(self.partitions)]

    def tags(self, who: Any) -> tuple[str, ...]:
        tags: tuple[str, ...] = self.topology.users[who.user].tags
        return tags

    async def authenticate(self, user: str, password: str, host: str) -> Identity:
        if (user, password) != ("guest", "guest"):
            raise AccessRefused(f"PLAIN login refused: user '{user}' - invalid credentials")
        return Identity(user)

    def undelivered(self, partition: DoublePartition, consumer_id: int) -> None:
        self.calls.append(("undelivered", consumer_id))

    def land(self) -> None:
        """Finish a group commit."""
        for partition in self.partitions:
            for confirms, sequence, refused in partition.waiting:
                confirms.confirm(sequence, refused)
            partition.waiting.clear()
        callbacks, self.turns.callbacks = self.turns.callbacks, []
        for callback in callbacks:
            callback()
