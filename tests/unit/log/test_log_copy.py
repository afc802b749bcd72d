"""A copy of a log has the same bytes; torn ends are fetched again; bytes that do not belong are refused (B-59)."""

import random
from pathlib import Path

import pytest

from rewindmq.engine.keeping.cut_back import cut_back
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, write_layout
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.raw_blocks import beginning_of_log, chain_at, end_at, piece_behind
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.engine.standby.log_copy import MOMENT, LogCopy, PartitionCopy
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.bases import Bases
from tests.support.records import SCHEMA_BYTES, fill

NAMES = (METADATA, "queues-0")
SEGMENT_BYTES = SCHEMA_BYTES + 2_000


def leader(data: Path, commits: int = 30) -> dict[str, End]:
    """A log of several segments. Returns its ends."""
    log = EmbeddedLog.open(data, 1, SEGMENT_BYTES)
    begun = log.queues[0].next_offset
    for number in range(begun, begun + 10 * commits, 10):
        for partition in log.partitions:
            fill(partition, range(number, number + 10))
        log.commit_and_wait()
    ends = {partition.name: partition.durable_end for partition in log.partitions}
    log.close()
    return ends


def empty(data: Path) -> Path:
    for name in NAMES:
        partition_directory(data, name).mkdir(parents=True)
    write_layout(data, 1)
    return data


def pieces(source: Path, copy: LogCopy, ends: dict[str, End], most: int) -> list[tuple[str, int, int, bytes]]:
    """Return a leader's answer: the next piece of each partition, with its segment's base and its position."""
    found = []
    for name, end in copy.ends.items():
        directory = partition_directory(source, name)
        assert beginning_of_log(directory) == 0
        piece = piece_behind(directory, end, ends[name], most)
        if piece is not None:
            raw = piece.path.read_bytes()[piece.position : piece.position + piece.size]
            found.append((name, piece.base, piece.position, raw))
    return found


def copied(source: Path, copy: LogCopy, ends: dict[str, End], most: int = SCHEMA_BYTES + 900) -> None:
    target = {name: end.offset for name, end in ends.items()}
    while not copy.has(target):
        needed = copy.add(pieces(source, copy, ends, most), target)
        most = max(most, needed)
    assert copy.ends == copy.moment == ends


def files_of(data: Path) -> dict[str, bytes]:
    return {f"{name}/{path.name}": path.read_bytes() for name in NAMES for path in segment_files(data / "log" / name)}


def test_b59_a_copy_has_the_same_bytes_however_they_are_cut(tmp_path: Path) -> None:
    ends = leader(tmp_path / "leader")
    copy = LogCopy(empty(tmp_path / "copy"))
    copied(tmp_path / "leader", copy, ends)
    ends = leader(tmp_path / "leader", 5)  # the leader goes on
    copied(tmp_path / "leader", copy, ends, SCHEMA_BYTES + 400)
    copy.close()
    assert files_of(tmp_path / "copy") == files_of(tmp_path / "leader")
    assert len(files_of(tmp_path / "copy")) > 4
    for name in NAMES:
        (*_, last) = verify_chain(tmp_path / "copy" / "log" / name)
        assert last.chain == ends[name].chain
    log = EmbeddedLog.open(tmp_path / "copy", 1)  # as a broker would, after a promotion
    assert log.queues[0].next_offset == ends["queues-0"].offset
    log.close()


def test_b59_any_block_may_be_torn_behind_the_synced_ends(tmp_path: Path) -> None:
    """Many blocks are synced at once, so a power cut tears any of them."""
    early = leader(tmp_path / "leader", 8)
    copy = LogCopy(empty(tmp_path / "copy"))
    copied(tmp_path / "leader", copy, early)
    noted = (tmp_path / "copy" / MOMENT).read_bytes()
    ends = leader(tmp_path / "leader", 8)
    copied(tmp_path / "leader", copy, ends)
    copy.close()
    (tmp_path / "copy" / MOMENT).write_bytes(noted)  # the newer note did not reach the disk
    for name in NAMES:
        with segment_files(tmp_path / "copy" / "log" / name)[-1].open("r+b") as file:
            file.seek(-700, 2)
            file.write(bytes(50))
    copy = LogCopy(tmp_path / "copy")
    assert copy.ends == copy.moment == early
    copied(tmp_path / "leader", copy, ends)
    copy.close()
    assert files_of(tmp_path / "copy") == files_of(tmp_path / "leader")


@pytest.mark.parametrize("seed", range(5))
def test_b59_a_changed_byte_is_refused_before_it_is_written(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ends = leader(tmp_path / "leader", 4)
    copy = LogCopy(empty(tmp_path / "copy"))
    target = {name: end.offset for name, end in ends.items()}
    copy.add(pieces(tmp_path / "leader", copy, ends, SCHEMA_BYTES + 1_200), target)
    before, at = files_of(tmp_path / "copy"), copy.ends
    name, base, position, raw = chance.choice(pieces(tmp_path / "leader", copy, ends, 1 << 20))
    block = chance.randrange(40, 90) if position else None
    where = chance.randrange(len(raw)) if block is None else block
    if position == 0:  # the bytes of a header outside its places decide nothing here; those of a block do
        where = len(raw) - chance.randrange(30, 100)
    changed = bytearray(raw)
    changed[where] ^= 1 << chance.randrange(8)
    with pytest.raises(CorruptLog, match="the leader"):
        copy.add([(name, base, position, bytes(changed))], target)
    if position:
        assert (files_of(tmp_path / "copy"), copy.ends) == (before, at)
    copied(tmp_path / "leader", copy, ends)
    copy.close()
    assert files_of(tmp_path / "copy") == files_of(tmp_path / "leader")


def test_b59_bytes_of_another_history_are_refused(tmp_path: Path) -> None:
    ends = leader(tmp_path / "leader", 2)
    others = leader(tmp_path / "other", 4)
    copy = LogCopy(empty(tmp_path / "copy"))
    copied(tmp_path / "leader", copy, ends)
    with pytest.raises(CorruptLog):
        copied(tmp_path / "other", copy, others)
    assert copy.ends == ends
    copy.close()


def test_b60_what_is_cut_back_is_kept_aside(tmp_path: Path) -> None:
    """In the middle of a segment, and at the end of one; begun again after a kill it does no more."""
    ends = leader(tmp_path / "leader", 30)
    name = queue_partition(0)
    directory = partition_directory(tmp_path / "leader", name)
    whole = {path.name: path.read_bytes() for path in segment_files(directory)}
    (_, second, third, *_) = segment_files(directory)
    for number, offset in enumerate((int(third.stem), int(second.stem) + 10)):
        end = end_at(directory, offset)
        assert end is not None
        assert end.chain == chain_at(directory, offset, ends[name])
        aside = tmp_path / "leader" / "aside" / str(number)
        there = PartitionReader(directory).next_offset
        assert cut_back(tmp_path / "leader", name, end, aside) == there - offset
        assert cut_back(tmp_path / "leader", name, end, aside) == 0
        kept = {path.name: path.read_bytes() for path in (aside / name).glob("[0-9]*.avro")}
        assert kept
        assert all(whole[each].startswith(raw) for each, raw in kept.items())
        (*_, last) = verify_chain(directory)
        assert (last.next_offset, last.chain) == (offset, end.chain)
    assert end_at(directory, int(second.stem) + 5) is None, "no block ends there"


def test_b60_a_copy_without_segments_continues_at_its_newest_base(tmp_path: Path) -> None:
    directory = partition_directory(empty(tmp_path), "queues-0")
    assert LogCopy(tmp_path).ends["queues-0"].offset == 0
    for offset in (7, 90):
        machine = Machine("queues-0")
        machine.skip(offset - 1)
        Bases(tmp_path / "bases").write(machine, bytes([offset]) * 32, [])
    assert PartitionCopy(directory).end == End(90, 0, 90, bytes([90]) * 32)
