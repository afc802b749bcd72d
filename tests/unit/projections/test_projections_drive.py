"""The one loop of every fold: `drive` decodes, applies, and hands on (docs/design.md#one-idea)."""

import re
from collections.abc import Iterator

import pytest

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import RecordGroup, drive, fold, groups_of
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Acked, Event
from rewindmq.schemas.values import Actor
from tests.support.running import ROOT
from tests.support.traffic import ListLog, Traffic

BROKEN = b"\xff\xff\xff"


@pytest.fixture(scope="module")
def log() -> ListLog:
    traffic = Traffic(7)
    traffic.run(200)
    traffic.listed.records[20] = BROKEN
    return traffic.listed


def in_groups(log: ListLog, size: int, gap: int = 0) -> Iterator[RecordGroup]:
    """The log in groups of `size`; `gap`: so many offsets without a record stand before each group, as in Kafka."""
    for first in range(0, len(log.records), size):
        records = log.records[first : first + size]
        before = gap * (first // size + 1)
        yield [before + first + at for at in range(len(records))], records, None


def digest_at(log: ListLog, end: int | None) -> str:
    machine = Machine(log.name)
    fold(machine, log, end)
    return machine.digest()


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("end", [0, 1, 20, 21, 63, 200])
def test_it_stops_at_the_end_and_returns_what_is_left(log: ListLog, size: int, end: int) -> None:
    machine = Machine(log.name)
    rest = drive(machine, in_groups(log, size), Decoder(), end)
    assert (machine.next_offset, machine.digest()) == (end, digest_at(log, end))
    left = [(offset, record) for offsets, records, _ in rest for offset, record in zip(offsets, records, strict=True)]
    assert left == list(enumerate(log.records))[end:]


def test_it_goes_on_where_the_machine_stands(log: ListLog) -> None:
    machine = Machine(log.name)
    drive(machine, in_groups(log, 50), Decoder(), 63)
    assert list(drive(machine, in_groups(log, 50), Decoder())) == []
    assert machine.digest() == digest_at(log, None)


def test_gaps_between_offsets_stay_gaps(log: ListLog) -> None:
    machine, seen = Machine(log.name), []
    rest = drive(machine, in_groups(log, 50, gap=3), Decoder(), 55, after=lambda offset, *_: seen.append(offset))
    assert (seen[0], seen[-1], machine.next_offset) == (3, 52, 53)
    assert next(rest)[0][0] == 56


def test_each_record_is_handed_on_before_and_after_it_is_applied(log: ListLog) -> None:
    machine = Machine(log.name)
    told: list[tuple[str, int]] = []
    effects_seen = 0

    def before(offset: int, timestamp_ms: int, event: Acked) -> None:
        assert machine.next_offset == offset
        assert type(event) is Acked
        told.append(("before", offset))

    def after(offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        nonlocal effects_seen
        assert machine.next_offset == offset + 1
        effects_seen += len(effects)
        told.append(("after", offset))

    def undecodable(offset: int, reason: str) -> None:
        assert machine.next_offset == offset + 1
        assert "byte" in reason
        told.append(("undecodable", offset))

    drive(machine, groups_of(log, 0), Decoder(), before={Acked: before}, after=after, undecodable=undecodable)
    acks = [
        offset
        for offset, record in enumerate(log.records)
        if record != BROKEN and type(Decoder().decode(record)[2]) is Acked
    ]
    expected = [("undecodable" if record == BROKEN else "after", at) for at, record in enumerate(log.records)]
    assert [each for each in told if each[0] != "before"] == expected
    assert [offset for what, offset in told if what == "before"] == acks != []
    assert all(told[at + 1] == ("after", offset) for at, (what, offset) in enumerate(told) if what == "before")
    assert effects_seen


def test_no_other_loop_folds_records() -> None:
    """A loop that folds must skip what it cannot decode. The files that do are listed, with the reason."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("projections", "engine", "spark_replay")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\bmachine\.skip\(", path.read_text())
    }
    assert found == {
        "projections/replay.py",
        "projections/versions/worker.py",  # runs another version's machine
        "engine/cluster/partition.py",  # live: does not decode what it sent itself
        "projections/what_if/alternative.py",  # a candidate's machine, which leaves events out
        "projections/what_if/later_outcomes.py",  # the same machines, at a record that cannot be decoded
    }
