"""Reading through the archive gives what reading the directory gives, by few requests, and never a changed byte."""

import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import pack as packs
from rewindmq.engine.keeping.archive import reader as readers
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog, ArchivedPartition
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.archiving import archive_all, archive_segments, object_path, write_segment
from tests.support.examples import examples
from tests.support.other_schema import EARLIER
from tests.support.records import SCHEMA_BYTES, START_MS, contents, expected, make_log, record


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "cache", readers.Cache(readers.CACHE_BYTES))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The keys and ranges of objects that were fetched."""
    requests: list[tuple[Any, ...]] = []
    get, get_range = Objects.get, Objects.get_range

    def noted_get(self: Objects, key: str) -> bytes:
        requests.append((key,))
        return get(self, key)

    def noted_range(self: Objects, key: str, start: int, end: int) -> bytes:
        requests.append((key, start, end))
        return get_range(self, key, start, end)

    monkeypatch.setattr(Objects, "get", noted_get)
    monkeypatch.setattr(Objects, "get_range", noted_range)
    return requests


def facts(block: Block) -> tuple[Any, ...]:
    return block.first_offset, block.records, block.max_timestamp_ms, block.chain


@pytest.mark.long
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stretches=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    begins=st.lists(st.integers(0, 300), min_size=4, max_size=4),
    segment_bytes=st.sampled_from([1, SCHEMA_BYTES + 1_000, SCHEMA_BYTES + 2_000, 1 << 20]),
    block_bytes=st.sampled_from([1, 300, 4 << 20]),
    cache_bytes=st.sampled_from([0, 20_000, 1 << 26]),
    seed=st.integers(0, 1 << 30),
)
def test_reading_through_the_archive_equals_reading_the_directory(
    stretches: list[list[tuple[int, int]]],
    begins: list[int],
    segment_bytes: int,
    block_bytes: int,
    cache_bytes: int,
    seed: int,
    tmp_path: Path,
) -> None:
    """`stretches`: groups of records, with how much later each begins. The clock is set at each stretch."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_BYTES", block_bytes)
        patch.setattr(readers, "cache", readers.Cache(cache_bytes))
        data = Path(folder) / "data"
        log = EmbeddedLog.open(data, 1, segment_bytes)
        log.metadata.append(0, record(0, 0))
        number = 0
        for at, groups in zip(begins, stretches, strict=False):
            now = at
            log.queues[0].begin_time_anew()
            for later, count in groups:
                now += later
                for _ in range(count):
                    log.queues[0].append(now, record(number, now))
                    number += 1
                log.commit_and_wait()
        log.close()
        stored = EmbeddedLogReader(data).queues[0]
        archived = ArchivedLog(archive_all(data, f"{folder}/archive").url).queues[0]
        assert (archived.start_offset, archived.next_offset) == (0, number)
        assert list(map(facts, archived.read())) == list(map(facts, stored.read()))
        chosen = random.Random(seed)
        for _ in range(12):
            start, end = chosen.randrange(number + 2), chosen.choice([None, chosen.randrange(number + 2)])
            assert list(map(facts, archived.read(start, end))) == list(map(facts, stored.read(start, end)))
        for time in sorted(chosen.randrange(-1, 900) for _ in range(20)):
            assert archived.offset_at(time) == stored.offset_at(time), time
        ranges = [(at, at + 1) for at in sorted(chosen.sample(range(number), min(number, 5)))]
        assert list(map(facts, archived.read_ranges(ranges))) == list(map(facts, stored.read_ranges(ranges)))


def test_ten_records_cost_one_object_of_blocks_and_one_archived_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[Any, ...]]
) -> None:
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1_000)
    make_log(tmp_path / "data", [10] * 90, segment_bytes=SCHEMA_BYTES + 2_100)
    log = ArchivedLog(archive_all(tmp_path / "data", str(tmp_path / "archive")).url)
    partition = log.queues[0]
    assert len(partition.segments) > 2
    middle = partition.segments[1].base_offset + 20
    asked.clear()
    assert contents(partition.read(middle, middle + 10))[middle % 10 :][:10] == expected(900)[middle : middle + 10]
    [blocks], (avro, start, end) = asked
    assert blocks.endswith(f"segments/{partition.segments[1].blocks.name}")
    assert avro.endswith(f"segments/{partition.segments[1].avro.name}")
    assert end - start < 1_000
    asked.clear()
    list(partition.read(middle, middle + 10))
    assert asked == []
    assert partition.offset_at(START_MS + middle - 1) == middle
    assert asked == []


def test_a_new_reader_sees_what_was_added_and_reads_only_that(
    tmp_path: Path, objects: Objects, asked: list[tuple[Any, ...]]
) -> None:
    directory = make_log(tmp_path / "data", [10] * 90, segment_bytes=SCHEMA_BYTES + 2_100)
    files = segment_files(directory)
    archive_segments(objects, directory, files[:2])
    before = ArchivedPartition(objects, "queues-0")
    assert before.next_offset == int(files[2].stem)
    archive_segments(objects, directory, files[2:])
    asked.clear()
    assert ArchivedPartition(objects, "queues-0").next_offset == 900
    assert asked == [(f"queues-0/manifest/{number:010d}.json",) for number in range(2, len(files))]


def test_the_cache_holds_no_more_than_it_may() -> None:
    cache = readers.Cache(100)
    made: list[int] = []

    def asked_for(number: int) -> int:
        def make() -> int:
            made.append(number)
            return number

        return cache.get(number, make, lambda _: 40)

    assert [asked_for(number) for number in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]
    assert cache._size == 80
    assert cache.get("large", lambda: 5, lambda _: 1_000) == 5
    assert cache._size == 1_000


@pytest.mark.usefixtures("earlier_schema")
def test_records_of_an_older_schema_are_given_as_in_a_directory(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewindmq.engine.log.embedded.writer.envelope_fingerprint", lambda: EARLIER)
    directory = tmp_path / "queues-0"
    records = expected(8, EARLIER)
    files = write_segment(directory, [records[:5], records[5:]])
    archive_segments(objects, directory, files)
    for partition in (PartitionReader(directory), ArchivedPartition(objects, "queues-0")):
        assert [block.records for block in partition.read()] == [records[:5], records[5:]]


def test_a_schema_of_another_version_is_named_with_its_object(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_log(tmp_path / "data", [3])
    archive_segments(objects, directory, segment_files(directory))
    monkeypatch.setattr("rewindmq.engine.log.embedded.segment_schema.envelope_schema_json", lambda: '"string"')
    monkeypatch.setattr("rewindmq.engine.log.embedded.segment_schema.older_schema", lambda schema: "0123456789abcdef")
    with pytest.raises(LogError, match=r"file://.*queues-0/segments/0{20}-\w{16}\.avro: a newer version"):
        list(ArchivedPartition(objects, "queues-0").read())


@pytest.mark.parametrize("suffix", ["avro", "blocks"])
@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_damage_is_located_and_never_given_out(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch, suffix: str, harm: str
) -> None:
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1_000)
    directory = make_log(tmp_path / "data", [10] * 90, segment_bytes=SCHEMA_BYTES + 2_100)
    manifest: Manifest = archive_segments(objects, directory, segment_files(directory))
    path = object_path(manifest, manifest.segments[1], suffix)
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[-200] ^= 4
        path.write_bytes(data)
    partition = ArchivedPartition(objects, "queues-0")
    given_out: list[bytes] = []

    def read() -> None:
        for block in partition.read():
            given_out.extend(block.records)

    with pytest.raises(CorruptObject, match=rf"file://.*{path.name}: damaged at byte \d+ \(offset \d+\)") as caught:
        read()
    assert given_out == expected(900)[: len(given_out)]
    assert len(given_out) <= caught.value.offset or suffix == "blocks"
    behind = manifest.segments[2].base_offset
    assert contents(partition.read(behind))[-1:] == expected(900)[-1:]


def test_a_log_and_its_partitions_are_pickled_by_their_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(tmp_path / "data", [7, 1, 30])
    log = ArchivedLog(archive_all(tmp_path / "data", str(tmp_path / "archive")).url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    for stored in (pickle.dumps(log), pickle.dumps(log.queues[0])):
        assert b"do-not-tell" not in stored
        assert len(stored) < 300
    assert contents(pickle.loads(pickle.dumps(log)).queues[0].read()) == expected(38)
    assert contents(pickle.loads(pickle.dumps(log.queues[0])).read()) == expected(38)


def test_no_archive_and_an_empty_partition(tmp_path: Path, objects: Objects) -> None:
    with pytest.raises(ArchiveError, match=r"archive\.json: there is no archive here"):
        ArchivedLog(objects.url)
    empty = ArchivedPartition(objects, "queues-5")
    assert (empty.next_offset, list(empty.read()), empty.offset_at(5)) == (0, [], 0)
