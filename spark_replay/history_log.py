"""What Spark jobs need of the log of a data directory: its partitions, where a history begins, records in groups.

Everything here opens the log read-only, beside a running broker or without one. Only the driver decides how far to
read; workers are given offsets.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.log.reader import EmbeddedLogReader, PartitionReader
from projections.rewind import begin_ms
from schemas.codec import Decoder
from schemas.events import Actor, Published
from spark_replay.ranges import BadRequest, Range

# A gap of more records than this is jumped over, a smaller one read through
_JUMP = 1_000


def open_log(data: str) -> EmbeddedLogReader:
    """LogError when there is no log."""
    return EmbeddedLogReader(Path(data))


def selected(log: EmbeddedLogReader, which: str, names: str | None) -> list[PartitionReader]:
    """The partitions of `queues`, `metadata` or `all`; of these only `names` (comma separated), in the order given."""
    logs = {"queues": log.queues, "metadata": [log.metadata], "all": log.partitions}
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


def first_event_ms(log: EmbeddedLogReader) -> int | None:
    """When the history begins: the earliest timestamp of all partitions; None when there is no event."""
    return min((begin for partition in log.partitions if (begin := begin_ms(partition)) is not None), default=None)


def partition_of(data: str, name: str) -> PartitionReader:
    return selected(open_log(data), "all", name)[0]


def read_groups(data: str, stretch: Range, rows: int, size: int) -> Iterator[tuple[int, Sequence[bytes]]]:
    """The records of a stretch as (first offset, records), in order, about `rows` records or `size` bytes at a time.
    CorruptLog."""
    if stretch.start >= stretch.end:
        return
    first = stretch.start
    group: list[bytes] = []
    weight = 0
    for block in partition_of(data, stretch.partition).read(stretch.start, stretch.end):
        skip = max(0, stretch.start - block.first_offset)
        for record in block.records[skip : stretch.end - block.first_offset]:
            group.append(record)
            weight += len(record)
            if len(group) >= rows or weight >= size:
                yield first, group
                first += len(group)
                group, weight = [], 0
    if group:
        yield first, group


def read_messages(data: str, partition: str, ids: Sequence[int]) -> dict[int, tuple[int, Actor, Published]]:
    """The publishes at these offsets, with bodies: (timestamp_ms, actor, event) by id. Each block is read once when the
    ids ascend, as a queue's mostly do."""
    log = partition_of(data, partition)
    decode = Decoder().decode
    found: dict[int, tuple[int, Actor, Published]] = {}
    wanted = sorted(ids)
    at = 0
    while at < len(wanted):
        for block in log.read(wanted[at], wanted[-1] + 1):
            end = block.first_offset + len(block.records)
            while at < len(wanted) and wanted[at] < end:
                timestamp_ms, actor, event = decode(block.records[wanted[at] - block.first_offset], True)
                assert isinstance(event, Published), f"{partition} offset {wanted[at]} is no publish"
                found[wanted[at]] = (timestamp_ms, actor, event)
                at += 1
            if at == len(wanted) or wanted[at] > end + _JUMP:
                break
    return found
