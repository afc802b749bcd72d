"""Opening after a crash or after damage: a torn tail is cut, everything else that is not as written is refused with its
place, and what can be derived is derived anew."""

import logging
import os
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.log.chain import first_chain, link
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.blocks import encode_block
from rewindmq.engine.log.embedded.index import ENTRY, HEADER, encode_lengths, index_path, lengths_path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, SegmentReader
from rewindmq.engine.log.embedded.segments import read_header, segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.schemas.single_object import HEADER as PREFIX
from tests.support.records import SCHEMA_BYTES, START_MS, bare, contents, expected, fill, make_log, record, reopened


def blocks_of(data: Path) -> list[tuple[int, int]]:
    """(first offset, position) of each block of the queue partition."""
    return [(block.first_offset, block.position) for block in EmbeddedLogReader(data).queues[0].read()]


def forget(path: Path, entries: int) -> None:
    """Leave so many entries in the index, as a power loss may."""
    with index_path(path).open("r+b") as file:
        file.truncate(HEADER.size + entries * ENTRY.size)


def test_a_torn_tail_of_any_length_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last block was being written: whatever part of it is there, the log ends with the block before it, and goes
    on from there."""
    directory = make_log(tmp_path / "log", [4, 3, 2])
    [path] = segment_files(directory)
    whole = path.read_bytes()
    last = blocks_of(tmp_path / "log")[-1][1]
    forget(path, 2)
    index = index_path(path).read_bytes()
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        index_path(path).write_bytes(index)
        caplog.clear()
        assert contents(EmbeddedLogReader(tmp_path / "log").queues[0].read()) == expected(7)
        assert reopened(tmp_path / "log") == expected(7)
        assert path.stat().st_size == last
        cut = [line.getMessage() for line in caplog.records if "cut" in line.message]
        if end > last:
            assert [f"cut {end - last} bytes at byte {last} (offset 7)" in line for line in cut] == [True]
        else:
            assert cut == []

    def go_on(log: EmbeddedLog) -> None:
        fill(log.queues[0], range(7, 20))
        log.commit_and_wait()

    path.write_bytes(whole[:-1])
    assert reopened(tmp_path / "log", go_on) == expected(20)
    assert sum(segment.records for segment in verify_chain(directory)) == 20


def test_a_damaged_last_block_is_cut_when_nothing_says_it_was_durable(tmp_path: Path) -> None:
    """A power loss can leave a block of the right length with pages that were never written."""
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    whole = path.read_bytes()
    start = blocks_of(tmp_path)[-1][1]
    for damage in (b"\0" * (len(whole) - start), b"\0" * (len(whole) - start - 16) + whole[-16:]):
        path.write_bytes(whole[:start] + damage)
        forget(path, 2)
        assert reopened(tmp_path) == expected(7)
        assert path.read_bytes() == whole[:start]


def test_a_whole_block_behind_the_index_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Durable, and killed before the index was written: it may have been confirmed."""
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    for entries in (2, 1, 0):
        forget(path, entries)
        assert contents(EmbeddedLogReader(tmp_path).queues[0].read()) == expected(9)
        assert EmbeddedLogReader(tmp_path).queues[0].offset_at(START_MS + 5) == 6
        assert reopened(tmp_path) == expected(9)
        [segment] = verify_chain(directory)
        assert segment.blocks == 3


def damage_at(path: Path, position: int, with_bytes: bytes | None = None) -> None:
    """Other bytes at this place: these, or the one there with a bit turned."""
    with path.open("r+b") as file:
        file.seek(position)
        new = with_bytes if with_bytes is not None else bytes([file.read(1)[0] ^ 4])
        file.seek(position)
        file.write(new)


def test_any_damaged_byte_of_a_middle_block_is_refused_with_its_place(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    whole = path.read_bytes()
    (_, _), (offset, start), (_, end) = blocks_of(tmp_path)
    for position in range(start, end):
        damage_at(path, position)
        log = EmbeddedLogReader(tmp_path).queues[0]
        assert contents(log.read(0, 4)) == expected(4)
        with pytest.raises(CorruptLog, match=f"block at byte {start} ") as refused:
            contents(log.read())
        assert (refused.value.file, refused.value.position, refused.value.offset) == (path, start, offset)
        with pytest.raises(CorruptLog):
            list(verify_chain(directory))
        with pytest.raises(CorruptLog, match=f"block at byte {start} "):
            EmbeddedLog.open(tmp_path, 1)
        path.write_bytes(whole)
    assert reopened(tmp_path) == expected(9)


def test_damage_is_not_taken_for_a_torn_tail_when_the_index_is_lost(tmp_path: Path) -> None:
    """Without an index only structure tells, but never is a block left out with another one behind it."""
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    whole = path.read_bytes()
    (_, _), (offset, start), (_, end) = blocks_of(tmp_path)
    length_of_a_key = whole.index(b"key.", start) - 1
    for position in (start, start + 1, end - 1, end - 16, length_of_a_key):
        damage_at(path, position, b"\xfe" if whole[position] == 0xFF else b"\xff")  # the marker behind it is random
        index_path(path).unlink(missing_ok=True)
        openings: tuple[Callable[[], object], ...] = (
            lambda: reopened(tmp_path),
            lambda: contents(EmbeddedLogReader(tmp_path).queues[0].read()),
        )
        for opening in openings:
            with pytest.raises(CorruptLog, match="a whole block follows") as refused:
                opening()
            assert (refused.value.file, refused.value.position, refused.value.offset) == (path, start, offset)
        path.write_bytes(whole)
    assert reopened(tmp_path) == expected(9)


def test_a_durable_block_that_is_gone_is_refused(tmp_path: Path) -> None:
    """The index says that it was durable, and there is not even half of it: this is no torn tail."""
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    starts = [start for _, start in blocks_of(tmp_path)]
    whole = path.read_bytes()
    for end, lost, offset in ((starts[2], starts[2], 7), (starts[2] - 1, starts[1], 4)):
        path.write_bytes(whole[:end])
        with pytest.raises(CorruptLog) as refused:
            EmbeddedLog.open(tmp_path, 1)
        assert (refused.value.position, refused.value.offset) == (lost, offset)
        assert path.stat().st_size == end  # untouched


@pytest.mark.parametrize("left", [1, -1])
def test_half_a_block_that_the_index_knows_is_cut_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    """A disk that lied about its sync, or a file cut by hand: what is whole goes on, and what is lost is said."""
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    start, end = blocks_of(tmp_path)[-1][1], path.stat().st_size
    os.truncate(path, start + left if left > 0 else end + left)
    with pytest.raises(CorruptLog):  # a reader gets the error, and changes nothing
        list(verify_chain(directory))
    assert reopened(tmp_path) == expected(7)
    assert f"byte {start}, which had been synced: its 2 records from offset 7 on are lost" in caplog.text
    assert len(list(verify_chain(directory))) == 1


def test_a_directory_in_place_of_a_segment_is_refused_with_its_name(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [4, 3, 2])
    [path] = segment_files(directory)
    path.unlink()
    path.mkdir()
    for read in (lambda: EmbeddedLog.open(tmp_path, 1), lambda: contents(EmbeddedLogReader(tmp_path).queues[0].read())):
        with pytest.raises(CorruptLog, match="a directory, in place of a segment") as refused:
            read()
        assert refused.value.file == path


def lose(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 5])


def garble(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def flip(path: Path) -> None:
    damage_at(path, path.stat().st_size * 2 // 3)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 500)


@pytest.mark.parametrize("sidecar", [index_path, lengths_path])
@pytest.mark.parametrize("harm", [lose, halve, garble, zeros, flip, longer])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_harmed_sidecar_is_made_anew(
    tmp_path: Path, sidecar: Callable[[Path], Path], harm: Callable[[Path], None], which: int
) -> None:
    directory = make_log(tmp_path, [10] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    files = segment_files(directory)
    assert len(files) > 2
    harm(sidecar(files[which]))
    log = EmbeddedLogReader(tmp_path).queues[0]
    assert contents(log.read()) == expected(200)
    for offset in range(0, 200, 9):
        found = next(log.read(offset, offset + 1))
        assert found.records[offset - found.first_offset] == record(offset)
        assert log.offset_at(START_MS + offset) == offset + 1
    assert log.next_offset == 200
    assert reopened(tmp_path) == expected(200)
    assert list(verify_chain(directory))[-1].next_offset == 200
    after = {path: path.read_bytes() for path in directory.iterdir()}
    assert after.keys() == before.keys()
    for path in files:  # the segments are untouched; the chain comes out the same
        assert after[path] == before[path]
    if which == -1:  # a broker writes there, so it makes them whole
        assert after == before
    chains = {block.chain for block in log.read()}
    assert len(chains) == 20
    assert list(verify_chain(directory))[-1].chain in chains


def test_any_bad_entry_of_an_index_is_walked_around(tmp_path: Path) -> None:
    """Reading goes on, and so does a broker that opens the log, which writes on behind it."""
    directory = make_log(tmp_path, [5] * 8)
    [path] = segment_files(directory)
    whole = index_path(path).read_bytes()
    for number in range(8):
        damage_at(index_path(path), HEADER.size + number * ENTRY.size + 30)
        log = EmbeddedLogReader(tmp_path).queues[0]
        assert contents(log.read()) == expected(40)
        assert next(log.read(39)).first_offset == 35
        assert log.offset_at(START_MS + 12) == 13
        assert reopened(tmp_path) == expected(40)
        [segment] = verify_chain(directory)
        assert (segment.next_offset, segment.blocks) == (40, 8)
        index_path(path).write_bytes(whole)
    log = EmbeddedLogReader(tmp_path).queues[0]
    assert [block.chain for block in log.read()][-1] == next(verify_chain(directory)).chain


def test_an_index_counts_its_good_entries_and_those_with_sound_lengths(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [5] * 8)
    [path] = segment_files(directory)

    def counted() -> tuple[int, int]:
        segment = SegmentReader(path, last=True)
        try:
            return segment.index.keep_good_entries()
        finally:
            segment.close()

    assert counted() == (8, 8)
    damage_at(lengths_path(path), 4 * 12)
    assert counted() == (8, 2)
    damage_at(index_path(path), HEADER.size + 6 * ENTRY.size + 30)
    assert counted() == (6, 2)
    damage_at(index_path(path), HEADER.size + ENTRY.size + 30)
    assert counted() == (1, 1)


def test_an_index_has_lengths_as_far_as_their_file_goes(tmp_path: Path) -> None:
    [path] = segment_files(make_log(tmp_path, [5, 5]))
    segment = SegmentReader(path, last=True)
    assert segment.index.has_lengths(10)
    os.truncate(lengths_path(path), 4 * 10 - 1)
    assert [segment.index.has_lengths(end) for end in (9, 10)] == [True, False]
    segment.close()


def test_a_read_behind_a_damaged_block_needs_no_index_of_the_newest(tmp_path: Path) -> None:
    """The blocks that are read prove what the index lists, and the others continue from there."""
    directory = make_log(tmp_path, [4, 3, 2, 1])
    [path] = segment_files(directory)
    forget(path, 3)
    damage_at(path, blocks_of(tmp_path)[1][1] + 60)
    log = EmbeddedLogReader(tmp_path).queues[0]
    assert contents(log.read(7)) == expected(10)[7:]
    with pytest.raises(CorruptLog):
        contents(log.read())


def test_segments_that_do_not_join_are_refused(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "whole", [10] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    missing = segment_files(directory)[1]
    shutil.copytree(tmp_path / "whole", tmp_path / "gap")
    (tmp_path / "gap" / "log" / "queues-0" / missing.name).unlink()
    third = segment_files(directory)[2].name
    for opening in (
        lambda: EmbeddedLog.open(tmp_path / "gap", 1),
        lambda: contents(EmbeddedLogReader(tmp_path / "gap").queues[0].read()),
        lambda: list(verify_chain(tmp_path / "gap" / "log" / "queues-0")),
    ):
        with pytest.raises(CorruptLog, match="the segment before ends at offset") as refused:
            opening()
        assert refused.value.file.name == third


def test_history_rewritten_with_its_index_breaks_the_chain(tmp_path: Path) -> None:
    """A segment that is written anew, with its checks and its index, no longer leads to the chain of the next one."""
    directory = make_log(tmp_path / "other", [11] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    forged = segment_files(directory)[0]
    directory = make_log(tmp_path, [10] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    first, second = segment_files(directory)[:2]
    blocks = [bare(block.records) for block in EmbeddedLogReader(tmp_path).queues[0].read() if block.file == first]
    blocks[0][3] = blocks[0][3].replace(b"key.3", b"KEY.3")
    with forged.open("rb") as file:
        header = read_header(forged, file.fileno())
    offset, chain, parts = 0, first_chain("queues-0"), [header.raw]
    for records in blocks:
        raw = encode_block(records, sum(map(len, records)), header.sync, offset, chain)
        lengths = encode_lengths(array("I", map(len, records)))
        offset, chain = offset + len(records), link(chain, offset, PREFIX, lengths, records)
        parts.append(raw)
    first.write_bytes(b"".join(parts))
    index_path(first).unlink()
    assert contents(EmbeddedLogReader(tmp_path).queues[0].read(0, 4)) != expected(10)
    with pytest.raises(CorruptLog, match="hash chain") as refused:
        list(verify_chain(directory))
    assert refused.value.file == second
    with pytest.raises(CorruptLog, match="hash chain"):
        EmbeddedLog.open(tmp_path, 1)


@pytest.mark.parametrize("harm", [zeros, garble, halve])
def test_a_damaged_segment_header_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    directory = make_log(tmp_path, [])
    [path] = segment_files(directory)
    harm(path)
    with pytest.raises(CorruptLog, match="not a whole segment header"):
        EmbeddedLog.open(tmp_path, 1)


def test_a_segment_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [5])
    [path] = segment_files(directory)
    path.rename(path.with_name("0" * 19 + "7.avro"))
    with pytest.raises(CorruptLog, match="the header says offset 0 of partition queues-0"):
        EmbeddedLog.open(tmp_path, 1)


def test_a_segment_that_was_being_made_is_made_again(tmp_path: Path) -> None:
    """It gets its name when its header is whole."""
    directory = make_log(tmp_path, [5])
    (directory / f"_{5:020d}.avro.new").write_bytes(b"Obj")
    assert reopened(tmp_path) == expected(5)


def test_opening_checks_what_it_will_build_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A sound log opens without a warning, and its last block is read once more."""
    directory = make_log(tmp_path, [5, 5])
    with caplog.at_level(logging.INFO):
        assert reopened(tmp_path) == expected(10)
    assert caplog.records == []
    [path] = segment_files(directory)
    with path.open("rb") as file:
        assert read_header(path, file.fileno()).base_offset == 0
    damage_at(path, path.stat().st_size - 30)
    with pytest.raises(CorruptLog):
        EmbeddedLog.open(tmp_path, 1)
