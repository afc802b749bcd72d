"""From the log and what is stored back to the state before: restarts, crashes, lost and foreign state directories."""

import shutil
from pathlib import Path

import pytest

from rewindmq.projections import replay
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold, recover
from rewindmq.projections.store.projector import FRESH_BYTES
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.events import Acked
from tests.support.refolds import assert_same_quarantine
from tests.support.traffic import ANN, ListLog, Traffic, live_messages, record


def persisted(path: Path, traffic: Traffic) -> None:
    """A store with all of the traffic in it."""
    store = StateStore.open(path)
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    store.close()


def assert_recovered(traffic: Traffic, store: StateStore) -> replay.Recovery:
    recovery = recover(traffic.log, store)
    recovery.machine.validate()
    assert recovery.machine.digest() == traffic.machine.digest()
    for queue_id, message_id in live_messages(traffic.machine):
        assert record(recovery.projector.message(queue_id, message_id)) == record(traffic.bodies[message_id])
    return recovery


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_state_directory_is_rebuilt_from_the_log(tmp_path: Path, seed: int) -> None:
    traffic = Traffic(seed)
    traffic.run(600)
    persisted(tmp_path / "state", traffic)
    shutil.rmtree(tmp_path / "state")
    store = StateStore.open(tmp_path / "state")
    recovery = assert_recovered(traffic, store)
    assert recovery.stored_offset == 0
    assert recovery.replayed == traffic.log.next_offset
    store.close()


def test_a_restart_does_not_read_the_log_before_the_stored_offset(tmp_path: Path) -> None:
    traffic = Traffic(5)
    traffic.run(300)
    persisted(tmp_path, traffic)
    stored_offset = traffic.log.next_offset
    traffic.run(40)
    traffic.listed.read_from.clear()
    store = StateStore.open(tmp_path)
    recovery = assert_recovered(traffic, store)
    assert traffic.listed.read_from == [stored_offset - 1, stored_offset]  # may be a broker's last word
    assert recovery.stored_offset == stored_offset
    assert recovery.replayed == traffic.log.next_offset - stored_offset
    store.close()


def test_a_store_ahead_of_its_log_is_folded_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log that lost its end, or came from a backup: what is stored tells of a history that is no more."""
    traffic = Traffic(1)
    traffic.run(100)
    persisted(tmp_path, traffic)
    older = ListLog(records=traffic.listed.records[:50])
    store = StateStore.open(tmp_path)
    recovery = recover(older, store)
    assert "its log ends at 50" in caplog.text
    fresh = Machine(recovery.machine.partition)
    fold(fresh, older)
    assert (recovery.stored_offset, recovery.replayed) == (0, 50)
    assert recovery.machine.digest() == fresh.digest()
    for queue in fresh.queues():
        for view in queue.messages():
            assert recovery.projector.message(queue.queue_id, view.message_id).body_size == view.size
    store.close()


def test_a_log_that_lost_what_follows_the_stored_offset_is_refused(tmp_path: Path) -> None:
    traffic = Traffic(1)
    traffic.run(50)
    traffic.listed.start_offset = 20
    store = StateStore.open(tmp_path)
    with pytest.raises(StoreError, match="its log begins at 20: what lies between is gone"):
        recover(traffic.log, store)
    store.close()


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    with pytest.raises(StoreError, match="in use by another process"):
        StateStore.open(tmp_path)
    store.close()


def test_a_store_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StateStore.open(tmp_path).close()
    monkeypatch.setattr("rewindmq.projections.store.keys.FORMAT_VERSION", b"2")
    with pytest.raises(StoreError, match=r"format b'1', this version reads b'2'; delete the directory"):
        StateStore.open(tmp_path)


def test_replay_writes_behind_itself_so_that_its_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "GROUP_EFFECTS", 64)
    monkeypatch.setattr("rewindmq.projections.store.projector.FRESH_BYTES", 50_000)
    traffic = Traffic(3)
    traffic.run(2_000)
    store = StateStore.open(tmp_path)
    recovery = assert_recovered(traffic, store)
    assert store.applied_offset("queues-0") > 0  # something was written on the way
    assert recovery.projector.pending_bytes < 50_000 + 64 * 1_000 < FRESH_BYTES
    store.close()


def test_records_that_are_undecodable_or_nonsense_are_listed_and_skipped(tmp_path: Path) -> None:
    """The same for the broker's recovery and a fold without bodies (docs/design.md#one-idea)."""
    traffic = Traffic(2)
    traffic.run(30)
    garbage = traffic.log.next_offset
    traffic.listed.records.append(b"\xff\xff\xff\xff")
    foreign = traffic.append(ANN, Acked("/", "plain", 999, ((1, 1),)))
    traffic.run(30)
    store = StateStore.open(tmp_path)
    recovery = recover(traffic.log, store)
    folded = Machine("queues-0")
    quarantined = fold(folded, traffic.log)
    assert recovery.machine.digest() == folded.digest() == traffic.machine.digest()
    assert_same_quarantine(recovery.quarantined, quarantined)
    reasons = {entry.offset: entry for entry in quarantined.newest()}
    assert reasons[garbage].event_type == ""
    assert reasons[garbage].reason
    assert reasons[foreign].event_type == "Acked"
    assert quarantined.count == len(quarantined.newest()) >= 2
    store.close()


def test_a_fold_stops_where_it_is_told_and_goes_on_from_there() -> None:
    traffic = Traffic(4)
    traffic.run(300)
    machine = Machine("queues-0")
    for end in (7, 16, 17, 100, traffic.log.next_offset):
        fold(machine, traffic.log, end)
        assert machine.next_offset == end
    assert machine.digest() == traffic.machine.digest()
