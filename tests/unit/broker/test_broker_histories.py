"""Random histories through the whole broker, each reproducible from its seed: live state = fold of the log = what a
killed broker finds, every body is where it should be, and every message is accounted for (B-18)."""

import contextlib
import random
from pathlib import Path

import pytest

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.partition.sessions import Session
from rewindmq.schemas.values import Actor, Argument
from tests.support.broker_harness import Client, Harness, args
from tests.support.direct import Attached
from tests.support.refolds import refolded

QUEUES = [f"q{number}" for number in range(8)]
POLICIES: list[dict[str, object]] = [
    {"max-length": 3},
    {"max-length": 5, "overflow": "reject-publish"},
    {"message-ttl": 40},
    {"max-length-bytes": 30},
    {"dead-letter-exchange": "dlx", "max-length": 2},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "q0"},
    {"delivery-limit": 1, "dead-letter-exchange": "dlx"},
    {"expires": 300},
    {
        "dead-letter-exchange": "dlx",
        "overflow": "reject-publish",
        "dead-letter-strategy": "at-least-once",
        "message-ttl": 20,
    },
]


class Story:
    def __init__(self, seed: int, h: Harness) -> None:
        self.chance = random.Random(seed)
        self.h = h
        self.begin()

    def begin(self) -> None:
        self.sessions = [self.h.session() for _ in range(3)]
        self.consumers: list[tuple[Session, Client, Attached]] = []

    def act(self) -> None:
        action = self.chance.choices(
            [
                self.publish,
                self.declare,
                self.consume,
                self.settle_some,
                self.fetch,
                self.policy,
                self.wait,
                self.close,
                self.bind,
                self.delete,
                self.purge,
                self.turn,
            ],
            [30, 8, 6, 14, 4, 5, 8, 2, 5, 2, 1, 15],
        )[0]
        with contextlib.suppress(AmqpError):  # refused, as a client might be: nothing has changed
            action()

    def session(self) -> Session:
        return self.chance.choice(self.sessions)

    def queue_name(self) -> str:
        return self.chance.choice(QUEUES)

    def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            exchange = self.chance.choice(["", "", "amq.fanout", "dlx", "amq.topic"])
            body = b"x" * self.chance.randrange(0, 12)
            expiration = self.chance.choice([None, None, 0, 15, 80])
            self.h.publish(self.session(), exchange, self.queue_name(), body, expiration_ms=expiration)

    def declare(self) -> None:
        arguments: tuple[Argument, ...] = self.chance.choice(
            [
                (),
                args(x_queue_type="quorum"),
                args(x_max_length=4),
                args(x_message_ttl=30, x_dead_letter_exchange="dlx"),
                args(x_queue_type="quorum", x_delivery_limit=1),
                args(x_expires=200),
                args(x_max_length=0),
                args(x_overflow="reject-publish-dlx", x_max_length=1, x_dead_letter_exchange="dlx"),
            ]
        )
        durable = self.chance.random() < 0.8
        self.h.declare(self.session(), self.queue_name(), arguments, durable=durable)

    def bind(self) -> None:
        exchange = self.chance.choice(["amq.fanout", "dlx", "amq.topic"])
        act = self.h.broker.exchanges.unbind if self.chance.random() < 0.3 else self.h.broker.exchanges.bind
        act(self.session(), exchange, "queue", self.queue_name(), self.chance.choice(["#", "q1", "*"]), ())

    def consume(self) -> None:
        session, client = self.session(), Client()
        no_ack = self.chance.random() < 0.3
        consumer = self.h.consume(session, self.queue_name(), client, self.chance.randrange(0, 4), no_ack)
        if not no_ack:
            self.consumers.append((session, client, consumer))

    def settle_some(self) -> None:
        if self.consumers:
            session, client, consumer = self.chance.choice(self.consumers)
            taken = [client.deliveries.pop(0)[1] for _ in range(min(2, len(client.deliveries)))]
            if self.chance.random() < 0.5:
                self.h.ack(session, consumer, *taken)
            else:
                self.h.nack(session, consumer, *taken, requeue=self.chance.random() < 0.5)

    def fetch(self) -> None:
        self.h.broker.consumers.fetch(self.session(), 2, Client(), self.queue_name(), self.chance.random() < 0.7)

    def policy(self) -> None:
        name = self.chance.choice(["a", "b"])
        if self.chance.random() < 0.3:
            self.h.broker.policies.clear(Actor("guest", 0), "/", name)
        else:
            pattern = self.chance.choice(["q", "q[0-3]", "q[4-7]"])
            definition = self.chance.choice(POLICIES)
            self.h.broker.policies.set(
                Actor("guest", 0), "/", name, pattern, definition, self.chance.randrange(3), "queues"
            )

    def wait(self) -> None:
        self.h.pass_time(self.chance.choice([1, 10, 50, 400, 2_000]))

    def close(self) -> None:
        index = self.chance.randrange(len(self.sessions))
        session = self.sessions[index]
        if self.chance.random() < 0.5:
            self.h.broker.sessions.close_channel(session, 1)
        else:
            self.h.broker.sessions.close(session)
            self.sessions[index] = self.h.session()
        self.consumers = [each for each in self.consumers if each[0] is not session]

    def delete(self) -> None:
        self.h.broker.queues.delete(self.session(), self.queue_name(), False, False)

    def purge(self) -> None:
        self.h.broker.queues.purge(self.session(), self.queue_name())

    def turn(self) -> None:
        self.h.settle()


def check(h: Harness) -> None:
    assert h.digests() == refolded(h.config.data)
    assert all(h.broker.router.is_live(bound) for bound in h.broker.topology.queue_bindings())
    for partition in h.broker.partitions:
        partition.machine.validate()
        for queue in partition.machine.by_id.values():
            for entry in queue.outbox.values():
                partition.projector.message(queue.queue_id, entry.message_id)
    for queue in h.broker.queues.all():
        projector = h.broker.queues.partition_for("/", queue.name).projector
        assert all(len(projector.message(queue.queue_id, m.message_id).body) == m.size for m in queue.messages())
        counted = queue.counters
        gone = sum(
            count
            for name, count in counted.items()
            if name not in ("published", "refused", "duplicates", "dead_lettered")
        )
        assert counted["published"] == queue.messages_ready + queue.messages_unacked + gone


@pytest.mark.long(seed=range(3, 12))
@pytest.mark.parametrize("seed", range(12))
def test_a_random_history(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.partition.partition.PREPARE_EVENTS", 20)
    monkeypatch.setattr("rewindmq.engine.broker.turns.ROUND", 7)
    with Harness(tmp_path / "data", partitions=3, snapshot_events=150) as h:
        session = h.session()
        h.exchange(session, "dlx", "fanout")
        for name in QUEUES[:4]:
            h.declare(session, name)
        h.bind(session, "dlx", "q0")
        story = Story(seed, h)
        for step in range(240):
            story.act()
            if step % 60 == 59:
                h.settle()
                check(h)
                with h.killed_copy(tmp_path / f"killed-{step}") as copy:
                    copy.settle()
                    check(copy)
                if story.chance.random() < 0.5:
                    h.restart()
                    story.begin()
                    h.settle()
                    check(h)
