"""A closed segment becomes two objects and comes back byte for byte; what was changed in them is found and not given
out."""

import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import pack as packs
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.pack import pack
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.index import index_path
from rewindmq.engine.log.embedded.reader import BlockEnd, PartitionReader
from rewindmq.engine.log.embedded.segments import bare_timestamp, read_header, segment_files
from rewindmq.schemas.registry import envelope_schema
from rewindmq.schemas.single_object import HEADER, header_of
from tests.support.archiving import archive_segments, object_path, original, stored_blocks, unpacked, write_segment
from tests.support.examples import examples
from tests.support.other_schema import EARLIER, EARLIER_SCHEMA, under
from tests.support.records import SCHEMA_BYTES, START_MS, avro_rows, expected, make_log, record


def beginning(partition: str = "queues-0") -> BlockEnd:
    return BlockEnd(0, 0, first_chain(partition), 0)


def test_the_records_are_a_plain_avro_file(objects: Objects, tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [7, 1, 30])
    manifest = archive_segments(objects, directory, segment_files(directory))
    [entry] = manifest.segments
    with object_path(manifest, entry, "avro").open("rb") as file:
        avro = fastavro.reader(file)
        assert avro.codec == "zstandard"
        assert json.loads(avro.metadata["avro.schema"]) == envelope_schema()
        assert avro.metadata["rewindmq.format"] == "1"
        assert avro.metadata["rewindmq.partition"] == "queues-0"
        assert avro.metadata["rewindmq.base_offset"] == "0"
    with object_path(manifest, entry, "avro").open("rb") as archived, segment_files(directory)[0].open("rb") as stored:
        assert avro_rows(archived) == avro_rows(stored)
    assert (entry.base_offset, entry.next_offset, entry.group_offset) == (0, 38, 0)
    assert (entry.linked_offset, entry.linked_chain) == (38, entry.chain)
    assert (entry.first_ms, entry.max_timestamp_ms) == (START_MS, START_MS + 37)
    assert (entry.chain_before, entry.chain) == (
        first_chain("queues-0"),
        list(PartitionReader(directory).read())[-1].chain,
    )


def test_segments_come_back_with_every_block_as_it_was(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "BLOCK_BYTES", 500)
    directory = make_log(tmp_path / "data", [10] * 90, segment_bytes=SCHEMA_BYTES + 3_100)
    files = segment_files(directory)
    manifest = archive_segments(objects, directory, files)
    assert len(files) > 2
    blocks = list(PartitionReader(directory).read())
    for number, path in enumerate(files):
        assert original(manifest, number) == path.read_bytes()
        segment = unpacked(manifest, number)
        assert len(segment.archived) > 3
        segment.prove()
        stored = stored_blocks(segment)
        wanted = [block for block in blocks if block.file == path]
        assert [block.records(HEADER) for block in stored] == [block.records for block in wanted]
        for ours, block in zip(stored, wanted, strict=True):
            assert ours.entry.first_offset == block.first_offset
            assert ours.entry.max_timestamp_ms == block.max_timestamp_ms
            assert (ours.entry.chain, ours.entry.position) == (block.chain, block.position)


def test_an_archived_block_is_found_by_offset_and_time(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1_000)
    directory = make_log(tmp_path / "data", [3] * 30)
    segment = unpacked(archive_segments(objects, directory, segment_files(directory)))
    for offset in range(90):
        archived = segment.archived[segment.find_offset(offset)]
        assert archived.first_offset <= offset < archived.next_offset
        found = segment.find_timestamp(START_MS + offset - 1)
        assert segment.archived[found] == archived
    assert segment.find_offset(90) == segment.find_timestamp(START_MS + 89) == len(segment.archived)


bodies = st.one_of(st.integers(0, 300), st.sampled_from([65_300, 65_535, 70_000, 140_000]))


@pytest.mark.long
@pytest.mark.usefixtures("earlier_schema")
@settings(max_examples=examples(60), deadline=None)
@given(
    groups=st.lists(st.lists(bodies, min_size=1, max_size=12), min_size=1, max_size=12),
    old_schema=st.booleans(),
    block_bytes=st.sampled_from([1, 500, 100_000, 4 << 20]),
)
def test_any_segment_comes_back_byte_for_byte(
    groups: Sequence[Sequence[int]], old_schema: bool, block_bytes: int
) -> None:
    number = 0
    records: list[list[bytes]] = []
    for group in groups:
        records.append([record(number + at, body_bytes=size) for at, size in enumerate(group)])
        number += len(group)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_BYTES", block_bytes)
        if old_schema:
            patch.setattr("rewindmq.engine.log.embedded.writer.envelope_fingerprint", lambda: EARLIER)
            records = [[under(EARLIER_SCHEMA, one) for one in group] for group in records]
        directory = Path(folder) / "queues-0"
        [path] = write_segment(directory, records)
        manifest = archive_segments(open_objects(f"{folder}/archive", make=True), directory, [path])
        assert original(manifest) == path.read_bytes()
        unpacked(manifest).prove()
        header = header_of(EARLIER) if old_schema else HEADER
        assert [block.records(header) for block in stored_blocks(unpacked(manifest))] == records


def test_records_larger_than_an_archived_block_come_back(objects: Objects, tmp_path: Path) -> None:
    directory = tmp_path / "queues-0"
    groups = [[record(0)], [record(1, body_bytes=5 << 20), record(2)], [record(3, body_bytes=9 << 20)], [record(4)]]
    [path] = write_segment(directory, groups)
    manifest = archive_segments(objects, directory, [path])
    assert original(manifest) == path.read_bytes()
    assert [block.records for block in unpacked(manifest).archived] == [1, 2, 1, 1]


def test_the_same_segment_becomes_the_same_objects(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [7, 1, 30])
    [path] = segment_files(directory)
    with pack(path, beginning(), 1) as one, pack(path, beginning(), 2) as other:
        assert (one.entry.avro, one.entry.blocks, one.blocks) == (other.entry.avro, other.entry.blocks, other.blocks)


def test_a_damaged_segment_is_not_packed(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [7, 1, 30])
    [path] = segment_files(directory)
    whole = bytearray(path.read_bytes())
    whole[-40] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptLog):
        pack(path, beginning(), 1)


def test_a_segment_that_does_not_go_on_is_not_packed(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [10] * 10, segment_bytes=10_000)
    second = segment_files(directory)[1]
    with pytest.raises(CorruptLog, match="what was before is gone"):
        pack(second, beginning(), 1)
    with second.open("rb") as file:
        offset = read_header(second, file.fileno()).base_offset
    with pytest.raises(CorruptLog, match="does not continue"):
        pack(second, BlockEnd(offset, 0, bytes(32), 0), 1)


def test_a_segment_without_records_is_not_packed(tmp_path: Path) -> None:
    [path] = segment_files(make_log(tmp_path / "data", []))
    with pytest.raises(LogError, match="it is still being written"):
        pack(path, beginning(), 1)


def test_a_log_without_index_is_packed_all_the_same(objects: Objects, tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [7, 1, 30])
    [path] = segment_files(directory)
    with pack(path, beginning(), 1) as with_index:
        index_path(path).unlink()
        with pack(path, beginning(), 1) as without:
            assert without.entry == with_index.entry


# -- damage -------------------------------------------------------------------------------------------------------


def small(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """An archived segment of several archived blocks."""
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1_500)
    directory = make_log(tmp_path / "data", [5] * 12)
    return archive_segments(objects, directory, segment_files(directory))


def given_out(manifest: Manifest) -> tuple[list[bytes], list[CorruptObject]]:
    """The records of the archived blocks that are read without an error, and the errors."""
    records: list[bytes] = []
    errors = []
    try:
        segment = unpacked(manifest)
    except CorruptObject as error:
        return [], [error]
    for number in range(len(segment.archived)):
        try:
            records += [each for group in segment.groups(number) for each in group.values]
        except CorruptObject as error:
            errors.append(error)
    return records, errors


@pytest.mark.parametrize("suffix", ["avro", "blocks"])
def test_a_changed_byte_is_found_and_located(
    suffix: str, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes all over both objects, one after the other."""
    manifest = small(objects, tmp_path, monkeypatch)
    whole_segment = unpacked(manifest)
    path = object_path(manifest, manifest.segments[0], suffix)
    whole = path.read_bytes()
    header_end = whole_segment.archived[0].position
    harmless = 0
    places = (
        range(0, len(whole), 97)
        if suffix == "blocks"
        else (*range(0, header_end, 997), *range(header_end, len(whole), 5))
    )
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        records, errors = given_out(manifest)
        assert set(records) <= set(expected(60))
        if not errors:  # the header has no record, and zstd ignores some bits
            assert suffix == "avro"
            assert records == expected(60)
            harmless += at >= header_end
        elif suffix == "avro":
            damaged = next(b for b in reversed(whole_segment.archived) if b.position <= at)
            [error] = errors
            assert (error.position, error.offset) == (damaged.position, damaged.first_offset)
            assert len(records) == 60 - damaged.records
        with pytest.raises(CorruptObject, match=path.name):
            unpacked(manifest).prove()
    assert harmless < len(places) / 5
    path.write_bytes(whole)
    unpacked(manifest).prove()


@pytest.mark.parametrize("suffix", ["avro", "blocks"])
def test_an_object_that_is_cut_or_gone_is_found(
    suffix: str, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = small(objects, tmp_path, monkeypatch)
    path = object_path(manifest, manifest.segments[0], suffix)
    whole = path.read_bytes()
    for end in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        records, errors = given_out(manifest)
        assert errors
        assert records == expected(60)[: len(records)]
        with pytest.raises(CorruptObject):
            unpacked(manifest).prove()
    path.write_bytes(whole + b"x")
    with pytest.raises(CorruptObject):
        unpacked(manifest).prove()
    path.unlink()
    with pytest.raises(CorruptObject, match="is gone"):
        unpacked(manifest).prove()
    records, errors = given_out(manifest)
    assert not records
    assert errors


def test_a_sound_block_at_another_place_is_found(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two archived blocks that change places: whole, of this file, and wrong."""
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1)
    directory = tmp_path / "queues-0"
    groups = [[record(at, START_MS, body_bytes=10)] for at in range(4)]
    [path] = write_segment(directory, groups)
    manifest = archive_segments(objects, directory, [path])
    segment = unpacked(manifest)
    avro = object_path(manifest, manifest.segments[0], "avro")
    data = avro.read_bytes()
    first, second = segment.archived[1], segment.archived[2]
    assert first.length == second.length
    middle = data[second.position : second.position + second.length] + data[first.position : second.position]
    avro.write_bytes(data[: first.position] + middle + data[second.position + second.length :])
    for number in (1, 2):
        with pytest.raises(CorruptObject, match="hash chain"):
            segment.groups(number)
    assert [segment.groups(number)[0].values for number in (0, 3)] == [groups[0], groups[3]]


def test_the_error_comes_from_another_process_whole() -> None:
    error = CorruptObject("s3://bucket/queues-0/segments/1.avro", 5, 7, "why")
    same = pickle.loads(pickle.dumps(error))
    assert str(same) == str(error) == "s3://bucket/queues-0/segments/1.avro: damaged at byte 5 (offset 7): why"
    assert (same.position, same.offset, same.why) == (5, 7, "why")


def test_a_moment_is_the_records_own(objects: Objects, tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [1])
    segment = unpacked(archive_segments(objects, directory, segment_files(directory)))
    [block] = stored_blocks(segment)
    assert bare_timestamp(block.bare[0]) == segment.entry.first_ms == START_MS
