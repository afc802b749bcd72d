"""Records to fill a log with. Each has its number in its route and its body."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import fastavro

from rewindmq.engine.log.contract import Block, LogPartition
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.schemas.events import Acked, Published
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema_json
from rewindmq.schemas.single_object import HEADER_SIZE
from rewindmq.schemas.values import Actor, Route

START_MS = 1_763_715_845_000
SCHEMA_BYTES = len(envelope_schema_json())  # in the header of each segment: they grow with every new event
ACTOR = Actor("guest", 7)


def record(
    number: int, timestamp_ms: int | None = None, body_bytes: int | None = None, schema: str = envelope_fingerprint()
) -> bytes:
    """Record n. Every third is an ack; bodies are of different sizes unless `body_bytes` is given."""
    time = START_MS + number if timestamp_ms is None else timestamp_ms
    encoder = encoder_under(schema)
    prefix = encoder.prefix(time, ACTOR)
    if number % 3 == 2 and body_bytes is None:
        return encoder.encode(prefix, Acked("/", "orders", 1, ((number, number + 1),)))
    body = str(number).encode().ljust(number % 40 if body_bytes is None else body_bytes, b".")
    route = Route("/", "", f"key.{number}", ("orders",))
    return encoder.encode(prefix, Published(route, b"\0\0", persistent=True, body=body, body_size=len(body)))


def fill(partition: LogPartition, numbers: Iterable[int]) -> None:
    for number in numbers:
        partition.append(START_MS + number, record(number, schema=partition.schema))


def avro_rows(file: IO[bytes]) -> list[dict[str, Any]]:
    """All rows of an Avro container file."""
    rows: list[dict[str, Any]] = []
    for row in fastavro.reader(file):
        assert isinstance(row, dict)
        rows.append(row)
    return rows


def contents(blocks: Iterable[Block]) -> list[bytes]:
    """All records, after a check that the blocks' offsets join."""
    records: list[bytes] = []
    start = None
    for block in blocks:
        start = block.first_offset if start is None else start
        assert block.first_offset == start + len(records)
        records += block.records
    return records


def expected(count: int, schema: str = envelope_fingerprint()) -> list[bytes]:
    return [record(number, schema=schema) for number in range(count)]


def bare(records: Iterable[bytes]) -> list[bytes]:
    """Records as a segment has them."""
    return [each[HEADER_SIZE:] for each in records]


def make_log(data: Path, groups: Iterable[int], segment_bytes: int = 1 << 28) -> Path:
    """Make a closed log of one queue partition, with groups of so many records. Returns the partition's directory."""
    log = EmbeddedLog.open(data, 1, segment_bytes)
    at = 0
    for size in groups:
        fill(log.queues[0], range(at, at + size))
        log.commit_and_wait()
        at += size
    log.close()
    return data / "log" / "queues-0"


def reopened(data: Path, use: Callable[[EmbeddedLog], None] = lambda log: None) -> list[bytes]:
    """The records that a broker which starts on this directory finds in the queue partition."""
    log = EmbeddedLog.open(data, 1)
    try:
        assert log.queues[0].durable_offset == log.queues[0].next_offset
        use(log)
        return contents(log.queues[0].read())
    finally:
        log.close()
