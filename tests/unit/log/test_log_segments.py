"""The files: plain Avro for every tool, rolled by size, numbered by offset, chained, found by time."""

import hashlib
import json
import pickle
import random
import struct
from array import array
from pathlib import Path

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.log.contract import LogError, NewerSchema
from rewindmq.engine.log.embedded import log as embedded
from rewindmq.engine.log.embedded import reader, segment_schema
from rewindmq.engine.log.embedded.index import encode_lengths, lengths_path, split
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import max_bare_timestamp, segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections import system_calls
from rewindmq.schemas import walk
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema, envelope_schema_json
from rewindmq.schemas.single_object import HEADER
from rewindmq.schemas.values import Actor
from tests.support.examples import examples
from tests.support.other_schema import EARLIER
from tests.support.records import SCHEMA_BYTES, START_MS, bare, contents, expected, fill, make_log, record, reopened
from tests.support.strategies import actors, timestamps
from tests.support.strategies import events as any_event


def test_a_segment_is_a_plain_avro_container_file(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [7, 1, 30])
    [path] = segment_files(directory)
    assert path.name == "0" * 20 + ".avro"
    with path.open("rb") as file:
        avro = fastavro.reader(file, return_record_name=True)
        assert avro.codec == "deflate"
        assert json.loads(avro.metadata["avro.schema"]) == envelope_schema()
        assert avro.metadata["rewindmq.partition"] == "queues-0"
        assert avro.metadata["rewindmq.base_offset"] == "0"
        assert avro.metadata["rewindmq.format"] == "1"
        assert avro.metadata["rewindmq.chain_before"] == hashlib.sha256(b"queues-0").hexdigest()
        envelopes = [each for each in avro if isinstance(each, dict)]
    assert len(envelopes) == 38
    for stored, ours in zip(envelopes, expected(38), strict=True):
        timestamp_ms, actor, event = Decoder().decode(ours)
        assert stored["timestamp"].timestamp() * 1000 == pytest.approx(timestamp_ms)
        assert stored["actor"] == {"user": actor.user, "session": actor.session}
        name, fields = stored["event"]
        assert name == f"rewindmq.history.{type(event).__name__}"
        if isinstance(event, Published):
            assert fields["body"] == event.body
            assert fields["route"]["routing_key"] == event.route.routing_key
    with path.open("rb") as file:
        assert [block.num_records for block in fastavro.block_reader(file)] == [7, 1, 30]


def test_segments_roll_by_size_and_join(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [10] * 40, segment_bytes=SCHEMA_BYTES)
    segments = EmbeddedLogReader(tmp_path).queues[0].segments()
    assert len(segments) > 3
    assert [segment.file for segment in segments] == segment_files(directory)
    assert [segment.base_offset for segment in segments[1:]] == [segment.next_offset for segment in segments[:-1]]
    assert segments[-1].next_offset == 400
    for segment in segments[:-1]:
        assert SCHEMA_BYTES <= segment.size == segment.file.stat().st_size < SCHEMA_BYTES + 1_500
        assert segment.max_timestamp_ms == START_MS + segment.next_offset - 1
        with segment.file.open("rb") as file:
            assert fastavro.reader(file).metadata["rewindmq.base_offset"] == str(segment.base_offset)
    assert reopened(tmp_path) == expected(400)
    log = EmbeddedLogReader(tmp_path).queues[0]
    for offset in range(0, 400, 7):
        found = next(log.read(offset, offset + 1))
        assert found.records[offset - found.first_offset] == record(offset)
        assert log.offset_at(START_MS + offset) == offset + 1


def test_the_chain_runs_from_the_name_over_every_record(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [5] * 30, segment_bytes=SCHEMA_BYTES + 2_000)
    chain = hashlib.sha256(b"queues-0").digest()
    blocks = list(EmbeddedLogReader(tmp_path).queues[0].read())
    for path in segment_files(directory):
        for block in (block for block in blocks if block.file == path):
            bare = [each.removeprefix(HEADER) for each in block.records]
            lengths = b"".join(struct.pack("<I", len(each)) for each in bare)
            head = struct.pack(">QIB", block.first_offset, len(bare), 4)
            chain = hashlib.sha256(chain + head + HEADER + lengths + b"".join(bare)).digest()
            assert block.chain == chain
    verified = list(verify_chain(directory))
    assert verified[-1].chain == chain
    assert sum(segment.records for segment in verified) == 150
    assert sum(segment.blocks for segment in verified) == 30


def test_many_small_blocks_are_all_read_by_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one read of the index and of the segment; none falls back on walking."""
    monkeypatch.setattr(reader, "BYTES_AT_ONCE", 5_000)
    monkeypatch.setattr(system_calls, "sync_data", lambda descriptor: None)
    directory = make_log(tmp_path, [1] * 700)
    monkeypatch.setattr(walk, "skip", None)
    [segment] = verify_chain(directory)
    assert segment.blocks == 700
    log = EmbeddedLogReader(tmp_path).queues[0]
    assert contents(log.read()) == expected(700)
    for offset in range(700):
        assert next(log.read(offset)).first_offset == offset


def test_a_large_group_becomes_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "BLOCK_BYTES", 5_000)
    make_log(tmp_path, [1_000])
    blocks = list(EmbeddedLogReader(tmp_path).queues[0].read())
    assert len(blocks) > 5
    assert contents(blocks) == expected(1_000)
    assert all(sum(map(len, block.records)) < 5_200 for block in blocks)


def test_a_reader_needs_no_broker_and_travels(tmp_path: Path) -> None:
    """Spark sends it to its workers; beside a broker it sees what is written."""
    log = EmbeddedLog.open(tmp_path, 1)
    outside = pickle.loads(pickle.dumps(EmbeddedLogReader(tmp_path)))
    assert outside.queues[0].next_offset == 0
    fill(log.queues[0], range(10))
    assert list(outside.queues[0].read()) == []
    log.commit_and_wait()
    assert contents(outside.queues[0].read()) == expected(10)
    assert outside.queues[0].durable_offset == 10
    fill(log.queues[0], range(10, 20))
    log.commit_and_wait()
    assert contents(pickle.loads(pickle.dumps(outside.queues[0])).read()) == expected(20)
    assert [partition.name for partition in outside.partitions] == ["metadata-0", "queues-0"]
    log.close()


def test_a_reader_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no RewindMQ log is here"):
        EmbeddedLogReader(tmp_path)
    with pytest.raises(LogError, match="no segment of a log is here"):
        list(verify_chain(tmp_path / "log" / "queues-0"))


@pytest.mark.usefixtures("earlier_schema")
def test_another_schema_begins_a_new_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log goes on under its schema until it is told another one. Each record says its schema."""
    with monkeypatch.context() as earlier:
        earlier.setattr("rewindmq.engine.log.embedded.writer.envelope_fingerprint", lambda: EARLIER)
        directory = make_log(tmp_path, [6])
    log = EmbeddedLog.open(tmp_path, 1)
    partition = log.queues[0]
    assert partition.schema == EARLIER
    fill(partition, range(6, 9))
    partition.write_under(envelope_fingerprint())
    log.commit_and_wait()
    assert len(segment_files(directory)) == 1  # another one is begun with the first write, not before
    fill(partition, range(9, 11))
    log.close()
    assert [path.stem[-1] for path in segment_files(directory)] == ["0", "9"]
    records = contents(EmbeddedLogReader(tmp_path).queues[0].read())
    assert records == expected(9, EARLIER) + expected(11)[9:]
    log = EmbeddedLog.open(tmp_path, 1)
    assert log.queues[0].schema == envelope_fingerprint()
    log.close()


@pytest.mark.usefixtures("earlier_schema")
def test_a_record_of_another_schema_than_its_block_is_not_written(tmp_path: Path) -> None:
    """It would be read as one of the block's schema."""
    directory = make_log(tmp_path, [2])
    writer = PartitionWriter(directory, 1 << 30, begin=False)
    with pytest.raises(AssertionError, match="the records of a block have its schema"):
        writer.write([record(2), record(3, schema=EARLIER)], START_MS)
    writer.close()
    assert reopened(tmp_path) == expected(2)


@pytest.mark.parametrize("sizes", [(5,), (5_000,), (5, 9), (5_000, 3, 9_000), (0, 70_000)])
def test_records_of_every_size_get_their_header_back(sizes: tuple[int, ...]) -> None:
    bare_ones = [random.Random(size).randbytes(size) for size in sizes]
    lengths = encode_lengths(array("I", sizes))
    raw = b"before" + b"".join(bare_ones) + b"behind"
    assert split(raw, 6, lengths) == bare_ones
    assert split(raw, 6, lengths, HEADER) == [HEADER + each for each in bare_ones]


def test_a_schema_that_nobody_released_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(tmp_path, [6])
    monkeypatch.setattr(segment_schema, "older_schema", lambda schema: "newer")
    with pytest.raises(NewerSchema, match=r"a newer version of RewindMQ wrote this .* no released schema"):
        EmbeddedLog.open(tmp_path, 1)


def test_lengths_that_are_wrong_mislead_nobody(tmp_path: Path) -> None:
    directory = make_log(tmp_path, [10, 10])
    file = lengths_path(segment_files(directory)[0])
    lengths = array("I", file.read_bytes())
    lengths[3], lengths[4] = lengths[4], lengths[3]
    file.write_bytes(lengths.tobytes())
    assert contents(EmbeddedLogReader(tmp_path).queues[0].read()) == expected(20)
    assert reopened(tmp_path) == expected(20)
    file.unlink()
    assert contents(EmbeddedLogReader(tmp_path).queues[0].read()) == expected(20)
    assert reopened(tmp_path) == expected(20)
    assert array("I", file.read_bytes()) == array("I", map(len, bare(expected(20))))


@given(st.lists(st.tuples(timestamps, actors, any_event), min_size=1, max_size=5))
@settings(max_examples=examples(150), deadline=None)
def test_walking_splits_every_event(events: list[tuple[int, Actor, Event]]) -> None:
    encoder = Encoder()
    records = bare(encoder.encode(encoder.prefix(time, actor), event) for time, actor, event in events)
    program = walk.compile_schema(envelope_schema_json())
    assert walk.record_lengths(program, b"".join(records), len(records)) == list(map(len, records))
    assert max_bare_timestamp(records) == max(time for time, _, _ in events)


def test_walking_finds_the_same_ends_as_avro() -> None:
    program = walk.compile_schema(envelope_schema_json())
    records = bare(expected(50))
    assert walk.record_lengths(program, b"".join(records), 50) == list(map(len, records))
    for wrong in (49, 51):
        with pytest.raises(walk.MalformedRecord):
            walk.record_lengths(program, b"".join(records), wrong)
    for cut in range(1, len(records[0])):
        with pytest.raises(walk.MalformedRecord):
            walk.record_lengths(program, records[0][:cut], 1)
