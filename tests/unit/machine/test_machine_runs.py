"""The law of runs: any cutting of a history into runs gives the same state, and the same effects of each message."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rewindmq.projections.machine.data.effects import Deliver, Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Acked, ConsumerCancelled, Event, Nacked, Published
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor
from tests.support.events_for_tests import VHOST, attached, declared, explain, route
from tests.support.examples import examples
from tests.support.other_schema import EARLIER
from tests.support.random_history import History
from tests.support.repetition import RepeatedLog, Repetition, difference
from tests.support.repetition_stories import ANN, PLAIN_SIZE, Story, logs, published

Told = list[tuple[object, ...]]


def decoder_of(times: bool) -> Decoder:
    """The decoder of a log that gives the times of its records, or of one that does not."""
    return SharedDecoder() if times else Decoder()


def loaded(machine: Machine) -> Machine:
    """The machine as a snapshot gives it back."""
    return Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])


class Folded:
    """A fold that notes the effects of each event, by its offset."""

    def __init__(self) -> None:
        self.told: dict[int, Told] = {}
        self.in_runs = 0

    def after(self, offset: int, _timestamp_ms: int, _actor: Actor, _event: Event, effects: list[Effect]) -> None:
        self.told[offset] = explain(effects)

    def run(
        self,
        offset: int,
        _timestamp_ms: int,
        _actor: Actor,
        _event: Published,
        sizes: Sequence[int],
        records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        assert len(records) == len(sizes)
        if len(sizes) == 1:
            self.told[offset] = explain(effects)
            return
        self.in_runs += len(sizes)
        self.told |= {message_id: [] for message_id in range(offset, offset + len(sizes))}
        for outcome in explain(effects):
            message_id = outcome[2]
            assert isinstance(message_id, int)
            self.told[message_id].append(outcome)


def check(log: RepeatedLog, times: bool, stops: Sequence[int], size: int) -> int:
    """Fold the log in runs and one by one, in groups of `size`, and compare at each of `stops` and at the end.

    After every second stop both go on from a snapshot. Returns how many events were applied together."""
    machine, straight = Machine("queues-0"), Machine("queues-0")
    skipped, expected = QuarantineReport(), QuarantineReport()
    decoder, other = decoder_of(times), decoder_of(times)
    together, single = Folded(), Folded()
    for number, stop in enumerate(sorted({*stops, log.offsets[-1] + 1})):
        groups, note = log.groups(size, times, machine.next_offset), skipped.note_undecodable
        drive(machine, groups, decoder, stop, after=together.after, run=together.run, undecodable=note)
        groups, note = log.groups(size, times, straight.next_offset), expected.note_undecodable
        drive(straight, groups, other, stop, after=single.after, undecodable=note)
        assert together.told == single.told
        assert difference(machine, straight) == ""
        assert machine.digest() == straight.digest()
        assert (skipped.count, skipped.newest()) == (expected.count, expected.newest())
        machine.validate()
        if number % 2 == 0:
            assert difference(machine.take_dirty(), straight.take_dirty()) == ""
        else:
            machine, straight, decoder = loaded(machine), loaded(straight), decoder_of(times)
    return together.in_runs


@settings(max_examples=examples(50), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(1, 300))
def test_a_log_in_runs_gives_what_its_events_give(seed: int, times: bool, size: int) -> None:
    log = Repetition(seed).log(300)
    dice = random.Random(seed)
    check(log, times, [dice.randrange(log.offsets[-1]) for _ in range(6)], size)


def test_in_each_story_runs_give_what_the_events_give() -> None:
    for name, log in logs():
        end = len(log.records)
        for times in (False, True):
            try:
                check(log, times, (end - 3, end - 1), 1_000)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


@pytest.mark.usefixtures("earlier_schema")
def test_publishes_of_an_older_schema_are_applied_one_by_one() -> None:
    story, older = Story(), encoder_under(EARLIER)
    story.declare()
    for _ in range(5):
        story.raw(older.encode(older.prefix(story.now_ms, ANN), published()))
    assert check(story.log, False, (), 1_000) == 0
    story.publish(30)
    assert check(story.log, False, (), 1_000) == 30


class InRuns(History):
    """A random history in which many publishes come as runs."""

    def runs(self, count: int) -> Iterator[tuple[int, int, Actor, Event, list[int]]]:
        """Yield offset, time, actor and event, and the sizes of the bodies of a run that begins with it.

        `machine` folds the messages one by one, so that the next events make sense."""
        for offset, now_ms, actor, event in self.steps(count):
            sizes: list[int] = []
            if isinstance(event, Published) and event.origin is None:
                sizes = [event.body_size] + [self.dice.randrange(40) for _ in range(self.dice.choice((0, 1, 3, 12)))]
                for at, size in enumerate(sizes[1:], offset + 1):
                    self.machine.apply(at, now_ms, actor, sized(event, size), self.effects)
                self.offset = offset + len(sizes)
            yield offset, now_ms, actor, event, sizes


def sized(event: Published, size: int) -> Published:
    """The publish with a body of another size."""
    return Published(
        event.route,
        event.properties,
        expiration_ms=event.expiration_ms,
        priority=event.priority,
        persistent=event.persistent,
        encryption=event.encryption,
        body=bytes(size),
        body_size=size,
    )


class Turns(InRuns):
    """A history of two queues whose many consumers take turns, most of them each on its own channel."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.starts = [declared(VHOST, name, type=self.dice.choice(("classic", "quorum"))) for name in "ab"]

    def _event(self) -> tuple[Event, int]:
        dice = self.dice
        if self.starts:
            return self.starts.pop(), 0
        holders = [holder for queue in self.machine.queues() for holder in queue.holders.values()]
        throw = dice.random()
        if throw < 0.15 and len(holders) < 10:
            return self._consume()
        if throw < 0.17 and holders:
            return ConsumerCancelled(
                VHOST, (holder := dice.choice(holders)).queue.name, holder.consumer
            ), holder.session
        if throw < 0.6 and (full := [holder for holder in holders if holder.held]):
            holder = dice.choice(full)
            held = list(holder.held)
            first, last = sorted((dice.choice(held), dice.choice(held)))
            kind = [Acked, Acked, Acked, Nacked][dice.randrange(4)]
            more = () if kind is Acked else (True, "nack")
            return kind(VHOST, holder.queue.name, holder.consumer, ((first, last),), *more), holder.session
        names = dice.choice((("a",), ("b",), ("a", "b")))
        expiration_ms = 9_000 if dice.random() < 0.1 else None
        return Published(route(*names), b"\x00\x00", persistent=True, expiration_ms=expiration_ms, body_size=3), 1

    def _consume(self) -> tuple[Event, int]:
        dice = self.dice
        self.number += 1
        prefetch = dice.choice((0, 1, 3, 8))
        event = attached(
            VHOST,
            dice.choice("ab"),
            self.number,
            channel=dice.choice((self.number + 2, self.number + 2, 1)),
            tag=f"t{self.number}",
            no_ack=prefetch == 0 and dice.random() < 0.5,
            prefetch=prefetch,
            credit=0 if prefetch else dice.choice((1, 5, 50)),
            global_prefetch=dice.choice((0, 0, 0, 4)),
            priority=dice.choice((0, 0, 0, 1)),
        )
        return event, self._session(1)


def in_channels(machine: Machine, effects: list[Effect]) -> dict[tuple[object, ...], list[tuple[int, int]]]:
    """The deliveries of each queue to each channel, in their order: a client sees it."""
    seen: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for effect in effects:
        if isinstance(effect, Deliver):
            holder = machine.by_id[effect.queue.queue_id].holders[effect.consumer]
            deliveries = seen.setdefault((effect.queue.name, holder.session, holder.channel), [])
            deliveries += [(effect.consumer, message_id) for message_id in effect.message_ids]
    return seen


def obey(history: InRuns, seed: int, count: int) -> Counter[bool]:
    """Hold the law against a random history. Returns how many messages came in a run that was applied together."""
    machine, dice = Machine("queues-0"), random.Random(seed)
    seen: Counter[bool] = Counter()
    for offset, now_ms, actor, event, sizes in history.runs(count):
        if not sizes or not isinstance(event, Published):
            machine.apply(offset, now_ms, actor, event, [])
            assert machine.digest() == history.machine.digest(), (seed, offset)
            continue
        one_by_one, together = Machine.load(*parts(machine)), Folded()
        single, told_singly, told = Folded(), list[Effect](), list[Effect]()
        for at, size in enumerate(sizes, offset):
            effects: list[Effect] = []
            one_by_one.apply(at, now_ms, actor, sized(event, size), effects)
            single.after(at, now_ms, actor, event, effects)
            told_singly += effects
        done = 0
        while done < len(sizes):
            effects, cut = [], sizes[done : done + dice.choice((1, 2, 5, 99))]
            count = machine.apply(offset + done, now_ms, actor, sized(event, cut[0]), effects, cut)
            assert 1 <= count <= len(cut)
            seen[count > 1] += count
            together.run(offset + done, now_ms, actor, event, cut[:count], cut[:count], effects)  # type: ignore[arg-type]
            told += effects
            done += count
        assert together.told == single.told, (seed, offset)
        assert in_channels(machine, told) == in_channels(one_by_one, told_singly), (seed, offset)
        assert machine.digest() == one_by_one.digest() == history.machine.digest(), (seed, offset)
        machine.validate()
    return seen


def parts(machine: Machine) -> tuple[str, bytes, list[tuple[bytes, dict[int, bytes]]]]:
    return "queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()]


@settings(max_examples=examples(25), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32))
def test_any_cutting_into_runs_gives_the_same(seed: int) -> None:
    obey(InRuns(seed), seed, 150)


def test_many_messages_are_applied_together() -> None:
    """The law would prove little if nothing were."""
    seen: Counter[bool] = Counter()
    for seed in range(10):
        seen += obey(InRuns(seed), seed, 300)
    assert seen[True] > 400, seen


@settings(max_examples=examples(25), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32))
def test_consumers_that_take_turns_get_the_same_in_any_cutting(seed: int) -> None:
    obey(Turns(seed), seed, 150)


def test_each_of_several_consumers_gets_its_share_at_once() -> None:
    story, machine, effects = Story(), Machine("queues-0"), list[Effect]()
    story.declare()
    for number, prefetch in enumerate((100, 4, 100), 1):
        story.consume(number, prefetch, channel=number)
    for offset, record in enumerate(story.log.records):
        machine.apply(offset, *Decoder().decode(record), effects)
    first = machine.next_offset
    assert machine.apply(first, story.now_ms, ANN, published(), effects, [PLAIN_SIZE] * 20) == 13
    shares = [(each.consumer, [*each.message_ids]) for each in effects if isinstance(each, Deliver)]
    assert shares == [(1, [4, 7, 10, 13, 16]), (2, [5, 8, 11, 14]), (3, [6, 9, 12, 15])]
    effects.clear()
    assert machine.apply(first + 13, story.now_ms, ANN, published(), effects, [PLAIN_SIZE] * 7) == 1
    assert machine.apply(first + 14, story.now_ms, ANN, published(), effects, [PLAIN_SIZE] * 6) == 6
    shares = [(each.consumer, [*each.message_ids]) for each in effects if isinstance(each, Deliver)]
    assert shares == [(3, [17]), (1, [18, 20, 22]), (3, [19, 21, 23])]
