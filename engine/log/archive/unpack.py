"""Opens an archived segment, of an embedded log or of a log in Kafka."""

from rewindmq.engine.log.archive.manifest import TOPIC, SegmentEntry
from rewindmq.engine.log.archive.objects import Objects
from rewindmq.engine.log.archive.pack import Unpacked
from rewindmq.engine.log.archive.topic_pack import UnpackedTopic


def unpacked(objects: Objects, partition: str, entry: SegmentEntry) -> Unpacked | UnpackedTopic:
    """The segment of an entry, to read.

    Raises CorruptObject, NoAnswer."""
    kind = UnpackedTopic if entry.kind == TOPIC else Unpacked
    return kind(objects, partition, entry)
