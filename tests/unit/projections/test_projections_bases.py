"""A base holds the state at an offset and the records of all that is queued there, or it is refused."""

from contextlib import suppress
from pathlib import Path

import pytest

from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.replay import fold
from rewindmq.projections.store.bases import Base, BaseError, Bases, queued_offsets
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.older_schemas import encoder_under
from tests.support.traffic import Traffic, live_messages

CHAIN = bytes(range(32))


def written(directory: Path, seed: int = 3, events: int = 400) -> tuple[Traffic, Path]:
    """Traffic, and a base at its end."""
    traffic = Traffic(seed)
    traffic.run(events)
    records = [(offset, traffic.listed.records[offset]) for offset in queued_offsets(traffic.machine)]
    return traffic, Bases(directory).write(traffic.machine, CHAIN, records)


def kept(traffic: Traffic, offset: int) -> bytes:
    """The record of an event, under the schema of the machine's version."""
    timestamp_ms, actor, event = Decoder().decode(traffic.listed.records[offset])
    encoder = encoder_under(schema_of(traffic.machine.machine_version))
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


def opened(directory: Path, traffic: Traffic) -> Base:
    return Bases(directory).open("queues-0", traffic.machine.next_offset)


@pytest.mark.parametrize("seed", range(4))
def test_a_base_gives_back_state_and_records(tmp_path: Path, seed: int) -> None:
    traffic, path = written(tmp_path, seed)
    base = opened(tmp_path, traffic)
    assert (base.path, base.partition, base.offset, base.chain) == (path, "queues-0", traffic.log.next_offset, CHAIN)
    assert base.machine().digest() == base.digest == traffic.machine.digest()
    assert base.machine().head() == traffic.machine.head()
    queued = sorted({message_id for _, message_id in live_messages(traffic.machine)})
    assert queued, "the seed leaves messages in the queues"
    assert queued_offsets(traffic.machine) == queued
    assert list(base.records()) == [(offset, kept(traffic, offset)) for offset in queued]
    for offset in range(traffic.log.next_offset + 1):
        assert base.record(offset) == (kept(traffic, offset) if offset in queued else None)


def test_a_record_is_found_in_a_base_of_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.projections.store.bases.BLOCK_BYTES", 500)
    traffic, _ = written(tmp_path, events=1_500)
    base = opened(tmp_path, traffic)
    queued = queued_offsets(traffic.machine)
    assert len(base._blocks) > 5
    assert [offset for offset, _ in base.records()] == queued
    for offset in reversed(queued):
        assert base.record(offset) == kept(traffic, offset)
    assert base.machine().digest() == traffic.machine.digest()


def test_a_fold_goes_on_from_a_base(tmp_path: Path) -> None:
    traffic, _ = written(tmp_path)
    machine = opened(tmp_path, traffic).machine()
    traffic.run(200)
    fold(machine, traffic.log)
    assert machine.digest() == traffic.machine.digest()


def test_an_empty_state_has_a_base(tmp_path: Path) -> None:
    Bases(tmp_path).write(Machine("queues-7"), CHAIN, ())
    base = Bases(tmp_path).open("queues-7", 0)
    assert list(base.records()) == []
    assert base.record(0) is None
    assert base.machine().digest() == Machine("queues-7").digest()


def test_other_records_than_those_of_queued_messages_are_refused(tmp_path: Path) -> None:
    traffic = Traffic(3)
    traffic.run(400)
    records = [(offset, traffic.listed.records[offset]) for offset in queued_offsets(traffic.machine)]
    for wrong in (records[:-1], records[1:], [*records, (traffic.log.next_offset, b"")], records[::-1]):
        with pytest.raises(BaseError, match="record"):
            Bases(tmp_path).write(traffic.machine, CHAIN, wrong)
    assert Bases(tmp_path).offsets("queues-0") == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    """A changed byte is found when the base is opened, or it is one that changes nothing of what is read."""
    traffic, path = written(tmp_path, events=60)
    whole = path.read_bytes()
    before = opened(tmp_path, traffic)
    kept = before.chain, before.digest, list(before.records())
    for at in range(0, len(whole), max(1, len(whole) // 400)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        with suppress(BaseError):
            base = opened(tmp_path, traffic)
            assert (base.chain, base.machine().digest(), list(base.records())) == kept, at


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_a_base_that_is_cut_short_is_refused(tmp_path: Path, part: float) -> None:
    traffic, path = written(tmp_path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(BaseError, match=path.name):
        opened(tmp_path, traffic)


def test_a_base_under_a_wrong_name_or_none_at_all_is_refused(tmp_path: Path) -> None:
    traffic, path = written(tmp_path)
    bases = Bases(tmp_path)
    path.rename(bases.path("queues-0", 5))
    with pytest.raises(BaseError, match=f"queues-0 at offset {traffic.log.next_offset}"):
        bases.open("queues-0", 5)
    with pytest.raises(BaseError, match="No such file"):
        bases.open("queues-0", 6)
    assert bases.offsets("queues-0") == [5]
    assert bases.offsets("queues-1") == []


def test_leftovers_are_no_bases_and_go(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    leftover = path.with_suffix(".123.part")
    leftover.write_bytes(b"half")
    bases = Bases(tmp_path)
    assert bases.offsets("queues-0") == [int(path.stem)]
    bases.remove_leftovers("queues-0")
    assert path.exists()
    assert not leftover.exists()
