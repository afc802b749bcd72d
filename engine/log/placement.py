"""Which queue partition a queue lives in: the one that Kafka's own partitioner would pick for the key `vhost/queue`, so
that services which append to Kafka themselves agree with the broker."""

_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(vhost: str, queue: str, partitions: int) -> int:
    """The number of the queue's partition, of `partitions`."""
    return (murmur2(f"{vhost}/{queue}".encode()) & 0x7FFFFFFF) % partitions


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
