"""Ends the trim of a partition in Kafka: what lies below its floor goes, in Kafka and in the archive.

    end_topic_trim(topic, manifest, metadata_manifest, TopicFloors(metadata).now().get("queues-0"))

Before this comes all of engine/keeping/topic_trim.py: the base is in the archive, and HistoryTrimmed in the metadata
topic. Then:

    1  metadata  the archive has the HistoryTrimmed, too: so topics that are made from it begin where it does
    2  Kafka     drops its records below the floor (DeleteRecords)
    3  entry     `trimmed` in the manifest
    4  objects   those below the floor go (trims.py)

A kill between two steps is made good by the next run of an archiver, or by the next trim.
"""

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.trims import archive_base, delete_trimmed, end_trim
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.projections.topology.about_history import Floor


def end_topic_trim(topic: KafkaPartition, manifest: Manifest, metadata: Manifest, floor: Floor | None) -> int:
    """Remove what lies below the floor of a partition, as soon as the archive has its HistoryTrimmed.

    `metadata`: the manifest of the metadata log. `floor`: the last one in the metadata topic; None: nothing was
    trimmed. Returns the bytes of the objects that went. It may be called again at any time. Raises CorruptObject,
    OtherBase, LogError, NoAnswer."""
    if floor is None or metadata.end <= floor.at:
        return 0
    before, event = manifest.archived_bytes, floor.event
    if event.offset > manifest.floor:
        archive_base(manifest, None, event)
        topic.delete_below(event.offset)
        end_trim(manifest, event)
    delete_trimmed(manifest, event)
    return before - manifest.archived_bytes
