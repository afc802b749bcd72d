"""Reads an opened history for Spark jobs: its partitions, its beginning, records in groups.

    history(spark, "DATA")                    history(spark, InKafka("localhost:9092"))
    history(spark, InArchive("s3://bucket/prefix"))
    history(spark, InKafka("localhost:9092", archive="s3://bucket/prefix"))      Kafka, and below its start the archive

Functions for users take a `Location` (engine/keeping/location.py) or the path of a data directory. They open the log
read-only, beside a running broker or without one. Only the driver decides how far to read; workers get offsets. Records
of the embedded log carry their time; Kafka gives the time of those in it (`rewindmq.engine.log.shared_contract`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader, InArchive, InDirectory, InKafka, Location
from rewindmq.engine.keeping.tiers import local_base
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.projections.floors import explained, in_words
from rewindmq.projections.replay import PartitionLog, RecordGroup, decoder_for
from rewindmq.projections.rewind import BelowFloor, require_above_floor
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay.location.ranges import BadRequest

if TYPE_CHECKING:
    from rewindmq.schemas.codec import Decoder

# A gap of more records than this is skipped, a smaller one is read through
_JUMP = 1_000


def located(location: Location | str) -> Location:
    """Return the location; a text is the path of a data directory."""
    return InDirectory(Path(location)) if isinstance(location, str) else location


def in_archive(url: str) -> InArchive:
    """Return the archive at a URL, or in a directory by its path, in the form that all processes understand.

    Raises BadRequest for a wrong URL, ObstoreNotInstalled."""
    from rewindmq.engine.keeping.archive.objects import BadUrl, open_objects

    try:
        return InArchive(open_objects(url).url)
    except BadUrl as error:
        raise BadRequest(f"archive: {error}") from None


@lru_cache(maxsize=16)
def is_of_kafka(location: Location) -> bool:
    """Return True if Kafka gave the log its times: the history is in topics, or in an archive of topics.

    Raises ArchiveError, NoAnswer."""
    if isinstance(location, InArchive):
        from rewindmq.engine.keeping.archive.identity import read_identity
        from rewindmq.engine.keeping.archive.objects import open_objects

        identity = read_identity(open_objects(location.url))
        return identity is not None and identity.log == "kafka"
    return isinstance(location, InKafka)


def selected(log: HistoryReader, which: str, names: str | None) -> list[HistoryPartition]:
    """The partitions of `queues`, `metadata` or `all`; with `names` (comma separated) only these, in their order.

    Raises BadRequest."""
    logs = {"queues": [*log.queues], "metadata": [log.metadata], "all": [log.metadata, *log.queues]}
    if which not in logs:
        raise BadRequest(f"log: {which!r} is neither queues, metadata nor all")
    found = {partition.name: partition for partition in logs[which]}
    if names is None:
        return list(found.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadRequest(f"partitions: there is no {missing[0]}; there are {', '.join(found)}")
    return [found[name] for name in wanted]


def first_event_ms(log: HistoryReader) -> int | None:
    """The time at which the history begins: the earliest timestamp of all partitions; None when there is no event."""
    begins = []
    for partition in (log.metadata, *log.queues):
        try:
            begins.append(begin_ms(partition))
        except NoAnswer:
            if partition is log.metadata:
                raise
            continue  # an archive that is away has the beginning; the metadata log is here, and began before
    return min((begin for begin in begins if begin is not None), default=None)


def begin_ms(partition: PartitionLog) -> int | None:
    """Return the time of the oldest record; None while there is none."""
    for block in partition.read(partition.start_offset):
        at = max(0, partition.start_offset - block.first_offset)
        if block.timestamps_ms is not None:
            return block.timestamps_ms[at]
        return decoder_for(partition).timestamp_ms(block.records[at])
    return None


def newest_ms(partition: HistoryPartition, start: int, end: int) -> int | None:
    """Return the time of the newest record of a range; None when the range has no record.

    In Kafka the last offsets may be gaps, so it looks further and further back."""
    reach = 1
    while start < end:
        begin = max(start, end - reach)
        times = [block.max_timestamp_ms for block in partition.read(begin, end)]
        if times:
            return times[-1]
        end = begin
        reach *= 32
    return None


def partition_of(location: Location, name: str) -> HistoryPartition:
    """Return the named partition of the log at a location.

    Raises BadRequest, LogError."""
    return selected(location.open(), "all", name)[0]


def groups_in(partition: PartitionLog, start: int, end: int, rows: int, size: int) -> Iterator[RecordGroup]:
    """Yield the records of a range in order, about `rows` records or `size` bytes at a time.

    Raises CorruptLog, LogError."""
    offsets: list[int] = []
    records: list[bytes] = []
    times: list[int] | None = [] if partition.shared else None
    weight = 0
    for block in partition.read(start, end):
        first, found, logged = block.first_offset, block.records, block.timestamps_ms
        begin, behind = max(0, start - first), min(len(found), end - first)
        while begin < behind:
            stop = min(behind, begin + rows - len(records))
            portion = found[begin:stop]
            portion_bytes = sum(map(len, portion))
            if weight + portion_bytes >= size:  # the first records that reach the size
                portion = list(_up_to(portion, size - weight))
                stop, portion_bytes = begin + len(portion), size
            offsets.extend(range(first + begin, first + stop))
            records.extend(portion)
            if times is not None and logged is not None:
                times.extend(logged[begin:stop])
            weight += portion_bytes
            if len(records) >= rows or weight >= size:
                yield offsets, records, times
                offsets, records, times = [], [], None if times is None else []
                weight = 0
            begin = stop
    if records:
        yield offsets, records, times


def _up_to(records: Sequence[bytes], size: int) -> Iterator[bytes]:
    """Yield records until they have `size` bytes together, one at least."""
    for record in records:
        yield record
        size -= len(record)
        if size <= 0:
            break


def read_messages(location: Location, partition: str, ids: Sequence[int]) -> dict[int, tuple[int, Actor, Published]]:
    """Return the publishes at these offsets, with bodies: (timestamp_ms, actor, event) by id.

    Each block is read once when the ids ascend, as a queue's mostly do."""
    log = partition_of(location, partition)
    decoder = decoder_for(log)
    found: dict[int, tuple[int, Actor, Published]] = {}
    wanted = sorted(ids)
    at = bisect_left(wanted, log.start_offset)
    base = log.base() if at else None
    for message_id in wanted[:at]:
        record = None if base is None else base.record(message_id)
        assert record is not None, f"{partition} offset {message_id} is below the beginning, and not in the base"
        found[message_id] = _published(decoder, record, None)
    kept = local_base(log, wanted[at]) if at < len(wanted) else None
    if kept is not None:
        records = {each: record for each in wanted[at:] if (record := kept.record(each)) is not None}
        found |= {each: _published(decoder, record, None) for each, record in records.items()}
        wanted, at = [each for each in wanted[at:] if each not in records], 0
    while at < len(wanted):
        before = at
        for block in log.read(wanted[at], wanted[-1] + 1):
            first = block.first_offset
            end = first + len(block.records)
            while at < len(wanted) and wanted[at] < end:
                index = wanted[at] - first
                logged_ms = None if block.timestamps_ms is None else block.timestamps_ms[index]
                found[wanted[at]] = _published(decoder, block.records[index], logged_ms)
                at += 1
            if at == len(wanted) or wanted[at] > end + _JUMP:
                break
        assert at > before, f"{partition} offset {wanted[at]} cannot be read"
    return found


def _published(decoder: "Decoder", record: bytes, logged_ms: int | None) -> tuple[int, Actor, Published]:
    timestamp_ms, actor, event = decoder.decode(record, True)
    assert isinstance(event, Published), "a message's id is the offset of its publish"
    return timestamp_ms if logged_ms is None else logged_ms, actor, event


def require_kept(log: HistoryReader, partitions: Sequence[HistoryPartition], time_ms: int) -> None:
    """Raise BelowFloor when a time lies before the beginning of one of these partitions, whose older part was trimmed.

    Raises LogError."""
    for partition in partitions:
        try:
            require_above_floor(partition, time_ms)
        except BelowFloor as error:
            raise explained(error, log.topology().history.floors) from None


def beginnings(log: HistoryReader, since_ms: int | None) -> list[str]:
    """Where the partitions begin whose older part is gone, a line each. Partitions with all since a time are left out.

    `since_ms`: None for the beginning of the history. Raises LogError."""
    begun_late = [each for each in log.queues if each.start_offset > 0]
    floors = log.topology().history.floors if begun_late else {}
    lines = []
    for partition in begun_late:
        floor, begins = floors.get(partition.name), f"{partition.name} begins at offset {partition.start_offset}"
        if floor is None:
            lines.append(begins)
        elif since_ms is None or since_ms <= floor.event.until_ms:
            lines.append(f"{begins}: {in_words(floor)}")
    return lines
