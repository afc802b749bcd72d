"""Quarantined records are counted and listed, the same after a restart, a crash, and by a fresh fold of the log."""

import random
from pathlib import Path

import pytest
from rocksdict import Rdict

from rewindmq.projections.replay import fold, recover
from rewindmq.projections.store import keys, quarantine, rocks
from rewindmq.projections.store.quarantine import MAX_REASON, Quarantined, QuarantineReport
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import verify
from rewindmq.schemas.events import Acked
from tests.support.traffic import ANN, Traffic

PREFIX = keys.partition_prefix("queues-0")


@pytest.fixture(autouse=True)
def short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "LISTED", 10)


def nonsense(traffic: Traffic, count: int) -> None:
    """Events that make no sense, and records that are none."""
    for number in range(count):
        if number % 3 == 0:
            offset = traffic.log.append(traffic.now_ms, b"\xff" * number)
            traffic.machine.skip(offset)
        else:
            traffic.append(ANN, Acked("/", "nowhere", 999, ((number, number),)))
    traffic.end_turn()


def by_the_log(traffic: Traffic, end: int | None = None) -> tuple[int, list[Quarantined]]:
    report = fold(type(traffic.machine)("queues-0"), traffic.log, end)
    return report.count, report.newest()


def stored(path: Path) -> tuple[int, list[Quarantined]]:
    store = StateStore.open(path, read_only=True)
    report = store.quarantined("queues-0")
    listed = sum(1 for _ in store.scan(PREFIX + b"X"))
    store.close()
    assert listed == min(report.count, 10)
    return report.count, report.newest()


def test_the_newest_are_listed_and_all_are_counted_across_restarts(tmp_path: Path) -> None:
    traffic = Traffic(1)
    for round_ in range(6):
        traffic.run(20)
        nonsense(traffic, 1 + 4 * round_)
        store = StateStore.open(tmp_path)
        recovery = recover(traffic.log, store)
        projector = recovery.projector
        count, newest = by_the_log(traffic)
        assert (projector.quarantine_count, projector.quarantine.newest()) == (count, newest)
        assert projector.quarantine.newest(3) == newest[-3:]
        assert projector.quarantine.newest(0) == []
        projector.write(projector.prepare())
        store.close()
        assert stored(tmp_path) == (count, newest)
    assert count > 60
    assert len(newest) == 10
    assert {entry.event_type for entry in newest} == {"", "Acked"}


def test_what_was_noted_and_not_written_is_noted_again_once(tmp_path: Path) -> None:
    traffic = Traffic(2)
    nonsense(traffic, 7)
    store = StateStore.open(tmp_path)
    first = recover(traffic.log, store).projector
    first.write(first.prepare())
    offset = traffic.log.next_offset
    nonsense(traffic, 7)
    store.close()
    store = StateStore.open(tmp_path)
    second = recover(traffic.log, store).projector
    second.prepare()  # and never written: a crash
    store.close()
    assert stored(tmp_path) == by_the_log(traffic, offset)
    store = StateStore.open(tmp_path)
    third = recover(traffic.log, store).projector
    assert (third.quarantine_count, third.quarantine.newest()) == by_the_log(traffic)
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_a_batch_was_noted_makes_no_difference(tmp_path: Path, seed: int) -> None:
    """A record that cannot be decoded is noted when it is read, an event when its effects are looked at."""
    rng = random.Random(seed)
    noted: list[int] = []
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    for _ in range(8):
        offsets = range(machine.next_offset, machine.next_offset + rng.choice((0, 1, 5, 30)))
        late = [offset for offset in offsets if rng.random() < 0.3]
        for offset in [offset for offset in offsets if offset not in late] + late:
            projector.quarantined(offset, "Acked" if offset in late else "", f"reason {offset}")
        noted.extend(offsets)
        machine.next_offset += len(offsets)
        projector.write(projector.prepare())
    assert [entry.offset for entry in projector.quarantine.newest()] == noted[-10:]
    store.close()
    count, newest = stored(tmp_path)
    assert count == len(noted)
    assert newest == projector.quarantine.newest()
    assert all(entry.reason == f"reason {entry.offset}" for entry in newest)


def test_memory_is_bounded_however_many_are_noted_and_however_long_their_reasons() -> None:
    report = QuarantineReport()
    for offset in range(1_000):
        report.add(offset, "Published", "x" * 100_000)
    assert report.count == 1_000
    assert len(report._entries) < 20
    assert all(entry.reason == "x" * MAX_REASON + " ..." for entry in report.newest())


def test_any_text_comes_back(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    reasons = ["", "two\nlines", "größe 通知", "half \ud800"]
    for offset, reason in enumerate(reasons):
        projector.quarantined(offset, "Published", reason)
    machine.next_offset = len(reasons)
    projector.write(projector.prepare())
    store.close()
    assert [entry.reason for entry in stored(tmp_path)[1]] == reasons


def test_partitions_have_lists_of_their_own_and_discard_forgets_one(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    for name in ("queues-0", "queues-1"):
        _, projector = store.open_partition(name)
        projector.quarantined(0, "", name)
        projector.write(projector.prepare())
    store.discard("queues-0")
    assert (store.quarantined("queues-0").count, store.quarantined("queues-0").newest()) == (0, [])
    assert store.quarantined("queues-1").newest() == [Quarantined(0, "", "queues-1")]
    store.close()


def alter(path: Path, key: bytes, value: bytes | None) -> None:
    db: Rdict = rocks.open_database(path)
    if value is None:
        db.delete(key, rocks.without_wal())
    else:
        db.put(key, value, rocks.without_wal())
    db.close()


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    """Its state is stored in tmp_path, with 25 quarantined records."""
    traffic = Traffic(3)
    nonsense(traffic, 25)
    store = StateStore.open(tmp_path)
    projector = recover(traffic.log, store).projector
    projector.write(projector.prepare())
    store.close()
    return traffic


def test_verify_compares_count_and_list(tmp_path: Path, traffic: Traffic) -> None:
    (report,) = verify([traffic.log], tmp_path)
    assert report.equal
    assert report.quarantined.count == 25
    alter(tmp_path, keys.quarantine_count(PREFIX), (26).to_bytes(8, "big"))
    (report,) = verify([traffic.log], tmp_path)
    assert [(each.key, each.what) for each in report.differences] == [
        ("queues-0 quarantined records", "26 counted, 25 by the log")
    ]
    alter(tmp_path, keys.quarantine_count(PREFIX), (25).to_bytes(8, "big"))
    last = traffic.log.next_offset - 1
    alter(tmp_path, keys.quarantined(PREFIX, 24 % 10), last.to_bytes(8, "big") + b"Acked\nsomething else")
    (report,) = verify([traffic.log], tmp_path)
    (difference,) = report.differences
    assert f"listed is Quarantined(offset={last}, event_type='Acked', reason='something else')" in difference.what


def test_a_list_that_is_damaged_is_refused(tmp_path: Path, traffic: Traffic) -> None:
    alter(tmp_path, keys.quarantined(PREFIX, 3), None)
    store = StateStore.open(tmp_path)
    with pytest.raises(StoreError, match=r"9 quarantined records are listed of 25.*delete the directory"):
        recover(traffic.log, store)
    store.close()
    (report,) = verify([traffic.log], tmp_path)
    (difference,) = report.differences
    assert difference.key == "queues-0 quarantined records"


def test_several_reasons_of_one_event_keep_their_order_where_the_slots_begin_again() -> None:
    """A publish to two queues that do not exist is noted twice, here in the last slot and in the first."""
    report = QuarantineReport()
    for offset in range(9):
        report.add(offset, "Published", "no queue 'a'")
    report.add(9, "Published", "no queue 'b'")
    report.add(9, "Published", "no queue 'a'")
    slots = dict(report.unwritten())
    again = QuarantineReport.stored(report.count, [slots[slot] for slot in sorted(slots)])
    assert again.newest() == report.newest()
