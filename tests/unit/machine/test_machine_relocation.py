"""A queue moves to another partition: its messages leave one machine and come into another one as they were.

The forwarder is played here: what the outbox of the one says is published into the other."""

import random
from collections.abc import Iterator

import pytest

from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Forget
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.message_word import BY_PROPERTY, LEVEL_SHIFT, REDELIVERED
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.relocation import MOST_DRAINED, moved_from, why_it_stays
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.machine.serialization.pack import letter_fields, queue_fields
from rewindmq.schemas.events import (
    BrokerStarted,
    DeadLettersForwarded,
    Event,
    MachineUpgraded,
    Published,
    QueueDeclared,
    QueueDrained,
)
from rewindmq.schemas.operator_events import QueuePaused
from rewindmq.schemas.values import BROKER, MovedFrom, Origin, SeenLetters, SeenRestored
from tests.support.events_for_tests import START_MS, VHOST, Bench, declared, explain, route, text_id
from tests.support.letters import carried_of, message_of, one_by_one
from tests.support.next_version import NEXT, know_next
from tests.support.random_history import History

SEEDS = range(24)
Words = list[tuple[int, int]]  # word and expiry of messages, in the order of delivery


class Partition:
    """A machine into which a queue comes."""

    def __init__(self, now_ms: int) -> None:
        self.machine = Machine("queues-3")
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def do(self, event: Event) -> list[Effect]:
        self.effects = []
        self.machine.apply(self.machine.next_offset, self.now_ms, BROKER, event, self.effects)
        self.machine.validate()
        return self.effects

    def declare(self, queue: Queue) -> Queue:
        self.do(declared_anew(queue))
        found = self.machine.queue(queue.vhost, queue.name)
        assert found is not None
        return found

    def take_in(self, queue: Queue, letter: DeadLetter, was: Published) -> list[Effect]:
        """Publish a letter as the forwarder does."""
        carried, message_id = carried_of(letter), message_of(letter)
        assert carried is not None
        assert letter.reason == "relocated"
        left_ms = None if carried.expiry == NONE else max(0, carried.expiry - self.machine.clock_ms)
        counts = (carried.delivery_count, carried.redelivered, carried.acquired_count)
        origin = Origin(
            queue.vhost, queue.name, queue.queue_id, message_id, letter.reason, letter.sequence, "", *counts, -1
        )
        way = route(queue.name)
        return self.do(
            Published(
                way,
                was.properties,
                expiration_ms=left_ms,
                priority=was.priority,
                persistent=was.persistent,
                origin=origin,
                body=b"",
                body_size=was.body_size,
            )
        )


def declared_anew(queue: Queue) -> QueueDeclared:
    return QueueDeclared(
        queue.vhost,
        queue.name,
        type=queue.type,
        durable=queue.durable,
        exclusive=queue.exclusive,
        auto_delete=queue.auto_delete,
        owner=queue.owner,
        arguments=queue.arguments,
        semantics=queue.semantics,
        policy=queue.policy,
        operator_policy=queue.operator_policy,
        moved_from=moved_from(0, queue),
    )


def leaving(queue: Queue, now_ms: int = 0) -> Words:
    """Words and expiries of the messages that can leave, as they are to be in the new partition.

    Of those that are over their time, which stand behind others, `now_ms` is the expiry there."""
    found = [each for order in (queue.returned, queue.arrived) for each in order.items()]
    if queue.delayed is not None:
        found += [(each[0], each[1], queue.held_expiries.get(each[0], NONE)) for each in queue.delayed.items()]
    flagged = [(word | REDELIVERED if each < queue.crash_offset else word, expiry) for each, word, expiry in found]
    if queue.quorum and (queue.settings.delivery_limit is not None or not queue.profile.returns_behind):
        counted = [any(queue.counts(word)) for word, _ in flagged]  # those stand before all others there
        back = [each for each, came_back in zip(flagged, counted, strict=True) if came_back]
        new = [each for each, came_back in zip(flagged, counted, strict=True) if not came_back]
        if queue.prioritized is not None:
            mask = queue.prioritized.mask
            new.sort(key=lambda each: -(each[0] >> LEVEL_SHIFT & mask))
        flagged = back + new
    return [(word & ~BY_PROPERTY, NONE if expiry == NONE else max(expiry, now_ms)) for word, expiry in flagged]


def there(queue: Queue) -> Words:
    found = [each for order in (queue.returned, queue.arrived) for each in order.items()]
    return [(word & ~BY_PROPERTY, expiry) for _, word, expiry in found]


def alive(words: Words, now_ms: int) -> Words:
    """Without messages that are over their time: a delayed one may be, and is dropped when it is ready."""
    return [(word, expiry) for word, expiry in words if expiry == NONE or expiry > now_ms]


def random_queues(seed: int) -> Iterator[tuple[History, dict[int, Published], Queue]]:
    """Queues with a past, which could move now; and what was published so far."""
    history = History(seed)
    published: dict[int, Published] = {}
    for steps, (offset, _, _, event) in enumerate(history.steps(400)):
        if isinstance(event, Published):
            published[offset] = event
        if steps % 50 == 0:
            for queue in list(history.machine.queues()):
                if not why_it_stays(queue) and leaving(queue):
                    yield history, published, queue


def copied(machine: Machine) -> Machine:
    return Machine.load(machine.partition, machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_comes_with_its_messages_as_they_were(seed: int) -> None:
    """In one portion: order, counts, flags, priorities and expiries are those of before; and so is what it remembers.

    Messages are told apart by all of that, and by their sizes."""
    for history, published, original in random_queues(seed):
        source, target = copied(history.machine), Partition(history.now_ms)
        target.machine.clock_ms = source.clock_ms
        queue = source.by_id[original.queue_id]
        expected, unacked = leaving(queue, source.clock_ms), queue.messages_unacked
        moved = target.declare(queue)
        assert (moved.version, moved.paused) == (queue.version, queue.paused)
        assert (moved.letters_seen, moved.restored) == (queue.letters_seen, queue.restored)
        effects: list[Effect] = []
        drained = QueueDrained(VHOST, queue.name, queue.queue_id, MOST_DRAINED)
        source.apply(source.next_offset, history.now_ms, BROKER, drained, effects)
        source.validate()
        assert (queue.messages_ready, queue.messages_delayed, queue.messages_unacked) == (0, 0, unacked)
        letters = relocated(effects)
        waiting = [entry.carried for entry in queue.outbox.values() if entry.carried]
        assert waiting[-len(letters) :] == [carried_of(letter) for letter in letters]
        for letter in letters:
            target.take_in(queue, letter, published[message_of(letter)])
        if not moved.maxlen:  # a queue that refuses publishes may be over its limit, until its policy changes
            assert alive(there(moved), source.clock_ms) == alive(expected, source.clock_ms)
        assert moved.messages_ready + moved.expired + moved.maxlen == len(expected)
        arrived = there(moved)
        again = copied(target.machine)
        assert again.digest() == target.machine.digest()
        for letter in letters:  # the forwarder did not know what had arrived
            assert explain(target.take_in(queue, letter, published[message_of(letter)]))[0][0] == "duplicate"
        assert there(moved) == arrived


def relocated(effects: list[Effect]) -> list[DeadLetter]:
    """Return the letters of messages that moved with their queue, one by one."""
    found = [each for each in effects if isinstance(each, DeadLetter) and each.reason == "relocated"]
    return [letter for letters in found for letter in one_by_one(letters)]


def test_random_histories_have_queues_that_move() -> None:
    """The test above would prove little if they had few of them."""
    queues = [queue for seed in SEEDS for *_, queue in random_queues(seed)]
    assert len(queues) > 60
    kinds = {(queue.type, queue.prioritized is not None) for queue in queues}
    assert kinds == {("classic", False), ("classic", True), ("quorum", False), ("quorum", True)}


@pytest.mark.parametrize("seed", range(5))
def test_portions_of_any_size_lose_nothing(seed: int) -> None:
    """Messages behind one that never expires may expire in the old partition as soon as that one has left."""
    dice = random.Random(seed)
    for history, published, original in random_queues(100 + seed):
        source = copied(history.machine)
        queue = source.by_id[original.queue_id]
        target = Partition(history.now_ms)
        target.machine.clock_ms = source.clock_ms
        moved, count = target.declare(queue), len(leaving(queue))
        expired = 0
        while queue.messages_ready + queue.messages_delayed:
            effects: list[Effect] = []
            event = QueueDrained(VHOST, queue.name, queue.queue_id, dice.randint(1, 3))
            source.apply(source.next_offset, history.now_ms, BROKER, event, effects)
            source.validate()
            expired += sum(told[0] == "forget" and told[3] == "expired" for told in explain(effects))
            for letter in relocated(effects):
                target.take_in(queue, letter, published[message_of(letter)])
        assert moved.published + expired == count
        assert moved.messages_ready + moved.expired + moved.maxlen == moved.published


def bench() -> Bench:
    return Bench()


def test_drained_in_the_order_of_delivery() -> None:
    """Returned ones before those that arrived, each with its counts; what a consumer has stays."""
    story = bench()
    queue = story.declare(type="quorum", delivery_limit=5)
    a, b, c, d = (story.publish() for _ in range(4))
    consumer = story.attach(prefetch=2)
    story.do(QueuePaused(VHOST, "q", ""))
    story.nack(consumer, a)
    told = story.do(QueueDrained(VHOST, "q", queue.queue_id, 2), 0)
    assert told == [
        ("forget", "q", a, "relocated", 0),
        ("forget", "q", c, "relocated", 0),
        ("dead letter", "q", a, "relocated", 1, True, 1, None),
        ("dead letter", "q", c, "relocated", 2, False, 0, None),
    ]
    assert (story.ready(), queue.messages_unacked) == ([d], 1)
    assert queue.counters["relocated"] == 2
    story.nack(consumer, b)
    told = story.do(QueueDrained(VHOST, "q", queue.queue_id, 1_000), 0)
    assert [each[2] for each in told if each[0] == "dead letter"] == [b, d]
    assert story.do(QueueDrained(VHOST, "q", queue.queue_id, 1_000), 0) == []


def test_delayed_messages_leave_behind_the_ready_ones() -> None:
    story = bench()
    queue = story.declare(type="quorum", semantics="rabbitmq-4.3", delayed_retry_type="all", delayed_retry_min=50)
    a, b = story.publish(expiration=400), story.publish()
    consumer = story.attach(prefetch=1)
    story.do(QueuePaused(VHOST, "q", ""))
    story.nack(consumer, a)
    assert (queue.messages_ready, queue.messages_delayed) == (1, 1)
    told = story.do(QueueDrained(VHOST, "q", queue.queue_id, 10), 0)
    assert told[2:] == [
        ("dead letter", "q", b, "relocated", 1, False, 0, None),
        ("dead letter", "q", a, "relocated", 2, True, 0, START_MS + 400),
    ]
    assert [entry.carried.acquired_count for entry in queue.outbox.values() if entry.carried] == [0, 1]
    assert queue.held_expiries == {}


def test_what_a_crash_may_have_delivered_is_flagged() -> None:
    story = bench()
    queue = story.declare()
    a = story.publish()
    story.do(BrokerStarted("n", "1", MACHINE_VERSION, True), 0)
    b = story.publish()
    told = story.do(QueueDrained(VHOST, "q", queue.queue_id, 10), 0)
    assert [(each[2], each[5]) for each in told if each[0] == "dead letter"] == [(a, True), (b, False)]


@pytest.mark.parametrize("count", [-1, 0, MOST_DRAINED + 1])
def test_a_count_that_cannot_be_is_quarantined(count: int) -> None:
    story = bench()
    queue = story.declare()
    story.publish()
    assert story.do(QueueDrained(VHOST, "q", queue.queue_id, count), 0) == [("quarantine",)]
    assert len(story.ready()) == 1


def test_streams_and_hidden_queues_do_not_move() -> None:
    story = bench()
    for name, kind in (("s", "stream"), ("amq.delayed.x", "delayed")):
        queue = story.declare(name, type=kind)
        assert why_it_stays(queue)
        assert story.do(QueueDrained(VHOST, name, queue.queue_id, 1), 0) == [("quarantine",)]


def test_another_incarnation_and_a_queue_that_is_gone_are_left_alone() -> None:
    story = bench()
    queue = story.declare()
    story.publish()
    assert story.do(QueueDrained(VHOST, "q", queue.queue_id + 1, 1), 0) == []
    assert story.do(QueueDrained(VHOST, "nowhere", 1, 1), 0) == []
    assert len(story.ready()) == 1


@pytest.mark.parametrize(
    "moved",
    [
        MovedFrom(0, 1, 0, False, (), ()),
        MovedFrom(0, 1, MACHINE_VERSION + 1, False, (), ()),
        MovedFrom(0, 1, 1, False, (), (SeenRestored("undo", VHOST, "q", 1, ((3, 2),)),)),
        MovedFrom(0, 1, 1, False, (), (SeenRestored("undo", VHOST, "q", 1, ((1, 2), (3, 4))),)),
        MovedFrom(0, 1, 1, False, (), (SeenRestored("undo", VHOST, "q", 1, ((5, 6), (1, 2))),)),
    ],
)
def test_what_no_queue_brings_along_is_quarantined(moved: MovedFrom) -> None:
    event = declared(VHOST, "q", durable=True, moved_from=moved)
    story = bench()
    assert story.do(event, 0) == [("quarantine",)]
    assert story.machine.queue(VHOST, "q") is None


def test_a_queue_that_exists_keeps_what_it_has() -> None:
    """The declaration is repeated after a crash."""
    story = bench()
    queue = story.declare()
    digest = story.machine.digest()
    moved = MovedFrom(0, 1, 1, True, (SeenLetters(VHOST, "x", 7, 5, -1, False),), ())
    event = declared(VHOST, "q", durable=True, semantics="rabbitmq-3.13", moved_from=moved)
    assert story.do(event, 0) == []
    assert story.queue() is queue
    assert story.machine.digest() == digest


def test_the_version_of_its_first_declaration_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    know_next(monkeypatch)
    story = bench()
    story.do(MachineUpgraded(NEXT))
    for version in (MACHINE_VERSION, NEXT):
        moved = MovedFrom(0, 1, version, False, (), ())
        name = f"of {version}"
        story.do(declared(VHOST, name, durable=True, moved_from=moved), 0)
        assert story.queue(name).version == version


def along(sequence: int, *, queue_id: int = 7, partition: int = -1, count: int = 0) -> Origin:
    return Origin(
        VHOST,
        "q",
        queue_id=queue_id,
        message_id=70,
        reason="relocated",
        sequence=sequence,
        restore="",
        delivery_count=count,
        redelivered=count > 0,
        acquired_count=count,
        partition=partition,
    )


def test_limits_do_not_refuse_what_was_in_the_queue() -> None:
    for kind, overflow in (
        ("classic", "reject-publish"),
        ("classic", "reject-publish-dlx"),
        ("quorum", "reject-publish"),
    ):
        story = bench()
        story.declare(type=kind, max_length=1, overflow=overflow, dead_letter_exchange="dlx")
        for number in range(1, 5):
            story.publish(origin=along(number))
        assert len(story.ready()) == 4
        story.publish()
        assert explain(story.effects)[0] == ("refuse", "q", story.offset - 1)
    story = bench()
    story.declare(max_length=2)
    ids = [story.publish(origin=along(number)) for number in range(1, 5)]
    assert story.ready() == ids[2:]


def test_ids_do_not_make_a_duplicate_of_what_was_in_the_queue() -> None:
    """But they are remembered: what a client publishes later is one."""
    story = bench()
    story.declare(message_deduplication=True)
    for number in (1, 2):
        story.do(Published(route("q"), text_id("a"), persistent=True, origin=along(number), body=b"", body_size=1), 0)
    assert len(story.ready()) == 2
    told = story.do(Published(route("q"), text_id("a"), persistent=True, body=b"", body_size=1))
    assert [each[0] for each in told] == ["duplicate"]


def test_the_expiry_stays_whatever_the_queues_ttl_is() -> None:
    story = bench()
    queue = story.declare(message_ttl=100)
    forever = story.publish(origin=along(1))
    long = story.publish(origin=along(2), expiration=5_000)
    short = story.publish(origin=along(3), expiration=10)
    expires = {view.message_id: view.expires_ms for view in queue.messages()}
    assert expires == {forever: None, long: START_MS + 5_000, short: START_MS + 10}


@pytest.mark.parametrize(
    ("own", "rule"), [(b"\x01\x00\x0240", "property expiration"), (b"\0\0", "argument x-message-ttl")]
)
def test_the_rule_by_which_it_expires_is_that_of_before(own: bytes, rule: str) -> None:
    story = bench()
    story.declare(message_ttl=100)
    story.do(Published(route("q"), own, expiration_ms=10, persistent=True, origin=along(1), body=b"", body_size=1), 0)
    story.now_ms += 20
    story.do(QueuePaused(VHOST, "q", ""))
    assert [effect.rule for effect in story.effects if isinstance(effect, Forget)] == [rule]


def test_sources_are_told_apart_by_partition_and_kind() -> None:
    """Two incarnations in two partitions may have the same number, and letters are numbered with what moves."""
    story = bench()
    story.declare()
    for origin in (along(3), along(1, partition=4), Origin(VHOST, "q", 7, 70, "expired", 2), along(4)):
        story.publish(origin=origin)
    assert len(story.ready()) == 4
    for origin in (along(3), along(1, partition=4), Origin(VHOST, "q", 7, 70, "expired", 1), along(4)):
        story.publish(origin=origin)
        assert explain(story.effects)[0][0] == "duplicate"
    loaded = copied(story.machine)
    loaded.validate()
    assert loaded.digest() == story.machine.digest()
    queue = loaded.queue(VHOST, "q")
    assert queue is not None
    assert queue.letters_seen == story.queue().letters_seen


def test_what_moves_and_what_died_are_released_apart() -> None:
    story = bench()
    queue = story.declare(dead_letter_exchange="dlx", max_length=1)
    a, b = story.publish(), story.publish()
    story.do(QueueDrained(VHOST, "q", queue.queue_id, 1), 0)
    c, d = story.publish(), story.publish()
    assert [(entry.message_id, entry.carried is not None) for entry in queue.outbox.values()] == [
        (a, False),
        (b, True),
        (c, False),
    ]
    assert story.do(DeadLettersForwarded(VHOST, "q", queue.queue_id, 3, True), 0) == [("release", "q", b)]
    assert story.do(DeadLettersForwarded(VHOST, "q", queue.queue_id, 3), 0) == [
        ("release", "q", a),
        ("release", "q", c),
    ]
    assert story.ready() == [d]


def test_a_queue_without_moves_has_no_fields_about_them() -> None:
    story = bench()
    queue = story.declare(dead_letter_exchange="dlx", max_length=1)
    story.publish()
    story.publish(origin=Origin(VHOST, "x", 7, 70, "expired", 2))
    fields = queue_fields(queue)
    assert letter_fields(queue) == [[1, 1, 1, "maxlen", "dlx", None, False, False]]
    assert fields["seen"] == [[VHOST, "x", 7, -1, False, 2]]
    assert "relocated" not in fields


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, ""),
        ({"type": "quorum", "delivery_limit": 3}, ""),
        ({"exclusive": True, "owner": 1}, "it is exclusive"),
        ({"auto_delete": True}, "it is auto-delete"),
        ({"durable": False}, "it is not durable"),
        ({"expires": 1_000}, "it expires when it is unused (x-expires)"),
        ({"message_deduplication": True}, "it remembers ids of messages, to drop duplicates"),
        ({"type": "stream"}, "it is a stream"),
    ],
)
def test_it_is_said_why_a_queue_stays(keys: dict[str, object], why: str) -> None:
    assert why_it_stays(bench().declare(**keys)) == why  # type: ignore[arg-type]
