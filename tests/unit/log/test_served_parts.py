"""The parts of the served log by themselves: frames, owners, the tail, counters, copies of states."""

import random
from pathlib import Path

import pytest

from rewindmq.engine.log.served.counters import CounterStore
from rewindmq.engine.log.served.owners import Owners
from rewindmq.engine.log.served.states import FileStates
from rewindmq.engine.log.served.tail import Batch, Tail
from rewindmq.engine.log.served.wire_frames import (
    APPEND,
    BadFrame,
    Frame,
    Frames,
    decode_batch,
    decode_entries,
    encode_batch,
    encode_entries,
    frame,
    time_bytes,
)
from rewindmq.schemas.shapes import long_bytes


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_whole_however_the_socket_cuts_them(seed: int) -> None:
    chance = random.Random(seed)
    sent = [(APPEND, chance.randrange(65_536), chance.randbytes(chance.choice((0, 1, 100, 5_000)))) for _ in range(30)]
    data = b"".join(frame(*each) for each in sent)
    frames, at = Frames(), 0
    found: list[Frame] = []
    while at < len(data):
        size = chance.choice((1, 3, 7, 2_000, 20_000))
        found += frames.feed(data[at : at + size])
        at += size
    assert found == sent


@pytest.mark.parametrize("bad", [b"\0" * 7, b"\xff" * 7])
def test_a_length_that_no_frame_has_is_refused(bad: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames().feed(bad))


def test_batches_and_counters_are_read_as_written_and_nonsense_is_refused() -> None:
    records = [b"\x80\x01ab", b"\x80\x01", b"\x80\x01" * 300]
    payload = b"place" + encode_batch(1, records)
    skip, lengths, at = decode_batch(payload, 5)
    assert (skip, list(lengths)) == (1, [4, 2, 600])
    assert payload[at:] == b"".join(records)
    entries = [(b"a", b"1"), (b"b", None), (b"", b"")]
    counted = encode_entries(entries)
    assert decode_entries(counted) == entries
    for size in range(len(payload) - 5):
        with pytest.raises(BadFrame):
            decode_batch(payload[5 : 5 + size])
    for size in range(len(counted)):
        with pytest.raises(BadFrame):
            decode_entries(counted[:size])


def test_the_time_of_a_record_takes_the_bytes_of_its_avro_long() -> None:
    for time_ms in (0, 1, 63, 64, 1_700_000_000_000, 2_300_000_000_000):
        encoded = long_bytes(time_ms)
        assert time_bytes(encoded + b"\x85") == len(encoded)


def test_owners_have_as_many_partitions_and_wait_for_one_that_comes_back() -> None:
    owners = Owners(range(2, 8))
    owners.joined("a")
    assert owners.of("a") == [2, 3, 4, 5, 6, 7]
    owners.joined("b")
    assert (len(owners.of("a")), len(owners.of("b"))) == (3, 3)
    before = dict(owners.owner_of)
    owners.left("b")
    owners.joined("c")
    assert owners.of("b") == [each for each in before if before[each] == "b"], "its duties wait for it"
    owners.joined("b")
    assert sorted(map(len, map(owners.of, "abc"))) == [2, 2, 2]
    assert not owners.gave_up("b"), "it is back"
    owners.left("c")
    assert owners.gave_up("c")
    assert (len(owners.of("a")), len(owners.of("b")), owners.of("c")) == (3, 3, [])
    owners.left("a")
    owners.left("b")
    assert owners.gave_up("a")
    owners.joined("a")
    assert len(owners.of("a")) == 3


def test_the_tail_keeps_what_is_not_durable_and_few_bytes_of_the_rest() -> None:
    tail = Tail(10, 250)
    for number in range(5):
        tail.add(Batch(10 + 2 * number, 2, 0, bytes(100)))
    assert not tail.landed(10)
    assert tail.landed(15)
    assert (tail.first, tail.ready, tail.next, tail.durable_end) == (0, 2, 5, 14), "half a batch is not durable"
    tail.trim()
    assert (tail.first, tail.ready) == (2, 2), "what is not durable stays, however much it is"
    assert tail.number_at(14) == 2
    assert tail.number_at(13) is tail.number_at(10) is None
    tail.landed(20)
    tail.trim()
    assert (tail.first, tail.durable_end) == (3, 20)
    assert [tail.number_at(offset) for offset in (15, 16, 17, 18, 19, 20)] == [None, 3, None, 4, None, 5]


def test_counters_are_one_record_a_key_and_some_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.log.served.counters.REMOVALS", 3)
    store = CounterStore(4)
    for round_ in range(10):
        store.add(0, [(b"%d" % key, b"%d" % round_) for key in range(5)])
    assert len(store) == 5
    assert store.add(0, [(b"%d" % key, None) for key in range(5)]) == 50
    assert len(store) == 3
    assert [end for end, _ in store.frames_from(0)] == [53, 54, 55]
    assert [end for end, _ in store.frames_from(54)] == [55]


def test_of_states_the_newest_is_kept_and_copied(tmp_path: Path) -> None:
    states = FileStates(tmp_path / "states")
    entering = tmp_path / "entering"
    entering.mkdir()
    assert states.newest(0, 0, entering) is None
    for offset in (100, 200):
        source = tmp_path / f"{offset}.snapshot"
        source.write_bytes(b"%d" % offset)
        with source.open("rb") as file:
            states.write(0, offset, offset + 5, file, lambda: False)
    assert [each.name for each in (tmp_path / "states" / "queues-0").iterdir()] == ["200-205.state"]
    found = states.newest(0, 150, entering)
    assert found is not None
    assert (found.offset, found.claim, found.path.read_bytes()) == (200, 205, b"200")
    found.path.unlink()
    assert states.newest(0, 201, entering) is None
    assert (states.newest_offset(0), states.newest_offset(1)) == (200, 0)
