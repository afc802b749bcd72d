"""Stretches of topics for tests of the archive: packed without a Kafka."""

from collections.abc import Iterable, Sequence

from rewindmq.engine.log.archive.identity import Identity, require_identity
from rewindmq.engine.log.archive.manifest import Manifest
from rewindmq.engine.log.archive.objects import Objects
from rewindmq.engine.log.archive.topic_pack import TopicPacker, TopicRecord, UnpackedTopic


def archive_stretch(objects: Objects, partition: str, records: Iterable[TopicRecord], trailing: int = 0) -> Manifest:
    """Archive these records behind what is archived of the partition, with a gap of `trailing` offsets behind them."""
    require_identity(objects, Identity("history", 1, "kafka"))
    manifest = Manifest.load(objects, partition)
    packer = TopicPacker(partition, manifest.end, manifest.chain, manifest.max_timestamp_ms)
    for record in records:
        packer.add(record)
    with packer.finish(packer.next_offset + trailing, archived_ms=7) as packed:
        entry = packed.entry
        objects.create(manifest.key(entry, entry.avro), packed.avro)
        objects.create(manifest.key(entry, entry.blocks), packed.blocks)
    manifest.extend(entry)
    return manifest


def unpacked_topic(manifest: Manifest, number: int = 0) -> UnpackedTopic:
    """An archived stretch, to read."""
    return UnpackedTopic(manifest.objects, manifest.partition, manifest.segments[number])


def archived_records(manifest: Manifest) -> list[TopicRecord]:
    """All archived records of a partition."""
    segments = [unpacked_topic(manifest, number) for number in range(len(manifest.segments))]
    return [record for each in segments for number in range(len(each.archived)) for record in each.records(number)]


def normal(records: Sequence[TopicRecord]) -> list[TopicRecord]:
    """The records with headers of one type, to compare."""
    return [record._replace(headers=[(name, value) for name, value in record.headers]) for record in records]
