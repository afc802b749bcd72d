"""The fast path of the fold against the machine: repeats give the same state as the same events one by one."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.repeats import Repeats
from rewindmq.projections.replay import drive
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Event
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from tests.support.examples import examples
from tests.support.needs import require_pure
from tests.support.other_schema import EARLIER
from tests.support.repetition import RepeatedLog, Repetition, difference
from tests.support.repetition_stories import ANN, Story, acked, logs, planted, published


def decoder_of(times: bool) -> Decoder:
    """The decoder of a log that gives the times of its records, or of one that does not."""
    return SharedDecoder() if times else Decoder()


def event_by_event(log: RepeatedLog, times: bool, end: int | None = None) -> Machine:
    machine = Machine("queues-0")
    drive(machine, log.groups(1_000, times), decoder_of(times), end)
    return machine


def loaded(machine: Machine) -> Machine:
    """The machine as a snapshot gives it back."""
    return Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])


def check(log: RepeatedLog, times: bool, stops: Sequence[int], size: int, kind: type[Repeats] = Repeats) -> int:
    """Fold the log with repeats and without, in groups of `size`, and compare at each of `stops` and at the end.

    After every second stop both go on from a snapshot. Returns how many events were repeats."""
    machine, straight = Machine("queues-0"), Machine("queues-0")
    skipped, expected = QuarantineReport(), QuarantineReport()
    decoder, other = decoder_of(times), decoder_of(times)
    repeats, count = kind(machine), 0
    for number, stop in enumerate(sorted({*stops, log.offsets[-1] + 1})):
        groups = log.groups(size, times, machine.next_offset)
        note = skipped.note_undecodable
        drive(machine, groups, decoder, stop, after=skipped.see, undecodable=note, repeats=repeats)
        groups, note = log.groups(size, times, straight.next_offset), expected.note_undecodable
        drive(straight, groups, other, stop, after=expected.see, undecodable=note)
        assert difference(machine, straight) == ""
        assert machine.digest() == straight.digest()
        assert (skipped.count, skipped.newest()) == (expected.count, expected.newest())
        machine.validate()
        if number % 2 == 0:
            assert difference(machine.take_dirty(), straight.take_dirty()) == ""
        else:
            count += repeats.count
            machine, straight, decoder = loaded(machine), loaded(straight), decoder_of(times)
            repeats = kind(machine)
    return count + repeats.count


@settings(max_examples=examples(50), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(1, 300))
def test_repeats_give_the_state_that_the_events_give(seed: int, times: bool, size: int) -> None:
    log = Repetition(seed).log(300)
    dice = random.Random(seed)
    check(log, times, [dice.randrange(log.offsets[-1]) for _ in range(6)], size)


def test_the_histories_are_full_of_repeats() -> None:
    """The test above would prove little if the fast path applied few events.

    About one in seven is applied so, but the seeds differ much: half of them have hardly any."""
    logs = [Repetition(seed).log(300) for seed in range(20)]
    assert sum(check(log, False, (), 50) for log in logs) > sum(len(log.records) for log in logs) // 16


def check_story(log: RepeatedLog, kind: type[Repeats] = Repeats) -> int:
    end = len(log.records)
    return sum(check(log, times, (end - 3, end - 1), 1_000, kind) for times in (False, True))


def test_in_each_story_repeats_give_the_state_that_the_events_give() -> None:
    for name, log in logs():
        try:
            check_story(log)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_plain_traffic_is_applied_by_the_fast_path() -> None:
    """All but the first publish and ack behind each other event."""
    for type in ("classic", "quorum"):
        story = Story()
        story.declare(type=type)
        story.consume(1)
        for _ in range(50):
            story.ack(*story.publish(2))
        log = story.log
        assert check(log, False, (), 1_000) == len(log.records) - 4


@pytest.mark.usefixtures("earlier_schema")
def test_repeats_of_an_older_schema_with_the_same_bytes_are_applied() -> None:
    """Acks are, and publishes are not, whose schema was another. Then the log goes on under today's."""
    story, older = Story(), encoder_under(EARLIER)
    story.declare()
    story.consume(1)

    def under_the_older(event: Event) -> int:
        story.raw(older.encode(older.prefix(story.now_ms, ANN), event))
        return len(story.log.records) - 1

    for held in [under_the_older(published()) for _ in range(30)]:
        under_the_older(acked((held, held)))
    assert check(story.log, False, (), 1_000) == 29
    story.ack(*story.publish(30))
    for _ in range(2):
        one = under_the_older(published())
        under_the_older(acked((one, one)))
    assert check(story.log, False, (), 1_000) == 3 * 29 + 1


# Each condition of the fast path, and what is left when it is taken out.
CONDITIONS = {
    "one queue": ("or len(queues) != 1:", "or not queues:"),
    "no limits": ("queue.limited or queue.has_own", "queue.has_own"),
    "a publish of the common way": ("queue.has_own_publish or ", ""),
    "no TTL": (" or queue.settings.message_ttl_ms is not None", ""),
    "a queue that drops no duplicates": ("queue.deduplicates or event", "event"),
    "no exchange that drops duplicates": (" or event.route.deduplication is not None", ""),
    "no ack of a message that is remembered": ("queue.deduplicates or queue.single_active or ", ""),
    "no priorities": ("queue.prioritized is not None or ", ""),
    "from a session": ("actor.session == 0 or ", ""),
    "a publisher that is not lost": ("actor.session == 0 or epoch_of(actor) in self.machine.lost_epochs", "not actor"),
    "an attached holder": ("not holder.attached or ", ""),
    "a holder without a channel's limit": ("attached or holder.limiter is not None:", "attached:"),
    "no single active consumer": ("queue.single_active or ", ""),
    "a holder that is not lost": ("queue.single_active or epoch_of(actor) in self.machine.lost_epochs", "not actor"),
    "no deadline passed": ("self.machine.due_effects[0] == offset or ", ""),
    "no other event": (" or type(event) not in TRAFFIC", ""),
    "a usual time is learned": ("usual = low & 0x81 == 0x80 and high > 0x7F and ", "usual = "),
    "plain": ("    return -1, pos\n\n\ndef _longer", "    return 0, pos + PLAIN_SIZE\n\n\ndef _longer"),
    "properties have a size": ("    if size & 1:\n        return -1, pos\n", ""),
    "a body has a size": ("if size & 1 or pos + (size", "if pos + (size"),
    "the record ends with the body": ("size & 1 or pos + (size >> 1) != len(record)", "size & 1"),
    "the time is not negative": ("low & 0x81 != 0x80 or ", "low & 0x80 != 0x80 or "),
    "the time goes on behind its first byte": ("low & 0x81 != 0x80 or ", "low & 0x01 != 0 or "),
    "the time goes on behind its second byte": ("!= 0x80 or high < 0x80:", "!= 0x80:"),
    "the time is that of the whole timestamp": (" or begin_ms != start_ms", ""),
    "the log gives the time": (" or times is not None:", ":"),
    "the schema of what was learned": ("if not record.startswith(header):", "if False:"),
    "no deadline comes": ("if clock_ms >= machine.next_deadline_ms:", "if False:"),
    "nor just now": ("if clock_ms >= machine.next_deadline_ms:", "if clock_ms > machine.next_deadline_ms:"),
    "the clock may be ahead": ("clock_ms = machine.ahead_ms + (", "clock_ms = ("),
    "the first consumer has room": ("if room <= 0 or ", "if "),
    "it is under no channel's limit": ("if room <= 0 or consumer.limiter is not None:", "if room <= 0:"),
    "credit is used up": ("                consumer.credit -= 1\n", "                pass\n"),
    "nobody acks it": ("            if consumer.no_ack:\n", "            if False:\n"),
    "a full consumer of a quorum queue stands back": ("if room == 1 and queue.quorum:", "if False:"),
    "one of a classic queue does not": ("if room == 1 and queue.quorum:", "if room == 1:"),
    "messages of quorum queues are persistent": ("return PERSISTENT if quorum else 0", "return 0"),
    "no unacked message has an expiry": ("    if holder.queue.held_expiries:\n        return ()\n", ""),
    "the one id is held": ("if first in held and end", "if end"),
    "each single id is held": ("first < behind or first not in held", "first < behind"),
    "no single id comes twice": ("if first < behind or first not in held:", "if first not in held:"),
    "no id of a range comes twice": ("if not behind <= first <= last", "if not first <= last"),
    "a range has an end": ("if not behind <= first <= last < first + len(held):", "if first < behind:"),
    "each id of a range is held": ("                if message_id not in held:\n                    return ()\n", ""),
    "the record ends with the ranges": (
        "return ids if record[pos] == 0 and pos + 1 == len(record) else ()",
        "return ids",
    ),
    "the record ends with the one id": ("end + end - pos + 1 == len(record) and ", ""),
    "no range follows the one id": ("(first,) if record[-1] == 0 else ()", "(first,)"),
    "an id is not negative": ("(-1 if value & 1 else value >> 1)", "(value >> 1)"),
    "a holder is served again": ("        if not holder.serviced:\n            serve_again(holder)\n", ""),
    "ready messages follow an ack": ("if queue.messages_ready > 0:", "if False:"),
    "the queue is touched": (
        "            machine.touch(queue)\n        queue.published",
        "            pass\n        queue.published",
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_is_needed(condition: str, tales: list[tuple[str, RepeatedLog]]) -> None:
    """A fast path without the condition differs from the machine in one of the stories."""
    require_pure("a changed copy of the fast path is an interpreted class, and compiled code takes its own")
    kind = planted(*CONDITIONS[condition]).Repeats
    for _, log in tales:
        try:
            check_story(log, kind)
        except (AssertionError, KeyError):
            return
    pytest.fail("no story needs it")


@pytest.fixture(scope="module")
def tales() -> list[tuple[str, RepeatedLog]]:
    return list(logs())
