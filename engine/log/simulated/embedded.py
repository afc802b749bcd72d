"""A log in memory with the embedded log's contract, for simulations whose faults are derived from a seed.

    log = MemoryLog(2, Faults(seed=7, commit_delay_seconds=0.2, failure_rate=0.1), call_later=simulation.call_later)
    ... the broker appends, commits, and is cut off anywhere ...
    log = log.crash()          # the log that a restarted broker finds

Faults like those of a disk:
- a commit lands late (up to `commit_delay_seconds`), while more is appended;
- a commit fails (`failure_rate`) and is retried; blocks that some partitions had already written stay written;
- in a crash every durable block survives. Of the written blocks that were not confirmed, a part from the front survives
  whole. The next block is damaged, as bytes: sectors of it are lost or older, or a stale block or one of another
  partition replaces it. The embedded log's own checks (log/embedded/blocks.py) decide whether the damaged block is
  found, and the rest is lost.
"""

import asyncio
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.log.chain import first_chain, link
from rewindmq.engine.log.contract import Block, LogListener
from rewindmq.engine.log.embedded.blocks import BadBlock, block_lengths, encode_block, parse_block, require_place
from rewindmq.engine.log.embedded.directory import METADATA, queue_partition
from rewindmq.engine.log.embedded.index import encode_lengths, split
from rewindmq.engine.log.embedded.segments import Header, record_timestamp
from rewindmq.schemas.registry import envelope_fingerprint, schema_json
from rewindmq.schemas.single_object import HEADER_SIZE, schema_in

CallLater = Callable[[float, Callable[[], None]], object]
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a disk.

    The longest delay of a commit, the share of commits that fail, the share of blocks torn by a crash."""

    seed: int = 0
    commit_delay_seconds: float = 0.0
    failure_rate: float = 0.0
    torn_rate: float = 0.5


class MemoryPartition:
    """A partition in memory."""

    shared = False

    def __init__(self, name: str, blocks: list[Block]) -> None:
        self.name = name
        self.start_offset = 0
        self.blocks = blocks  # written; those from durable_offset on may be lost in a crash
        self.schema = schema_in(blocks[-1].records[0]) if blocks else envelope_fingerprint()
        self.durable_offset = self._written()
        self.next_offset = self.durable_offset
        self._gathering: list[bytes] = []
        self._newest_ms = blocks[-1].max_timestamp_ms if blocks else 0

    def append(self, timestamp_ms: int, record: bytes) -> int:
        self._gathering.append(record)
        self._newest_ms = max(self._newest_ms, timestamp_ms)
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def append_all(self, timestamp_ms: int, records: list[bytes]) -> int:
        first = self.next_offset
        for record in records:
            self.append(timestamp_ms, record)
        return first

    def begin_time_anew(self) -> None:
        self.write()
        self._newest_ms = 0

    def write_under(self, schema: str) -> None:
        self.write()  # a block has one schema
        self.schema = schema

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        end = self.durable_offset if end is None else min(end, self.durable_offset)
        first = max(0, bisect_right(self.blocks, offset, key=lambda block: block.first_offset) - 1)
        for block in self.blocks[first:]:
            if block.first_offset >= end:
                return
            if block.first_offset + len(block.records) > offset:
                yield block

    def kept_record(self, offset: int) -> bytes | None:
        return None  # it begins at offset 0

    def offset_at(self, timestamp_ms: int) -> int:
        blocks = list(self.read())
        newest = [block.max_timestamp_ms for block in blocks]
        begins = [0, *(at for at in range(1, len(blocks)) if newest[at] < newest[at - 1])]  # where time begins anew
        ends = [*begins[1:], len(blocks)]
        for begin, end in zip(reversed(begins), reversed(ends), strict=True):
            stretch = blocks[begin:end]
            if not stretch or (begin and record_timestamp(stretch[0].records[0]) > timestamp_ms):
                continue
            for block in stretch:
                if block.max_timestamp_ms > timestamp_ms:
                    for at, record in enumerate(block.records):
                        if record_timestamp(record) > timestamp_ms:
                            return block.first_offset + at
            return stretch[-1].first_offset + len(stretch[-1].records)
        return self.durable_offset

    def base(self) -> None:
        """Return None, because it begins at offset 0."""

    def write(self) -> bool:
        """Make a block of the gathered records. Return True if any written block is not yet durable."""
        if self._gathering:
            chain = self.blocks[-1].chain if self.blocks else first_chain(self.name)
            lengths = encode_lengths(array("I", map(len, self._gathering)))
            chain = link(chain, self._written(), self._gathering[0][:HEADER_SIZE], lengths, self._gathering)
            block = Block(
                self._written(), tuple(self._gathering), self._newest_ms, chain, Path(self.name), len(self.blocks)
            )
            self.blocks.append(block)
            self._gathering = []
        return self._written() > self.durable_offset

    def land(self, end: int) -> bool:
        """Make everything before `end` durable, and return True if that changed anything."""
        moved = end > self.durable_offset
        self.durable_offset = max(end, self.durable_offset)
        return moved

    def _written(self) -> int:
        return self.blocks[-1].first_offset + len(self.blocks[-1].records) if self.blocks else 0


class MemoryLog:
    """A log in memory, with the contract of `EmbeddedLog`."""

    def __init__(self, partitions: int, faults: Faults | None = None, call_later: CallLater | None = None) -> None:
        """Begin empty. `call_later(seconds, callback)` is the clock; None: the running loop's."""
        self._listener: LogListener | None = None
        self.metadata = MemoryPartition(METADATA, [])
        self.queues = [MemoryPartition(queue_partition(number), []) for number in range(partitions)]
        self._faults = faults or Faults()
        self._random = random.Random(self._faults.seed)
        self._disk = random.Random(f"disk {self._faults.seed}")
        self._call_later = call_later
        self._under_way = False
        self._dead = False

    @property
    def partitions(self) -> list[MemoryPartition]:
        return [self.metadata, *self.queues]

    def start(self, listener: LogListener) -> None:
        self._listener = listener

    def commit(self) -> None:
        if self._under_way or not self._write():
            return
        self._under_way = True
        ends = [partition.next_offset for partition in self.partitions]
        self._later(self._random.uniform(0, self._faults.commit_delay_seconds), lambda: self._landed(ends))

    def commit_and_wait(self) -> None:
        self._write()
        if self._land([partition.next_offset for partition in self.partitions]) and self._listener is not None:
            self._listener.durable()

    def full(self) -> bool:
        return False

    @property
    def crowded(self) -> bool:
        return False

    def has_room(self, size: int) -> bool:
        return True

    @property
    def waiting_large_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self.commit_and_wait()
        self._dead = True

    def crash(self) -> "MemoryLog":
        """Kill the broker now, so that nothing calls back. Return the log that the next broker opens."""
        self._dead = True
        faults = Faults(
            self._random.getrandbits(64),
            self._faults.commit_delay_seconds,
            self._faults.failure_rate,
            self._faults.torn_rate,
        )
        after = MemoryLog(len(self.queues), faults, self._call_later)
        survivors = [MemoryPartition(partition.name, self._survive(partition)) for partition in self.partitions]
        after.metadata, after.queues = survivors[0], survivors[1:]
        return after

    def _survive(self, partition: MemoryPartition) -> list[Block]:
        kept: list[Block] = []
        for block in partition.blocks:
            if block.first_offset >= partition.durable_offset and self._random.random() < self._faults.torn_rate:
                others = [_stored(other, other.blocks[-1]) for other in self.partitions if other.blocks]
                found = _found(partition, block, _damaged(self._disk, partition, block, kept, others))
                return kept if found is None else [*kept, found]
            kept.append(block)
        return kept

    def _write(self) -> bool:
        return bool(sum([partition.write() for partition in self.partitions]))

    def _land(self, ends: list[int]) -> bool:
        return bool(sum([partition.land(end) for partition, end in zip(self.partitions, ends, strict=True)]))

    def _landed(self, ends: list[int]) -> None:
        if self._dead:
            return
        failed = self._random.random() < self._faults.failure_rate
        if failed:  # some partitions were written before the disk refused
            ends = [end if self._random.random() < 0.5 else 0 for end in ends]
        moved = self._land(ends)
        self._under_way = failed
        if failed:
            self._later(RETRY_SECONDS, self._retry)
        else:
            self.commit()
        if self._listener is None:
            return
        if moved:
            self._listener.durable()
        if failed:
            self._listener.commit_failed(OSError(28, "No space left on device (simulated)"))

    def _retry(self) -> None:
        if not self._dead:
            self._under_way = False
            self.commit()

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._call_later is not None:
            self._call_later(seconds, callback)
        else:
            asyncio.get_running_loop().call_later(seconds, callback)


# -- a block as a crash leaves it --------------------------------------------------------------------------------------


def _header(partition: MemoryPartition, block: Block) -> Header:
    chain = first_chain(partition.name)
    return Header(schema_json(schema_in(block.records[0])), partition.name, 0, chain[:16], b"", chain)


def _chain_before(partition: MemoryPartition, block: Block) -> bytes:
    return partition.blocks[block.position - 1].chain if block.position else first_chain(partition.name)


def _stored(partition: MemoryPartition, block: Block) -> bytes:
    """Return a block as the embedded log stores it."""
    bare = [record[HEADER_SIZE:] for record in block.records]
    sync = _header(partition, block).sync
    return encode_block(bare, sum(map(len, bare)), sync, block.first_offset, _chain_before(partition, block))


def _damaged(
    chance: random.Random, partition: MemoryPartition, block: Block, before: list[Block], others: list[bytes]
) -> bytes:
    """Return the bytes that replace an unsynced block.

    `before`: the blocks before it in its partition; `others`: blocks of all partitions."""
    raw = _stored(partition, block)
    stale = [_stored(partition, each) for each in before[-3:]]
    kind = chance.choice(("gone", "short", "zeros", "older", "stale", "misdirected"))
    if kind == "gone":
        return b""
    if kind == "short":
        return raw[: chance.randrange(len(raw))]
    if kind == "stale" and stale:
        return chance.choice(stale)
    if kind == "misdirected":
        return chance.choice(others)
    older = b"".join(stale) if kind == "older" else b""
    content = bytearray(raw)
    for at in range(-chance.randrange(512), len(raw), 512):
        if chance.random() < 0.5:
            start, end = max(0, at), min(len(raw), at + 512)
            content[start:end] = older[start:end].ljust(end - start, b"\0")
    return bytes(content)


def _found(partition: MemoryPartition, block: Block, stored: bytes) -> Block | None:
    """Return the block that an opened log finds instead of `block`; None if its checks refuse the bytes."""
    header = _header(partition, block)
    try:
        parsed = parse_block(stored, 0, header)
        require_place(parsed, 0, block.first_offset, _chain_before(partition, block))
        lengths = encode_lengths(block_lengths(parsed, 0, header))
    except BadBlock:
        return None
    records = tuple(split(parsed.data, parsed.start, lengths, block.records[0][:HEADER_SIZE]))
    return Block(block.first_offset, records, block.max_timestamp_ms, block.chain, block.file, block.position)
