"""Short ways to write events and to read effects, for the tests of the machine."""

import json
from collections.abc import Sequence

from rewindmq.projections.machine.data.effects import (
    CancelConsumer,
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Keep,
    Quarantine,
    QueueGone,
    Refuse,
    Release,
    Requeue,
)
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.amqp.properties import join_by_name, join_headers
from rewindmq.schemas.amqp.tables import longstr
from rewindmq.schemas.events import (
    Acked,
    ConsumerAttached,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Nacked,
    PolicyApplied,
    Published,
    QueueDeclared,
    SessionClosed,
)
from rewindmq.schemas.values import Actor, Argument, Deduplication, MovedFrom, Origin, Policy, Route

VHOST = "/"
START_MS = 1_000_000
ROUTES: dict[tuple[object, ...], Route] = {}


def declared(
    vhost: str,
    queue: str,
    *,
    type: str = "classic",
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    owner: int = 0,
    arguments: tuple[Argument, ...] = (),
    semantics: str = "",
    policy: Policy | None = None,
    operator_policy: Policy | None = None,
    moved_from: MovedFrom | None = None,
) -> QueueDeclared:
    """A declaration of a transient classic queue, if nothing else is said."""
    return QueueDeclared(
        vhost,
        queue,
        type=type,
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        owner=owner,
        arguments=arguments,
        semantics=semantics,
        policy=policy,
        operator_policy=operator_policy,
        moved_from=moved_from,
    )


def attached(
    vhost: str,
    queue: str,
    consumer: int,
    *,
    channel: int,
    tag: str,
    no_ack: bool = False,
    exclusive: bool = False,
    prefetch: int = 0,
    credit: int = 0,
    global_prefetch: int = 0,
    priority: int = 0,
    arguments: tuple[Argument, ...] = (),
) -> ConsumerAttached:
    """A consumer with manual acks and no limits, if nothing else is said."""
    return ConsumerAttached(
        vhost,
        queue,
        consumer,
        channel=channel,
        tag=tag,
        no_ack=no_ack,
        exclusive=exclusive,
        prefetch=prefetch,
        credit=credit,
        global_prefetch=global_prefetch,
        priority=priority,
        arguments=arguments,
    )


def route(*queues: str) -> Route:
    return ROUTES.setdefault(queues, Route(VHOST, "", queues[0] if queues else "", queues))


def route_once(asked: Deduplication, *queues: str) -> Route:
    """A route through a deduplicating exchange."""
    return ROUTES.setdefault((asked, *queues), Route(VHOST, asked.exchange, "", queues, asked))


def with_id(value: bytes, ttl_ms: int | None = None) -> bytes:
    """The properties of a message with this id, a typed value as a table has it, and a time of its own."""
    headers = {"x-deduplication-header": value}
    if ttl_ms is not None:
        headers["x-cache-ttl"] = b"l" + ttl_ms.to_bytes(8, "big", signed=True)
    return join_by_name({"headers": join_headers(headers)})


def text_id(value: str, ttl_ms: int | None = None) -> bytes:
    """The properties of a message with this text as its id."""
    return with_id(longstr(value), ttl_ms)


def policy(name: str, version: int = 1, /, **keys: object) -> Policy:
    """A policy: policy("lim", max_length=2). Underscores become dashes."""
    definition = {key.replace("_", "-"): value for key, value in keys.items()}
    return Policy(name, json.dumps(definition, sort_keys=True, separators=(",", ":")), version)


def arguments(keys: dict[str, object]) -> tuple[Argument, ...]:
    made = []
    for key, value in sorted(keys.items()):
        assert isinstance(value, int | str)
        kind = "bool" if isinstance(value, bool) else "longstr" if isinstance(value, str) else "long"
        made.append(Argument("x-" + key.replace("_", "-"), kind, value))
    return tuple(made)


def explain(effects: Sequence[Effect]) -> list[tuple[object, ...]]:
    """Effects as plain tuples, one a message."""
    told: list[tuple[object, ...]] = []
    for e in effects:
        name = e.queue.name if not isinstance(e, Quarantine) else ""
        if isinstance(e, Keep):
            told.extend(("keep", name, message_id) for message_id in e.message_ids)
        elif isinstance(e, Forget):
            told.extend(("forget", name, message_id, e.reason, e.consumer) for message_id in e.message_ids)
        elif isinstance(e, Refuse):
            told.append(("refuse", name, e.message_id))
        elif isinstance(e, Deliver):
            said = (e.consumer, e.redelivered, e.delivery_count, e.final)
            told.extend(("deliver", name, message_id, *said) for message_id in e.message_ids)
        elif isinstance(e, FetchReply):
            told.append(("get", name, e.message_id, e.consumer, e.redelivered, e.delivery_count, e.messages_ready))
        elif isinstance(e, Requeue):
            told.extend(("requeue", name, message_id, e.consumer, e.reason) for message_id in e.message_ids)
        elif isinstance(e, Delay):
            told.append(("delay", name, e.message_id, e.consumer, e.reason, e.due_ms))
        elif isinstance(e, DeadLetter):
            for at, message_id in enumerate(e.message_ids):
                kept = e.carried[at] if e.carried else None
                dies_at = None if kept is None or kept.expiry == NONE else kept.expiry
                more = () if kept is None else (kept.redelivered, kept.delivery_count, dies_at)
                told.append(("dead letter", name, message_id, e.reason, e.sequence + at, *more))
        elif isinstance(e, Release):
            told.extend(("release", name, message_id) for message_id in e.message_ids)
        elif isinstance(e, CancelConsumer):
            told.append(("cancel", name, e.consumer))
        elif isinstance(e, QueueGone):
            told.append(("gone", name, e.reason, e.messages))
        elif isinstance(e, Duplicate):
            told.append(("duplicate", name, e.message_id, *([e.original] if e.original >= 0 else [])))
        else:
            told.append(("quarantine",))
    return told


class Bench:
    """A machine to try things on.

    Each step is one event, validated afterwards. `told` is its outcome."""

    def __init__(self) -> None:
        self.machine = Machine("queues-0")
        self.offset = 0
        self.now_ms = START_MS
        self.effects: list[Effect] = []
        self.consumer = 100

    def do(self, event: Event, session: int = 1) -> list[tuple[object, ...]]:
        self.effects = []
        self.machine.apply(self.offset, self.now_ms, Actor("guest", session), event, self.effects)
        self.offset += 1
        self.machine.validate()
        return explain(self.effects)

    def declare(
        self,
        name: str = "q",
        type: str = "classic",
        policy: Policy | None = None,
        operator: Policy | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        owner: int = 0,
        semantics: str = "rabbitmq-3.13",
        **keys: object,
    ) -> Queue:
        self.do(
            QueueDeclared(
                VHOST,
                name,
                type=type,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                owner=owner,
                arguments=arguments(keys),
                semantics=semantics,
                policy=policy,
                operator_policy=operator,
            )
        )
        return self.queue(name)

    def queue(self, name: str = "q") -> Queue:
        queue = self.machine.queue(VHOST, name)
        assert queue is not None
        return queue

    def publish(
        self,
        *queues: str,
        size: int = 1,
        expiration: int | None = None,
        persistent: bool = True,
        origin: Origin | None = None,
        priority: int | None = None,
    ) -> int:
        """Publish a message. Returns its id; `explain(bench.effects)` has the outcome."""
        message_id = self.offset
        self.do(
            Published(
                route(*(queues or ("q",))),
                b"",
                expiration_ms=expiration,
                priority=priority,
                persistent=persistent,
                origin=origin,
                body=b"",
                body_size=size,
            )
        )
        return message_id

    def attach(
        self,
        queue: str = "q",
        prefetch: int = 0,
        no_ack: bool = False,
        credit: int = 0,
        priority: int = 0,
        session: int = 1,
        channel: int = 1,
        shared: int = 0,
    ) -> int:
        """Attach a consumer. Returns its number."""
        self.consumer += 1
        tag = f"c{self.consumer}"
        self.do(
            ConsumerAttached(
                VHOST,
                queue,
                self.consumer,
                channel=channel,
                tag=tag,
                no_ack=no_ack,
                exclusive=False,
                prefetch=prefetch,
                credit=credit,
                global_prefetch=shared,
                priority=priority,
                arguments=(),
            ),
            session,
        )
        return self.consumer

    def ack(self, consumer: int, *ids: int, queue: str = "q") -> list[tuple[object, ...]]:
        return self.do(Acked(VHOST, queue, consumer, tuple((i, i) for i in ids)))

    def nack(self, consumer: int, *ids: int, requeue: bool = True, queue: str = "q") -> list[tuple[object, ...]]:
        return self.do(Nacked(VHOST, queue, consumer, tuple((i, i) for i in ids), requeue, "nack"))

    def get(self, queue: str = "q", no_ack: bool = True, consumer: int = 50) -> int:
        """Call basic.get. Returns the message's id, or -1."""
        self.do(Fetched(VHOST, queue, consumer, 1, no_ack))
        for effect in self.effects:
            if isinstance(effect, FetchReply):
                return effect.message_id
        raise AssertionError("no answer to basic.get")

    def apply_policy(self, policy: Policy | None, operator: Policy | None = None, queue: str = "q") -> None:
        self.do(PolicyApplied(VHOST, queue, policy, operator))

    def close(self, session: int, channel: int = 0) -> list[tuple[object, ...]]:
        return self.do(SessionClosed(session, channel))

    def qos(self, prefetch: int, session: int = 1, channel: int = 1) -> list[tuple[object, ...]]:
        """Call basic.qos global."""
        return self.do(GlobalPrefetchSet(session, channel, prefetch), session)

    def ready(self, queue: str = "q") -> list[int]:
        return list(self.queue(queue).ready_ids())

    def delivered(self) -> list[int]:
        """The ids delivered by the last event."""
        return [message_id for e in self.effects if isinstance(e, Deliver) for message_id in e.message_ids]
