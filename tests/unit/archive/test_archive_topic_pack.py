"""A stretch of a topic becomes two objects and comes back as Kafka had it; what was changed in them is found and not
given out."""

import json
from pathlib import Path

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.manifest import BaseEntry, Manifest, StoredObject, TrimmedEntry
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.pack import KafkaRecord, Packer
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.unpack import CorruptObject, Unpacked
from rewindmq.engine.log.chain import RUN, TopicChain, first_chain
from rewindmq.schemas.registry import envelope_schema
from rewindmq.schemas.single_object import HEADER, MARKER
from tests.support.archiving import object_path
from tests.support.examples import examples
from tests.support.other_schema import EARLIER_SCHEMA, under
from tests.support.records import START_MS, record
from tests.support.topic_archiving import archive_stretch, archived_records, normal, unpacked_topic

pytestmark = pytest.mark.usefixtures("earlier_schema")

PARTITION = "queues-0"


def old_value() -> bytes:
    """A record of an older version."""
    return under(EARLIER_SCHEMA, record(0))


def plain(count: int, first: int = 0) -> list[KafkaRecord]:
    """Records without gaps, one millisecond apart."""
    return [
        KafkaRecord(number, START_MS + number, record(number), b"//orders") for number in range(first, first + count)
    ]


ODD = [
    KafkaRecord(0, START_MS, record(0), b"//orders", [("trace", b"\x00\xff"), ("empty", None)]),
    KafkaRecord(2, START_MS + 5, record(1), None),
    KafkaRecord(3, START_MS + 1, b"no event", b""),
    KafkaRecord(4, START_MS + 1, None, b"//orders"),
    KafkaRecord(9, START_MS + 9, old_value(), "kö".encode()),
    KafkaRecord(10, START_MS + 9, HEADER + b"\x01\x02 is no record", b"//orders"),
    KafkaRecord(11, START_MS + 9, record(2), b"//orders"),
]


def test_the_events_are_a_plain_avro_file(objects: Objects) -> None:
    manifest = archive_stretch(objects, PARTITION, ODD, trailing=2)
    [entry] = manifest.segments
    with object_path(manifest, entry, "avro").open("rb") as file:
        avro = fastavro.reader(file)
        assert avro.codec == "zstandard"
        assert json.loads(avro.metadata["avro.schema"]) == envelope_schema()
        assert len(list(avro)) == 3, "what is no event of the schema is not in it"
    assert (entry.base_offset, entry.next_offset, entry.first_ms) == (0, 14, START_MS)
    assert entry.max_timestamp_ms == START_MS + 9
    assert archived_records(manifest) == ODD


def test_the_hash_chain_is_that_of_the_topic(objects: Objects) -> None:
    manifest = archive_stretch(objects, PARTITION, ODD, trailing=2)
    links = TopicChain(0, first_chain(PARTITION))
    for each in ODD:
        links.add(each.offset, each.timestamp_ms, each.value)
    assert manifest.chain == links.ends_at(14)


def test_a_stretch_repeats_the_group_in_which_the_one_before_ends(objects: Objects) -> None:
    told = plain(RUN + 30)
    archive_stretch(objects, PARTITION, told[:10])
    archive_stretch(objects, PARTITION, told[10 : RUN + 10])
    manifest = archive_stretch(objects, PARTITION, told[RUN + 10 :])
    ranges = [(each.group_offset, each.base_offset, each.next_offset) for each in manifest.segments]
    assert ranges == [(0, 0, 10), (0, 10, RUN + 10), (RUN, RUN + 10, RUN + 30)]
    assert archived_records(manifest) == told
    links = TopicChain(0, first_chain(PARTITION))
    for each in told:
        links.add(each.offset, each.timestamp_ms, each.value)
    assert manifest.chain == links.ends_at(RUN + 30)
    assert manifest.linked == (RUN, links.chain)


def test_a_floor_inside_a_stretch_begins_with_what_the_next_one_repeats(objects: Objects) -> None:
    """Only a group's beginning can be a floor. The records behind it are in the objects that begin there."""
    told = plain(RUN + 30)
    archive_stretch(objects, PARTITION, told[: RUN + 10])
    manifest = archive_stretch(objects, PARTITION, told[RUN + 10 :])
    manifest.extend(BaseEntry(RUN, StoredObject("a.base", 1, ""), 7))
    manifest.extend(TrimmedEntry(RUN, manifest.segments[-1].chain_before, "", START_MS, (), "", 7))
    for found in (manifest, Manifest.load(objects, PARTITION)):
        assert [(each.group_offset, each.base_offset) for each in found.segments] == [(RUN, RUN)]
        unpacked_topic(found).prove()
        assert archived_records(found) == told[RUN:]


def test_a_stretch_has_the_schema_of_its_first_record(objects: Objects) -> None:
    older = [KafkaRecord(number, START_MS, old_value(), b"") for number in range(3)]
    manifest = archive_stretch(objects, PARTITION, older)
    with object_path(manifest, manifest.segments[0], "avro").open("rb") as file:
        avro = fastavro.reader(file)
        assert json.loads(avro.metadata["avro.schema"]) == EARLIER_SCHEMA
        assert len(list(avro)) == 3
    assert archived_records(manifest) == older


@pytest.mark.parametrize("value", [None, b"no event", MARKER + bytes(8) + b"of an unknown schema"])
def test_a_stretch_without_any_event(objects: Objects, value: bytes | None) -> None:
    records = [KafkaRecord(3, START_MS, value, None)]
    manifest = archive_stretch(objects, PARTITION, records)
    unpacked_topic(manifest).prove()
    assert archived_records(manifest) == records
    with object_path(manifest, manifest.segments[0], "avro").open("rb") as file:
        assert list(fastavro.reader(file)) == []


VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.just(old_value()),
    st.integers(0, 50).map(record),
    st.binary(max_size=20).map(lambda data: HEADER + data),
)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(-5, 5), VALUES, st.sampled_from([None, b"", b"//orders", b"\xff"]), HEADERS
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.long
@settings(max_examples=examples(80))
@given(stretches=st.lists(st.tuples(STEPS, st.integers(0, 3)), min_size=1, max_size=3), block=st.integers(1, 200))
def test_any_records_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    stretches: list[tuple[list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], int]],
    block: int,
) -> None:
    objects = open_objects(str(tmp_path_factory.mktemp("archive")))
    offset, time_ms, told = 0, START_MS, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "BLOCK_BYTES", block)
        for steps, trailing in stretches:
            records = []
            for gap, step, value, key, headers in steps:
                offset, time_ms = offset + gap, time_ms + step
                records.append(KafkaRecord(offset, time_ms, value, key, headers))
                offset += 1
            offset += trailing
            manifest = archive_stretch(objects, PARTITION, records, trailing)
            told += records
    assert normal(archived_records(manifest)) == normal(told)
    assert [error for _, error in verify(objects, PARTITION)] == [None] * len(stretches)
    [partition] = ArchivedLog(objects.url).queues
    assert (partition.next_offset, partition.shared) == (offset, True)
    for start, end in ((0, None), (offset // 2, None), (offset // 3, offset // 2)):
        read = [
            (block.first_offset + at, block.timestamps_ms[at], value)
            for block in partition.read(start, end)
            for at, value in enumerate(block.records)
            if block.timestamps_ms is not None
        ]
        wanted = [(each.offset, each.timestamp_ms, each.value or b"") for each in told]
        behind = offset if end is None else end
        assert [row for row in read if start <= row[0] < behind] == [row for row in wanted if start <= row[0] < behind]
    for at_ms in {each.timestamp_ms for each in told} | {START_MS - 100, START_MS + 1_000}:
        first = next((each.offset for each in told if each.timestamp_ms > at_ms), offset)
        assert partition.offset_at(at_ms) == first


def test_stretches_that_differ_only_in_a_value_are_told_apart(tmp_path: Path) -> None:
    for number in (1, 3):
        objects = open_objects(str(tmp_path / str(number)), make=True)
        told = [KafkaRecord(0, START_MS, record(number, START_MS, 5), None)]
        archive_stretch(objects, PARTITION, told)
        [block] = ArchivedLog(objects.url).queues[0].read()
        assert block.records == [told[0].value]


def test_a_stretch_ends_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_, second = plain(RUN + 1)
    packer = Packer(PARTITION, 0, 0, first_chain(PARTITION), 0)
    assert not packer.ends_before(first)
    packer.add(first)
    assert not packer.ends_before(second)
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 1)
    assert packer.ends_before(second)
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 10)
    monkeypatch.setattr(pack, "STRETCH_BYTES", packer.size_bytes)
    assert packer.ends_before(second)
    packer.close()


def test_many_values_of_another_version_get_a_stretch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ASIDE_BYTES", 100)
    packer = Packer(PARTITION, 0, 0, first_chain(PARTITION), 0)
    packer.add(plain(1)[0])
    offset = 1
    while not packer.ends_before(KafkaRecord(offset, START_MS, old_value(), b"")):
        packer.add(KafkaRecord(offset, START_MS, old_value(), b""))
        offset += 1
    assert offset == RUN, "where the group ends"
    packer.close()


@pytest.mark.parametrize("suffix", ["avro", "blocks"])
def test_each_changed_byte_is_found(objects: Objects, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "BLOCK_BYTES", 300)
    manifest = archive_stretch(objects, PARTITION, [*ODD, *plain(5, 14)])
    path = object_path(manifest, manifest.segments[0], suffix)
    stored = path.read_bytes()
    for at in range(0, len(stored), max(1, len(stored) // 150)):
        path.write_bytes(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
        with pytest.raises(CorruptObject) as raised:
            unpacked_topic(manifest).prove()
        assert raised.value.place.startswith(objects.url)
    for cut in (stored[:-1], stored + b"\0", b""):
        path.write_bytes(cut)
        with pytest.raises(CorruptObject):
            unpacked_topic(manifest).prove()
    path.unlink()
    with pytest.raises(CorruptObject, match="the object is gone"):
        unpacked_topic(manifest).prove()


def test_blocks_of_another_partition_are_refused(objects: Objects) -> None:
    manifest = archive_stretch(objects, PARTITION, plain(3))
    other = Manifest(objects, "queues-1")
    entry = manifest.segments[0]
    for stored in (entry.avro, entry.blocks):
        objects.create(other.key(entry, stored), objects.get(manifest.key(entry, stored)))
    with pytest.raises(CorruptObject):
        Unpacked(objects, "queues-1", entry).prove()
