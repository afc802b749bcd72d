"""The promises that every log keeps, as tests over a fixture `history`: each kind of log has its own."""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from rewindmq.projections.replay import Block, PartitionLog, decoder_for
from tests.support.records import START_MS, expected, record

SECONDS = 60


class History(Protocol):
    """A log, to append to and to read. Partitions are metadata-0, queues-0, queues-1."""

    @property
    def partitions(self) -> Sequence[PartitionLog]: ...

    def append(self, partition: int, records: Sequence[bytes]) -> None:
        """Returns when they can be read."""

    def reopen(self) -> None: ...

    def close(self) -> None: ...


def in_range(partition: PartitionLog, start: int = 0, end: int | None = None) -> list[tuple[int, bytes]]:
    """Offsets and records. The first and the last block may hold more than was asked for."""
    found = []
    for block in partition.read(start, end):
        for at, each in enumerate(block.records):
            if start <= block.first_offset + at and (end is None or block.first_offset + at < end):
                found.append((block.first_offset + at, each))
    return found


def timestamps(partition: PartitionLog, blocks: Iterator[Block]) -> list[int]:
    """The log's own, where it gives them."""
    decode = decoder_for(partition).timestamp_ms
    times: list[int] = []
    for block in blocks:
        times += [decode(each) for each in block.records] if block.timestamps_ms is None else block.timestamps_ms
    return times


def test_all_partitions_are_there_and_empty(history: History) -> None:
    assert [partition.name for partition in history.partitions] == ["metadata-0", "queues-0", "queues-1"]
    for partition in history.partitions:
        assert (partition.start_offset, partition.next_offset) == (0, 0)
        assert list(partition.read()) == []
        assert partition.offset_at(START_MS) == 0


def test_records_are_read_as_they_were_in_order_in_their_partition(history: History) -> None:
    numbers = [range(number, 300, 3) for number in range(3)]
    for start in range(0, 100, 20):
        for at in range(3):
            history.append(at, [record(number) for number in numbers[at][start : start + 20]])
    for partition, own in zip(history.partitions, numbers, strict=True):
        assert in_range(partition) == list(enumerate(record(number) for number in own))
        assert (partition.start_offset, partition.next_offset) == (0, 100)


def test_any_range_is_read(history: History) -> None:
    queue = history.partitions[1]
    for group in range(10):
        history.append(1, [record(number) for number in range(group * 10, group * 10 + 10)])
    everything = list(enumerate(expected(100)))
    for start, end in ((0, 1), (9, 11), (35, 36), (40, 50), (95, 999), (99, 100), (0, 100), (55, None), (0, None)):
        assert in_range(queue, start, end) == everything[start:end], (start, end)
    assert [list(queue.read(start, end)) for start, end in ((100, None), (100, 200), (50, 50), (50, 0))] == [[]] * 4


def test_a_time_leads_to_the_first_later_offset(history: History) -> None:
    """State at T is the fold of everything below `offset_at(T)`; what happened at T belongs to it."""
    queue = history.partitions[2]
    for group in range(4):
        history.append(2, [record(number, int(time.time() * 1000)) for number in range(group * 5, group * 5 + 5)])
        time.sleep(0.003)
    times = timestamps(queue, queue.read())
    assert times == sorted(times)
    assert len(times) == 20
    for moment in {one + more for one in times for more in (-1, 0, 1)} | {0, times[-1] + 10**6}:
        assert queue.offset_at(moment) == sum(1 for other in times if other <= moment), moment


def is_there_when_opened_again(history: History) -> None:
    history.append(0, expected(3))
    history.append(1, expected(10))
    times = timestamps(history.partitions[1], history.partitions[1].read())
    history.reopen()
    history.append(1, [record(number) for number in range(10, 15)])
    assert [in_range(partition) for partition in history.partitions] == [
        list(enumerate(expected(count))) for count in (3, 15, 0)
    ]
    assert timestamps(history.partitions[1], history.partitions[1].read(0, 10))[:10] == times
    history.reopen()
    assert in_range(history.partitions[1]) == list(enumerate(expected(15)))
