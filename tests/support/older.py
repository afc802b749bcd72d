"""Logs as earlier versions wrote them: segments of format 1, whose blocks have no check."""

from pathlib import Path

from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segment_schema import older_schema
from rewindmq.engine.log.embedded.segments import MAGIC, encode_long, read_header, segment_files
from tests.support.other_schema import EARLIER_SCHEMA, under


def to_format_1(directory: Path) -> None:
    """Write a partition anew, block by block, as format 1. The next reader makes the index."""
    blocks = list(PartitionReader(directory).read())  # with records of today
    for path in segment_files(directory):
        with path.open("rb") as file:
            header = read_header(path, file.fileno())
        older = older_schema(header.schema)
        metadata = {
            b"avro.schema": header.schema.encode(),
            b"avro.codec": b"null",
            b"rewindmq.format": b"1",
            b"rewindmq.partition": header.partition.encode(),
            b"rewindmq.base_offset": str(header.base_offset).encode(),
        }
        parts = [MAGIC, encode_long(len(metadata))]
        parts += [encode_long(len(part)) + part for item in metadata.items() for part in item]
        parts += [b"\0", header.sync]
        for block in blocks:
            if block.file == path:
                records = (
                    block.records if older is None else [under(EARLIER_SCHEMA, record) for record in block.records]
                )
                parts += [encode_long(len(records)), encode_long(sum(map(len, records))), *records, header.sync]
        path.write_bytes(b"".join(parts))
        index_path(path).unlink()
        lengths_path(path).unlink()
