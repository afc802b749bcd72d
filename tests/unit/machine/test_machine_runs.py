"""The law of runs: any cutting of a history into runs gives the same state, and the same effects of each message."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor
from tests.support.events_for_tests import explain
from tests.support.examples import examples
from tests.support.other_schema import EARLIER
from tests.support.random_history import History
from tests.support.repetition import RepeatedLog, Repetition, difference
from tests.support.repetition_stories import ANN, Story, logs, published

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


def obey(seed: int, count: int) -> Counter[bool]:
    """Hold the law against a random history. Returns how many messages came in a run that was applied together."""
    history, machine, dice = InRuns(seed), Machine("queues-0"), random.Random(seed)
    seen: Counter[bool] = Counter()
    for offset, now_ms, actor, event, sizes in history.runs(count):
        if not sizes or not isinstance(event, Published):
            machine.apply(offset, now_ms, actor, event, [])
            assert machine.digest() == history.machine.digest(), (seed, offset)
            continue
        one_by_one, together = Machine.load(*parts(machine)), Folded()
        single = Folded()
        for at, size in enumerate(sizes, offset):
            effects: list[Effect] = []
            one_by_one.apply(at, now_ms, actor, sized(event, size), effects)
            single.after(at, now_ms, actor, event, effects)
        done = 0
        while done < len(sizes):
            effects, cut = [], sizes[done : done + dice.choice((1, 2, 5, 99))]
            count = machine.apply(offset + done, now_ms, actor, sized(event, cut[0]), effects, cut)
            assert 1 <= count <= len(cut)
            seen[count > 1] += count
            together.run(offset + done, now_ms, actor, event, cut[:count], cut[:count], effects)  # type: ignore[arg-type]
            done += count
        assert together.told == single.told, (seed, offset)
        assert machine.digest() == one_by_one.digest() == history.machine.digest(), (seed, offset)
        machine.validate()
    return seen


def parts(machine: Machine) -> tuple[str, bytes, list[tuple[bytes, dict[int, bytes]]]]:
    return "queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()]


@settings(max_examples=examples(25), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32))
def test_any_cutting_into_runs_gives_the_same(seed: int) -> None:
    obey(seed, 150)


def test_many_messages_are_applied_together() -> None:
    """The law would prove little if nothing were."""
    seen: Counter[bool] = Counter()
    for seed in range(10):
        seen += obey(seed, 300)
    assert seen[True] > 400, seen
