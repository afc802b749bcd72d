"""Stretches of topics for tests of the archive: packed without a Kafka."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rewindmq.engine.keeping.archive.identity import HistoryIdentity, require_identity
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.pack import KafkaRecord
from rewindmq.engine.keeping.archive.topic_archiver import packer_behind
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.schemas.codec import Decoder


def archive_as_topics(data: Path, url: str, begun_with: int, skews: Mapping[str, int] | None = None) -> Objects:
    """Archive the log of a data directory as if it were in topics. The archive is begun with so many partitions.

    `skews`: by how many milliseconds the clock of each partition differs; then each record is a stretch of its own."""
    objects, log, time_of = open_objects(url, make=True), EmbeddedLogReader(data), Decoder().timestamp_ms
    for count in (begun_with, len(log.queues)):
        require_identity(objects, HistoryIdentity("history", count, "kafka"))
    for partition in log.partitions:
        records = [
            KafkaRecord(offset, time_of(record) + (skews or {}).get(partition.name, 0), record, b"")
            for block in partition.read()
            for offset, record in enumerate(block.records, block.first_offset)
        ]
        for stretch in [[each] for each in records] if skews else filter(None, [records]):
            _pack(objects, partition.name, stretch)
    return objects


def archive_stretch(objects: Objects, partition: str, records: Iterable[KafkaRecord], trailing: int = 0) -> Manifest:
    """Archive these records behind what is archived of the partition, with a gap of `trailing` offsets behind them."""
    require_identity(objects, HistoryIdentity("history", 1, "kafka"))
    return _pack(objects, partition, records, trailing)


def _pack(objects: Objects, partition: str, records: Iterable[KafkaRecord], trailing: int = 0) -> Manifest:
    manifest = Manifest.load(objects, partition)
    packer = packer_behind(manifest)
    for record in records:
        packer.add(record)
    with packer.finish(packer.next_offset + trailing, archived_ms=7) as packed:
        entry = packed.entry
        objects.create(manifest.key(entry, entry.avro), packed.avro)
        objects.create(manifest.key(entry, entry.blocks), packed.blocks)
    manifest.extend(entry)
    return manifest


def unpacked_topic(manifest: Manifest, number: int = 0) -> Unpacked:
    """An archived stretch, to read."""
    return Unpacked(manifest.objects, manifest.partition, manifest.segments[number])


def archived_records(manifest: Manifest) -> list[KafkaRecord]:
    """All archived records of a partition."""
    segments = [unpacked_topic(manifest, number) for number in range(len(manifest.segments))]
    return [record for each in segments for number in range(len(each.archived)) for record in each.records(number)]


def normal(records: Sequence[KafkaRecord]) -> list[KafkaRecord]:
    """The records with headers of one type, to compare."""
    return [record._replace(headers=[(name, value) for name, value in record.headers]) for record in records]
