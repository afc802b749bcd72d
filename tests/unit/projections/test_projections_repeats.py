"""The bodies of events that the fold's fast path applies: RocksDB has the same ones as after a fold event by event."""

import random
from pathlib import Path

import pytest

from rewindmq.projections import replay
from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.repeats import Repeats
from rewindmq.projections.replay import catch_up, drive, fold, groups_of, recover
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import StateDifference, verify, verify_partition
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Checkpointed, Published
from rewindmq.schemas.values import BROKER
from tests.support.needs import require_pure
from tests.support.repetition import Repetition
from tests.support.repetition_stories import ANN, Story, logs, planted, published
from tests.support.traffic import ListLog, live_messages, record


def log_of(seed: int, steps: int = 500) -> ListLog:
    """A random history. Where it has a gap, there is a record that cannot be decoded."""
    made = Repetition(seed).log(steps)
    records = dict(zip(made.offsets, made.records, strict=True))
    return ListLog(records=[records.get(offset, b"\xff") for offset in range(made.offsets[-1] + 1)], block=7)


def event_by_event(log: ListLog) -> Machine:
    machine = Machine(log.name)
    drive(machine, groups_of(log, 0), Decoder())
    return machine


@pytest.mark.long(seed=range(5, 25))
@pytest.mark.parametrize("seed", range(25))
def test_the_store_is_as_the_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice, log = random.Random(seed), log_of(seed)
    monkeypatch.setattr(replay, "GROUP_EFFECTS", dice.choice((1, 5, 40, 4_096)))
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition(log.name)
    stops = sorted(dice.randrange(len(log.records)) for _ in range(4))
    for end in (*stops, len(log.records)):
        catch_up(log, projector, end)
        for queue_id, message_id in live_messages(machine):
            message = Decoder().decode(log.records[message_id])[2]
            assert isinstance(message, Published)
            assert record(projector.message(queue_id, message_id)) == record(message)
        if dice.random() < 0.5:
            projector.write(projector.prepare())
    projector.write(projector.prepare())
    assert projector.pending_bytes == 0
    assert machine.digest() == event_by_event(log).digest()
    for by_event in (False, True):
        report = verify_partition(log, store, event_by_event=by_event)
        assert (report.differences, report.stored, report.offset) == ([], True, len(log.records))
    store.close()


def differences(log: ListLog, path: Path) -> list[StateDifference]:
    """Return the differences between the store and the log, after two recoveries."""
    store = StateStore.open(path)
    _, projector = store.open_partition(log.name)
    for end in (len(log.records) // 2, len(log.records)):
        catch_up(log, projector, end)
        projector.write(projector.prepare())
    found = verify_partition(log, store, event_by_event=True).differences
    store.close()
    return found


def test_each_story_is_stored(tmp_path: Path) -> None:
    for number, (name, made) in enumerate(logs()):
        assert differences(ListLog(records=made.records), tmp_path / str(number)) == [], name


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ("if 0 < high < 0x80 else", "if high < 0x80 else"),
        ("self._bodies is not None and (consumer is None or not consumer.no_ack):", "self._bodies is not None:"),
        ("            bodies.release(queue.queue_id, ids)\n", "            pass\n"),
        ("[] if bodies is None else bodies.effects", "[]"),
    ],
    ids=["as the encoder writes it", "nobody acks it", "acked bodies go", "what acks let happen"],
)
def test_each_condition_of_bodies_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, left: str
) -> None:
    require_pure("a changed copy of the fast path is an interpreted class, and compiled code takes its own")
    monkeypatch.setattr(replay, "Repeats", planted(there, left).Repeats)
    for number, (_, made) in enumerate(logs()):
        try:
            if differences(ListLog(records=made.records), tmp_path / str(number)):
                return
        except KeyError:
            return
    pytest.fail("no story needs it")


def plain_log(count: int) -> tuple[ListLog, list[int]]:
    """So many plain publishes to a queue with a consumer that acks all but the last ten."""
    story = Story()
    story.declare()
    story.consume(1)
    held = story.publish(10)
    for _ in range(count - 10):
        held += story.publish(1)
        story.ack(held.pop(0))
    return ListLog(records=story.log.records), held


def test_recovery_and_verify_say_how_many_events_were_repeats(tmp_path: Path) -> None:
    log, held = plain_log(100)
    store = StateStore.open(tmp_path)
    recovery = recover(log, store)
    assert recovery.replayed == len(log.records) == 192
    assert recovery.projector.message(0, held[0]).body == bytes(3)
    recovery.projector.write(recovery.projector.prepare())
    store.close()
    (report,) = verify([log], tmp_path)
    assert (report.equal, report.messages, report.repeats) == (True, 10, 192 - 4)  # two, and the first of each kind
    (report,) = verify([log], tmp_path, event_by_event=True)
    assert (report.equal, report.messages, report.repeats) == (True, 10, 0)


def test_the_fold_of_a_log_uses_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    require_pure("a subclass notes the count, and compiled code takes the class itself")
    log, _ = plain_log(50)
    made: list[Repeats] = []

    class Noted(Repeats):
        def __init__(self, machine: Machine) -> None:
            super().__init__(machine)
            made.append(self)

    monkeypatch.setattr(replay, "Repeats", Noted)
    fold(Machine(log.name), log)
    assert [each.count for each in made] == [len(log.records) - 4]


def test_the_first_event_behind_a_last_word_is_seen(tmp_path: Path) -> None:
    """Another program wrote repeats behind it: they are reported all the same."""
    story = Story()
    story.declare()
    story.publish(5)
    final = story.do(Checkpointed(5, "", "", True), BROKER)
    for _ in range(3):
        story.do(published(), ANN)
    log = ListLog(records=story.log.records)
    store, words = StateStore.open(tmp_path), CleanStops()
    _, projector = store.open_partition(log.name)
    catch_up(log, projector, None, words)
    store.close()
    assert [(each.final, each.first, each.end, each.odd) for each in words.found] == [(final, 7, 10, 7)]
