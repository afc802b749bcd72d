"""Logs of several segments in a data directory, with traffic that leaves messages in queues, and bases for them."""

from pathlib import Path

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files, segment_path, stated_chain
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.bases import Bases, queued_offsets
from tests.support.records import SCHEMA_BYTES
from tests.support.traffic import Traffic

SEGMENT_BYTES = SCHEMA_BYTES + 1_100
PARTITION = "queues-0"


def write_traffic(data: Path, seed: int = 3, turns: int = 60) -> Traffic:
    """Write a log of several segments, and close it. Returns the traffic, with the machine at its end."""
    log = EmbeddedLog.open(data, 1, SEGMENT_BYTES)
    traffic = Traffic(seed, log=log.queues[0])
    for _ in range(turns):
        traffic.run(20)
        log.commit_and_wait()
    log.close()
    assert len(starts(data)) >= 5
    return traffic


def directory_of(data: Path) -> Path:
    return data / "log" / PARTITION


def reader_of(data: Path) -> PartitionReader:
    return PartitionReader(directory_of(data))


def starts(data: Path) -> list[int]:
    """The base offsets of the segments."""
    return [base_offset_of(path) for path in segment_files(directory_of(data))]


def write_base(data: Path, offset: int, chain: bytes | None = None) -> Path:
    """Write the base at a segment's base offset. `chain`: the hash chain that it states; None: the one that is true."""
    reader = reader_of(data)
    machine = state_at(reader, None, At(offset=offset))
    chain = chain or stated_chain(segment_path(reader.directory, offset))
    queued = queued_offsets(machine)
    older = reader.base()
    records = []
    for each in queued:
        record = None if older is None else older.record(each)
        if record is None:
            [block] = list(reader.read(each, each + 1))
            record = block.records[each - block.first_offset]
        records.append((each, record))
    assert queued, "the traffic leaves messages in the queues"
    return Bases(data / "bases").write(machine, chain, records)
