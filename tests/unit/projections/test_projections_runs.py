"""The bodies of publishes that are applied together: RocksDB has the same ones as after a fold event by event."""

import random
from pathlib import Path

import pytest

from rewindmq.projections import replay
from rewindmq.projections.clean_stops import CleanStops
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import catch_up, drive, groups_of, recover
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import StateDifference, verify, verify_partition
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Checkpointed, Published
from rewindmq.schemas.values import BROKER
from tests.support.repetition import Repetition
from tests.support.repetition_stories import ANN, Story, logs, published
from tests.support.traffic import ListLog, live_messages, record


def log_of(seed: int, steps: int = 500) -> ListLog:
    """A random history. Where it has a gap, there is a record that cannot be decoded."""
    made = Repetition(seed).log(steps)
    records = dict(zip(made.offsets, made.records, strict=True))
    return ListLog(records=[records.get(offset, b"\xff") for offset in range(made.offsets[-1] + 1)], block=7)


def event_by_event(log: ListLog) -> Machine:
    machine = Machine(log.name)
    drive(machine, groups_of(log, 0), Decoder(), one_by_one=True)
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


def test_recovery_and_verify_say_how_many_events_were_in_runs(tmp_path: Path) -> None:
    story = Story()
    story.declare()
    held = story.publish(60)
    story.consume(1, prefetch=50)
    story.ack(*held[:50])
    log = ListLog(records=story.log.records)
    store = StateStore.open(tmp_path)
    recovery = recover(log, store)
    assert recovery.replayed == len(log.records) == 112
    assert recovery.projector.message(0, held[50]).body == bytes(3)
    recovery.projector.write(recovery.projector.prepare())
    store.close()
    (report,) = verify([log], tmp_path)
    assert (report.equal, report.messages, report.in_runs) == (True, 10, 60)
    (report,) = verify([log], tmp_path, event_by_event=True)
    assert (report.equal, report.messages, report.in_runs) == (True, 10, 0)


def test_the_first_event_behind_a_last_word_is_seen(tmp_path: Path) -> None:
    """Another program wrote publishes behind it, which are applied together: they are reported all the same."""
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
