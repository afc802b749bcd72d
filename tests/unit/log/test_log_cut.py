"""A log is cut from its beginning, after its base is proven; a kill on the way is made good by the next opening."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import fastavro
import pytest

from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded import cut as cutting
from rewindmq.engine.log.embedded.base_records import BaseRecords
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.log_start import base_at_start, chain_of
from rewindmq.engine.log.embedded.reader import CutMeanwhile, EmbeddedLogReader, SegmentReader
from rewindmq.engine.log.embedded.segments import segment_files, segment_path, stated_chain
from rewindmq.engine.log.embedded.verify import verify_chain, verify_chain_in_parallel
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.bases import Bases
from tests.support.failpoints import armed, once
from tests.support.records import contents, fill, record
from tests.support.trimming import PARTITION, directory_of, reader_of, starts, write_base, write_traffic

OTHER_CHAIN = bytes(range(32))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("whole")
    write_traffic(data)
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"


def assert_begins_at(data: Path, original: Path, start: int) -> None:
    """The log has everything from `start` on, for a reader, for `verify` and for a broker, and the same state."""
    whole, end = reader_of(original), reader_of(original).next_offset
    log = EmbeddedLog.open(data, 1)
    assert (log.queues[0].start_offset, log.queues[0].next_offset) == (start, end)
    assert contents(log.queues[0].read(start)) == contents(whole.read())[start:]
    log.close()
    reader = reader_of(data)
    assert (reader.start_offset, reader.next_offset) == (start, end)
    assert contents(reader.read(start)) == contents(whole.read())[start:]
    assert [each.base_offset for each in verify_chain(directory_of(data))] == starts(data)
    for offset in (start, (start + end) // 2, end):
        digest = state_at(whole, None, At(offset=offset)).digest()
        assert state_at(reader, None, At(offset=offset)).digest() == digest
    assert not list((data / "bases").rglob("*.cut"))
    left = {path.stem.lstrip("_") for path in directory_of(data).iterdir()}
    assert left == {path.stem for path in segment_files(directory_of(data))}, "no sidecar is left behind"


def test_a_cut_removes_what_is_below_the_base(data: Path, original: Path) -> None:
    offset = starts(data)[3]
    write_base(data, offset)
    before = sum(path.stat().st_size for path in directory_of(data).iterdir())
    freed = cut(data, PARTITION, offset)
    assert freed == before - sum(path.stat().st_size for path in directory_of(data).iterdir())
    assert_begins_at(data, original, offset)


def test_a_log_is_cut_again_from_its_base(data: Path, original: Path) -> None:
    for number in (2, 4):
        offset = starts(original)[number]
        write_base(data, offset)
        cut(data, PARTITION, offset)
        assert_begins_at(data, original, offset)


def test_a_cut_to_the_start_removes_nothing(data: Path) -> None:
    offset = starts(data)[2]
    write_base(data, offset)
    assert cut(data, PARTITION, offset) > 0
    assert cut(data, PARTITION, offset) == 0


def test_the_log_goes_on_behind_a_cut(data: Path) -> None:
    write_base(data, starts(data)[-1])
    cut(data, PARTITION, starts(data)[-1])
    [start] = starts(data)
    log = EmbeddedLog.open(data, 1, 30_000)
    records = contents(log.queues[0].read(start))
    for _ in range(30):
        for each in records[:20]:
            log.queues[0].append(1 << 42, each)
        log.commit_and_wait()
    log.close()
    assert len(starts(data)) > 2
    assert contents(reader_of(data).read(start)) == records + records[:20] * 30
    assert len(list(verify_chain(directory_of(data)))) == len(starts(data))


@pytest.mark.long(steps=set(range(13)) - {0, 6, 12})
@pytest.mark.parametrize("steps", range(13))
def test_a_cut_killed_between_two_removals_is_ended_at_the_next_opening(
    data: Path, original: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = starts(data)[4]
    write_base(data, offset)
    left = steps
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with suppress(KeyboardInterrupt):
        cut(data, PARTITION, offset)
    monkeypatch.undo()
    if starts(data)[0] == 0:  # no segment had gone: the log begins where it began
        assert steps == 0
        cut(data, PARTITION, offset)
    else:
        assert contents(reader_of(data).read(offset)) == contents(reader_of(original).read())[offset:]
    assert_begins_at(data, original, offset)


def test_a_half_cut_log_can_be_read_before_its_cut_is_ended(data: Path, original: Path) -> None:
    write_base(data, starts(data)[4]).with_suffix(".cut").touch()
    start = starts(data)[1]
    for path in segment_files(directory_of(data))[:1]:
        path.unlink()
    assert contents(reader_of(data).read(start)) == contents(reader_of(original).read())[start:]
    with pytest.raises(LogError, match="its base cannot be used"):
        reader_of(data).base()


def test_a_base_further_on_ends_no_cut_that_was_not_begun(data: Path, original: Path) -> None:
    """A trim was killed before its event, and left its base. Then the base at the start was lost."""
    first, further = starts(data)[1], starts(data)[3]
    base = write_base(data, first)
    cut(data, PARTITION, first)
    write_base(data, further)
    kept = base.read_bytes()
    base.unlink()
    with pytest.raises(CorruptLog, match="what was before is gone"):
        EmbeddedLog.open(data, 1)
    assert starts(data)[0] == first
    base.write_bytes(kept)
    assert_begins_at(data, original, first)


def no_base(path: Path) -> None:
    path.unlink()


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("harm", [no_base, damaged, cut_short])
def test_nothing_is_cut_without_a_sound_base(data: Path, original: Path, harm: Callable[[Path], None]) -> None:
    offset = starts(data)[3]
    harm(write_base(data, offset))
    with pytest.raises(LogError, match=f"queues-0 cannot begin at offset {offset}: .*{offset}.base"):
        cut(data, PARTITION, offset)
    assert_begins_at(data, original, 0)


def test_a_base_of_another_history_cuts_nothing(data: Path, original: Path) -> None:
    offset = starts(data)[3]
    write_base(data, offset, chain=OTHER_CHAIN)
    with pytest.raises(LogError, match="of another history"):
        cut(data, PARTITION, offset)
    assert_begins_at(data, original, 0)
    for path in segment_files(directory_of(data))[:3]:
        path.unlink()
    with pytest.raises(CorruptLog, match="hash chain"):
        EmbeddedLog.open(data, 1)


def test_only_queue_partitions_are_cut_and_only_where_a_segment_begins(data: Path) -> None:
    with pytest.raises(LogError, match="cannot be trimmed"):
        cut(data, "metadata-0", 0)
    write_base(data, starts(data)[3])
    with pytest.raises(LogError, match="no segment begins at offset 17"):
        cut(data, PARTITION, 17)


def test_segments_that_are_gone_without_a_base_are_damage(data: Path) -> None:
    for path in segment_files(directory_of(data))[:2]:
        path.unlink()
    for opening in (
        lambda: EmbeddedLog.open(data, 1),
        lambda: contents(EmbeddedLogReader(data).queues[0].read()),
        lambda: list(verify_chain(directory_of(data))),
    ):
        with pytest.raises(CorruptLog, match="what was before is gone"):
            opening()


def test_a_segment_that_a_cut_removes_while_it_is_opened_is_no_damage(data: Path, original: Path) -> None:
    """A reader listed the segments of a half cut log. What said that the log begins there goes with the cut."""
    offset = starts(data)[4]
    write_base(data, offset).with_suffix(".cut").touch()
    segment_files(directory_of(data))[0].unlink()
    first = SegmentReader(segment_files(directory_of(data))[0], last=False)
    cut(data, PARTITION, offset)
    with pytest.raises(CutMeanwhile, match="it was cut off"):
        first.first_place()
    first.close()
    assert_begins_at(data, original, offset)


def test_a_reader_lives_with_a_cut_under_it(data: Path, original: Path) -> None:
    """A broker has the partition open while another process cuts it."""
    offset = starts(data)[3]
    write_base(data, offset)
    log = EmbeddedLog.open(data, 1)
    partition, reader = log.queues[0], reader_of(data)
    reading = reader.read()
    first = next(reading)
    cut(data, PARTITION, offset)
    assert first.first_offset == 0
    with pytest.raises(CutMeanwhile, match=f"begins at offset {offset} now"):
        list(reading)
    for each in (partition, reader):
        assert each.start_offset == offset
        assert contents(each.read(offset)) == contents(reader_of(original).read())[offset:]
        assert each.offset_at(0) == offset
        assert each.segments()[0].base_offset == offset
        base = each.base()
        assert base is not None
        assert base.offset == offset
    log.close()


def test_a_reader_has_the_base_of_the_latest_cut(data: Path) -> None:
    reader, before = reader_of(data), starts(data)
    for number in (2, 4):
        write_base(data, before[number])
        cut(data, PARTITION, before[number])
        base = reader.base()
        assert base is not None
        assert base.offset == before[number]


def test_a_listing_that_a_cut_overtakes_is_asked_anew(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = starts(data)[3]
    write_base(data, offset)
    reader = reader_of(data)
    listed = segment_files(directory_of(data))
    answers = iter([listed])
    monkeypatch.setattr(
        "rewindmq.engine.log.embedded.reader.segment_files",
        lambda directory: next(answers, None) or segment_files(directory),
    )
    cut(data, PARTITION, offset)
    assert [each.base_offset for each in reader.segments()] == starts(data)


def test_a_verification_whose_segments_go_begins_anew(data: Path) -> None:
    """Segments are listed, and gone before their sizes are asked."""
    offset = starts(data)[3]
    write_base(data, offset)
    with armed("verify.after_listing", once(lambda: cut(data, PARTITION, offset))):
        found = verify_chain_in_parallel(directory_of(data))
    assert [each.base_offset for each in found] == starts(data)
    assert found[0].base_offset == offset


def test_the_sidecars_of_a_segment_that_is_made_meanwhile_stay(data: Path) -> None:
    offset = starts(data)[3]
    write_base(data, offset)
    newest = segment_path(directory_of(data), 10**9)
    index = newest.with_name(f"_{newest.stem}.index")
    index.write_bytes(b"of a segment that a broker is making")
    cutting.cut(data, PARTITION, offset)
    assert index.exists()


def test_a_log_may_begin_at_offset_1(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, 1, segment_bytes=1)
    for number in range(2):
        fill(log.queues[0], [number])
        log.commit_and_wait()
    log.close()
    machine = Machine(PARTITION)
    machine.skip(0)
    Bases(tmp_path / "bases").write(machine, stated_chain(segment_path(directory_of(tmp_path), 1)), [])
    cut(tmp_path, PARTITION, 1)
    base = base_at_start(directory_of(tmp_path))
    assert base is not None
    assert reader_of(tmp_path).start_offset == 1
    assert contents(reader_of(tmp_path).read(1)) == [record(1)]


def test_a_base_is_read_once(data: Path) -> None:
    offset = starts(data)[3]
    base = write_base(data, offset)
    cut(data, PARTITION, offset)
    opened = base_at_start(directory_of(data))
    assert opened is not None
    queued = [each for each in range(offset) if opened.record(each)]
    records = BaseRecords(directory_of(data))
    assert records.record(offset, queued[0]) == opened.record(queued[0])
    base.unlink()
    assert records.record(offset, queued[-1]) == opened.record(queued[-1])
    with pytest.raises(LogError):
        records.record(offset - 1, queued[0])  # of another beginning


@pytest.mark.parametrize("half_cut", [False, True])
def test_a_base_that_could_not_be_read_is_read_again(data: Path, half_cut: bool) -> None:
    offset = starts(data)[3]
    base = write_base(data, offset)
    if half_cut:
        base.with_suffix(".cut").touch()
        segment_files(directory_of(data))[0].unlink()
    else:
        cut(data, PARTITION, offset)
    opened = Bases(data / "bases").open(PARTITION, offset)
    queued = next(each for each in range(offset) if opened.record(each))
    records, kept = BaseRecords(directory_of(data)), base.read_bytes()
    damaged(base)
    with pytest.raises(LogError):
        records.record(starts(data)[0], queued)
    base.write_bytes(kept)
    assert records.record(starts(data)[0], queued) == opened.record(queued)


@pytest.mark.parametrize("stated", ["ab" * 31, "ab" * 33, "ab" * 31 + "a", "xy" * 32, "", None])
def test_a_base_has_a_chain_of_32_bytes_or_none(tmp_path: Path, stated: str | None) -> None:
    path = tmp_path / "0.base"
    assert chain_of(path) is None
    assert chain_of(tmp_path) is None
    path.touch()
    assert chain_of(path) is None
    for chain, found in (("ab" * 32, b"\xab" * 32), (stated, None)):
        with path.open("wb") as file:
            fastavro.writer(file, "null", [], metadata={} if chain is None else {"rewindmq.chain": chain})
        assert chain_of(path) == found


def test_a_partition_without_segments_begins_with_no_base(tmp_path: Path) -> None:
    assert base_at_start(tmp_path) is None
