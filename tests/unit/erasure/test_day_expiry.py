"""Bodies for so many days, events for ever (B-21): which day's keys are destroyed, when, and what is never lost."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.config import Config
from rewindmq.engine.erasure.day_expiry import SETTLE_SECONDS, Expiry
from rewindmq.engine.erasure.encryption import day_at
from rewindmq.engine.erasure.key_store import KEY_ID, MAGIC, KeyStore, day_of, is_of_nobody, name_of
from rewindmq.engine.process import open_broker
from rewindmq.projections.store.projector import live_ids
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.amqp.tables import mapping
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import BodiesExpired
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import PERSISTENT, Client, Harness, args
from tests.support.clocks import Clocks
from tests.support.direct import Direct
from tests.support.examples import examples
from tests.support.failpoints import armed

DAY_MS = 86_400_000
KEPT = 3  # days


class DaysHarness(Harness):
    """Its clocks can be moved, together or apart. Every publish is encrypted under a key of its day."""

    def __init__(self, data: Path, clocks: Clocks | None = None, **options: Any) -> None:
        self.clocks = clocks or Clocks()
        super().__init__(data, **{"keep_bodies_days": KEPT} | options)

    def open(self, config: Config) -> Any:
        async def start() -> Direct:
            broker = open_broker(config, self.clocks.wall_ms, self.clocks.elapsed_ns)
            broker.subjects.destroy_what_came_back()
            broker.history.expiry._begin_to_trust()  # as `start`, without its timer
            return Direct(broker)

        return self.loop.run_until_complete(start())

    @property
    def expiry(self) -> Expiry:
        found: Expiry = self.broker.history.expiry
        return found

    @property
    def today(self) -> str:
        found: str = self.broker.subjects.today()
        return found

    @property
    def keys(self) -> KeyStore:
        found: KeyStore = self.broker.subjects.keys
        return found

    def look(self) -> None:
        """One pass."""
        self.loop.run_until_complete(self.expiry.run())
        self.settle()
        assert self.expiry.problem == ""

    def pass_days(self, days: int) -> None:
        """So many days with a running broker."""
        for _ in range(days):
            self.clocks.run(DAY_MS)
            self.look()
        self.in_loop(self.broker.turns.time_passed)
        self.settle()

    def send(self, queue: str, body: bytes, subject: str | None = None, **how: Any) -> None:
        session = self.session()
        sealed, encryption = self.loop.run_until_complete(self.broker.subjects.make_key_and_encrypt(subject, body))
        for to in self.broker.exchanges.route(session, how.get("exchange", ""), queue, None):
            expiration_ms = how.get("expiration_ms")
            to.partition.publish(
                session.actor,
                Published(
                    to.route,
                    PERSISTENT,
                    expiration_ms=expiration_ms,
                    persistent=True,
                    encryption=encryption,
                    body=sealed,
                    body_size=len(body),
                ),
            )
        self.settle()

    def events(self) -> list[BodiesExpired]:
        from rewindmq.schemas.codec import Decoder

        blocks = self.broker.metadata._log.read()
        found = [Decoder().decode(record)[2] for block in blocks for record in block.records]
        return [event for event in found if isinstance(event, BodiesExpired)]

    def queued(self) -> list[tuple[str | None, Published]]:
        """All messages that a queue holds: the day of the key, and the message as a client gets it."""
        found = []
        for partition in self.broker.partitions:
            for queue in partition.machine.by_id.values():
                for message_id in live_ids(queue):
                    message = partition.message(queue.queue_id, message_id)
                    assert message.encryption is not None
                    found.append((day_of(message.encryption.key_id), partition.decrypted(message)))
        return found

    def bodies(self) -> list[bytes]:
        return sorted(message.body for _, message in self.queued())

    def take(self, queue: str) -> Published | None:
        """The next message, as its client gets it."""
        taken = self.fetch(self.session(), queue)
        return None if taken is None else self.broker.subjects.decrypt(taken)


@pytest.fixture
def h(tmp_path: Path) -> Any:
    with DaysHarness(tmp_path) as harness:
        harness.declare(harness.session(), "q")
        yield harness


def headers_of(message: Published) -> dict[str, object]:
    return mapping(parse(message.properties).header_table())


def test_b21_a_key_of_a_day_has_an_id_that_older_versions_read(h: DaysHarness) -> None:
    h.send("q", b"one")
    h.send("q", b"two", "ada")
    days = h.keys.of_days()
    (found,) = days.values()
    assert list(days) == [h.today]
    assert [bool(KEY_ID.fullmatch(each)) for each in found] == [True, True]
    assert sorted(map(is_of_nobody, found)) == [False, True]
    assert {day_of(each) for each in found} == {h.today}
    assert day_of(name_of("ada") + "-1") is None
    assert day_of(name_of("ada", "2026-13-23") + "-1") is None


def test_b21_a_body_is_kept_for_its_days_and_not_longer(h: DaysHarness) -> None:
    first = h.today
    h.send("q", b"one")
    message = h.fetch(h.session(), "q")
    assert message is not None
    h.pass_days(KEPT)
    assert h.broker.subjects.decrypt(message).body == b"one"
    assert (h.events(), h.expiry.due_days()) == ([], [])
    h.pass_days(1)
    gone = h.broker.subjects.decrypt(message)
    assert (gone.body, headers_of(gone)) == (b"", {"x-expired-body": first})
    (event,) = h.events()
    assert (event.day, len(event.key_ids)) == (first, 1)
    at = h.broker.topology.history.expired_days[first]
    assert day_at(at.time_ms) == h.today
    h.pass_days(1)
    assert [event.day for event in h.events()] == [first, day_at(h.clocks.wall - (KEPT + 1) * DAY_MS)]
    assert h.keys.of_days().keys() >= {first}  # the tombstone


def test_b21_no_body_of_a_queued_message_is_lost_however_old(h: DaysHarness) -> None:
    first = h.today
    h.send("q", b"waits")
    h.pass_days(10)
    assert (h.events()[0].day > first, [*h.expiry.held]) == (True, [first])
    (held,) = h.expiry.held[first]
    assert (held.name, held.messages) == (("/", "q"), 1)
    h.restart()
    h.clocks.run(SETTLE_SECONDS * 1_000)
    h.look()
    assert [*h.expiry.held] == [first]
    taken = h.take("q")
    assert taken is not None
    assert taken.body == b"waits"
    h.look()
    assert (h.expiry.held, h.events()[-1].day) == ({}, first)


@pytest.mark.parametrize("before", [True, False])
def test_b21_a_shared_message_holds_its_day_until_it_left_every_queue(h: DaysHarness, before: bool) -> None:
    session = h.session()
    first = h.today
    names = [f"shared {number}" for number in range(6)]
    for name in names:
        h.declare(session, name)
        h.bind(session, "amq.fanout", name)
    h.send("key", b"shared", exchange="amq.fanout")
    if before:
        h.restart()
        h.clocks.run(SETTLE_SECONDS * 1_000)
    for name in names[:-1]:
        h.take(name)
    h.pass_days(KEPT + 1)
    (held,) = h.expiry.held[first]
    assert (held.name, held.messages) == (("/", names[-1]), 1)
    assert h.take(names[-1]) is not None
    h.look()
    assert (h.expiry.held, h.events()[-1].day) == ({}, first)


@pytest.mark.parametrize("before", [True, False])
def test_b21_a_dead_letter_and_a_delayed_message_hold_their_day(h: DaysHarness, before: bool) -> None:
    """Its publish into the dead letters' queue is of today, and its body is under the key of the day it came on."""
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "dying", args(x_dead_letter_exchange="", x_dead_letter_routing_key="dead"))
    first = h.today
    h.send("dying", b"letter", expiration_ms=(2 if before else 30) * DAY_MS)
    h.pass_days(31)
    assert h.queue("dead").messages_ready == 1
    assert [*h.expiry.held] == [first]
    assert h.bodies() == [b"letter"]
    h.look()
    assert {each.name[1] for each in h.expiry.held[first]} == {"dead"}


def test_b21_a_message_that_comes_during_the_search_is_met(h: DaysHarness) -> None:
    first = h.today
    h.send("q", b"again")
    message = h.fetch(h.session(), "q")
    assert message is not None
    h.pass_days(KEPT)

    def as_a_restored_message_comes() -> None:
        for to in h.broker.exchanges.route(h.session(), "", "q", None):
            to.partition.publish(h.session().actor, replace_route(message, to.route))

    with armed("expiry.after_search", as_a_restored_message_comes):
        h.pass_days(1)
    assert (h.events(), [*h.expiry.held], h.bodies()) == ([], [first], [b"again"])


def replace_route(message: Published, route: Any) -> Published:
    return Published(
        route,
        PERSISTENT,
        persistent=True,
        encryption=message.encryption,
        body=message.body,
        body_size=message.body_size,
    )


@pytest.mark.parametrize("restarts", [1, 2, 5])
def test_b21_a_clock_that_jumps_by_a_year_destroys_nothing(h: DaysHarness, restarts: int) -> None:
    """Neither while the broker runs, nor at a start, nor at the next one."""
    h.send("q", b"one")
    message = h.fetch(h.session(), "q")
    assert message is not None
    h.clocks.wall += 365 * DAY_MS
    h.clocks.run(SETTLE_SECONDS * 1_000)
    h.look()
    for _ in range(restarts):
        h.restart()
        h.clocks.run(SETTLE_SECONDS * 1_000)
        h.look()
    assert h.events() == []
    h.clocks.wall -= 365 * DAY_MS
    h.in_loop(lambda: h.broker.host.clock_watch.repair(Actor("guest", 0)))
    h.clocks.run(SETTLE_SECONDS * 1_000)
    h.look()
    assert h.events() == []
    assert h.broker.subjects.decrypt(message).body == b"one"


def test_b21_a_process_waits_after_its_start_and_after_a_set_clock(h: DaysHarness) -> None:
    h.send("q", b"one")
    h.fetch(h.session(), "q")
    h.pass_days(KEPT)
    h.in_loop(h.broker.close)
    h.clocks.run(DAY_MS)
    h.broker = h.open(h.config)
    h.look()
    assert h.events() == []
    h.clocks.run(SETTLE_SECONDS * 1_000 - 1)
    h.look()
    assert h.events() == []
    h.clocks.wall += 3_600_000
    h.in_loop(lambda: h.broker.host.clock_watch.repair(Actor("guest", 0)))
    h.clocks.run(1_000)
    h.look()
    assert h.events() == []
    h.clocks.run(SETTLE_SECONDS * 1_000)
    h.look()
    assert len(h.events()) == 1


def test_b21_days_in_which_no_broker_ran_do_not_count(h: DaysHarness) -> None:
    h.send("q", b"one")
    h.fetch(h.session(), "q")
    h.in_loop(h.broker.close)
    h.clocks.run(100 * DAY_MS)
    h.broker = h.open(h.config)
    h.look()
    h.pass_days(KEPT - 1)
    assert h.events() == []
    h.pass_days(1)
    assert len(h.events()) == 1


def test_b21_what_was_destroyed_before_a_crash_is_logged_after_it(h: DaysHarness) -> None:
    """`kill -9` between the two: clients already see why the body is gone."""
    first = h.today
    h.send("q", b"one")
    message = h.fetch(h.session(), "q")
    assert message is not None
    (key_id,) = h.keys.of_days()[first]
    h.keys.destroy(key_id)
    h.restart()
    assert headers_of(h.broker.subjects.decrypt(message)) == {"x-expired-body": first}
    h.look()
    (event,) = h.events()
    assert (event.day, event.key_ids) == (first, (key_id,))
    h.look()
    assert len(h.events()) == 1


def test_b21_a_key_that_comes_back_from_a_backup_is_destroyed(h: DaysHarness) -> None:
    first = h.today
    h.send("q", b"one")
    h.fetch(h.session(), "q")
    (key_id,) = h.keys.of_days()[first]
    key = h.keys.read(key_id)
    assert key is not None
    h.pass_days(KEPT + 1)
    (h.keys.directory / key_id).write_bytes(MAGIC + key)
    assert h.keys.read(key_id) is None
    h.restart()
    assert not h.keys.is_there(key_id)


def test_b21_a_subject_and_a_day_each_destroy_what_they_promise(h: DaysHarness) -> None:
    messages = []
    days = []
    for subject in ("ada", "bob"):
        days.append(h.today)
        h.send("q", subject.encode(), subject)
        messages.append(h.fetch(h.session(), "q"))
        h.send("q", b"both days", "ada")
        messages.append(h.fetch(h.session(), "q"))
        h.pass_days(1)
    subjects = h.broker.subjects
    opened = [subjects.decrypt(each) for each in messages if each is not None]
    assert [each.body for each in opened] == [b"ada", b"both days", b"bob", b"both days"]
    h.loop.run_until_complete(h.broker._broker.history.erasures.erase(Actor("guest", 0), "ada", "asked for"))
    opened = [subjects.decrypt(each) for each in messages if each is not None]
    assert [(each.body, headers_of(each)) for each in opened] == [
        (b"", {"x-erased": True}),
        (b"", {"x-erased": True}),
        (b"bob", {}),
        (b"", {"x-erased": True}),
    ]
    h.send("q", b"she is back", "ada")
    back = h.fetch(h.session(), "q")
    assert back is not None
    assert back.encryption is not None
    assert back.encryption.key_id[40:43] == "-2-"  # the generation is the subject's, on all days
    h.pass_days(KEPT)
    opened = [subjects.decrypt(each) for each in messages if each is not None]
    assert headers_of(opened[0]) == {"x-erased": True}
    assert headers_of(opened[2]) == {"x-expired-body": days[1]}
    assert subjects.decrypt(back).body == b"she is back"
    assert headers_of(opened[3]) == {"x-erased": True}


def test_b21_an_erasure_reaches_keys_from_before_the_option_and_lost_ones(tmp_path: Path) -> None:
    with DaysHarness(tmp_path, keep_bodies_days=None) as h:
        h.declare(h.session(), "q")
        h.send("q", b"before", "ada")
        before = h.fetch(h.session(), "q")
        h.config = replace(h.config, keep_bodies_days=KEPT)
        h.restart()
        h.send("q", b"after", "ada")
        after = h.fetch(h.session(), "q")
        assert before is not None
        assert after is not None
        assert after.encryption is not None
        lost = after.encryption.key_id
        key = h.keys.read(lost)
        assert key is not None
        for path in (lost, lost[:42]):
            (h.keys.directory / path).unlink()
        h.loop.run_until_complete(h.broker._broker.history.erasures.erase(Actor("guest", 0), "ada", ""))
        (h.keys.directory / lost).write_bytes(MAGIC + key)
        h.restart()
        for each in (before, after):
            assert headers_of(h.broker.subjects.decrypt(each)) == {"x-erased": True}
        assert not h.keys.is_there(lost)


def test_b21_a_message_without_a_body_needs_no_key(h: DaysHarness) -> None:
    subjects = h.broker.subjects
    assert subjects.logged(None, b"") == (b"", None)
    assert h.keys.of_days() == {}


def test_b21_without_the_option_nothing_expires_and_with_it_again_it_does(h: DaysHarness) -> None:
    first = h.today
    h.send("q", b"one")
    message = h.fetch(h.session(), "q")
    assert message is not None
    h.config = replace(h.config, keep_bodies_days=None)
    h.restart()
    assert h.broker.subjects.logged(None, b"clear") == (b"clear", None)
    assert h.broker.subjects.decrypt(message).body == b"one"
    for _ in range(10):
        h.clocks.run(DAY_MS)
    assert h.expiry.due_days() == []
    h.config = replace(h.config, keep_bodies_days=1)  # and fewer days than before
    h.restart()
    h.pass_days(2)
    assert [event.day for event in h.events()] == [first]
    assert headers_of(h.broker.subjects.decrypt(message)) == {"x-expired-body": first}


def test_b21_a_store_that_lacks_messages_decides_nothing(h: DaysHarness) -> None:
    h.send("q", b"one")
    h.pass_days(KEPT)
    h.broker.partitions[0].projector.missing = 1
    h.clocks.run(DAY_MS)
    h.loop.run_until_complete(h.expiry.run())
    assert re.search("the state store lacks 1 messages", h.expiry.problem)
    assert h.events() == []


def test_b21_two_nodes_that_act_at_once_do_the_same(h: DaysHarness, tmp_path: Path) -> None:
    first = h.today
    expiry = h.expiry
    broker = h.broker
    parts = broker.metadata, broker.partitions, broker.nodes, broker.subjects
    other = Expiry(h.config, expiry._clock, *parts, broker.turns.end, broker.host.loop_share)
    other._begin_to_trust()  # as `start`, without its timer
    h.send("q", b"one")
    h.fetch(h.session(), "q")
    h.pass_days(KEPT)
    h.clocks.run(DAY_MS)

    async def both() -> None:
        await asyncio.gather(expiry.run(), other.run())
        await expiry.run()

    h.loop.run_until_complete(both())
    h.settle()
    assert (expiry.held, other.held, expiry.problem) == ({}, {}, "")
    assert {event.day for event in h.events()} == {first}
    assert h.broker.topology.history.expired_days.keys() == {first}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["q", "dying", "stream", "late"]), st.sampled_from([None, "ada"])),
        st.tuples(st.just("take"), st.sampled_from(["q", "dead", "dying", "late"]), st.none()),
        st.tuples(st.just("hold"), st.sampled_from(["q", "dying", "dead"]), st.none()),
        st.tuples(st.just("reject"), st.none(), st.none()),
        st.tuples(st.just("give back"), st.none(), st.none()),
        st.tuples(st.just("again"), st.sampled_from(["q", "stream"]), st.none()),
        st.tuples(st.just("purge"), st.sampled_from(["q", "dead"]), st.none()),
        st.tuples(st.just("days"), st.integers(1, 5), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
        st.tuples(st.just("jump"), st.integers(-40, 400), st.none()),
    ),
    min_size=5,
    max_size=40,
)


class Story:
    """Clients and operators at work, and what must hold after each step."""

    def __init__(self, h: DaysHarness) -> None:
        self.h = h
        self.sent: dict[bytes, bytes] = {}  # ciphertext -> body
        self.taken: list[Published] = []
        session = h.session()
        h.declare(session, "q")
        h.declare(session, "dead")
        letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
        h.declare(session, "dying", args(**letters))
        h.declare(session, "late", args(**letters, x_message_ttl=2 * DAY_MS))
        h.declare(session, "stream", args(x_queue_type="stream", x_max_age="5D"))

    def do(self, step: str, what: Any, subject: str | None) -> None:
        h = self.h
        if step == "send":
            h.send(what, b"body %d" % len(self.sent), subject)
            self.sent[b"%d" % len(self.sent)] = b""
        elif step == "take":
            self.keep_taken(what)
        elif step == "hold":
            self.hold(what)
        elif step == "reject":
            self.settle_held(requeue=False)
        elif step == "give back":
            self.settle_held(requeue=True)
        elif step == "again":  # as a restored message: with the ciphertext that it had
            if self.taken and h.broker.subjects.decrypt(self.taken[-1]).body:
                for to in h.broker.exchanges.route(h.session(), "", what, None):
                    to.partition.publish(h.session().actor, replace_route(self.taken[-1], to.route))
        elif step == "purge":
            h.broker.queues.purge(h.session(), what)
        elif step == "days":
            h.pass_days(what)
        elif step == "restart":
            h.restart()
            self.held = []
        else:
            h.clocks.wall += what * DAY_MS
            h.look()
        h.settle()
        self.check()

    def keep_taken(self, queue: str) -> None:
        taken = self.h.fetch(self.h.session(), queue)
        if taken is not None:
            self.taken.append(taken)

    held: list[Any] = []  # noqa: RUF012

    def hold(self, queue: str) -> None:
        h = self.h
        session, client = h.session(), Client()
        consumer = h.consume(session, queue, client, prefetch=1)
        h.settle()
        self.held = [*self.held, *((session, consumer, each[1]) for each in client.deliveries)]

    def settle_held(self, requeue: bool) -> None:
        if self.held:
            session, consumer, message_id = self.held[-1]
            self.held = self.held[:-1]
            self.h.nack(session, consumer, message_id, requeue=requeue)

    def check(self) -> None:
        """No queued message has lost its body, and each due day is held by one."""
        h = self.h
        h.settle()
        queued = h.queued()
        assert [each for _, each in queued if not each.body.startswith(b"body ")] == []
        h.clocks.run(SETTLE_SECONDS * 1_000)
        h.look()
        h.look()  # the first one may have met what left meanwhile
        queued = h.queued()
        assert [each for _, each in queued if not each.body.startswith(b"body ")] == []
        if h.expiry.trusts:
            assert set(h.expiry.due_days()) <= {day for day, _ in queued}


@pytest.mark.long
@given(STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_b21_whatever_happens_no_queued_message_loses_its_body(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any, str | None]]
) -> None:
    with DaysHarness(tmp_path_factory.mktemp("story") / "data", partitions=2) as h:
        story = Story(h)
        for step in steps:
            story.do(*step)
