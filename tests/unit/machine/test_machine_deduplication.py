"""Duplicates are dropped by the header x-deduplication-header: behind an exchange (B-61), and in a queue (B-62)."""

import random
from dataclasses import replace
from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import Duplicate, Effect
from rewindmq.projections.machine.data.id_windows import MOST_EXCHANGES, MOST_REMEMBERED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.deduplication import identity_of
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.amqp.tables import array, longstr
from rewindmq.schemas.events import (
    Acked,
    Event,
    Fetched,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    Tick,
)
from rewindmq.schemas.values import Actor, Deduplication, Origin, Policy
from rewindmq.spark_replay.audit.fold import AuditProduct
from tests.support.events_for_tests import VHOST, Bench, arguments, policy, route, route_once, text_id, with_id
from tests.support.needs import require_pure

ONCE = Deduplication("once", 3, None)
ANN = Actor("ann", 1 << 24 | 1)


class Story(Bench):
    def send(
        self, text: str, asked: Deduplication | None = None, properties: bytes | None = None, **given: Any
    ) -> int | None:
        """Publish a message with an id to the queue q. The message that it doubles; None: it was taken."""
        way = route("q") if asked is None else route_once(asked, "q")
        message = Published(
            way, text_id(text) if properties is None else properties, persistent=True, body=b"", body_size=1
        )
        self.do(replace(message, **given))
        found = [effect for effect in self.effects if isinstance(effect, Duplicate)]
        return found[0].original if found else None

    def put_away(self) -> None:
        """Go on with a machine that was loaded."""
        pieces = [(meta, chunks) for _, meta, chunks in self.machine.pieces()]
        loaded = Machine.load("queues-0", self.machine.head(), pieces)
        assert loaded.digest() == self.machine.digest()
        self.machine = loaded


# -- exchanges: B-61 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["classic", "quorum", "stream"])
def test_b61_a_message_comes_through_an_exchange_once(type: str) -> None:
    story = Story()
    queue = story.declare(type=type)
    first = story.offset
    assert story.send("a", ONCE) is None
    assert story.send("a", ONCE) == first
    assert story.send("b", ONCE) is None
    assert (queue.published, queue.duplicates) == (2, 1)
    if type != "stream":
        story.do(Purged(VHOST, "q"))
    assert story.send("a", ONCE) == first, "the exchange remembers what is no longer in the queue"
    assert story.send("a") is None, "another exchange does not"
    assert story.send("", ONCE, b"\x00\x00") is None


def test_b61_the_oldest_gives_way_to_the_newest() -> None:
    story = Story()
    story.declare()
    for text in "abcd":
        assert story.send(text, ONCE) is None
    assert story.send("d", ONCE) is not None
    assert story.send("b", ONCE) is not None
    assert story.send("a", ONCE) is None
    assert story.send("b", ONCE) is None
    one = replace(ONCE, size=1)
    assert story.send("c", one) is None  # which makes the window smaller
    assert [story.send(text, one) is None for text in "ab"] == [True, True]


def test_b61_for_a_time_by_the_log() -> None:
    story = Story()
    story.declare()
    brief = Deduplication("once", 10, 100)
    assert story.send("a", brief) is None
    story.now_ms += 99
    assert story.send("a", brief) is not None, "a duplicate does not prolong the time"
    story.now_ms += 1
    assert story.send("a", brief) is None
    assert story.send("", brief, text_id("b", 30)) is None  # the message's own time
    story.now_ms += 30
    assert story.send("b", brief) is None
    assert story.send("", brief, text_id("c", -5)) is None
    assert story.send("c", brief) is None


def test_b61_a_refused_message_may_be_published_again() -> None:
    story = Story()
    story.declare(max_length=1, overflow="reject-publish")
    assert story.send("a", ONCE) is None
    assert story.send("b", ONCE) is None
    assert story.queue().refused == 1
    assert story.send("a", ONCE) is not None, "a duplicate is confirmed, although the queue is full"
    story.do(Purged(VHOST, "q"))
    assert story.send("b", ONCE) is None
    assert story.queue().messages_ready == 1


def test_b61_each_queue_remembers_for_itself() -> None:
    story = Story()
    story.declare("q")
    assert story.send("a", ONCE) is None
    story.declare("later")
    both = Published(route_once(ONCE, "q", "later"), text_id("a"), persistent=True, body=b"", body_size=1)
    assert ("duplicate", "q", story.offset, story.offset - 2) in story.do(both)
    assert story.queue("later").messages_ready == 1


def test_b61_a_queue_remembers_for_so_many_exchanges() -> None:
    story = Story()
    story.declare()
    asked = [Deduplication(f"x{number}", 10, None) for number in range(MOST_EXCHANGES + 1)]
    for each in asked[:-1]:
        assert story.send("a", each) is None
    assert story.send("b", asked[0]) is None
    assert story.send("a", asked[-1]) is None  # x1 is the one that was unused for longest
    story.machine.take_dirty()
    assert story.send("a", asked[0]) is not None
    assert story.send("a", asked[1]) is None
    dirty = story.machine.take_dirty()
    assert dirty.queues[0].chunks


def test_b61_nothing_from_outside_is_trusted() -> None:
    story = Story()
    story.declare()
    odd = Deduplication("odd", -5, -5)
    assert story.send("a", odd) is None
    assert story.send("a", odd) is None
    assert story.send("a", Deduplication("", 2**62, None)) is None  # the name of no exchange
    assert story.send("a", Deduplication("", 2**62, None)) is None
    assert story.send("", ONCE, b"\xff\xff" + text_id("a")) is None
    wide = Deduplication("wide", 2**62, 2**62)
    assert story.send("a", wide) is None
    assert story.send("a", wide) is not None
    assert MOST_REMEMBERED == 1_000_000


def test_b61_a_dead_letter_is_dropped_for_good() -> None:
    story = Story()
    story.declare()
    assert story.send("a", Deduplication("once", 5, 50)) is None
    origin = Origin(VHOST, "x", 7, 70, "expired", 1)
    assert story.send("a", Deduplication("once", 5, 50), origin=origin) is not None
    story.now_ms += 100
    assert story.send("a", Deduplication("once", 5, 50), origin=origin) == -1, "the forward came before"


# -- queues: B-62 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_b62_a_message_is_in_the_queue_once(type: str) -> None:
    story = Story()
    queue = story.declare(type=type, message_deduplication=True)
    first = story.offset
    assert story.send("a") is None
    assert story.send("a") == first
    story.do(Fetched(VHOST, "q", 900, 1, False))
    assert story.send("a") == first, "an unacked message is in the queue"
    story.do(Acked(VHOST, "q", 900, ((first, first),)))
    assert story.send("a") is None
    assert story.send("b") is None
    story.do(Purged(VHOST, "q"))
    assert story.send("a") is None
    story.do(Fetched(VHOST, "q", 901, 1, True))
    assert story.send("a") is None
    assert queue.duplicates == 2


def test_b62_until_it_leaves_or_could_have_expired() -> None:
    story = Story()
    story.declare(message_deduplication=True, max_length=2, dead_letter_exchange="dlx")
    assert story.send("a") is None
    assert story.send("b") is None
    assert story.send("c") is None  # a leaves from the head
    assert story.send("a") is None
    assert story.send("b", expiration_ms=50) is None  # behind c and a, which do not expire
    story.now_ms += 50
    assert story.send("b") is None
    story.attach(no_ack=True, credit=10)
    assert story.send("x") is None
    assert story.send("x") is None
    assert not story.queue().remembered[""].messages


def test_b62_a_policy_goes_before_the_argument() -> None:
    story = Story()
    story.declare(message_deduplication=True, policy=Policy("p", '{"x-message-deduplication":false}', 1))
    assert story.send("a") is None
    assert story.send("a") is None
    story.do(PolicyApplied(VHOST, "q", None, None))
    assert story.send("a") is None, "messages from before are not remembered"
    assert story.send("a") is not None
    story.do(PolicyApplied(VHOST, "q", policy("p", max_length=9), None))
    assert story.send("a") is not None
    story.do(PolicyApplied(VHOST, "q", Policy("p", '{"x-message-deduplication":false}', 2), None))
    assert story.send("a") is None


def test_b62_a_restoration_does_not_double_what_is_there() -> None:
    story = Story()
    story.declare(message_deduplication=True)
    assert story.send("a") is None
    back = Origin(VHOST, "q", queue_id=1, message_id=77, reason="restored", sequence=1, restore="again")
    assert story.send("a", origin=back) is not None
    story.do(Purged(VHOST, "q"))
    assert story.send("a", origin=back) is None, "it may be asked for once more"


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_equal_ids_are_those_of_the_plugin() -> None:
    def key(value: bytes) -> bytes | None:
        found = identity_of(with_id(value))
        return None if found is None else found.key

    assert key(b"b\x07") == key(b"I\0\0\0\x07") == key(b"l" + bytes(7) + b"\x07") == key(b"T" + bytes(7) + b"\x07")
    assert key(b"b\xff") == key(b"l" + b"\xff" * 8) != key(b"B\xff")
    assert key(longstr("7")) == key(b"x\0\0\0\x017") != key(b"b\x07")
    assert len({key(b"t\x01"), key(b"V"), key(longstr("")), key(b"d" + bytes(8)), key(b"b\x00")}) == 5
    assert key(array([b"b\x07"])) is None
    assert key(b"F\0\0\0\0") is None
    assert key(b"D\x02\0\0\0\x07") is None
    assert identity_of(b"\x20\x00\x00\x00\x00\x30\x16x-deduplication-headerS\x00\x00\xff\xff") is None
    assert identity_of(join_by_name({"message_id": b"\x16x-deduplication-header"})) is None
    long = identity_of(with_id(longstr("a" * 100_000)))
    assert long is not None
    assert len(long.key) == 16


# -- stored ------------------------------------------------------------------------------------------------------------


def test_a_window_is_stored_in_chunks() -> None:
    story = Story()
    queue = story.declare()
    story.machine.take_dirty()
    wide = Deduplication("wide", 4_000, None)
    effects: list[Effect] = []
    for number in range(5_000):
        event = Published(route_once(wide, "q"), text_id(str(number)), persistent=True, body=b"", body_size=1)
        story.machine.apply(story.offset, story.now_ms, ANN, event, effects)
        story.offset += 1
    story.do(Purged(VHOST, "q"))
    dirty = story.machine.take_dirty().queues[0]
    assert len(dirty.chunks) in (8, 9)
    assert sum(map(len, dirty.chunks.values())) < 4_000 * 33
    assert story.send("new", wide) is None
    dirty = story.machine.take_dirty().queues[0]
    assert len(dirty.chunks) == 3  # the message, the newest ids, the oldest
    story.put_away()
    assert story.send("4999", wide) is not None
    assert story.send("1000", wide) is None
    assert len(queue.remembered["wide"].messages) == 4_000
    assert story.queue().remembered["wide"].oldest() > 1_000


def test_a_digest_covers_what_is_remembered() -> None:
    def digest(*texts: str, ttl_ms: int | None = None) -> str:
        story = Story()
        story.declare()
        for text in texts:
            story.send(text, Deduplication("once", 10, ttl_ms))
        story.do(Purged(VHOST, "q"))
        return story.machine.digest()

    assert digest("a", "b") == digest("a", "b")
    assert len({digest("a", "b"), digest("b", "a"), digest("a", "b", ttl_ms=5)}) == 3


# -- the audit ---------------------------------------------------------------------------------------------------------


def random_steps(dice: random.Random, count: int) -> list[tuple[int, Event]]:
    """Duplicates in two queues behind exchanges, with acks, expiries, policies, and a lost node."""
    steps: list[tuple[int, Event]] = []
    declared: dict[str, dict[str, object]] = {"a": {"message_deduplication": True, "max_length": 20}}
    for name, keys in (declared | {"b": {"message_ttl": 400}}).items():
        steps.append(
            (
                0,
                QueueDeclared(
                    VHOST,
                    name,
                    type="classic",
                    durable=True,
                    exclusive=False,
                    auto_delete=False,
                    owner=0,
                    arguments=arguments(keys),
                    semantics="",
                ),
            )
        )
    ways = [None, None, Deduplication("x", 8, None), Deduplication("y", 30, 300), Deduplication("y", 5, 300)]
    for number in range(count):
        names = dice.choice((("a",), ("b",), ("a", "b")))
        asked = dice.choices(ways, (4, 4, 4, 4, 1))[0]
        properties = text_id(str(dice.randrange(25)), dice.choice((None, None, 0, 100)))
        way = route(*names) if asked is None else route_once(asked, *names)
        expiration = dice.choice((None, None, 50))
        wait = dice.choice((0, 0, 1, 40))
        steps.append(
            (wait, Published(way, properties, expiration_ms=expiration, persistent=True, body=b"", body_size=2))
        )
        if number % 3 == 0:
            steps.append((0, Fetched(VHOST, dice.choice("ab"), 1_000 + number, 1, dice.random() < 0.5)))
        if number % 97 == 96:
            off = dice.choice((None, Policy("p", '{"x-message-deduplication":true}', number)))
            steps.append((0, PolicyApplied(VHOST, dice.choice("ab"), off, None)))
    return [*steps, (0, NodeLost("n", 9, "lapsed")), (0, Tick())]


def audited(steps: list[tuple[int, Event]], lie_at: int) -> tuple[AuditProduct, int]:
    """The audit of these steps, and the number of duplicates. At `lie_at` a duplicate is said to be of another one."""
    machine, product = Machine("queues-0"), AuditProduct("queues-0")
    product.begin(machine)
    now_ms, duplicates = 1_000_000, 0
    for offset, (wait_ms, event) in enumerate(steps):
        now_ms += wait_ms
        effects: list[Effect] = []
        machine.apply(offset, now_ms, ANN, event, effects)
        if offset % 50 == 0:
            machine.validate()
        for effect in effects:
            if isinstance(effect, Duplicate):
                duplicates += 1
                effect.original -= duplicates == lie_at
        product.event(offset, now_ms, ANN, event, effects)
    return product, duplicates


@pytest.mark.parametrize("seed", range(3))
def test_the_audit_judges_duplicates_by_itself(seed: int) -> None:
    steps = random_steps(random.Random(seed), 400)
    product, duplicates = audited(steps, 0)
    assert duplicates > 50
    assert not any(product.failures.values()), product.rows
    product, _ = audited(steps, 20)
    assert any(product.failures.values())


def test_the_audit_finds_a_duplicate_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    require_pure("the planted function takes the place of a compiled one")
    steps = random_steps(random.Random(0), 200)
    monkeypatch.setattr(
        "rewindmq.projections.machine.events.publish.original_of", lambda state, queue, key, asked: (-1, "")
    )
    monkeypatch.setattr(Machine, "validate", lambda self: None)
    product, duplicates = audited(steps, 0)
    assert duplicates == 0
    assert any("the same id" in row[6] for row in product.rows)
