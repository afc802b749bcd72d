"""The hash that places queues: a queue's partition is the one that Kafka's own partitioner picks for `vhost/queue`.

So services that append to Kafka themselves agree with the broker. After a repartition a queue may be elsewhere:
projections/topology/placement.py says where.

The number of partitions must therefore stay. Kafka lets an admin add some: then the places of the existing queues tell
how many partitions there were (`count_of`)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Home = tuple[int, str, str]  # number of the partition, vhost, queue

REMEMBERED: Final = 65_536  # names; a fan-out asks for those of all its queues with every publish

_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(REMEMBERED)
def partition_of(vhost: str, queue: str, partitions: int) -> int:
    """Return the number of the queue's partition, out of `partitions` partitions."""
    return (murmur2(f"{vhost}/{queue}".encode()) & 0x7FFFFFFF) % partitions


def number_of(partition: str) -> int:
    """Return the number of the partition with this name."""
    return int(partition.rpartition("-")[2])


def astray(homes: Iterable[Home], partitions: int) -> Home | None:
    """Return the first queue that does not lie where this number of partitions would put it; None if there is none."""
    return next((home for home in homes if partition_of(home[1], home[2], partitions) != home[0]), None)


def count_of(homes: Iterable[Home], most: int) -> int | None:
    """Return the largest number of partitions, up to `most`, that puts all these queues where they lie.

    None: there is none."""
    homes = list(homes)
    return next((count for count in range(most, 0, -1) if astray(homes, count) is None), None)


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed of Kafka's Java client; unsigned."""
    length = len(data)
    value = 0x9747B28C ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15
