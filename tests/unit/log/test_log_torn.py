"""A block says where it belongs and carries a checksum: nothing that a power cut or a disk left in its place is taken
for it."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded import blocks, reader
from rewindmq.engine.log.embedded.index import ENTRY, index_path, lengths_path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import follow_on, verify_chain, verify_segment
from rewindmq.engine.log.embedded.writer import PartitionWriter
from tests.support.examples import rounds
from tests.support.records import (
    SCHEMA_BYTES,
    START_MS,
    avro_rows,
    contents,
    expected,
    fill,
    make_log,
    record,
    reopened,
)
from tests.support.torn import KINDS, run


def test_whatever_a_power_cut_leaves_only_what_was_written_is_read(tmp_path: Path) -> None:
    """Torn pages, older content, stale blocks, misdirected writes, flipped bits: 600 seeds, 150 in the quick tier. More
    of them: `python -m tests.support.torn 10000`."""
    seeds = rounds(600, quick=150)
    outcomes = Counter(run(seed, tmp_path / str(seed)) for seed in range(seeds))
    assert {kind for kind, _ in outcomes} == set(KINDS)
    for outcome in (("torn", "cut"), ("stale", "refused"), ("misdirected", "refused")):
        assert outcomes[outcome] > seeds * 70 / 600, outcome


def test_without_a_checksum_or_without_a_place_the_seeds_would_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above could fail."""
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "crc32", lambda data, before=0: 7)
        with pytest.raises(AssertionError):
            [run(seed, tmp_path / f"a{seed}") for seed in range(300)]
    with monkeypatch.context() as patch:
        patch.setattr(reader, "require_place", lambda *arguments: None)
        with pytest.raises(AssertionError):
            [run(seed, tmp_path / f"b{seed}") for seed in range(300)]


def forget_the_last(path: Path) -> None:
    """The index as it is before the entry of the last block is written."""
    index_path(path).write_bytes(index_path(path).read_bytes()[: -ENTRY.size])


def test_a_torn_page_that_breaks_no_structure_is_cut(tmp_path: Path) -> None:
    """A sector of a body is zeros: count, size, sync marker and the walk over the records are as they should be."""
    log = EmbeddedLog.open(tmp_path, 1)
    fill(log.queues[0], range(4))
    log.commit_and_wait()
    log.queues[0].append(START_MS + 4, record(4, body_bytes=3_000))
    log.commit_and_wait()
    log.close()
    [path] = segment_files(tmp_path / "log" / "queues-0")
    content = path.read_bytes()
    body = content.index(b"4....")
    path.write_bytes(content[: body + 512] + bytes(512) + content[body + 1_024 :])
    forget_the_last(path)
    assert contents(PartitionReader(path.parent).read()) == expected(4)
    assert reopened(tmp_path) == expected(4)
    assert [segment.records for segment in verify_chain(path.parent)] == [4]


def test_a_stale_copy_of_a_block_is_refused_with_its_place(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [4, 3])
    [path] = segment_files(directory)
    content = path.read_bytes()
    first, second = (block.position for block in PartitionReader(directory).read())
    for raw, says in ((content[first:second], "a whole block of offset 0"), (content[second:], "of offset 4")):
        path.write_bytes(content + raw)
        for opening in (lambda: EmbeddedLog.open(tmp_path, 1), lambda: list(verify_chain(directory))):
            with pytest.raises(CorruptLog, match=f"{says}: that of offset 7 belongs here") as refused:
                opening()
            assert (refused.value.file, refused.value.position, refused.value.offset) == (path, len(content), 7)
        path.write_bytes(content)
    assert reopened(tmp_path) == expected(7)


@pytest.mark.parametrize("where", ["another partition", "another life"])
def test_a_block_of_another_file_is_refused(tmp_path: Path, where: str) -> None:
    directory = make_log(tmp_path / "log", [4, 3])
    other = make_log(tmp_path / "other", [4, 3, 2])
    [path] = segment_files(directory)
    content = path.read_bytes()
    if where == "another partition":
        [foreign] = segment_files(other)
        block = foreign.read_bytes()[list(PartitionReader(other).read())[2].position :]
        says = "of another segment: its sync marker says so"
    else:  # of this file, but its first block was another one, and one more came behind it
        second = list(PartitionReader(directory).read())[1].position
        life = tmp_path / "life" / "queues-0"
        life.mkdir(parents=True)
        (life / path.name).write_bytes(content[: next(PartitionReader(directory).read()).position])
        writer = PartitionWriter(life, 1 << 30, begin=False)
        writer.write([record(n, START_MS + 99 + n) for n in range(7)], START_MS)
        end = writer.place.position
        writer.write([record(7)], START_MS)
        writer.close()
        block = (life / path.name).read_bytes()[end:]
        assert second != end
        says = "a whole block, and not one of this history: it follows on the hash chain"
    path.write_bytes(content + block)
    with pytest.raises(CorruptLog, match=says) as refused:
        EmbeddedLog.open(tmp_path / "log", 1)
    assert (refused.value.position, refused.value.offset) == (len(content), 7)
    path.write_bytes(content)
    assert reopened(tmp_path / "log") == expected(7)


def test_an_index_that_is_wrong_in_good_order_misleads_nobody(tmp_path: Path) -> None:
    """Of another life of the file: its entries are sound in themselves. What the blocks say holds."""
    directory = make_log(tmp_path / "log", [5] * 8)
    other = make_log(tmp_path / "other", [4] * 10)
    [path], [foreign] = segment_files(directory), segment_files(other)
    header = index_path(path).read_bytes()[: -8 * ENTRY.size]
    entries = index_path(foreign).read_bytes()[-10 * ENTRY.size :]
    for kept in (header + entries, index_path(foreign).read_bytes(), header + entries[: 3 * ENTRY.size]):
        index_path(path).write_bytes(kept)
        log = PartitionReader(directory)
        assert contents(log.read()) == expected(40)
        for offset in range(40):
            [*found] = log.read(offset, offset + 1)
            assert record(offset) in found[0].records
        assert reopened(tmp_path / "log") == expected(40)
        [segment] = verify_chain(directory)
        assert (segment.records, segment.blocks) == (40, 8)


def test_large_groups_are_stored_in_pieces_that_every_tool_joins(tmp_path: Path) -> None:
    sizes = [1, 65_000, 65_535, 65_536, 131_070, 131_071, 700_000, 0]
    for together in (False, True):
        log = EmbeddedLog.open(tmp_path / str(together), 1)
        for number, size in enumerate(sizes):
            log.queues[0].append(START_MS + number, record(number, body_bytes=size))
            if not together:
                log.commit_and_wait()
        log.close()
        [path] = segment_files(tmp_path / str(together) / "log" / "queues-0")
        wanted = [record(number, body_bytes=size) for number, size in enumerate(sizes)]
        assert reopened(tmp_path / str(together)) == wanted
        index_path(path).unlink()
        lengths_path(path).unlink()
        assert contents(PartitionReader(path.parent).read()) == wanted
        with path.open("rb") as file:
            found = avro_rows(file)
        assert [len(each["event"]["body"]) for each in found] == [max(size, 1) for size in sizes]


def test_each_bit_of_a_block_counts(tmp_path: Path) -> None:
    """Also those of the check itself, and of the framing around it."""
    directory = make_log(tmp_path, [3, 2])
    [path] = segment_files(directory)
    content = path.read_bytes()
    index_path(path).unlink()
    start = list(PartitionReader(directory).read())[1].position
    for position in range(start, len(content)):
        for bit in (position % 8, (position + 3) % 8):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
            assert contents(PartitionReader(directory).read()) == expected(3)


# --- segment by segment -----------------------------------------------------------------------------------------------


def test_segments_are_proven_in_any_order_and_then_joined(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [10] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    files = segment_files(directory)
    for path in [*index_files(directory)][::2]:
        path.unlink()
    parts = [verify_segment(path, path == files[-1]) for path in files]
    random.Random(5).shuffle(files)
    again = sorted((verify_segment(path, path == parts[-1].file) for path in files), key=lambda each: each.base_offset)
    assert again == parts
    assert list(follow_on(parts)) == list(verify_chain(directory))
    assert list(follow_on(parts))[-1].next_offset == 200
    with pytest.raises(CorruptLog, match="the segment before ends at offset"):
        list(follow_on([parts[0], *parts[2:]]))
    other = dataclasses.replace(parts[1], chain_before=bytes(range(32)))
    with pytest.raises(CorruptLog, match="its hash chain does not continue"):
        list(follow_on([parts[0], other]))


def index_files(directory: Path) -> Iterator[Path]:
    return directory.glob("_*.index")
