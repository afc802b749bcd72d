"""Messages that move with their queue to another partition: how the forwarder brings them there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.dead_letters import ALONG, RETRY_LAST_MS, ROUND, Forwarder
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.relocation import moved_from
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.events import Event, Published, QueueDeclared, QueueDrained
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER, Argument, Origin, Route
from tests.support.broker_harness import Client, Harness, args
from tests.support.events_for_tests import declared
from tests.support.needs import require_patchable

BEFORE, PARTITIONS = 2, 4
NAME = next(f"q{n}" for n in range(9) if partition_of("/", f"q{n}", BEFORE) != partition_of("/", f"q{n}", PARTITIONS))
PROPERTIES = join_by_name({"content_type": b"\x04text", "expiration": b"\x045000"})


class Move:
    """A queue on its way, with what nodes and mover log meanwhile."""

    def __init__(self, h: Harness, arguments: tuple[Argument, ...] = (), kind: str = "classic") -> None:
        self.h = h
        self.source: Partition = h.broker.partitions[partition_of("/", NAME, BEFORE)]
        self.target: Partition = h.broker.partitions[partition_of("/", NAME, PARTITIONS)]
        self.old = self.make(self.source, declared("/", NAME, type=kind, durable=True, arguments=arguments))

    def make(self, partition: Partition, event: QueueDeclared) -> Queue:
        self.log(partition, event)
        queue = partition.machine.queue("/", NAME)
        assert queue is not None
        return queue

    def log(self, partition: Any, *events: Event) -> None:
        for event in events:
            self.h.in_loop(lambda event=event: partition.append(BROKER, event))  # type: ignore[misc]

    def publish(self, body: bytes, expiration_ms: int | None = None, priority: int | None = None) -> int:
        way = Route("/", "amq.topic", "a.key", (NAME,))
        message = Published(
            way,
            PROPERTIES,
            expiration_ms=expiration_ms,
            priority=priority,
            persistent=True,
            body=body,
            body_size=len(body),
        )
        return self.h.in_loop(lambda: self.source.publish(BROKER, message))

    def begin(self) -> None:
        self.log(
            self.h.broker.metadata,
            PartitionsAdded(BEFORE, PARTITIONS),
            NamesHeld(PARTITIONS),
            QueuesStay(self.source.index, (QueueName("/", NAME),)),
            PlacementChanged(PARTITIONS),
            QueueMoveBegan("/", NAME, self.old.queue_id, self.target.index),
        )

    def declare(self) -> Queue:
        old = self.old
        event = QueueDeclared(
            "/",
            NAME,
            type=old.type,
            durable=old.durable,
            exclusive=old.exclusive,
            auto_delete=old.auto_delete,
            owner=0,
            arguments=old.arguments,
            semantics=old.semantics,
            policy=old.policy,
            operator_policy=old.operator_policy,
            moved_from=moved_from(self.source.index, old),
        )
        return self.make(self.target, event)

    def drain(self, count: int = 1_000) -> None:
        self.log(self.source, QueueDrained("/", NAME, self.old.queue_id, count))
        self.h.settle()

    def end(self, queue_id: int) -> None:
        self.log(self.h.broker.metadata, QueueMoveEnded("/", NAME, queue_id))
        self.h.settle()


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    """A broker whose mover does nothing: the tests take its steps one by one."""
    with Harness(tmp_path / "data", partitions=PARTITIONS) as harness:
        harness.in_loop(harness.broker.repartition.stop)
        yield harness


def arrived(partition: Partition, queue: Queue) -> list[Published]:
    return [partition.message(queue.queue_id, message_id) for message_id in queue.ready_ids()]


def test_messages_come_to_their_queue_as_they_were(h: Harness) -> None:
    """Exchange, key, properties and bodies are those of before; nothing died, and the outbox is empty afterwards."""
    move = Move(h)
    ids = [move.publish(b"%d" % number, 5_000, number) for number in range(3)]
    h.settle()
    h.pass_time(1_000)
    before = dict(h.broker.counters)
    move.begin()
    queue = move.declare()
    move.drain()
    assert (list(move.old.ready_ids()), list(move.old.outbox)) == ([], [])
    found = arrived(move.target, queue)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert {(each.route.exchange, each.route.routing_key, each.properties) for each in found} == {
        ("amq.topic", "a.key", PROPERTIES)
    }
    assert [message.priority for message in found] == [0, 1, 2]
    assert [message.origin for message in found] == [
        Origin("/", NAME, move.old.queue_id, message_id, "relocated", number, partition=-1)
        for number, message_id in enumerate(ids, 1)
    ]
    assert [view.expires_ms for view in queue.messages()] == [h.now_ms + 4_000] * 3
    died = [name for name in h.broker.counters if "dead_lettered" in name]
    assert [h.broker.counters[name] for name in died] == [before[name] for name in died]
    move.end(queue.queue_id)
    client = Client()
    h.consume(h.session(), NAME, client)
    h.settle()
    assert client.bodies == [b"0", b"1", b"2"]


def test_what_came_back_is_still_redelivered(h: Harness) -> None:
    move = Move(h, args(x_delivery_limit=5), "quorum")
    message_id = move.publish(b"m")
    move.begin()
    queue = move.declare()
    letter = Origin(
        "/",
        NAME,
        queue_id=move.old.queue_id,
        message_id=message_id,
        reason="restored",
        sequence=1,
        restore="again",
        delivery_count=2,
        redelivered=True,
    )
    way = Route("/", "", NAME, (NAME,))
    h.in_loop(
        lambda: move.source.publish(
            BROKER, Published(way, b"\0\0", persistent=True, origin=letter, body=b"n", body_size=1)
        )
    )
    move.drain()
    views = [(view.redelivered, view.delivery_count) for view in queue.messages()]
    assert sorted(views) == [(False, 0), (True, 2)]


def test_messages_wait_until_their_queue_is_there(h: Harness) -> None:
    move = Move(h)
    move.publish(b"m")
    move.begin()
    move.drain()
    h.pass_time(5_000)
    assert len(move.old.outbox) == 1
    queue = move.declare()
    h.pass_time(RETRY_LAST_MS)
    assert [message.body for message in arrived(move.target, queue)] == [b"m"]
    assert list(move.old.outbox) == []


def test_messages_wait_while_the_name_leads_to_where_they_are(tmp_path: Path) -> None:
    with Harness(tmp_path / "data", partitions=1) as h:
        session = h.session()
        queue = h.declare(session, "q")
        h.publish(session, "", "q", b"m")
        partition = h.broker.partitions[0]
        h.in_loop(lambda: partition.append(BROKER, QueueDrained("/", "q", queue.queue_id, 1)))
        h.settle()
        h.pass_time(RETRY_LAST_MS)
        assert (len(queue.outbox), queue.messages_ready) == (1, 0)


def test_messages_of_a_queue_that_was_deleted_go_with_it(h: Harness) -> None:
    """Also when another queue of its name was declared since."""
    move = Move(h)
    move.begin()
    queue = move.declare()
    move.end(queue.queue_id)
    session = h.session()
    h.broker.queues.delete(session, NAME, if_unused=False, if_empty=False)
    h.settle()
    move.publish(b"late")
    move.drain()
    assert list(move.old.outbox) == []
    again = h.declare(session, NAME)
    move.publish(b"later")
    move.drain()
    assert (list(move.old.outbox), again.published) == ([], 0)


def test_what_follows_after_the_move_comes_to_the_queue_too(h: Harness) -> None:
    move = Move(h)
    move.begin()
    queue = move.declare()
    move.end(queue.queue_id)
    move.publish(b"late")
    move.drain()
    assert [message.body for message in arrived(move.target, queue)] == [b"late"]


def test_what_the_forwarder_sends_again_is_dropped(h: Harness) -> None:
    move = Move(h)
    for number in range(3):
        move.publish(b"%d" % number)
    move.begin()
    queue = move.declare()
    move.log(move.source, QueueDrained("/", NAME, move.old.queue_id, 2))
    letters, numbers = move.old.outbox.packed()
    h.settle()
    assert list(move.old.outbox) == []
    move.old.outbox.load(letters, numbers)  # as after a crash before the DeadLettersForwarded
    h.in_loop(lambda: h.broker.forwarder.recover(move.source, move.old))
    move.drain()
    assert [message.body for message in arrived(move.target, queue)] == [b"0", b"1", b"2"]
    assert (queue.duplicates, list(move.old.outbox)) == (2, [])


def test_a_dead_letter_that_waits_holds_up_no_move(h: Harness) -> None:
    """It has no target, and stays in the outbox, while what moves arrives and is released."""
    held = args(
        x_overflow="reject-publish",
        x_dead_letter_strategy="at-least-once",
        x_dead_letter_exchange="nowhere",
        x_message_ttl=1,
    )
    move = Move(h, held, "quorum")
    move.publish(b"dies")
    h.pass_time(10)
    assert [entry.reason for entry in move.old.outbox.values()] == ["expired"]
    letter = Origin("/", NAME, 3, 3, "relocated", 1)
    way = Route("/", "", NAME, (NAME,))
    h.in_loop(
        lambda: move.source.publish(
            BROKER, Published(way, b"\0\0", persistent=True, origin=letter, body=b"m", body_size=1)
        )
    )
    move.begin()
    queue = move.declare()
    move.drain()
    assert [message.body for message in arrived(move.target, queue)] == [b"m"]
    assert [entry.reason for entry in move.old.outbox.values()] == ["expired"]
    h.exchange(h.session(), "nowhere", "fanout")
    h.declare(h.session(), "dead")
    h.bind(h.session(), "nowhere", "dead")
    h.pass_time(RETRY_LAST_MS)
    assert (len(h.ready("dead")), list(move.old.outbox)) == (1, [])


@pytest.mark.parametrize("exchange", ["", "dlx"])
def test_a_dead_letter_for_a_queue_on_its_way_waits(h: Harness, exchange: str) -> None:
    """By the default exchange, and by a binding, which names the queue's first incarnation until the move ends."""
    move = Move(h)
    session = h.session()
    if exchange:
        h.exchange(session, "dlx", "fanout")
        move.log(h.broker.metadata, Bound("/", "dlx", "queue", NAME, "", (), move.old.queue_id))
    source = h.declare(
        session, "dying", args(x_dead_letter_exchange=exchange, x_dead_letter_routing_key=NAME, x_message_ttl=1)
    )
    move.begin()
    h.publish(session, "", "dying", b"m")
    h.pass_time(10)
    assert len(source.outbox) == 1, "the queue is not there yet"
    queue = move.declare()
    move.end(queue.queue_id)
    h.pass_time(RETRY_LAST_MS)
    assert [message.body for message in arrived(move.target, queue)] == [b"m"]
    assert list(source.outbox) == []
    assert [message.origin.reason for message in arrived(move.target, queue) if message.origin] == ["expired"]


def test_dead_letters_of_a_queue_that_moved_name_its_partition(h: Harness) -> None:
    """Its numbers begin anew there. So a target that knows the old ones must not take them for these."""
    move = Move(h, args(x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=1))
    session = h.session()
    dead = h.declare(session, "dead")
    move.publish(b"before")
    h.pass_time(10)
    move.begin()
    queue = move.declare()
    move.end(queue.queue_id)
    h.publish(session, "", NAME, b"after")
    h.pass_time(10)
    assert h.ready("dead") == [b"before", b"after"]
    assert sorted(source[3] for source in dead.letters_seen) == [-1, move.target.index]


@pytest.mark.parametrize(("count", "size", "at_once"), [(600, 10, ROUND // ALONG), (12, 2_000_000, 5)])
def test_many_or_large_messages_go_in_rounds(
    count: int, size: int, at_once: int, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read from the store, and written again: other work has its turn in between."""
    require_patchable("rewindmq.engine.routing.dead_letters.Forwarder.forward")
    move = Move(h)
    for _ in range(count):
        move.publish(b"m" * size)
    h.settle()
    move.begin()
    queue = move.declare()
    monkeypatch.setattr("rewindmq.engine.routing.dead_letters.SLICE_SECONDS", 60)  # on a busy machine as well
    real, calls = Forwarder.forward, []

    def counted(self: Forwarder, budget: int) -> int:
        before = queue.published
        rest = real(self, budget)
        calls.append(queue.published - before)
        return rest

    monkeypatch.setattr(Forwarder, "forward", counted)
    move.drain()
    assert (queue.published, max(calls)) == (count, at_once)
